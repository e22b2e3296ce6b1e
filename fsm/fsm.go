// Package fsm is a shard's state machine: a pure function of its rows and the next log entry.
//
// It decides; wheel, dispatcher and caches only suggest. It reads no clock, draws no random number, starts no goroutine,
// logs nothing and knows nothing of Pebble, raft or Connect. A refusal is a value, the same on every replica; a panic
// means that our own logic is broken. Package node/replica calls Apply, one entry at a time per shard; packages rpc and
// node read through the functions of read.go on any consistent Reader.
package fsm

import (
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// Reader reads a shard's rows. Keys are relative to the shard: their first byte is the kind (keys.go). Slices handed out
// must not be changed; what Get returns stays valid, what Scan hands out only until fn returns. I/O errors are sticky in
// the implementation and surface when it commits, or from its Err: after one, reads find nothing and what was computed is
// thrown away.
type Reader interface {
	// Get returns the value of key.
	Get(key []byte) (value []byte, ok bool)
	// Scan calls fn for the rows in [start, end) in key order until it returns false.
	Scan(start, end []byte, fn func(key, value []byte) bool)
}

// State is a shard's rows as Apply sees them: its own writes included. Set takes ownership of key and value.
type State interface {
	Reader
	Set(key, value []byte)
	Delete(key []byte)
	DeleteRange(start, end []byte)
}

// Code says what kind of refusal it is; package rpc maps it to Connect's codes.
type Code uint8

const (
	OK Code = iota
	InvalidArgument
	NotFound
	AlreadyExists
	// Aborted: an expected version did not match.
	Aborted
	// FailedPrecondition: a stale lease token, a conflicting completion, a fired one-shot rescheduled, and the like.
	FailedPrecondition
	ResourceExhausted
	// StaleTerm: proposed by a leadership that has ended; nothing was applied.
	StaleTerm
	// Moved: a hint of the leader was out of date; look again and retry.
	Moved
)

// Refusal says why a command, or one item of it, was not applied. It is part of the replicated result.
type Refusal struct {
	Code    Code
	Message string
	// Field names the request's field at fault, when one is.
	Field string
	// Fields name what differs from the first request of the same identity.
	Fields []string
	// Version is the job's current version, with Aborted.
	Version uint64
}

// Result is what one command did. Which fields are set depends on the command.
type Result struct {
	Refusal *Refusal
	// Job and its tenant/id: update, delete. The answer of a retry is the first answer.
	Job *storagev1.Job
	// Put says what a put did.
	Put storagev1.PutOutcome
	// ExecutionID: trigger.
	ExecutionID string
	// Items: one per item of creates, heartbeats, completions, requeues, purges; one for cancel.
	Items []Item
	// Leases: claim and advance, with the claim each belongs to (Execution.ClaimId). The executions are shared and
	// read-only.
	Leases []*storagev1.Execution
	// Task: start and step; an update that resumes a job with more held executions than it may release itself.
	Task *storagev1.Task
	// Fired is how many timers an advance popped; MoreDue says that timers due at its stamp remain.
	Fired   int
	MoreDue bool
	// Removed is how many rows a housekeep removed; More says that there is more to do now.
	Removed int
	More    bool
}

// Item is the result of one item of a batch.
type Item struct {
	Refusal *Refusal
	// Creates: the receipt. Duplicate says that it is the answer of an earlier create, or trigger.
	Incarnation uint64
	CreatedMS   int64
	FirstMS     int64
	Duplicate   bool
	// Heartbeats.
	DeadlineMS      int64
	CancelRequested bool
	// Completions, cancel: the execution's state afterwards.
	State storagev1.ExecutionState
}

// Effects tell the leader's disposable structures what an entry changed. Followers drop them.
type Effects struct {
	// Timers that were added to the index.
	Timers []TimerRef
	// Ready executions that were added, in the order they became ready.
	Ready []ReadyRef
	// Unready are keys of ready rows that went otherwise than through a claim's picks.
	Unready [][]byte
	// Cancels are leased executions whose holder is to stop.
	Cancels []LeaseRef
	// Ended leases: completed, lost or released.
	Ended []LeaseRef
	// Expand are cron jobs whose horizon runs out, or has: the evaluator is to propose more.
	Expand []JobRef
	// SettingsChanged says that a queue's or tenant's settings were replaced, or that a pause of one is over.
	SettingsChanged bool
	// TasksStarted says that a bulk operation was left that has to be stepped, other than by StartTask, whose caller sees to it.
	TasksStarted bool
	// LatenessMS is first start minus nominal of each execution that started.
	LatenessMS []int64
	// Verifies are for followers too: every replica is to look at its rows as this entry leaves them.
	Verifies []string
}

// JobRef names a job.
type JobRef struct{ Tenant, JobID string }

// TimerRef is a timer of the index, as the wheel needs it.
type TimerRef struct {
	AtMS int64
	Kind TimerKind
	// Queue is set for timers that make an execution ready.
	Queue string
}

// ReadyRef is a ready execution, as the dispatcher needs it.
type ReadyRef struct {
	Key         []byte
	Queue       string
	Priority    uint32
	Tenant      string
	FairnessKey string
	NominalMS   int64
	ReadyMS     int64
}

// LeaseRef names a lease.
type LeaseRef struct {
	Fencing     uint64
	ExecutionID string
	ClaimID     string
	Queue       string
}
