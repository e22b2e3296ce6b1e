// Package replica runs the raft groups of one store: one replica per shard, log and state in the store's one engine.
//
// It comes in two layers. Core is deterministic and single-threaded: it holds the raft state machines, takes inputs by
// method calls, and does everything that came of them in one Turn, whose writes are one batch of the engine with at most
// one sync. It reads no clock and starts no goroutine, so that a simulation can drive it through every order of events.
// Host is the runner: it owns the goroutine that feeds Core, the one that waits for syncs, the clock ticks, and the
// mailbox other goroutines write to.
//
// What a shard's commands mean is fsm's business, how rows are kept is store's, where peers are and who recorded which
// leadership is package node's and its control plane's. Three rules hold throughout:
//
//   - Nothing that depends on an append leaves before that append is synced: no vote, no acknowledgement to a leader, no
//     commit counted from the own disk. raft says what depends (the responses of MsgStorageAppend), Turn.Wait and SyncDone
//     say when it may go.
//   - A log append, the state it changed, and the applied index with its hash chain are in one batch: after a crash they
//     are the same prefix, and replay starts at the applied index.
//   - A replica serves only while its leadership is established: raft elected it, the epoch (the raft term) is recorded in
//     the control plane or the wait for that has ended, and its own first entry is applied.
package replica
