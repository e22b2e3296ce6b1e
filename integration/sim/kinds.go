package sim

// Kind is a kind of thing that a run counts.
type Kind int

const (
	// What the cluster was asked and did.
	Created Kind = iota
	Updated
	Deleted
	Triggered
	Put
	Backfilled
	Frozen
	Cancelled
	Leased
	Completed
	StaleRefused
	LeaseLost
	Acknowledged
	Retried
	Elected
	// What was done to it.
	Dropped
	Duplicated
	Delayed
	Cut
	CutOneWay
	CrashedBeforeSync
	CrashedAfterSync
	CommitLost
	DiskFailed
	DiskFull
	DiskSlow
	DiskWiped
	NodeLost
	Paused
	ClockStepped
	PlaneAway
	PlaneCut
	AnswerLost
	LapsedEarly
	LapsedLate
	EventLate
	EventRepeated
	ToldLate
	ControllerChanged
	Drained
	// What came of it.
	ShardMoved
	ReplicaWantedAgain
	ReplicaMade
	ReplicaRemoved
	ConfChanged
	SnapshotSent
	SnapshotInstalled
	LogTruncated
	LeaderTransferred
	ReadAtFollower
	Verified
	Expanded
	ExpansionStale
	PassedOver
	ZonesRaised
	Kinds
)

// String names the kind as reports do.
func (k Kind) String() string {
	return [Kinds]string{
		"jobs created", "jobs updated", "jobs deleted", "jobs triggered", "jobs put", "backfills started", "pauses put and ended", "executions cancelled", "leases", "completions",
		"stale words refused", "leases lost", "acknowledgements", "retries", "elections",
		"frames dropped", "frames repeated", "frames delayed", "cuts", "cuts of one direction", "crashes before a sync",
		"crashes after a sync", "commits lost", "disks failed", "disks full", "disks slow", "disks wiped", "nodes lost", "pauses", "clock steps",
		"control plane away", "control plane cut off", "answers lost", "leases lapsed early", "leases lapsed late", "events late",
		"events repeated", "shards told late", "controllers changed", "drains",
		"shards moved", "replicas wanted again", "replicas made", "replicas removed", "configurations changed", "snapshots sent", "snapshots installed",
		"logs truncated", "leaders transferred", "reads at followers", "looks at rows",
		"expansions", "expansions out of date", "missed instants passed over", "shards brought to newer zone data",
	}[k]
}
