package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	etcderrors "go.etcd.io/etcd/server/v3/etcdserver/errors"
)

const (
	// Voters is how many members a cluster of three and more nodes has, all of them voters; further nodes have none. With two
	// nodes there is one voter and one learner: two voters would stop at the loss of either.
	Voters = 3
	// maxLearners: the second and the third node may wait for one another.
	maxLearners = Voters - 1
	// memberTimeout bounds one change of the membership. etcd drops a change that meets another one, without a word.
	memberTimeout = 3 * time.Second
	// promoteEvery is the pause between attempts of a learner to become a voter.
	promoteEvery = 200 * time.Millisecond
	// storeDigits of a store's uuid are part of its member's name.
	storeDigits = 8
)

// ErrBusy: the membership cannot be changed right now, because another change is under way or members have not been
// connected for long enough (five seconds); to be tried again.
var ErrBusy = errors.New("membership is busy, try again")

// Member is one etcd member.
type Member struct {
	ID uint64
	// Name is as MemberName makes it; PeerURL is where it is reached.
	Name    string
	PeerURL string
	// Learner: it does not vote yet.
	Learner bool
	// Started: it has been ready at least once.
	Started bool
	// Leader of etcd, as far as is known here.
	Leader bool
}

// Joiner is a node that has no member and wants one.
type Joiner struct {
	// Name of the node, and the uuid of its store, which is how a node that lost its disk is told from its former self.
	Name      string
	StoreUUID string
	// PeerURL is where its member will be reached, "https://host:port".
	PeerURL string
	// Living are the names of members that must stay: their nodes live.
	Living []string
}

// Admission is what a joiner starts with.
type Admission struct {
	ClusterID string
	// InitialCluster is for ServerConfig. Empty: the cluster has its voters, the node has no member.
	InitialCluster string
	// Members as they stand, the joiner's own included.
	Members []Member
}

// MemberName is that of the etcd member of a node with a store.
func MemberName(node, storeUUID string) string {
	return node + "-" + storeUUID[:min(storeDigits, len(storeUUID))]
}

// ofNode says whether a member's name is that of a node, with whatever store.
func (m Member) ofNode(node string) bool {
	digits, ok := strings.CutPrefix(m.Name, node+"-")
	return ok && len(digits) == storeDigits
}

// Members reads the membership; it takes a majority. Errors: ErrUnavailable.
func (s *Server) Members(ctx context.Context) ([]Member, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	members, err := s.etcd.Server.MemberList(ctx, &pb.MemberListRequest{Linearizable: true})
	if err != nil {
		return nil, fmt.Errorf("list members: %w", unavailable(err))
	}
	return s.members(members), nil
}

// LocalMembers is the membership as this member knows it, whatever it can reach.
func (s *Server) LocalMembers() []Member { return s.members(s.etcd.Server.Cluster().Members()) }

func (s *Server) members(from []*membership.Member) []Member {
	leader := s.etcd.Server.Leader()
	members := make([]Member, 0, len(from))
	for _, m := range from {
		one := memberOf(m)
		one.Leader = m.ID == leader
		members = append(members, one)
	}
	return members
}

func memberOf(m *membership.Member) Member {
	one := Member{ID: uint64(m.ID), Name: m.Name, Learner: m.IsLearner, Started: len(m.ClientURLs) > 0}
	if len(m.PeerURLs) > 0 {
		one.PeerURL = m.PeerURLs[0]
	}
	return one
}

// MemberID is this member's own.
func (s *Server) MemberID() uint64 { return uint64(s.etcd.Server.MemberID()) }

// Admit makes room for the member of a joiner and adds it, as a learner: a member at its address, or one of its node's
// name, that is not the joiner's is removed; the caller has made sure that it is silent. To ask again, for a joiner that
// has not started yet, changes nothing. Errors: ErrBusy, ErrUnavailable.
func (s *Server) Admit(ctx context.Context, j Joiner) (Admission, error) {
	admission, err := s.admit(ctx, j)
	if err != nil {
		return Admission{}, fmt.Errorf("admit member of node %s: %w", j.Name, err)
	}
	return admission, nil
}

func (s *Server) admit(ctx context.Context, j Joiner) (Admission, error) {
	if j.Name == "" || len(j.StoreUUID) < storeDigits {
		return Admission{}, errors.New("its name or store is missing")
	}
	if err := checkPeerURL(j.PeerURL); err != nil {
		return Admission{}, err
	}
	if s.cfg.PeerURL == "" {
		return Admission{}, errors.New("this member has no PeerURL that others could reach")
	}
	release, err := s.beginChange()
	if err != nil {
		return Admission{}, err
	}
	defer release()
	members, err := s.Members(ctx)
	if err != nil {
		return Admission{}, err
	}
	plan := planAdmission(members, j)
	for _, m := range plan.remove {
		if m.ID == s.MemberID() || slices.Contains(j.Living, m.Name) {
			return Admission{}, fmt.Errorf("its name or address is that of member %s, which lives", m.Name)
		}
		if members, err = s.removeMember(ctx, m.ID); err != nil {
			return Admission{}, fmt.Errorf("remove member %s in its place: %w", m.Name, err)
		}
	}
	if plan.add {
		if members, err = s.addLearner(ctx, j); err != nil {
			return Admission{}, err
		}
	}
	admission := Admission{ClusterID: s.cfg.Token, Members: members}
	if plan.add || plan.admitted {
		admission.InitialCluster = initialCluster(members)
	}
	return admission, nil
}

// admissionPlan is what has to be done for a joiner.
type admissionPlan struct {
	remove []Member
	// admitted: its member is there and has not started; otherwise one is to be added, or there are enough.
	admitted, add bool
}

func planAdmission(members []Member, j Joiner) admissionPlan {
	var plan admissionPlan
	others := 0
	for _, m := range members {
		switch {
		case m.PeerURL != j.PeerURL && !m.ofNode(j.Name):
			others++
		case m.PeerURL == j.PeerURL && m.Name == MemberName(j.Name, j.StoreUUID) && m.Learner && !m.Started:
			plan.admitted = true
		default:
			// Also the joiner's own member of before, if it has started: its log is lost, with what it has promised.
			plan.remove = append(plan.remove, m)
		}
	}
	plan.add = !plan.admitted && others < Voters
	return plan
}

func initialCluster(members []Member) string {
	parts := make([]string, 0, len(members))
	seen := map[string]bool{"": true}
	for _, m := range members {
		name := m.Name
		if seen[name] {
			name = strconv.FormatUint(m.ID, 16) // etcd takes members of one name for one member
		}
		seen[name] = true
		parts = append(parts, name+"="+m.PeerURL)
	}
	return strings.Join(parts, ",")
}

// beginChange lets one change of the membership be under way from this member.
func (s *Server) beginChange() (release func(), err error) {
	select {
	case s.admission <- struct{}{}:
		return func() { <-s.admission }, nil
	default:
		return nil, ErrBusy
	}
}

func (s *Server) addLearner(ctx context.Context, j Joiner) ([]Member, error) {
	ctx, cancel := context.WithTimeout(ctx, memberTimeout)
	defer cancel()
	urls, err := types.NewURLs([]string{j.PeerURL})
	if err != nil {
		return nil, fmt.Errorf("parse its address: %w", err)
	}
	// The id is a hash of these: never one that was given before.
	now := time.Now()
	salt := s.cfg.Token + j.StoreUUID + strconv.FormatInt(now.UnixNano(), 16)
	m := membership.NewMemberAsLearner(MemberName(j.Name, j.StoreUUID), urls, salt, &now)
	members, err := s.etcd.Server.AddMember(ctx, *m)
	if err != nil {
		return nil, fmt.Errorf("add member: %w", changeError(err))
	}
	return s.members(members), nil
}

// RemoveMember removes the member of a store, if there is one. Errors: ErrBusy, ErrUnavailable.
func (s *Server) RemoveMember(ctx context.Context, storeUUID string) error {
	release, err := s.beginChange()
	if err != nil {
		return fmt.Errorf("remove member of store %s: %w", storeUUID, err)
	}
	defer release()
	members, err := s.Members(ctx)
	if err != nil {
		return fmt.Errorf("remove member of store %s: %w", storeUUID, err)
	}
	doomed, err := membersOf(members, storeUUID)
	if err != nil {
		return err
	}
	for _, m := range doomed {
		if _, err := s.removeMember(ctx, m.ID); err != nil {
			return fmt.Errorf("remove member %s: %w", m.Name, err)
		}
	}
	return nil
}

// membersOf are those of a store that may be removed.
func membersOf(members []Member, storeUUID string) (doomed []Member, err error) {
	if len(storeUUID) < storeDigits {
		return nil, fmt.Errorf("remove member: %q is no store's uuid", storeUUID)
	}
	for _, m := range members {
		if !strings.HasSuffix(m.Name, "-"+storeUUID[:storeDigits]) {
			continue
		}
		if len(members) == 1 {
			return nil, fmt.Errorf("remove member %s: it is the only one", m.Name)
		}
		doomed = append(doomed, m)
	}
	return doomed, nil
}

func (s *Server) removeMember(ctx context.Context, id uint64) ([]Member, error) {
	ctx, cancel := context.WithTimeout(ctx, memberTimeout)
	defer cancel()
	members, err := s.etcd.Server.RemoveMember(ctx, id)
	if errors.Is(err, membership.ErrIDNotFound) || errors.Is(err, membership.ErrIDRemoved) {
		return s.Members(ctx)
	}
	if err != nil {
		return nil, changeError(err)
	}
	return s.members(members), nil
}

// changeError tells what may be tried again at once from what takes a majority first.
func changeError(err error) error {
	for _, busy := range []error{
		etcderrors.ErrUnhealthy, etcderrors.ErrNotEnoughStartedMembers, membership.ErrTooManyLearners,
		membership.ErrPeerURLexists, membership.ErrIDExists,
	} {
		if errors.Is(err, busy) {
			return fmt.Errorf("%w: %w", ErrBusy, err)
		}
	}
	return unavailable(err)
}

// EnsureVoter returns when this member is a voter, which it makes itself once it has what the leader has and the cluster's
// three members have all been there; until then, and for as long as there are three voters without it, it waits. It is to be
// called at every start. Errors: ErrRemoved, or ctx's.
func (s *Server) EnsureVoter(ctx context.Context) error {
	retry := time.NewTicker(promoteEvery)
	defer retry.Stop()
	for {
		if s.voter() {
			return nil
		}
		if mayVote(s.LocalMembers(), s.MemberID()) {
			s.promote(ctx)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("become a voter: %w", ctx.Err())
		case <-s.etcd.Server.StopNotify():
			return fmt.Errorf("become a voter: %w", s.whyStopped(ctx))
		case <-retry.C:
		}
	}
}

// voter says whether this member knows itself as a voter. One that has just begun may not find itself at all.
func (s *Server) voter() bool {
	self := s.etcd.Server.Cluster().Member(s.etcd.Server.MemberID())
	return self != nil && !self.IsLearner
}

// mayVote says whether a learner may become a voter: three members have been ready (one that was admitted may never come), and
// with the learners that come before it there is still a vote to be had. Two that were admitted at once, where one was missing,
// must not both have it.
func mayVote(members []Member, self uint64) bool {
	started, votes := 0, 0
	for _, m := range members {
		if m.Started {
			started++
		}
		if !m.Learner || m.Started && m.ID < self {
			votes++
		}
	}
	return started >= Voters && votes < Voters
}

// promote asks once. A refusal is what an attempt before its time gets: the next one follows.
func (s *Server) promote(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, memberTimeout)
	defer cancel()
	if _, err := s.etcd.Server.PromoteMember(ctx, s.MemberID()); err != nil {
		s.cfg.Logger.Debug("etcd member not promoted", "member", s.cfg.Name, "error", err)
	}
}

// SetPeerURL puts the configured PeerURL into this member's record, if another one stands there: that of a member that was
// alone until now, or of a node that has moved. It takes a majority. Errors: ErrBusy, ErrUnavailable.
func (s *Server) SetPeerURL(ctx context.Context) error {
	self := s.etcd.Server.Cluster().Member(s.etcd.Server.MemberID())
	if s.cfg.PeerURL == "" || self != nil && len(self.PeerURLs) == 1 && self.PeerURLs[0] == s.cfg.PeerURL {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, memberTimeout)
	defer cancel()
	_, err := s.etcd.Server.UpdateMember(ctx, membership.Member{
		ID: s.etcd.Server.MemberID(), RaftAttributes: membership.RaftAttributes{PeerURLs: []string{s.cfg.PeerURL}},
	})
	if err != nil {
		return fmt.Errorf("set peer URL %s: %w", s.cfg.PeerURL, changeError(err))
	}
	return nil
}
