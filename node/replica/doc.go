// Package replica runs the raft groups of one store: one replica per shard, log and state in the store's one engine.
//
// It comes in two layers. Core is deterministic and single-threaded: it holds the raft state machines, takes inputs by
// method calls, and does everything that came of them in one Turn, whose writes are one batch of the engine with at most
// one sync. It reads no clock and starts no goroutine, so that a simulation can drive it through every order of events.
// Host is the runner: it owns the goroutine that feeds Core, the one that waits for syncs, the one that installs snapshots,
// the one that asks the engine how it keeps up, the clock ticks, and the mailbox other goroutines write to.
//
// What a group is to be is told by the control plane (Want); its leader takes it there, by changes of the configuration that
// are entries of its log. Replicas come (CreateLearner, Add) and go (Remove) at run time. A replica whose leader has no
// longer the entries it lacks gets the shard's rows instead: WriteSnapshot streams them, ReadSnapshot puts them beside the
// engine's, and when raft takes them up they replace the rows in one step.
//
// What a shard's commands mean is fsm's business, how rows are kept is store's, where peers are and who recorded which
// leadership is package node's and its control plane's. These rules hold throughout:
//
//   - Nothing that depends on an append leaves before that append is synced: no vote, no acknowledgement to a leader, no
//     commit counted from the own disk. raft says what depends (the responses of MsgStorageAppend), Turn.Wait and SyncDone
//     say when it may go.
//   - A log append, the state it changed, and the applied index with its hash chain are in one batch: after a crash they
//     are the same prefix, and replay starts at the applied index.
//   - A replica serves only while its leadership is established: raft elected it, the epoch (the raft term) is recorded in
//     the control plane or the wait for that has ended, and its own first entry is applied.
//   - A replica's id belongs to one store for ever and is never used again: one is made from the control plane's record
//     only, its tombstone outlives it, and what another store sends under its id is dropped.
//   - A snapshot is installed after the hard state that goes with it is durable; until it is installed nothing is written
//     into its span and nothing is said that depends on it.
package replica
