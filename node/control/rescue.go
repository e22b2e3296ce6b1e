package control

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
)

// What stands in this file makes the member that is left of a control plane whose majority is lost for good its only one. It
// is for a directory on which no node runs.

// replayTimeout bounds how long a member may take to apply what its log holds, which takes no other member.
const replayTimeout = 30 * time.Second

// Remains is what a member's directory has of its control plane.
type Remains struct {
	// Self is the member itself, Members all of them, itself included.
	Self    Member
	Members []Member
	View    View
}

// ReadRemains reads what stands in the directory of a member, whatever the others are, and changes nothing of it. Of cfg
// nobody is to be reached: PeerURL and InitialCluster are empty. Errors: ErrRemoved.
func ReadRemains(ctx context.Context, cfg ServerConfig) (Remains, error) {
	r, err := readRemains(ctx, cfg)
	if err != nil {
		return Remains{}, fmt.Errorf("read control plane in %s: %w", cfg.Dir, err)
	}
	return r, nil
}

func readRemains(ctx context.Context, cfg ServerConfig) (Remains, error) {
	s, err := openSurvivor(cfg, false)
	if err != nil {
		return Remains{}, err
	}
	defer s.Close()
	if err := s.awaitReplay(ctx); err != nil {
		return Remains{}, err
	}
	r := Remains{Members: s.LocalMembers()}
	i := slices.IndexFunc(r.Members, func(m Member) bool { return m.ID == s.MemberID() })
	if i < 0 {
		return Remains{}, ErrRemoved
	}
	r.Self = r.Members[i]
	r.View, err = readPlacement(ctx, s.client, clientv3.WithSerializable())
	return r, err
}

// openSurvivor starts etcd without anybody whom it could reach. With alone it makes itself the only member: it drops what
// its log holds beyond what it knows as committed and removes all others, whose ids are refused for ever after; its own
// stays. Interrupted, that has to be done again.
func openSurvivor(cfg ServerConfig, alone bool) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg.QuotaBytes = DefaultQuotaBytes
	etcdConfig, err := cfg.embedded()
	if err != nil {
		return nil, err
	}
	etcdConfig.ForceNewCluster = alone
	shrinkSegments()
	etcd, err := embed.StartEtcd(etcdConfig)
	if err != nil {
		return nil, err
	}
	return newServer(cfg, etcd), nil
}

// awaitReplay waits until the member has applied what it knows as committed.
func (s *Server) awaitReplay(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, replayTimeout)
	defer cancel()
	tick := time.NewTicker(electEvery)
	defer tick.Stop()
	server := s.etcd.Server
	for {
		if at := server.AppliedIndex(); at > 0 && at >= server.CommittedIndex() && raftCaughtUp(server) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until its log is applied: %w", ctx.Err())
		case <-server.StopNotify():
			return ErrRemoved
		case <-tick.C:
		}
	}
}

// Rescue is what is left of a cluster.
type Rescue struct {
	// Store is the one that is left, Replicas are its own by their shards: each becomes its shard's only one.
	Store    string
	Replicas map[uint32]Survivor
}

// Survivor is a replica that is left of its group.
type Survivor struct {
	// RID is its id. 0: none is left, the shard begins anew with the next one.
	RID uint64
	// Gen is the generation it comes from, LastRID the highest replica id it knows of: this member may be behind.
	Gen     uint64
	LastRID uint64
}

// RescueMember makes the member in cfg's directory the only one, all other stores gone, and every shard wanted on the store
// that is left alone, under a generation above any that was wanted or told. It returns the shards as they are wanted then. Not
// done to its end, it is to be repeated; the replicas must not run before it is. Of cfg nobody is to be reached, as
// in ReadRemains.
func RescueMember(ctx context.Context, cfg ServerConfig, r Rescue) ([]Shard, error) {
	shards, err := rescueMember(ctx, cfg, r)
	if err != nil {
		return nil, fmt.Errorf("rescue control plane in %s: %w", cfg.Dir, err)
	}
	return shards, nil
}

func rescueMember(ctx context.Context, cfg ServerConfig, r Rescue) ([]Shard, error) {
	remains, err := readRemains(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if remains.Self.Learner {
		return nil, errors.New("its member has no vote, and etcd cannot be left without one")
	}
	if err := commitLog(cfg.Dir); err != nil {
		return nil, fmt.Errorf("commit its log: %w", err)
	}
	s, err := openSurvivor(cfg, true)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	if err := s.awaitReady(ctx); err != nil {
		return nil, err
	}
	if members := s.LocalMembers(); len(members) != 1 || members[0].Learner {
		return nil, fmt.Errorf("its members are %+v, must be itself", members)
	}
	view, err := readPlacement(ctx, s.client)
	if err != nil {
		return nil, err
	}
	ops, shards, err := r.plan(view)
	if err != nil {
		return nil, err
	}
	for chunk := range slices.Chunk(ops, bootstrapPerTxn) {
		if _, err := s.client.Txn(ctx).Then(chunk...).Commit(); err != nil {
			return nil, unavailable(err)
		}
	}
	return shards, nil
}

// plan is what has to be written, none of it less right for being written twice.
func (r Rescue) plan(v View) (ops []clientv3.Op, shards []Shard, err error) {
	for _, s := range v.Wanted {
		left, ok := r.Replicas[s.ID]
		if !ok {
			return nil, nil, fmt.Errorf("no replica is left of shard %d", s.ID)
		}
		next := Shard{
			ID: s.ID, Gen: max(s.Gen, v.Actual[s.ID].Gen, left.Gen) + 1, NextRID: max(s.NextRID, left.RID+1, left.LastRID+1),
		}
		if left.RID == 0 {
			left.RID = next.NextRID
			next.NextRID++
		}
		next.Replicas = []Replica{{RID: left.RID, Store: r.Store}}
		shards = append(shards, next)
		ops = append(ops, clientv3.OpPut(shardKey(keyShards, s.ID), encodeJSON(next.record())))
	}
	for _, s := range v.Stores {
		if s.UUID == r.Store {
			continue
		}
		gone := nodeRecord{
			NodeID: s.NodeID, Name: s.Name, Addr: s.Addr, Boots: s.Boots, BootID: s.BootID, State: StoreGone, Level: s.Level,
		}
		ops = append(ops, clientv3.OpPut(keyNodes+s.UUID, encodeJSON(gone)), clientv3.OpDelete(keyLive+s.UUID))
	}
	// Whoever was the controller: its lease would keep the office for a while.
	return append(ops, clientv3.OpDelete(keyTerm)), shards, nil
}

// commitLog makes what the log of a member holds count as committed: what it does not know to be may have been all the
// same, and nobody else can tell any more. It ends before a change of the membership, which starts from members that are
// lost.
func commitLog(dir string) (err error) {
	path := filepath.Join(dir, "member", "wal")
	snapshots, err := wal.ValidSnapshotEntries(zap.NewNop(), path)
	if err != nil {
		return err
	}
	at := &walpb.Snapshot{}
	if n := len(snapshots); n > 0 {
		at = snapshots[n-1]
	}
	log, err := wal.Open(zap.NewNop(), path, at)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }() // it is written with that
	_, state, entries, err := log.ReadAll()
	if err != nil {
		return err
	}
	last := state.GetCommit()
	for _, e := range entries {
		if e.GetIndex() <= last {
			continue
		}
		if e.GetType() != raftpb.EntryNormal {
			break
		}
		last = e.GetIndex()
	}
	if last == state.GetCommit() {
		return nil
	}
	state.Commit = &last
	return log.Save(state, nil)
}
