// Package rpc serves the public API: Connect, gRPC, gRPC-web and REST on one port. Its handlers authenticate, validate,
// translate, call the Backend and map errors; they decide nothing about jobs. Handlers run on the HTTP server's goroutines.
package rpc

import (
	"context"
	"fmt"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// Backend is what the handlers need of a node. Errors are *Unavailable, *Overloaded, *fsm.Refusal wrapped in Refused, or
// the context's; anything else is answered as internal and logged.
type Backend interface {
	// Shards are the numbers of the cluster's shards, in order; they start at 1. The caller must not change the slice.
	Shards() []uint32
	// ShardOf is the shard of a job and of its executions.
	ShardOf(tenant, jobID string) uint32
	// Do puts cmd through the log of shard and returns what it did. It retries nothing; an *Unavailable with Ambiguous set
	// says that it may have been applied, so that only a retry with the same identity is safe.
	Do(ctx context.Context, shard uint32, cmd *storagev1.Command) (fsm.Result, error)
	// DoAll does several at once; the outcomes are in the order of the commands.
	DoAll(ctx context.Context, cmds []ShardCommand) []Outcome
	// View calls fn with the shard's committed rows: everything acknowledged before the call unless stale is set.
	View(ctx context.Context, shard uint32, stale bool, fn func(fsm.Reader) error) error

	// Poll waits for work. See PollRequest. Release gives leases back, uncounted, when the answer could not be delivered.
	Poll(ctx context.Context, req PollRequest) ([]*storagev1.Execution, error)
	Release(leases []*storagev1.Execution)

	// Settings of queues and tenants stand in the control plane and reach every shard before these return; with shards
	// that have not applied a change yet it is returned beside a *Lagging. expected is the version to replace; 0 creates
	// and refuses an existing name; AnyVersion replaces whatever stands there.
	PutQueue(ctx context.Context, s *storagev1.QueueSettings, expected uint64) (*storagev1.QueueSettings, error)
	Queue(ctx context.Context, name string) (*storagev1.QueueSettings, error)
	Queues(ctx context.Context) ([]*storagev1.QueueSettings, error)
	DeleteQueue(ctx context.Context, name string, expected uint64) error
	PutTenant(ctx context.Context, s *storagev1.TenantSettings, expected uint64) (*storagev1.TenantSettings, error)
	Tenant(ctx context.Context, name string) (*storagev1.TenantSettings, error)
	Tenants(ctx context.Context) ([]*storagev1.TenantSettings, error)
	// Pause rules are kept the same way; one is deleted by putting its tombstone.
	PutPauseRule(ctx context.Context, r *storagev1.PauseRule, expected uint64) (*storagev1.PauseRule, error)
	PauseRule(ctx context.Context, id string) (*storagev1.PauseRule, error)
	PauseRules(ctx context.Context) ([]*storagev1.PauseRule, error)
	// DeleteTenant marks the tenant as deleting, and runs the task on every shard; it returns when that is done.
	DeleteTenant(ctx context.Context, name string, expected uint64) (TaskProgress, error)

	// RunTask starts the bulk operation id on every shard (or finds it there) and advances it until it is finished or ctx
	// ends; it goes on in the background then, and the same id asks again.
	RunTask(ctx context.Context, id string, kind storagev1.TaskKind, filter *storagev1.Filter) (TaskProgress, error)

	Operator
	Verifier

	// Cluster describes the cluster as this node sees it, with the topTenants tenants that have most jobs. 0: nothing is
	// counted for them.
	Cluster(ctx context.Context, topTenants int) (ClusterStatus, error)
	// NowMS is the node's disciplined clock.
	NowMS() int64
	// Clock is the same with what is to be known of it. AdvanceClock moves one that is virtual ahead, and returns early,
	// without an error, before ctx's deadline.
	Clock(ctx context.Context) (ClockStatus, error)
	AdvanceClock(ctx context.Context, goal ClockGoal) (ClockAdvance, error)
}

// ShardCommand is a command and the shard it is for.
type ShardCommand struct {
	Shard   uint32
	Command *storagev1.Command
}

// Outcome is what came of a command: Result, or Err as of Do.
type Outcome struct {
	Result fsm.Result
	Err    error
}

// AnyVersion as an expected version replaces whatever stands there.
const AnyVersion = ^uint64(0)

// PollRequest asks for up to Max executions of Queues and waits up to Wait for the first. A request with the ClaimID of
// leases that are still live gets those again.
type PollRequest struct {
	ClaimID string
	Worker  string
	Queues  []string
	Max     int
	// LeaseMS is the lease's length; 0: each job's own.
	LeaseMS int64
	Wait    time.Duration
}

// TaskProgress sums a bulk operation over the shards.
type TaskProgress struct {
	ID       string
	Done     uint64
	Seen     uint64
	Finished bool
}

// ClusterStatus describes nodes and shards.
type ClusterStatus struct {
	ClusterID string
	Nodes     []NodeStatus
	Shards    []ShardStatus
	Alarms    []Alarm
	Version   string
	// Tenants are those with most jobs, those with most first. UncountedShards have jobs that are in none of the counts.
	Tenants         []TenantLoad
	UncountedShards int
}

// TenantLoad is how many jobs a tenant has; More: that is not all.
type TenantLoad struct {
	Tenant string
	Jobs   uint64
	More   bool
}

// Alarm is a condition that an operator should see until it ends.
type Alarm struct {
	Name    string
	Message string
	SinceMS int64
	// Node is the name of the node that raises it.
	Node string
}

// NodeStatus describes one node.
type NodeStatus struct {
	ID        uint64
	Name      string
	Store     string
	Address   string
	Version   string
	StartedMS int64
	Ready     bool
	ClockOK   bool
	// ClockVirtual: it stands still until it is advanced.
	ClockVirtual bool
	// State is what is wanted of its store; StateUnknown if the control plane has not told.
	State StoreState
	// SilentSinceMS is since when nothing was heard of it; 0: it is heard.
	SilentSinceMS int64
	// EtcdVoter and EtcdLearner say what its part in the control plane is, Controller that it places replicas.
	EtcdVoter, EtcdLearner, Controller bool
	// ClockOffsetMS is its clock minus this node's, if ClockKnown.
	ClockOffsetMS int64
	ClockKnown    bool
	// Replicas on it, learners included.
	Replicas int
}

// ShardStatus describes one shard at its leader.
type ShardStatus struct {
	ID              uint32
	LeaderStore     string
	ReplicaStores   []string
	Epoch           uint64
	Established     bool
	Degraded        bool
	Applied         uint64
	Jobs            uint64
	Waiting         uint64
	Ready           uint64
	Leased          uint64
	Retrying        uint64
	Dead            uint64
	Held            uint64
	OldestWaitingMS int64
	// Members are all its replicas as the leader sees them; none where no leader has said.
	Members []ReplicaStatus
}

// ReplicaStatus is one replica of a shard as its leader sees it.
type ReplicaStatus struct {
	Store   string
	Learner bool
	// Lag is how many log entries it is not known to have.
	Lag uint64
	// Snapshot: it is being filled. Active: it was heard of within the last seconds.
	Snapshot, Active bool
}

// Unavailable says that the shard cannot be served now.
type Unavailable struct {
	Reason     string
	RetryAfter time.Duration
	// Ambiguous: the command may have been applied.
	Ambiguous bool
}

func (e *Unavailable) Error() string { return "unavailable: " + e.Reason }

// Overloaded says that a bounded queue is full; nothing was accepted.
type Overloaded struct {
	Reason     string
	RetryAfter time.Duration
}

func (e *Overloaded) Error() string { return "overloaded: " + e.Reason }

// Lagging says that a change of settings stands, but has not reached these shards yet; it will.
type Lagging struct{ Shards []uint32 }

func (e *Lagging) Error() string {
	return fmt.Sprintf("the change is stored, but shards %v have not applied it yet", e.Shards)
}

// Refused carries a refusal of the state machine or of the control plane as an error.
type Refused struct{ Refusal *fsm.Refusal }

func (e *Refused) Error() string {
	return fmt.Sprintf("refused: %s", e.Refusal.Message)
}

// ClockStatus is what time it is for jobs.
type ClockStatus struct {
	NowMS int64
	// Virtual: it stands still until it is advanced. NextDueMS is then when something is due next; 0: nothing is.
	Virtual   bool
	NextDueMS int64
}

// ClockGoal is where a virtual clock is to go: to an instant, or, with ToMS 0, so far ahead.
type ClockGoal struct {
	ToMS, ByMS int64
}

// ClockAdvance is how far a virtual clock has come.
type ClockAdvance struct {
	Clock ClockStatus
	// ToMS is the goal. Done: everything due up to there has fired.
	ToMS int64
	Done bool
	// Fired is how many occurrences became executions meanwhile.
	Fired uint64
}
