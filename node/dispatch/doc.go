// Package dispatch is the leader's short memory: it turns due timers and ready executions into leases for waiting polls.
//
// It is not a source of truth. It proposes Advance and Claim commands and the fsm decides, so that what stands here is
// wrong at worst about when or which, never about whether; it is rebuilt from rows at takeover and dropped at step-down.
// One Dispatcher serves all shards that its node leads. Package node makes it, tells it of leaderships and of what
// entries changed, and runs it; package rpc polls it.
//
// # Goroutines
//
// Run owns two: the planner, which is the only one that proposes, and the loader, the only one that reads rows for more
// than a retried poll. Takeover, StepDown, Applied and the callbacks of proposals are called on the replica loop's
// goroutine; they change memory, wake the others and never block. Poll waits on its caller's goroutine.
//
// # Lock
//
// There is one lock, Dispatcher.mu. Nothing is called under it that takes another lock, reads rows or proposes, and no
// critical section touches more than a few thousand entries. Methods whose comment says "locked" are called with it held.
//
// # How a poll is filled
//
// The planner makes rounds. A round is what it proposes to one shard at once: claims of ready executions, and an advance
// of the clock that may lease what it fires. A shard has one round under way at a time, and rounds are paced node-wide by
// a token bucket: under load what arrives meanwhile gathers into larger rounds, so that entries per second stay few. What
// a poll may get from a round is reserved beforehand and what was not granted is returned, so that it never gets more
// than it asked for.
package dispatch
