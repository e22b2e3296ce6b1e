package route

import "sync/atomic"

// Counters only grow.
type Counters struct {
	// Calls to other nodes, and those that had no answer.
	Calls, CallsFailed uint64
	// Commands that were sent to other nodes, and those sent again because they did nothing where they were first.
	Commands, CommandsAgain uint64
	// Polls of other leaders, those of them that went through a third node, and what they brought.
	Polls, Relayed, Leases uint64
	// Hints that came, by queue.
	Hints uint64
	// ReleasesDropped are leases that could not be given back: they end by their deadlines.
	ReleasesDropped uint64
}

// counters are Router's and Poller's.
type counters struct {
	calls, callsFailed, commands, commandsAgain, polls, relayed, leases, hints, releasesDropped atomic.Uint64
}

// Counters returns what was counted so far, by the router and the poller that calls through it.
func (r *Router) Counters() Counters {
	c := &r.counters
	return Counters{
		Calls: c.calls.Load(), CallsFailed: c.callsFailed.Load(),
		Commands: c.commands.Load(), CommandsAgain: c.commandsAgain.Load(),
		Polls: c.polls.Load(), Relayed: c.relayed.Load(), Leases: c.leases.Load(), Hints: c.hints.Load(), ReleasesDropped: c.releasesDropped.Load(),
	}
}
