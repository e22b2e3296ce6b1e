package rpc

import "time"

// Limits of the public API, all of them. They stand here once: the handlers check these constants, limitTable describes
// them, docs/limits.md is printed from the table and a test holds each against the handlers at both sides of its edge.
const (
	maxIDBytes          = 128
	maxKeyBytes         = 128
	maxFairnessBytes    = 128
	maxExecutionIDBytes = 512

	// DefaultMaxPayloadBytes bounds a job's payload unless Options say otherwise.
	DefaultMaxPayloadBytes = 256 << 10
	// LargestMaxPayloadBytes is the most that Options may allow: a job with all that goes with its payload must fit into one
	// command of the log.
	LargestMaxPayloadBytes = 1 << 20
	maxResultBytes         = 256 << 10
	maxProgressBytes       = 16 << 10
	maxErrorBytes          = 4 << 10
	maxReasonBytes         = 1 << 10
	maxPausedByBytes       = 256
	maxContentTypeBytes    = 256
	maxPayloadRefBytes     = 2 << 10

	maxLabels          = 64
	maxLabelKeyBytes   = 63
	maxLabelValueBytes = 256
	maxLabelFilters    = 16

	maxHeaders          = 64
	maxHeaderKeyBytes   = 128
	maxHeaderValueBytes = 4 << 10
	maxHeadersBytes     = 16 << 10

	maxBatchItems     = 10_000
	maxBatchBytes     = 32 << 20
	maxInflightBytes  = 256 << 20
	maxDeadLetterIDs  = 1_000
	maxClaim          = 1_000
	maxClaimQueues    = 64
	maxClaimBytes     = 32 << 20
	maxPageSize       = 1_000
	defaultPageSize   = 100
	maxTopTenants     = 100
	maxViolations     = 32
	maxViolationBytes = 1 << 10
	maxRowsPerPage    = 20_000
	// maxReadyCounted bounds how many executions of a queue are counted in a shard: who needs the exact number has metrics.
	maxReadyCounted   = 1_000
	maxPageTokenBytes = 4 << 10
	// maxParts bounds the messages that a message is decoded to, before anything else is known of it: an empty item takes
	// two bytes on the wire and a hundred in memory. Ten thousand items with all that they can hold have fewer.
	maxParts = 200_000

	// maxCronBytes bounds a calendar schedule as it is stored.
	maxCronBytes            = 32 << 10
	maxCatchUpPerMinute     = 60_000
	defaultCatchUpPerMinute = 60
	maxFailuresInARow       = 1_000
	maxPreviewed            = 1_000
	defaultPreviewed        = 10

	// maxPauseRules bounds what every shard keeps in memory, and looks at before something may start.
	maxPauseRules = 1_000

	// defaultBackfill is how many occurrences a backfill may make unless it asks for more; fsm.MaxBackfill are the most.
	defaultBackfill = 1_000

	maxPriority     = 9
	defaultPriority = 5
	// maxShareWeight is dispatch's, too.
	maxShareWeight      = 1_000
	maxFloorPercent     = 10
	defaultFloorPercent = 1

	minAttempts     = 1
	maxAttempts     = 1_000
	defaultAttempts = 5
	minFactor       = 1_000
	maxFactor       = 10_000
	defaultFactor   = 2_000
	maxJitter       = 1_000
	defaultJitter   = 100

	defaultFirstDelay = time.Second
	maxFirstDelay     = 24 * time.Hour
	defaultMaxDelay   = time.Hour
	maxRetryDelay     = 7 * 24 * time.Hour

	minLease     = time.Second
	maxLease     = 24 * time.Hour
	defaultLease = 30 * time.Second
	maxWait      = 60 * time.Second

	year    = 365*24*time.Hour + 6*time.Hour
	horizon = 100 * year

	minInterval      = time.Second
	maxInterval      = horizon
	maxSpread        = 24 * time.Hour
	maxStartDeadline = year
	minRetention     = time.Hour
	maxRetention     = year
	maxWindow        = year
)

// Limit is one row of the table of limits.
type Limit struct {
	// Name is stable: tests and docs refer to it.
	Name string
	// Fields it holds for, as error details name them.
	Fields string
	// Range that is accepted, with its unit.
	Range string
	// Default that stands in for an unset field; empty: there is none.
	Default string
	// Beyond says what happens beyond the limit.
	Beyond string
}

const refused = "`invalid_argument`"

// limitTable is what docs/limits.md is printed from.
var limitTable = []Limit{
	{"id", "`id`, `job_id`, `tenant`, `queue`, `worker`, `name`", "1 to 128 characters of `[A-Za-z0-9._:@+{}-]`", "tenant and queue: `default`; a job's id is derived or made", refused},
	{"idempotency_key", "`idempotency_key`, `request_id`, `claim_id`", "at most 128 printable ASCII characters", "", refused},
	{"execution_id", "`execution_id`, `id` of an execution", "at most 512 characters, as the server gave it", "", refused},
	{"fairness_key", "`fairness_key`", "at most 128 bytes of UTF-8 without NUL", "", refused},
	{"payload", "`payload`", "at most 256 KiB; the server's operator can set up to 1 MiB", "", refused},
	{"content_type", "`content_type`", "at most 256 printable ASCII characters", "", refused},
	{"payload_ref", "`payload_ref`", "at most 2,048 bytes of UTF-8 without NUL; not together with a payload", "", refused},
	{"result", "`succeeded.result`", "at most 256 KiB", "", refused + ", and the attempt is recorded as failed"},
	{"progress", "`progress`", "at most 16 KiB", "", refused},
	{"error", "`failed.error`", "at most 4,096 bytes of UTF-8", "", "cut; bytes that are not UTF-8 are replaced"},
	{"reason", "`reason`, `pause_reason`, `error_contains`", "at most 1,024 bytes of UTF-8 without NUL", "", refused},
	{"paused_by", "`paused_by`", "at most 256 bytes of UTF-8 without NUL", "", refused},
	{"pause_until", "`until` and `pause_until` of a pause", "later than now, at most 100 years ahead; rounded up to the millisecond", "when somebody ends it", refused},
	{"labels", "`labels`", "at most 64 labels", "", refused},
	{"label_key", "`labels`", "1 to 63 bytes of UTF-8 without NUL and `=`", "", refused},
	{"label_value", "`labels`", "at most 256 bytes of UTF-8 without NUL", "", refused},
	{"label_filters", "`label`", "at most 16 filters; of a pause rule at least 1, and no key twice", "", refused},
	{"pause_rules", "`rule` of CreatePauseRule", "1,000 pause rules in the cluster, until they are deleted, also those whose time has passed", "", "`failed_precondition`"},
	{"headers", "`headers`", "at most 64 headers", "", refused},
	{"header_key", "`headers`", "1 to 128 bytes of UTF-8 without NUL", "", refused},
	{"header_value", "`headers`", "at most 4,096 bytes of UTF-8 without NUL", "", refused},
	{"headers_total", "`headers`", "at most 16 KiB, keys and values together", "", refused},
	{"priority", "`priority`", "0 to 9", "5", refused},
	{"instant", "`schedule.at`, `every.anchor`, `every.start`, `every.end`, `cron.start`, `cron.end`, `snoozed.until`, `from`, `to`", "from 1970 to 100 years ahead; rounded up to the millisecond", "", refused},
	{"delay", "`schedule.delay`", "0 to 100 years; rounded up to the millisecond", "", refused},
	{"interval", "`every.interval`", "1 s to 100 years, in whole milliseconds", "", refused},
	{"cron_lines", "`cron.lines`", "1 to 16 patterns", "", refused},
	{"cron_line", "`cron.lines`, `cron.exclude.lines`", "2,048 bytes; lists of at most 160; it fires between 1970 and 2199", "", refused},
	{"cron_zone", "`cron.zone`", "a name of the IANA database", "UTC", refused},
	{"exclude_dates", "`cron.exclude.dates`", "at most 400, years 1970 to 2199", "", refused},
	{"exclude_lines", "`cron.exclude.lines`", "at most 4 patterns", "", refused},
	{"cron_bytes", "`schedule.cron`", "at most 32 KiB in all", "", refused},
	{"spread", "`schedule.spread`", "0 to 24 h; recurring jobs", "0", refused},
	{"max_fires_per_day", "`schedule.max_fires_per_day`, and the server's `--max-fires-per-day`", "the fires on the busiest day of the year to come; recurring jobs", "no bound", refused + " with the number and the next times"},
	{"catch_up_per_minute", "`catch_up_per_minute`", "1 to 60,000; recurring jobs with `CATCH_UP_ALL`", "60", refused},
	{"pause_after_failures", "`pause_after_failures`", "at most 1,000; recurring jobs", "0: never", refused},
	{"preview", "`count` of PreviewSchedule", "1 to 1,000; fewer are answered when more than 100,000 times are skipped among them", "10", refused},
	{"catch_up_window", "`catch_up_window`", "more than 0, at most 1 year", "no bound", refused},
	{"max_attempts", "`retry.max_attempts`", "1 to 1,000", "5", refused},
	{"first_delay", "`retry.first_delay`", "0 to 24 h", "1 s", refused},
	{"factor", "`retry.factor_thousandths`", "1,000 to 10,000", "2,000: doubling", refused},
	{"max_delay", "`retry.max_delay`", "0 to 7 days", "1 h", refused},
	{"jitter", "`retry.jitter_thousandths`", "0 to 1,000", "100", refused},
	{"retry_after", "`failed.retry_after`", "0 to 7 days", "by the retry policy", refused},
	{"lease", "`lease`, `extend`", "1 s to 24 h", "a job: 30 s; a claim: each job's own; a heartbeat: as granted", refused},
	{"start_deadline", "`start_deadline`", "more than 0, at most 1 year", "never", refused},
	{"retention", "`retention`, `dead_retention`", "1 h to 1 year", "the queue's, else the tenant's, else 3 days", refused},
	{"shares", "`priority_shares.weights`, a tenant's `weight`", "1 to 1,000; of priorities ten or none", "priorities: 2, 3, 5, 7, 10, 15, 22, 33, 50, 75; a tenant: 1", refused},
	{"floor", "`priority_shares.floor_percent`", "1 to 10; with `strict`", "1", refused},
	{"batch_items", "`items`", "1 to 10,000 items", "", refused},
	{"batch_bytes", "the message of a batch call", "at most 32 MiB", "", refused + " if its length was announced, else `resource_exhausted`"},
	{"refused_bytes", "what is sent of a message that is refused by its size, over HTTP/1.1", "64 MiB of it, within 10 s, are read and forgotten, so that the answer arrives", "", "the connection is closed"},
	{"parts", "messages within a message, at any depth", "at most 200,000", "", refused},
	{"inflight_bytes", "all messages that a node is working on", "256 MiB together: as announced, or as much as has arrived; while compressed, as much as they may become", "", "`resource_exhausted` with a retry hint"},
	{"turns", "`schedule` with exclusions or `GAP_SKIP`, previews, and what counts a job's times", "half of the processors evaluate them, in turn, a batch's one by one; a turn is waited for 2 s", "", "`resource_exhausted` with a retry hint, and nothing of the call was done"},
	{"dead_letter_ids", "`execution_ids`", "at most 1,000", "", refused},
	{"claim", "`max_executions`", "1 to 1,000", "1", refused},
	{"claim_bytes", "the answer of a claim", "at most 32 MiB", "", "what does not fit is given back, uncounted"},
	{"claim_queues", "`queues`", "1 to 64", "", refused},
	{"wait", "`wait`", "0 to 60 s", "0", refused},
	{"backfill", "`max_occurrences`", "1 to 100,000; 1 to 1,000 one after the other", "1,000", refused + "; a range with more is refused as well, with their number"},
	{"apply_file", "the files of `carillon apply`", "each at most 32 MiB, refused before it is read; 100,000 jobs in all", "", "refused by the command"},
	{"page_size", "`page_size`", "1 to 1,000", "100", refused},
	{"top_tenants", "`top_tenants`", "0 to 100; of a shard at most 200,000 jobs are counted", "0: none are counted", refused},
}
