package control

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
)

// MaxReplicas is how many copies a shard has, of as many stores.
const MaxReplicas = 3

var (
	// ErrDeposed: the controller's term has ended; another store may hold it. Nothing was changed.
	ErrDeposed = errors.New("controller's term has ended")
	// ErrNoShard and ErrNoStore: there is none of that name.
	ErrNoShard = errors.New("no such shard")
	ErrNoStore = errors.New("no such store")
	// ErrMoved: a shard was to be changed by what its group was last told to be, which has changed. Nothing was changed.
	ErrMoved = errors.New("shard's group has come further")
	// ErrStoreGone: the store was declared lost and its replicas are replaced. It may not come back; its node can, with an
	// empty data directory.
	ErrStoreGone = errors.New("store was declared gone")
	// ErrOldBinary: the store is new, and its binary does not support what all others do, and so may write already.
	ErrOldBinary = errors.New("binary is older than the cluster's")
)

// GenError says that a shard was to be changed from a generation that does not stand.
type GenError struct {
	Shard    uint32
	Expected uint64
	Current  uint64
}

func (e *GenError) Error() string {
	return fmt.Sprintf("shard %d has generation %d, not %d", e.Shard, e.Current, e.Expected)
}

// StoreState is what is wanted of a store.
type StoreState string

const (
	StoreUp StoreState = "up"
	// StoreDraining: it keeps what it has until that is elsewhere, and gets nothing more.
	StoreDraining StoreState = "draining"
	// StoreGone: it is lost for good; its replicas are replaced and it may not register again.
	StoreGone StoreState = "gone"
)

func (s StoreState) validate() error {
	switch s {
	case StoreUp, StoreDraining, StoreGone:
		return nil
	}
	return fmt.Errorf("store state %q is unknown", string(s))
}

// StoreRecord is a registered store.
type StoreRecord struct {
	UUID string
	// Name and NodeID of its node; a node that lost its disk has two stores of one name, the later one with the higher id.
	Name   string
	NodeID uint64
	Addr   string
	// Boots counts its starts; BootID is that of the last one that registered.
	Boots  uint64
	BootID string
	State  StoreState
	// Level is the highest level of the state machine that its binary supported at its last start.
	Level uint32
	// Live: its lease is held.
	Live bool
}

// CommonLevel is the highest level of the state machine that the binaries of all stores support, gone ones aside; 0 without
// stores.
func CommonLevel(stores []StoreRecord) (level uint32) {
	first := true
	for _, s := range stores {
		if s.State != StoreGone && (first || s.Level < level) {
			level, first = s.Level, false
		}
	}
	return level
}

// checkLevel refuses a new store whose binary could not read what the others may have begun to write.
func checkLevel(store Store, others []StoreRecord) error {
	if level := CommonLevel(others); store.Level < level {
		return fmt.Errorf("%w: it supports level %d, the cluster is at %d; start a newer one", ErrOldBinary, store.Level, level)
	}
	return nil
}

// Actual is a shard as it is, told by its leader.
type Actual struct {
	Shard uint32
	// Epoch is the leadership under which it is told, Gen the generation of the wanted record that it has come to.
	Epoch uint64
	Gen   uint64
	// Voters and Learners as applied, in order of their ids.
	Voters   []Replica
	Learners []Replica
}

// newerThan says whether a may follow on standing: an older epoch never does, nor an older generation within one.
func (a Actual) newerThan(standing Actual) bool {
	if a.Epoch != standing.Epoch {
		return a.Epoch > standing.Epoch
	}
	return a.Gen >= standing.Gen
}

// Basis is what the change of a shard is decided by; it happens only while both stand.
type Basis struct {
	// Wanted is the generation to be succeeded. Told is the one that the group was last told to have come to; 0: none yet.
	Wanted, Told uint64
}

// BasisOf is what a change was decided by that Place made of v.
func (v View) BasisOf(next Shard) Basis {
	return Basis{Wanted: next.Gen - 1, Told: v.Actual[next.ID].Gen}
}

// Term is a store's time as the controller.
type Term struct {
	// guard is what stands in the control plane for as long as the term lasts, and never again.
	guard int64
	lost  chan struct{}
	once  sync.Once
}

func newTerm(guard int64) *Term { return &Term{guard: guard, lost: make(chan struct{})} }

// Lost is closed when the term is known to have ended. Whatever is written under it is refused from the moment on at
// which it really did.
func (t *Term) Lost() <-chan struct{} { return t.lost }

func (t *Term) end() { t.once.Do(func() { close(t.lost) }) }

// successorShard checks that next may follow on standing, whose group was last told to be as is; done says that next stands
// already. It is the one place that knows the rule; both planes call it.
//
// A replica that was dropped may be wanted again until the group is told to have come to what is wanted without it. Nobody
// destroys it before: what is told is told of what is wanted just then, or refused.
func successorShard(standing Shard, is Actual, next Shard, by Basis) (done bool, err error) {
	if next.Gen == by.Wanted+1 && reflect.DeepEqual(standing, next) {
		return true, nil
	}
	if standing.Gen != by.Wanted {
		return false, &GenError{Shard: next.ID, Expected: by.Wanted, Current: standing.Gen}
	}
	switch {
	case is.Gen != by.Told:
		return false, ErrMoved
	case next.Gen != by.Wanted+1:
		return false, fmt.Errorf("change shard %d: generation %d does not follow on %d", next.ID, next.Gen, by.Wanted)
	case next.NextRID < standing.NextRID:
		return false, fmt.Errorf("change shard %d: NextRID goes back from %d to %d", next.ID, standing.NextRID, next.NextRID)
	case len(next.Replicas) == 0:
		return false, fmt.Errorf("change shard %d: no replica is left", next.ID)
	}
	before := map[Replica]bool{}
	for _, r := range standing.Replicas {
		before[r] = true
	}
	if is.Gen != standing.Gen {
		for _, r := range slices.Concat(is.Voters, standing.Dropped) {
			before[r] = true
		}
	}
	stores := make(map[string]bool, len(next.Replicas))
	ids := make(map[uint64]bool, len(next.Replicas))
	for _, r := range next.Replicas {
		fresh := r.RID >= standing.NextRID && r.RID < next.NextRID
		if !before[r] && !fresh {
			return false, fmt.Errorf("change shard %d: replica id %d is used before or never given", next.ID, r.RID)
		}
		if r.Store == "" || stores[r.Store] || ids[r.RID] {
			return false, fmt.Errorf("change shard %d: replica %d on store %q is there twice", next.ID, r.RID, r.Store)
		}
		stores[r.Store], ids[r.RID] = true, true
	}
	return false, nil
}

func (s Shard) clone() Shard {
	s.Replicas, s.Dropped = slices.Clone(s.Replicas), slices.Clone(s.Dropped)
	return s
}

func (a Actual) clone() Actual {
	a.Voters, a.Learners = slices.Clone(a.Voters), slices.Clone(a.Learners)
	return a
}
