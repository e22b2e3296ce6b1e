// Package expand is the leader's evaluator of cron jobs: it finds the instants at which they fire and proposes to write
// them into the jobs' horizons, so that the state machine need not evaluate anything.
//
// As package dispatch it is no source of truth: the state machine takes what fits a job as it is then and refuses the rest.
// All that stands here is which jobs wait; it is empty after a takeover, since a job whose horizon is used up asks again
// every few seconds, and one that is about to use it up asks with each firing.
//
// Queue, Evaluator and zones are its deterministic core: they read no clock, start no goroutine and lock nothing; time is
// an argument. Expander runs one Queue per shard that its node leads. Package node makes it and tells it of leaderships and
// of what entries changed; integration/sim plays the core under a clock of its own.
//
// # Goroutines and locks
//
// Expander.Run owns one goroutine, which reads rows, evaluates and proposes. Takeover, StepDown, Applied and the callbacks
// of proposals are called on the replica loop's goroutine; they change memory, wake the other one and never block. There is
// one lock, Expander.mu; nothing is read, evaluated or proposed under it.
package expand
