package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/control"
	"github.com/carillon-scheduler/carillon/node/replica"
	"github.com/carillon-scheduler/carillon/store"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// ErrNoRescue: what stands in a data directory cannot be made a cluster of its own, or is one.
var ErrNoRescue = errors.New("cannot be rescued")

// Rescue makes a cluster of one node of what one disk has, when the disks of a majority are lost for good. It holds the
// data directory, on which no node runs, from OpenRescue to Close.
type Rescue struct {
	Found RescueFindings

	logger *slog.Logger
	dir    *DataDir
	engine *store.Pebble
	slots  *slotMap
	// replicas are those of this store that can be rescued, remains what etcd has of the cluster.
	replicas []replica.ReplicaState
	remains  control.Remains
	// lost are the shards without one, and what is known here of their replicas' ids.
	lost map[uint32]control.Survivor
	// fencing and incarnation are the highest numbers that a shard has given, as far as is known here.
	fencing, incarnation uint64
}

// rescueNumbers is how far above all numbers known here those of a shard begin of which nothing is left.
const rescueNumbers = 1 << 32

// RescueFindings is what a data directory has.
type RescueFindings struct {
	Cluster string `json:"clusterId"`
	Node    string `json:"node"`
	Store   string `json:"storeId"`
	// Begun: a rescue was interrupted.
	Begun bool `json:"begun"`
	// Others are the stores that become gone.
	Others []RescueStore `json:"others"`
	Shards []RescueShard `json:"shards"`
	// Refused says why there can be no rescue whatever is accepted; empty: there can.
	Refused string `json:"refused,omitempty"`
}

// RescueStore is a store that is not the one that is left.
type RescueStore struct {
	Node    string `json:"node"`
	Store   string `json:"storeId"`
	Address string `json:"address"`
	// Control says that it has a member of the control plane.
	Control bool `json:"control"`
}

// RescueShard is a shard as it stands on this disk.
type RescueShard struct {
	Shard   uint32 `json:"shard"`
	Replica uint64 `json:"replica"`
	// Voters are the nodes whose majority has acknowledged what was written, as far as they are known by name.
	Voters []string `json:"voters"`
	// LogEnd is the last entry on this disk, Commit the last one that is known to be acknowledged, Applied what the rows have.
	LogEnd  uint64 `json:"logEnd"`
	Commit  uint64 `json:"commit"`
	Applied uint64 `json:"applied"`
	// Lost says why nothing of it can be rescued here: it can only begin anew. Empty: it can be rescued.
	Lost string `json:"lost,omitempty"`
}

// OpenRescue takes a data directory and looks what it has; it changes nothing. What cannot be rescued is a finding, not an
// error. Errors: ErrDataDirInUse.
func OpenRescue(ctx context.Context, dataDir string, logger *slog.Logger) (*Rescue, error) {
	r := &Rescue{logger: logger, lost: map[uint32]control.Survivor{}}
	if err := r.open(ctx, dataDir); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *Rescue) open(ctx context.Context, dataDir string) (err error) {
	if r.dir, err = openStanding(dataDir); err != nil {
		return err
	}
	ident := r.dir.Ident()
	r.Found = RescueFindings{
		Cluster: ident.ClusterID, Node: ident.Name, Store: ident.StoreUUID, Begun: r.dir.rescueBegun(),
		Others: []RescueStore{}, Shards: []RescueShard{},
	}
	r.engine, err = store.OpenPebble(r.dir.PebbleDir(), store.Options{
		Logger: r.logger, OnFatal: func(err error) { fatal(r.logger, err) },
	})
	if err != nil {
		return err
	}
	if r.slots, err = loadSlotMap(r.engine); err != nil {
		return err
	}
	holds, err := control.HoldsMember(r.dir.EtcdDir())
	if err != nil {
		return err
	}
	switch {
	case r.slots == nil:
		r.Found.Refused = "it has no shards"
		return nil
	case !holds:
		r.Found.Refused = "it has no member of the control plane; only a node that has one can be rescued"
	default:
		r.remains, err = control.ReadRemains(ctx, r.memberConfig())
		if err != nil && !errors.Is(err, control.ErrRemoved) {
			return err
		}
		r.Found.Refused = r.refuseMember(err)
	}
	return r.look()
}

// memberConfig is that of a member that nobody else is to reach.
func (r *Rescue) memberConfig() control.ServerConfig {
	ident := r.dir.Ident()
	return control.ServerConfig{
		Dir: r.dir.EtcdDir(), Name: control.MemberName(ident.Name, ident.StoreUUID), Token: ident.ClusterID,
		OnFatal: func(err error) { fatal(r.logger, err) }, Logger: r.logger,
	}
}

// refuseMember says what is in the way of the control plane's rescue; err is that of reading it.
func (r *Rescue) refuseMember(err error) string {
	own := slices.IndexFunc(r.remains.View.Stores, func(s control.StoreView) bool { return s.UUID == r.Found.Store })
	switch {
	case err != nil:
		return "its member of the control plane was removed from the cluster"
	case r.remains.Self.Learner:
		return "its member of the control plane has no vote yet"
	case own < 0:
		return "the control plane does not know its store"
	case r.remains.View.Stores[own].State == control.StoreGone:
		return "its store was declared gone"
	}
	return ""
}

// look compares what is wanted with what stands here.
func (r *Rescue) look() error {
	names := map[string]string{}
	for _, s := range r.remains.View.Stores {
		names[s.UUID] = s.Name
		if s.UUID == r.Found.Store || s.State == control.StoreGone {
			continue
		}
		own := func(m control.Member) bool { return m.Name == control.MemberName(s.Name, s.UUID) }
		r.Found.Others = append(r.Found.Others, RescueStore{
			Node: s.Name, Store: s.UUID, Address: s.Addr, Control: slices.ContainsFunc(r.remains.Members, own),
		})
	}
	alone := len(r.remains.Members) == 1
	for _, id := range r.slots.shards {
		found, err := r.lookAt(id, names)
		if err != nil {
			return err
		}
		r.Found.Shards = append(r.Found.Shards, found)
		alone = alone && found.Lost == "" && len(found.Voters) == 1
	}
	var known []uint32
	for _, s := range r.remains.View.Wanted {
		known = append(known, s.ID)
	}
	switch {
	case r.Found.Refused != "":
	case !slices.Equal(known, r.slots.shards):
		r.Found.Refused = fmt.Sprintf("its control plane has %d shards, not the %d of its slot map", len(known), len(r.slots.shards))
	case alone && !r.Found.Begun:
		r.Found.Refused = "nothing is lost: it is a cluster of its own; start it"
	}
	return nil
}

// lookAt finds what stands of a shard. What keeps it from being rescued is no error.
func (r *Rescue) lookAt(shard uint32, names map[string]string) (RescueShard, error) {
	found := RescueShard{Shard: shard, Voters: []string{}}
	state, stands, err := replica.Load(r.engine, shard)
	if err == nil && !stands {
		err = errors.New("it has no replica here")
	}
	if err != nil {
		found.Lost, r.lost[shard] = err.Error(), control.Survivor{}
		return found, nil
	}
	conf := state.Conf()
	for _, id := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(conf.Voters, conf.Outgoing)))) {
		at := state.Stores[id]
		found.Voters = append(found.Voters, cmp.Or(names[at], at, fmt.Sprintf("replica %d", id)))
	}
	found.Replica, found.LogEnd, found.Commit, found.Applied = state.ID, state.LogEnd(), state.Commit(), state.Applied()
	if err := state.CanBeSole(); err != nil {
		found.Lost, r.lost[shard] = err.Error(), control.Survivor{Gen: state.Gen(), LastRID: state.LastID()}
		return found, nil
	}
	r.replicas = append(r.replicas, state)
	rows := store.NewReader(r.engine, shard)
	meta := fsm.ReadMeta(rows)
	r.fencing, r.incarnation = max(r.fencing, meta.GetFencing()), max(r.incarnation, meta.GetIncarnation())
	return found, rows.Err()
}

// Run does it. Interrupted, it has to be done again, and no node starts on the directory before it is done: first the control
// plane, which then wants every shard here alone, then the shards, all at once. Shards of which nothing can be rescued begin
// anew, empty, if that is accepted. Errors: ErrNoRescue.
func (r *Rescue) Run(ctx context.Context, acceptLost bool) error {
	if err := r.Possible(acceptLost); err != nil {
		return err
	}
	if err := r.dir.beginRescue(); err != nil {
		return fmt.Errorf("begin rescue: %w", err)
	}
	wanted, err := r.rescueControl(ctx)
	if err != nil {
		return err
	}
	if err := r.rescueShards(wanted); err != nil {
		return err
	}
	if err := r.dir.endRescue(); err != nil {
		return fmt.Errorf("end rescue: %w", err)
	}
	return nil
}

// Possible says whether Run would do anything. Errors: ErrNoRescue.
func (r *Rescue) Possible(acceptLost bool) error {
	refused := r.Found.Refused
	if refused == "" && len(r.lost) > 0 && !acceptLost {
		var shards []string
		for _, id := range slices.Sorted(maps.Keys(r.lost)) {
			shards = append(shards, fmt.Sprint(id))
		}
		refused = fmt.Sprintf("it has nothing of shards %s to go on with; --accept-lost-shards has them begin anew, empty",
			strings.Join(shards, ", "))
	}
	if refused != "" {
		return fmt.Errorf("%s: %w: %s", r.dir.path, ErrNoRescue, refused)
	}
	return nil
}

// rescueControl returns the shards as they are wanted from now on.
func (r *Rescue) rescueControl(ctx context.Context) ([]control.Shard, error) {
	left := control.Rescue{Store: r.Found.Store, Replicas: maps.Clone(r.lost)}
	for _, state := range r.replicas {
		left.Replicas[state.Shard] = control.Survivor{RID: state.ID, Gen: state.Gen(), LastRID: state.LastID()}
	}
	return control.RescueMember(ctx, r.memberConfig(), left)
}

// rescueShards makes the shards what is wanted.
func (r *Rescue) rescueShards(wanted []control.Shard) error {
	var soles []replica.Sole
	for _, want := range wanted {
		i := slices.IndexFunc(r.replicas, func(s replica.ReplicaState) bool { return s.Shard == want.ID })
		sole := replica.Sole{Store: r.Found.Store, Gen: want.Gen, Epoch: r.remains.View.Actual[want.ID].Epoch}
		if i >= 0 {
			sole.State = r.replicas[i]
		} else {
			var err error
			if sole.State, err = r.beginAnew(want); err != nil {
				return err
			}
		}
		soles = append(soles, sole)
	}
	return replica.MakeSole(r.engine, soles)
}

// beginAnew makes an empty shard whose fencing numbers and incarnations begin above all that are known here of any shard: what
// the lost one has given is in the world.
func (r *Rescue) beginAnew(want control.Shard) (replica.ReplicaState, error) {
	meta := &storagev1.Meta{Level: 1, Fencing: r.fencing + rescueNumbers, Incarnation: r.incarnation + rescueNumbers}
	row, err := meta.MarshalVT()
	if err != nil {
		return replica.ReplicaState{}, fmt.Errorf("rescue shard %d: %w", want.ID, err)
	}
	err = replica.BeginAnew(r.engine, want.ID, want.Replicas[0].RID, func(b store.Batch) {
		b.Set(store.AppendKey(nil, want.ID, fsm.MetaKey()), row)
	})
	if err != nil {
		return replica.ReplicaState{}, err
	}
	state, stands, err := replica.Load(r.engine, want.ID)
	if err == nil && !stands {
		err = fmt.Errorf("rescue shard %d: nothing stands", want.ID)
	}
	return state, err
}

// Close lets go of the directory.
func (r *Rescue) Close() error {
	var errs []error
	if r.engine != nil {
		errs = append(errs, r.engine.Close())
	}
	if r.dir != nil {
		errs = append(errs, r.dir.Close())
	}
	return errors.Join(errs...)
}
