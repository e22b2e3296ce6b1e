package replica

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/store"
	"go.etcd.io/raft/v3/raftpb"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// look is what one replica saw at a Verify.
type look struct {
	asked        Verify
	index, chain uint64
	sum, rows    uint64
	violations   []string
}

// trio is a shard on three stores, under the real state machine.
type trio struct {
	t       *testing.T
	engines [3]*store.Memory
	cores   [3]*Core
	// held keeps back what is for the third one.
	held  bool
	kept  []Frame
	stamp int64
	looks map[string][]look
}

// newTrio takes the last store's LogBytes.
func newTrio(t *testing.T, logBytes uint64) *trio {
	c := &trio{t: t, stamp: 1_700_000_000_000, looks: map[string][]look{}}
	for i := range c.cores {
		c.engines[i] = store.OpenMemory()
		if err := Bootstrap(c.engines[i], []Seed{{Shard: 1, ID: uint64(i + 1), Voters: []uint64{1, 2, 3}}}); err != nil {
			t.Fatal(err)
		}
		states, err := LoadAll(c.engines[i])
		if err != nil {
			t.Fatal(err)
		}
		cfg := Config{Store: storeName(i + 1), OpenMachine: openFSM, Logger: slog.New(slog.DiscardHandler)}
		if i == len(c.cores)-1 {
			cfg.LogBytes = logBytes
		}
		if c.cores[i], err = New(cfg, c.engines[i], states); err != nil {
			t.Fatal(err)
		}
		w := Wanted{Gen: 1}
		for id := uint64(1); id <= 3; id++ {
			w.Replicas = append(w.Replicas, Placed{ID: id, Store: storeName(int(id))})
		}
		c.cores[i].Want(1, w)
	}
	standNow(c.cores[0], 1)
	c.run()
	return c
}

// run takes turns until there is nothing to do.
func (c *trio) run() {
	c.t.Helper()
	for idle := 0; idle < len(c.cores); {
		idle = 0
		for i, core := range c.cores {
			if !core.HasWork() {
				idle++
				continue
			}
			c.turn(i, core)
		}
	}
}

func (c *trio) turn(i int, core *Core) {
	c.t.Helper()
	c.stamp++
	turn, err := core.Turn(c.stamp)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, v := range turn.Verifies {
		c.look(i, v)
	}
	for _, e := range turn.Events {
		if e.Kind == LeaseWanted {
			core.LeaseHeld(e.Shard, e.Term)
		}
	}
	for _, d := range turn.Results {
		d.Deliver()
	}
	if turn.Wait != nil {
		if err := turn.Wait(); err != nil {
			c.t.Fatal(err)
		}
		core.SyncDone(turn.Seq)
	}
	for _, f := range turn.Frames {
		c.pass(f)
	}
}

func (c *trio) pass(f Frame) {
	if c.held && f.To == storeName(3) {
		c.kept = append(c.kept, f)
		return
	}
	for i, core := range c.cores {
		for _, m := range f.Messages {
			if f.To == storeName(i+1) {
				core.Step(f.From, m)
			}
		}
	}
}

// release passes on what was kept back.
func (c *trio) release() {
	c.held = false
	for _, f := range c.kept {
		c.pass(f)
	}
	c.kept = nil
}

// look does what the rows' owner does with a Verify, from a snapshot of the moment.
func (c *trio) look(i int, v Verify) {
	c.t.Helper()
	snap, err := c.engines[i].NewSnapshot()
	if err != nil {
		c.t.Fatal(err)
	}
	l := look{asked: v}
	if l.index, l.chain, err = AppliedAt(snap, v.Shard); err != nil {
		c.t.Fatal(err)
	}
	r := store.NewReader(snap, v.Shard)
	l.sum, l.rows = fsm.Digest(r)
	fsm.Check(r, func(v fsm.Violation) { l.violations = append(l.violations, v.String()) })
	if err := r.Err(); err != nil {
		c.t.Fatal(err)
	}
	if err := snap.Close(); err != nil {
		c.t.Fatal(err)
	}
	c.looks[v.ID] = append(c.looks[v.ID], l)
}

func (c *trio) do(cmd *storagev1.Command) {
	c.t.Helper()
	answered := false
	c.cores[0].Propose(Proposal{Shard: 1, Command: cmd, Done: func(r fsm.Result, err error) {
		answered = true
		if err != nil || r.Refusal != nil {
			c.t.Fatalf("%v, %+v", err, r.Refusal)
		}
	}})
	c.run()
	if !answered {
		c.t.Fatal("no answer")
	}
}

func (c *trio) create(id string) {
	c.t.Helper()
	c.do(&storagev1.Command{CreateJobs: &storagev1.CreateJobs{Items: []*storagev1.CreateJob{{
		Tenant: "t", JobId: id, Hash: []byte("12345678"), Schedule: &storagev1.Schedule{AtMs: c.stamp + 3_600_000},
		Template: &storagev1.Template{Queue: "q"},
	}}}})
}

func (c *trio) verify(id string) {
	c.t.Helper()
	c.do(&storagev1.Command{Verify: &storagev1.Verify{Id: id}})
}

// Every replica looks at its rows exactly as the entry leaves them, also one that catches up with many entries at once; what
// differs by one row shows.
func TestReplicasVerifyAtOneIndex(t *testing.T) {
	c := newTrio(t, 0)
	c.create("before")
	c.held = true
	for i := range 5 {
		c.create(fmt.Sprint("job-", i))
	}
	c.verify("one")
	c.create("between")
	c.verify("two")
	c.verify("three")
	c.create("after")
	if n := len(c.looks["one"]); n != 2 {
		t.Fatalf("%d replicas have looked without the third", n)
	}
	c.release()
	for range 3 {
		c.cores[0].Tick()
		c.cores[0].Tick()
		c.run()
	}
	for _, id := range []string{"one", "two", "three"} {
		looks := c.looks[id]
		if len(looks) != 3 {
			t.Fatalf("%s: %d replicas have looked", id, len(looks))
		}
		for _, l := range looks {
			if l.index != l.asked.Index || l.chain != l.asked.Chain || l.asked.ID != id {
				t.Errorf("%s: asked for %+v, the rows are those of %d", id, l.asked, l.index)
			}
			if l.index != looks[0].index || l.chain != looks[0].chain || l.sum != looks[0].sum || l.rows != looks[0].rows {
				t.Errorf("%s: %+v and %+v", id, l, looks[0])
			}
			if len(l.violations) > 0 {
				t.Errorf("%s: %v", id, l.violations)
			}
		}
	}
	if a, b := c.looks["one"][0], c.looks["two"][0]; a.index == b.index || a.sum == b.sum {
		t.Errorf("%+v and %+v", a, b)
	}

	b := c.engines[1].NewBatch()
	b.Delete(store.AppendKey(nil, 1, fsm.JobKey("t", "job-3")))
	if _, err := c.engines[1].Commit(b, false); err != nil {
		t.Fatal(err)
	}
	c.verify("planted")
	spoiled := 0
	for _, l := range c.looks["planted"] {
		if len(l.violations) > 0 {
			spoiled++
		}
	}
	l := c.looks["planted"]
	if len(l) != 3 || spoiled != 1 || l[0].chain != l[1].chain || l[0].sum == l[1].sum && l[1].sum == l[2].sum {
		t.Errorf("%+v", l)
	}
}

// A replica that stops at a Verify in the middle of what it was given to apply may stand for election before it goes on: raft
// then reads all that it has not been told is applied, so that none of it may have been truncated.
func TestCandidateThatVerifiesKeepsItsLog(t *testing.T) {
	c := newTrio(t, 1)
	c.held = true
	for i := range 3 {
		c.create(fmt.Sprint("before-", i))
	}
	c.verify("one")
	c.create("behind")
	c.release()
	third := c.cores[2]
	r := third.byID[1]
	for len(r.applies) == 0 {
		if !third.HasWork() {
			t.Fatal("nothing waits behind the entry to verify")
		}
		c.turn(2, third)
	}
	from, to := uint64(1), uint64(3)
	third.Step(storeName(1), PeerMessage{Shard: 1, Message: &raftpb.Message{
		Type: raftpb.MsgTimeoutNow.Enum(), From: &from, To: &to, Term: &r.hard.term,
	}})
	c.run()
	if !r.leads() || len(r.applies) > 0 || r.log.truncated.index != r.applied.index {
		t.Errorf("leads %v, %d messages to apply, applied %d, truncated %d",
			r.leads(), len(r.applies), r.applied.index, r.log.truncated.index)
	}
}
