package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/version"
	"go.etcd.io/raft/v3/raftpb"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"
)

// A lone member becomes three; one of them loses its disk and comes back as a new member; another one is removed.
func TestTheLivesOfThreeMembers(t *testing.T) {
	t.Parallel()
	n1, n2, n3 := newNode(t, "n1", "11111111-a"), newNode(t, "n2", "22222222-a"), newNode(t, "n3", "33333333-a")

	lone := startServer(t, ServerConfig{Dir: n1.dir, Name: "n1", Token: "cluster-1"})
	_, err := lone.Client().Put(t.Context(), "/first", "1")
	must(t, err)
	loneID := lone.MemberID()
	lone.Close()

	n1.start("")
	equal(t, n1.server.MemberID(), loneID)
	must(t, n1.server.SetPeerURL(t.Context()))
	equal(t, n1.server.LocalMembers(), []Member{{ID: loneID, Name: "n1-11111111", PeerURL: n1.url(), Started: true, Leader: true}})
	equal(t, n1.get("/first"), "1")

	// The second node waits for a third before it votes.
	n2.join(n1)
	oldID := n2.server.MemberID()
	n2.waitsToVote()
	equal(t, voters(t, n2), []string{"n1-11111111"})
	equal(t, n2.get("/first"), "1")
	n2.isOfFullUse()
	stale := n3.admitted(n1).InitialCluster
	equal(t, n3.admitted(n2).InitialCluster, stale)
	n3.start(stale)
	becomeVoters(t, n2, n3, n1)
	equal(t, voters(t, n3), []string{"n1-11111111", "n2-22222222", "n3-33333333"})
	full, err := n1.server.Admit(t.Context(), Joiner{Name: "n4", StoreUUID: "44444444", PeerURL: "https://127.0.0.1:2"})
	must(t, err)
	equal(t, full.InitialCluster, "")
	equal(t, len(full.Members), 3)

	n2.stop()
	n3.put("/second", "2")
	n2.losesItsDisk(n1, oldID, stale)
	equal(t, voters(t, n1), []string{"n1-11111111", "n2-2b2b2b2b", "n3-33333333"})

	// The leader goes; the two that are left, one of them the new one, have everything and go on.
	n1.stop()
	n3.put("/third", "3")
	equal(t, n2.get("/first")+n2.get("/second")+n2.get("/third"), "123")

	// A member learns that it was removed, also if it was down.
	must(t, n2.removeMember(n1.store))
	n1.open("")
	wantError(t, n1.server.Ready(t.Context()), ErrRemoved)
	stopped := make(chan error, 1)
	go func() { stopped <- n3.server.Run(t.Context()) }()
	must(t, n2.removeMember(n3.store))
	wantError(t, next(t, stopped), ErrRemoved)
	equal(t, voters(t, n2), []string{"n2-2b2b2b2b"})
	equal(t, n2.get("/third"), "3")
}

// waitsToVote checks that a learner stays one for now.
func (n *node) waitsToVote() {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), 3*promoteEvery)
	defer cancel()
	wantError(n.t, n.server.EnsureVoter(ctx), context.DeadlineExceeded)
}

// isOfFullUse checks that the plane works over a member that does not vote or lead: its lease, leader leases, a term, a watch.
func (n *node) isOfFullUse() {
	t := n.t
	p := openEtcd(t, n.server)
	_, err := p.Register(t.Context(), store("b", 1))
	must(t, err)
	lease := p.session.current()
	p.renew(t.Context())
	equal(t, p.session.current(), lease)
	equal(t, p.Health(t.Context()).LeaseLive, true)
	told := make(chan LeaderRecord, 10)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	go func() { done <- p.Run(ctx) }()
	go func() { done <- p.WatchLeaders(ctx, func(r LeaderRecord) { told <- r }) }()
	grants, err := p.AcquireLeaders(t.Context(), []LeaderClaim{{1, 6}})
	must(t, err)
	equal(t, grants[0].Held, true)
	equal(t, next(t, told), LeaderRecord{Shard: 1, Epoch: 6, Store: "b", Addr: "b:7070"})
	term, err := p.Campaign(t.Context())
	must(t, err)
	must(t, p.SetStoreState(t.Context(), term, "b", StoreDraining))
	must(t, p.Resign(t.Context(), term))
	cancel()
	<-done
	<-done
}

// losesItsDisk checks that a node without its disk never starts under its old id, and makes it a new member.
func (n *node) losesItsDisk(by *node, oldID uint64, stale string) {
	t := n.t
	must(t, os.RemoveAll(n.dir))
	for _, uuid := range []string{n.store, "2b2b2b2b-b"} {
		n.store = uuid
		_, err := OpenServer(t.Context(), n.config(stale))
		wantError(t, err, ErrNotAdmitted)
		if holds, err := HoldsMember(n.dir); holds || err != nil {
			t.Fatalf("a refused start left a member: %v", err)
		}
	}
	admission := n.admitted(by)
	// An answer from before is not good enough even now that the address is that of a new member.
	other := n.config(stale)
	other.Name = MemberName(n.name, "2c2c2c2c")
	_, err := OpenServer(t.Context(), other)
	wantError(t, err, ErrNotAdmitted)

	n.start(admission.InitialCluster)
	if n.server.MemberID() == oldID {
		t.Fatal("it started under its old id")
	}
	becomeVoters(t, n)
	equal(t, n.get("/second"), "2")
}

func (n *node) removeMember(store string) error {
	for {
		err := n.server.RemoveMember(n.t.Context(), store)
		if !errors.Is(err, ErrBusy) && !errors.Is(err, ErrUnavailable) {
			return err
		}
		select {
		case <-n.t.Context().Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// postRaft sends n a raft message as another member would.
func postRaft(t *testing.T, n *node, from, to uint64) int {
	t.Helper()
	body, err := proto.Marshal(&raftpb.Message{Type: raftpb.MsgHeartbeat.Enum(), From: &from, To: &to})
	must(t, err)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, n.url()+"/raft", bytes.NewReader(body))
	must(t, err)
	r.Header.Set("X-Server-From", strconv.FormatUint(from, 16))
	r.Header.Set("X-Server-Version", version.Version)
	r.Header.Set("X-Min-Cluster-Version", version.MinClusterVersion)
	r.Header.Set("X-Etcd-Cluster-ID", n.server.etcd.Server.Cluster().ID().String())
	client, err := n.config("").peerClient()
	must(t, err)
	defer client.CloseIdleConnections()
	response, err := client.Do(r)
	must(t, err)
	must(t, response.Body.Close())
	return response.StatusCode
}

// A member that lags behind may take another one at the same address for its predecessor. Whatever it is told, it must
// not be the word to a removed member, at which it would stop and give up its data.
func TestAMessageForAPredecessorIsNotAnsweredAsToARemovedMember(t *testing.T) {
	t.Parallel()
	n := newNode(t, "n1", "11111111-a")
	n.start("")
	if status := postRaft(t, n, n.server.MemberID(), 4711); status < 500 {
		t.Errorf("status is %d", status)
	}
}

// Two nodes that ask at the same time each start with a list of members that may lack the other.
func TestNodesThatJoinAtTheSameTimeBothGetIn(t *testing.T) {
	t.Parallel()
	n1, n2, n3 := newNode(t, "n1", "11111111-a"), newNode(t, "n2", "22222222-a"), newNode(t, "n3", "33333333-a")
	n1.start("")
	second := n2.admitted(n1)
	third := n3.admitted(n1)
	n2.start(second.InitialCluster)
	n2.waitsToVote()
	n3.start(third.InitialCluster)
	becomeVoters(t, n2, n3)
	equal(t, len(voters(t, n1)), 3)
	// All three at once after a stop: nobody can be ready before the others serve their peers.
	for _, n := range []*node{n1, n2, n3} {
		n.stop()
	}
	for _, n := range []*node{n1, n2, n3} {
		n.open("")
	}
	for _, n := range []*node{n1, n2, n3} {
		must(t, n.server.Ready(t.Context()))
		must(t, n.server.EnsureVoter(t.Context()))
	}
}

func TestPlanAdmission(t *testing.T) {
	member := func(name, addr string, marks string) Member {
		return Member{Name: name, PeerURL: addr, Learner: strings.Contains(marks, "l"), Started: strings.Contains(marks, "s")}
	}
	one, three := member("n1-11111111", "1", "s"), member("n3-33333333", "3", "s")
	for _, c := range []struct {
		name    string
		members []Member
		want    admissionPlan
	}{
		{"first of others", []Member{one}, admissionPlan{add: true}},
		{"third", []Member{one, three}, admissionPlan{add: true}},
		{"enough", []Member{one, three, member("n4-44444444", "4", "ls")}, admissionPlan{}},
		{"asks again", []Member{one, member("n2-2222abcd", "2", "l"), three}, admissionPlan{admitted: true}},
		{"asks again after it has started", []Member{one, member("n2-2222abcd", "2", "ls"), three},
			admissionPlan{remove: []Member{member("n2-2222abcd", "2", "ls")}, add: true}},
		{"asks again after it has voted", []Member{one, member("n2-2222abcd", "2", "s"), three},
			admissionPlan{remove: []Member{member("n2-2222abcd", "2", "s")}, add: true}},
		{"has lost its disk", []Member{one, member("n2-00000000", "2", "s"), three},
			admissionPlan{remove: []Member{member("n2-00000000", "2", "s")}, add: true}},
		{"has lost its disk before it started", []Member{one, member("n2-00000000", "2", "l")},
			admissionPlan{remove: []Member{member("n2-00000000", "2", "l")}, add: true}},
		{"has moved", []Member{one, member("n2-2222abcd", "9", "s"), three},
			admissionPlan{remove: []Member{member("n2-2222abcd", "9", "s")}, add: true}},
		{"at the address of another", []Member{one, member("n5-55555555", "2", "s")},
			admissionPlan{remove: []Member{member("n5-55555555", "2", "s")}, add: true}},
		{"name that begins like another's", []Member{one, member("n2-b-00000000", "7", "s")}, admissionPlan{add: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			equal(t, planAdmission(c.members, Joiner{Name: "n2", StoreUUID: "2222abcd-e", PeerURL: "2"}), c.want)
		})
	}
}

// A member whose log no longer goes back to the beginning sends a joiner its database.
func TestAJoinerGetsASnapshot(t *testing.T) {
	t.Parallel()
	n1, n2 := newNode(t, "n1", "11111111-a"), newNode(t, "n2", "22222222-a")
	n1.start("")
	group := new(errgroup.Group)
	group.SetLimit(16)
	for i := range snapshotEntries + catchUpEntries {
		group.Go(func() error {
			_, err := n1.server.Client().Put(t.Context(), fmt.Sprintf("/%d", i%100), strings.Repeat("x", 100))
			return err
		})
	}
	must(t, group.Wait())
	n1.put("/last", "1")
	n2.join(n1)
	equal(t, n2.get("/last"), "1")
	received, err := filepath.Glob(filepath.Join(n2.dir, "member", "snap", "*.snap"))
	must(t, err)
	equal(t, len(received), 1)

	// Its directory is that of one of two now: without its address it would wait for the other for ever.
	n2.stop()
	alone := n2.config("")
	alone.PeerURL, alone.TLS = "", TLSFiles{}
	if _, err := OpenServer(t.Context(), alone); err == nil || !strings.Contains(err.Error(), "one of 2 members") {
		t.Fatalf("error is %v", err)
	}
}

func TestWhichLearnersMayVote(t *testing.T) {
	voter := func(id uint64) Member { return Member{ID: id, Started: true} }
	learner := func(id uint64) Member { return Member{ID: id, Started: true, Learner: true} }
	unstarted := func(id uint64) Member { return Member{ID: id, Learner: true} }
	for _, c := range []struct {
		name    string
		members []Member
		may     string
	}{
		{"two nodes", []Member{voter(1), learner(2)}, ""},
		{"the third has not come yet", []Member{voter(1), learner(2), unstarted(3)}, ""},
		{"three nodes", []Member{voter(1), learner(2), learner(3)}, "2 3"},
		{"one in the place of a lost one", []Member{voter(1), voter(2), learner(3)}, "3"},
		{"two in the place of a lost one, admitted at once", []Member{voter(1), learner(2), voter(3), learner(4)}, "2"},
		{"one too many", []Member{voter(1), voter(2), voter(3), learner(4)}, ""},
		{"three in the place of two", []Member{voter(5), learner(2), learner(3), learner(4)}, "2 3"},
	} {
		var may []string
		for _, m := range c.members {
			if m.Learner && mayVote(c.members, m.ID) {
				may = append(may, fmt.Sprint(m.ID))
			}
		}
		if got := strings.Join(may, " "); got != c.may {
			t.Errorf("%s: %s may vote, want %s", c.name, got, c.may)
		}
	}
}
