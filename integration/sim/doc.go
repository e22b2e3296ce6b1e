// Package sim plays a whole cluster below its RPC layer in one goroutine, from a seed: nodes with the real replica.Core and
// state machine on engines in memory, the real placement rules over a control plane in memory, dispatchers, producers,
// workers and operators, under a virtual clock. Meanwhile it does to them what REPLICATION.md 4.4 lists: networks that
// lose, repeat, delay and cut; crashes that lose what was not synced; wiped, failed and full disks; nodes lost for good; paused
// nodes; clock steps; a control plane that is away, forgets leases, and answers late or not at all.
//
// What must hold is checked while it goes: the invariants of replication (checks.go), that followers show what was
// acknowledged, and that replicas which verify their rows find the same and nothing wrong (reads.go), and by a model of what
// the committed entries did (model.go) those of scheduling. When the trouble ends, everything must come to its end within
// bounds (settle.go).
//
// It leaves out package node and all of its parts above the replicas: routes, and node/dispatch, in whose place dispatch.go
// stands. Of the replicas it leaves out Host, new work's lane with its shedding, and the drain of a store that stops.
//
// A run is a function of its seed: the same seed gives the same trace. Run makes crypto/rand repeatable while it runs, so
// that only one may run at a time in a process. It is a test's library and belongs to no binary.
package sim
