package fsm

// What the state machine itself bounds. Package rpc checks tighter, friendlier limits first; these hold whatever a log
// entry says, so that no input can break a key, overflow an instant or make an entry unbounded.
const (
	maxNameBytes    = 256
	maxPayloadBytes = 4 << 20
	// MaxResultBytes bounds a completion's result; a larger one fails its attempt.
	MaxResultBytes   = 256 << 10
	maxErrorBytes    = 4 << 10
	maxProgressBytes = 64 << 10
	maxPriority      = 9

	// MaxBatch is the most items of one command, and the most rows that a bulk step or an advance works on.
	MaxBatch = 1000
	// maxOccurrences is the most occurrences of one recurring job that one timer makes.
	maxOccurrences = 100
	// maxKeptAttempts is how many attempts a row keeps: the first half and the last half.
	maxKeptAttempts = 40
	// inlineResume is how many held executions a resume moves itself; a task moves the others.
	inlineResume = 100
	// maxFindRows bounds the search for a job's live executions before its marker goes; an entry that has read as many
	// leaves what else is to be swept to the next.
	maxFindRows = 10_000
	// maxHintRows bounds the leader's search for them when a job is deleted.
	maxHintRows = 100_000
	// maxStreamReads bounds the search for a ready execution beyond its job's own stream, over all look-ups of one read:
	// 10,000 streams of its tenant. See finder.ready for what is not found then.
	maxStreamReads = 20_000
	// maxListSeeks bounds what a page of a tenant's executions spends on finding its streams; of more it reads the whole
	// backlog.
	maxListSeeks = 1000
	// maxSelectors is how many labels a pause rule names at most.
	maxSelectors = 16
	// maxPageBytes ends a page of executions, whose results and progress may be large.
	maxPageBytes = 8 << 20

	// inlinePayloadBytes is the largest payload that stands in its row; a larger one stands in a blob row.
	inlinePayloadBytes = 1 << 10

	minuteMS = 60_000
	hourMS   = 60 * minuteMS
	dayMS    = 24 * hourMS

	// maxInstantMS is the last instant of the year 9999.
	maxInstantMS  = 253_402_300_799_999
	maxDurationMS = 200 * 366 * dayMS

	// missedAfterMS: an occurrence that fires later than this was missed, and goes by its job's catch-up rule.
	missedAfterMS = minuteMS
	// recordKeptMS is how long idempotency records, tombstones and ended tasks are kept.
	recordKeptMS = dayMS
	// leaseEndGrainMS: a lease-end timer that finds leases still living stands at least this far ahead again.
	leaseEndGrainMS = 50

	defaultLeaseMS         = 30_000
	maxLeaseMS             = dayMS
	defaultRetentionMS     = 3 * dayMS
	defaultDeadRetentionMS = 30 * dayMS
	// maxRetentionMS keeps the live history buckets at 64 or fewer.
	maxRetentionMS = 400 * dayMS
	maxRetryMS     = 366 * dayMS
)
