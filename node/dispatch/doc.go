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
//
// # Other nodes
//
// A poll that waits here may be filled by what other nodes lead: Interest names its queues, and package node takes them
// there. From there comes a hint, and somebody polls that node without a wait. The same the other way round: SetInterest
// says for what polls wait elsewhere, and as long as a queue has something that no poll here takes, Config.Hint tells
// those nodes, first at once and then now and then, because hints, and polls that they bring, may be lost. Due timers wait
// for such a poll like for one that is about here. All of it says who may come, never who gets what.
package dispatch
