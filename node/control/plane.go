// Package control is the control plane: which cluster this is, which stores it has, which shards there are, where their
// replicas are wanted and are, who leads them, and the settings of queues and tenants, and pause rules. Never jobs, executions or leases of
// workers: those belong to the shards.
//
// Two implementations stand behind Plane: Etcd, over the etcd server this process embeds (Server), and Memory, which is
// synchronous, starts no goroutine and can be told to misbehave, for tests, simulation and embedded test servers. Package
// node makes one Plane per process; Keeper holds the leader leases of the shards that process leads.
//
// No safety rests on it: what fences a leader is its raft term inside the shard's own state. A shard with a raft majority
// goes on while the control plane is away.
//
// Place and BalanceLeaders are what a controller decides by, pure functions of what is known; Controller carries it out, in
// one node at a time.
//
// Goroutines: Run of Server, Etcd, Keeper and Controller, and the Watch methods, which all block until their context ends, as does
// Campaign while it has to wait. Every other method is a request that ends with its context, safe for use by any goroutine.
package control

import (
	"context"
	"errors"
	"fmt"
	"slices"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// Slots is how many slots job ids hash to. It is part of the disk format.
const Slots = 4096

// Bounds of what the control plane takes.
const (
	// MaxShards bounds a cluster's shards; no shard can have less than one slot.
	MaxShards = Slots
	// MaxSettings bounds the queues, the tenants and the pause rules, each, deleted ones included.
	MaxSettings = 20_000
	// shardsPerTxn keeps a nested leader transaction below etcd's limit of 128 operations.
	shardsPerTxn = 60
)

var (
	// ErrUnavailable: no quorum, no answer in time, or shutting down. What was asked may have happened or not.
	ErrUnavailable = errors.New("control plane unavailable")
	// ErrNoMap: the slot map does not exist or makes no sense. On a store that has been initialised that is an alarm, never a default.
	ErrNoMap = errors.New("slot map missing or damaged")
	// ErrOtherCluster: the control plane belongs to another cluster than the store's disk.
	ErrOtherCluster = errors.New("control plane belongs to another cluster")
	// ErrRolledBack: the control plane knows of more starts of this store than its disk does.
	ErrRolledBack = errors.New("disk was rolled back or copied")
	// ErrLapsed: the store's lease has ended and no beat has brought a new one yet; it is also an ErrUnavailable.
	ErrLapsed = fmt.Errorf("store lease lapsed: %w", ErrUnavailable)
	// ErrNotRegistered: the call needs the store's lease, and Register has not succeeded yet.
	ErrNotRegistered = errors.New("store not registered")
	// ErrTooMany: MaxSettings is reached.
	ErrTooMany = errors.New("too many settings")
)

// VersionError says that settings were put with an expected version that does not stand.
type VersionError struct {
	Kind     SettingKind
	Name     string
	Expected uint64
	// Current is the version that stands; 0: the name does not exist or was deleted.
	Current uint64
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("%s %q has version %d, not %d", e.Kind, e.Name, e.Current, e.Expected)
}

// Plane is the control plane as one process sees it.
type Plane interface {
	// Bootstrap creates the cluster's identity, its shards and its slot map, once. Run again, also by another store or
	// with another number of shards, it finishes what a crash left half done and otherwise changes nothing. It must be
	// called only for a store that holds no shard yet. Errors: ErrOtherCluster, ErrUnavailable.
	Bootstrap(ctx context.Context, seed Seed) error
	// Register makes the store known, gives it its node id, the same for ever, and grants its lease. Errors:
	// ErrRolledBack, ErrOtherCluster, ErrStoreGone, ErrOldBinary, ErrUnavailable.
	Register(ctx context.Context, store Store) (Registration, error)
	// Map reads the slot map and the shards. Errors: ErrNoMap, ErrUnavailable.
	Map(ctx context.Context) (*Map, error)

	// Beat says that the loop that does the work is alive; cheap, any goroutine. Without a beat the store's lease lapses
	// after LeaseTTL, and with it the leader leases bound to it. It is granted again when the beats come back.
	Beat()
	// AcquireLeaders takes the leader lease of each claimed shard unless an epoch at or above the claim's stands there
	// for somebody else, or above it for this store. The answers are in the order of the claims; with an error, none
	// is. Taking a lease again that is held is no change. Errors: ErrNotRegistered, ErrLapsed, ErrUnavailable.
	AcquireLeaders(ctx context.Context, claims []LeaderClaim) ([]LeaderGrant, error)
	// WatchLeaders calls fn for every leader record that stands and then, one at a time, for each change, until ctx
	// ends; it returns ctx's error. It survives compaction and loss of the control plane by reading everything again, so
	// that fn may see a record twice but always sees the newest. fn must neither block nor call the plane.
	WatchLeaders(ctx context.Context, fn func(LeaderRecord)) error

	// Stores lists all registered stores in order of their node ids. Errors: ErrUnavailable.
	Stores(ctx context.Context) ([]StoreRecord, error)
	// WatchStores calls fn whenever Stores may answer differently than before, also for what stands when it begins, until
	// ctx ends; it returns ctx's error. fn must neither block nor call the plane.
	WatchStores(ctx context.Context, fn func()) error
	// SetStoreState says what is wanted of a store: under the controller's term, or with a nil term as an operator. A store that
	// is gone stays gone. Errors: ErrDeposed, ErrNoStore, ErrStoreGone, ErrUnavailable.
	SetStoreState(ctx context.Context, term *Term, store string, state StoreState) error
	// WatchShards is for shards as they are wanted what WatchLeaders is for leaders.
	WatchShards(ctx context.Context, fn func(Shard)) error
	// ChangeShard stores next as the successor of what it was decided by. Its replicas are those of before, or such that the
	// group has given up since it was last told of, or have ids that were never given. To ask again for what stands is no
	// error. Errors: ErrDeposed, *GenError, ErrMoved, ErrNoShard, ErrUnavailable.
	ChangeShard(ctx context.Context, term *Term, next Shard, by Basis) error
	// Placement reads at once what a controller decides by; For of the stores is left at zero. Errors: ErrUnavailable.
	Placement(ctx context.Context) (View, error)
	// PublishShards tells how shards are; called by their leaders. The answers, in order, say which stand now: false where
	// another generation is wanted by now, or a later epoch was there before. Errors: ErrUnavailable.
	PublishShards(ctx context.Context, actuals []Actual) ([]bool, error)
	// WatchActual is for shards as they are what WatchLeaders is for leaders.
	WatchActual(ctx context.Context, fn func(Actual)) error
	// Campaign waits while another store is the controller and returns with this one as it, for as long as its lease is held.
	// It needs Run. Errors: ErrNotRegistered, ErrLapsed, ErrUnavailable.
	Campaign(ctx context.Context) (*Term, error)
	// Resign ends a term. Errors: ErrUnavailable.
	Resign(ctx context.Context, term *Term) error

	// PutSetting stores s as the successor of version expected (0: it must not exist) and returns it with its new
	// version. Versions of a name only grow, across deletion too: a deletion is put with Deleted set and stays as a
	// tombstone. Errors: *VersionError, ErrTooMany, ErrUnavailable.
	PutSetting(ctx context.Context, s Setting, expected uint64) (Setting, error)
	// GetSetting reads one; ok is false if it never existed. A deleted one is returned with its Deleted set.
	GetSetting(ctx context.Context, kind SettingKind, name string) (s Setting, ok bool, err error)
	// ListSettings reads all of a kind in order of their names, deleted ones included: shards must learn of deletions.
	ListSettings(ctx context.Context, kind SettingKind) ([]Setting, error)
	// WatchSettings is for settings what WatchLeaders is for leaders.
	WatchSettings(ctx context.Context, fn func(Setting)) error

	// Health tells how it stands. It never fails: being unavailable is an answer.
	Health(ctx context.Context) Health
	// Run keeps the store's lease alive, as the beats allow, until ctx ends; then it returns nil.
	Run(ctx context.Context) error
}

// Seed is what a cluster is made of.
type Seed struct {
	ClusterID string
	// Shards is how many; from 1 to MaxShards. They are numbered from 1: 0 is the store's own key span.
	Shards int
	// Stores are the uuids of the stores that hold the first replicas: of each shard on up to MaxReplicas of them, in such
	// an order that the first one of each, which is to lead, is everybody's turn.
	Stores []string
}

func (s Seed) validate() error {
	switch {
	case s.ClusterID == "":
		return errors.New("bootstrap cluster: ClusterID is empty")
	case len(s.Stores) == 0 || slices.Contains(s.Stores, ""):
		return errors.New("bootstrap cluster: Stores is empty")
	case len(slices.Compact(slices.Sorted(slices.Values(s.Stores)))) != len(s.Stores):
		return errors.New("bootstrap cluster: Stores names one twice")
	case s.Shards < 1 || s.Shards > MaxShards:
		return fmt.Errorf("bootstrap cluster: Shards is %d, must be 1 to %d", s.Shards, MaxShards)
	}
	return nil
}

// Store is this process's disk.
type Store struct {
	ClusterID string
	UUID      string
	// Name is the operator's name of the node; Addr is where other nodes and clients reach it.
	Name string
	Addr string
	// Boots counts the starts with this disk, this one included; BootID tells this start from any other.
	Boots  uint64
	BootID string
	// Level is the highest level of the state machine that this process's binary supports.
	Level uint32
}

func (s Store) validate() error {
	switch {
	case s.ClusterID == "":
		return errors.New("register store: ClusterID is empty")
	case s.UUID == "":
		return errors.New("register store: UUID is empty")
	case s.BootID == "":
		return errors.New("register store: BootID is empty")
	case s.Boots == 0:
		return errors.New("register store: Boots is 0")
	}
	return nil
}

// Registration is what the control plane knows of a registered store.
type Registration struct {
	// NodeID is a small number, never reused.
	NodeID uint64
	// Boots is the number of starts that was recorded before this one; 0: a new store.
	Boots uint64
}

// Map says which shard a slot belongs to and where the shards are.
type Map struct {
	ClusterID string
	// Version grows with every change.
	Version uint64
	// Slots[i] is the shard of slot i.
	Slots [Slots]uint32
	// Shards in order of their ids.
	Shards []Shard
}

// Shard is one raft group as it is wanted.
type Shard struct {
	ID uint32
	// Gen grows with every change of the replicas.
	Gen      uint64
	Replicas []Replica
	// NextRID is the replica id to be given next; ids are never reused.
	NextRID uint64
	// Dropped are replicas that were wanted since the generation that the group was last told to have come to, and no longer
	// are. Each may have been made meanwhile, and the group may have taken it in: its store has no room for another one. Each
	// may be wanted again.
	Dropped []Replica
}

// Replica is one copy of a shard.
type Replica struct {
	RID   uint64
	Store string
}

// LeaderClaim asks for a shard's leader lease at an epoch, which is the raft term of the leadership.
type LeaderClaim struct {
	Shard uint32
	Epoch uint64
}

// LeaderGrant answers a claim.
type LeaderGrant struct {
	LeaderClaim
	Held bool
	// Standing is the record that stood in the way when Held is false. Its epoch is at least the claim's: a leadership
	// that wants to go on needs a higher one.
	Standing LeaderRecord
}

// LeaderRecord is a shard's leader lease as it stands.
type LeaderRecord struct {
	Shard uint32
	// Epoch 0: there is none, because it lapsed.
	Epoch uint64
	Store string
	Addr  string
}

// SettingKind tells queues, tenants and pause rules apart.
type SettingKind uint8

const (
	Queue SettingKind = iota + 1
	Tenant
	PauseRule
)

// SettingKinds are all of them.
var SettingKinds = [...]SettingKind{Queue, Tenant, PauseRule}

func (k SettingKind) String() string {
	switch k {
	case Queue:
		return "queue"
	case Tenant:
		return "tenant"
	case PauseRule:
		return "pause rule"
	default:
		return fmt.Sprintf("SettingKind(%d)", uint8(k))
	}
}

// Setting is the settings of one queue, of one tenant, or one pause rule; exactly one of them is set.
type Setting struct {
	Queue  *storagev1.QueueSettings
	Tenant *storagev1.TenantSettings
	Rule   *storagev1.PauseRule
}

// Kind says which of them is set; 0: none.
func (s Setting) Kind() SettingKind {
	switch {
	case s.Queue != nil:
		return Queue
	case s.Tenant != nil:
		return Tenant
	case s.Rule != nil:
		return PauseRule
	default:
		return 0
	}
}

// Name is the queue's or tenant's, or the rule's id.
func (s Setting) Name() string {
	switch s.Kind() {
	case Queue:
		return s.Queue.GetName()
	case Tenant:
		return s.Tenant.GetName()
	default:
		return s.Rule.GetId()
	}
}

// value is whichever is set.
func (s Setting) value() settingValue {
	switch s.Kind() {
	case Queue:
		return s.Queue
	case Tenant:
		return s.Tenant
	default:
		return s.Rule
	}
}

// settingValue is what the kinds have in common.
type settingValue interface {
	GetVersion() uint64
	GetDeleted() bool
	GetCreatedMs() int64
	MarshalVT() ([]byte, error)
	UnmarshalVT([]byte) error
}

// Version is that of the value; 0: none yet.
func (s Setting) Version() uint64 { return s.value().GetVersion() }

// Deleted says that it is a tombstone.
func (s Setting) Deleted() bool { return s.value().GetDeleted() }

// Health is how the control plane stands.
type Health struct {
	// Quorum: a leader is known and answered.
	Quorum bool
	// Leader is the control plane's own leader; empty: none known.
	Leader string
	// LeaseLive: this store's lease is held.
	LeaseLive bool
	// Sizes of the database; 0 where there is none.
	DBBytes      int64
	DBInUseBytes int64
	QuotaBytes   int64
	// Alarms and errors it reports of itself, such as NOSPACE.
	Alarms []string
}
