package fsm

import (
	"bytes"
	"slices"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// Why an occurrence has no execution yet. The reasons of those that never get one are a RangeVerdict's.
const (
	// WhyWaiting: its time has not come, or nobody has decided it yet.
	WhyWaiting = "waiting"
	// WhyPaused: the same, and its job is paused, or stopped by another pause.
	WhyPaused = "paused"
	// WhyQueued: it fell due, and is accepted when an earlier one has ended.
	WhyQueued = "queued"
)

// OccurrenceQuery asks what became of a job's nominal instants.
type OccurrenceQuery struct {
	Tenant, JobID string
	// FromMS and ToMS bound them, both included. 0: from the first that is kept; up to the next that is pending.
	FromMS, ToMS int64
	// AllKinds asks for what was triggered and backfilled, too.
	AllKinds bool
	// NowMS is the reader's clock: it tells how far back retention keeps everything.
	NowMS int64
}

// Occurrence is a nominal instant of a job with its execution, or a range of instants and why they have none.
type Occurrence struct {
	FromMS, ToMS int64
	Count        uint64
	// Execution is without payload, result and progress.
	Execution *storagev1.Execution
	Why       string
	// RecordedMS is when a range got its verdict; 0: it has none yet.
	RecordedMS int64
}

// Occurrences is a page of them, in the order of their instants.
type Occurrences struct {
	List []Occurrence
	// Job is the job's row; a tombstone, too.
	Job *storagev1.Job
	// KnownFromMS: of instants before it some may have been removed, by retention. Never before the job was created.
	KnownFromMS int64
	// KnownToMS: instants after it are not known yet. 0: all are.
	KnownToMS int64
	// Next is the cursor of the next page; nil: this is the last.
	Next []byte
}

// ReadOccurrences returns a page of up to limit occurrences of a job as it is now: of an earlier job of the same id only
// history tells. ok is false when there is no such job, and no tombstone. A page may be short, or empty, and still carry the
// cursor of the next: it reads about maxHistoryRows rows, and the leases.
func ReadOccurrences(r Reader, q OccurrenceQuery, cursor []byte, limit int) (page *Occurrences, ok bool) {
	j := getJob(r, JobKey(q.Tenant, q.JobID))
	if j == nil {
		return nil, false
	}
	c := &chronicle{finder: newFinder(r, 0), q: q, j: j, cursor: cursor, limit: limit, seeks: maxHistoryRows}
	return c.page(), true
}

// chronicle puts a page of occurrences together from all the places where they can stand. Each place is read in the order of
// nominal instants, from the cursor on, until it has given enough; the page ends where the first of them was left off.
type chronicle struct {
	*finder
	q      OccurrenceQuery
	j      *storagev1.Job
	cursor []byte
	limit  int
	// seeks bounds what it spends on the backlog of ready executions.
	seeks int

	// fromMS is where the executions' instants begin: those of the query, or of the cursor.
	fromMS int64
	items  []chronicled
	bytes  int
	// end is the order from which on something may be missing; nil: nothing is.
	end []byte
}

// chronicled is an occurrence and its place in the list: its instant, its kind and its discriminator.
type chronicled struct {
	order []byte
	Occurrence
}

func occurrenceOrder(nominalMS int64, char byte, discriminator string) []byte {
	return append(append(appendTime(nil, nominalMS), char), discriminator...)
}

func (c *chronicle) page() *Occurrences {
	out := &Occurrences{Job: c.j}
	c.fromMS = max(c.q.FromMS, 0)
	if at := (keyReader{s: string(c.cursor)}); len(c.cursor) > 0 {
		c.fromMS = max(c.fromMS, at.time())
	}
	if groups := c.groups(); len(groups) > 0 {
		most := max(1, maxHistoryRows/len(groups))
		for _, group := range groups {
			c.group(group, most)
		}
	}
	c.leased()
	c.ready()
	c.ofJob(out)

	slices.SortFunc(c.items, func(a, b chronicled) int { return bytes.Compare(a.order, b.order) })
	n := 0
	for n < len(c.items) && n < c.limit && !c.beyond(c.items[n].order) {
		out.List = append(out.List, c.items[n].Occurrence)
		n++
	}
	out.Next = c.end
	if n < len(c.items) && !c.beyond(c.items[n].order) {
		out.Next = c.items[n].order
	}
	return out
}

func (c *chronicle) beyond(order []byte) bool {
	return c.end != nil && bytes.Compare(order, c.end) >= 0
}

// leaveOff says that what stands from order on has not all been read.
func (c *chronicle) leaveOff(order []byte) {
	if !c.beyond(order) {
		c.end = order
	}
}

// add takes in an occurrence if it is of the range, and not of a page before.
func (c *chronicle) add(order []byte, o Occurrence) {
	if bytes.Compare(order, c.cursor) < 0 || o.ToMS < c.q.FromMS || c.q.ToMS != 0 && o.FromMS > c.q.ToMS {
		return
	}
	c.items = append(c.items, chronicled{order, o})
}

func (c *chronicle) addExecution(e *storagev1.Execution) {
	if e.Incarnation != c.j.Incarnation || !c.q.AllKinds && e.Kind != storagev1.ExecutionKind_EXECUTION_KIND_SCHEDULE {
		return
	}
	c.bytes += e.SizeVT()
	e.Result, e.Progress, e.Template = nil, nil, nil
	c.add(occurrenceOrder(e.NominalMs, kindChar(e.Kind), e.Discriminator), Occurrence{
		FromMS: e.NominalMs, ToMS: e.NominalMs, Count: 1, Execution: e,
	})
}

func (c *chronicle) addWithout(nominalMS int64, why string) {
	c.add(occurrenceOrder(nominalMS, charSchedule, ""), Occurrence{FromMS: nominalMS, ToMS: nominalMS, Count: 1, Why: why})
}

func (c *chronicle) addVerdict(v *storagev1.RangeVerdict, discriminator string) {
	c.add(occurrenceOrder(v.FromMs, charRange, discriminator), Occurrence{
		FromMS: v.FromMs, ToMS: v.ToMs, Count: v.Count, Why: v.Why, RecordedMS: v.RecordedMs,
	})
}

// rowGroup is the rows of one key space that have one kind, in the order of their nominal instants. Its prefix ends before
// the instant.
type rowGroup struct {
	prefix []byte
	char   byte
}

// groups lists the places whose keys start with the job.
func (c *chronicle) groups() (groups []rowGroup) {
	chars := []byte{charSchedule}
	if c.q.AllKinds {
		chars = append(chars, charTrigger, charBackfill)
	}
	add := func(prefix []byte, chars ...byte) {
		for _, char := range chars {
			id := Identity{Tenant: c.q.Tenant, JobID: c.q.JobID, Incarnation: c.j.Incarnation}
			key := appendIdent(bytes.Clone(prefix), &id, char)
			// Behind the kind an identity has its instant, and an empty discriminator's end.
			groups = append(groups, rowGroup{key[:len(key)-8-1], char})
		}
	}
	for _, kind := range [...]byte{KindRetrying, KindDead, KindHeld} {
		add([]byte{kind}, chars...)
	}
	for _, bucket := range c.liveBuckets() {
		add(endedBucket(bucket), append(chars, charRange)...)
	}
	return groups
}

// group reads a group's rows up to the most, or as many as a page holds. A range that the query's begin lies in starts before
// it: those are read from the first on.
func (c *chronicle) group(g rowGroup, most int) {
	fromMS := c.fromMS
	if g.char == charRange {
		fromMS = 0
		if at := (keyReader{s: string(c.cursor)}); len(c.cursor) > 0 {
			fromMS = at.time()
		}
	}
	end := PrefixEnd(g.prefix)
	if c.q.ToMS != 0 {
		end = appendTime(bytes.Clone(g.prefix), c.q.ToMS+1)
	}
	read, had := 0, len(c.items)
	c.r.Scan(appendTime(bytes.Clone(g.prefix), fromMS), end, func(key, value []byte) bool {
		k := keyReader{s: string(key[len(g.prefix):])}
		id := Identity{Tenant: c.q.Tenant, JobID: c.q.JobID, Incarnation: c.j.Incarnation}
		id.NominalMS, id.Discriminator = k.time(), k.name()
		id.Kind, _ = charKind(g.char)
		if !k.end() {
			panic(corrupt(key))
		}
		order := occurrenceOrder(id.NominalMS, g.char, id.Discriminator)
		if bytes.Compare(order, c.cursor) < 0 {
			return true
		}
		if read > 0 && (read >= most || len(c.items)-had >= c.limit || c.bytes >= maxPageBytes) {
			c.leaveOff(order)
			return false
		}
		read++
		c.row(key, bytes.Clone(value), &id)
		return true
	})
}

func (c *chronicle) row(key, value []byte, id *Identity) {
	switch {
	case key[0] == KindEnded && id.Kind == storagev1.ExecutionKind_EXECUTION_KIND_UNSPECIFIED:
		v := &storagev1.RangeVerdict{}
		mustDecode(key, value, v.UnmarshalVT)
		c.addVerdict(v, id.Discriminator)
	case key[0] == KindRetrying:
		if e, _ := c.at(timerIdentKey(retryTime(key, value), TimerRetry, id), id); e != nil {
			c.addExecution(e)
		}
	default:
		c.addExecution(decodeNamed(key, value, id))
	}
}

// leased walks the leases: see finder.leased. Only the job's are decoded.
func (c *chronicle) leased() {
	c.r.Scan([]byte{KindLeased}, []byte{KindLeased + 1}, func(key, value []byte) bool {
		tenant, okTenant := fieldBytes(value, executionTenant)
		jobID, okJob := fieldBytes(value, executionJobID)
		if !okTenant || !okJob {
			panic(corrupt(key))
		}
		if string(tenant) == c.q.Tenant && string(jobID) == c.q.JobID {
			c.addExecution(decodeExecution(key, bytes.Clone(value)))
		}
		return true
	})
}

// ready looks in the job's own stream, and in the others of the tenant up to maxListSeeks: see finder.ready.
func (c *chronicle) ready() {
	queue, priority, fairness := c.j.Queue, c.j.Priority, c.j.FairnessKey
	if t := c.j.Template; t != nil {
		queue, priority, fairness = t.Queue, t.Priority, t.FairnessKey
	}
	streams := [][]byte{ReadyStreamPrefix(queue, priority, c.q.Tenant, fairness)}
	newFinder(c.r, maxListSeeks).streams(c.q.Tenant, func(_, _ string, _ uint32, prefix []byte) bool {
		if !bytes.Equal(prefix, streams[0]) {
			streams = append(streams, prefix)
		}
		return true
	})
	for _, prefix := range streams {
		c.stream(prefix, max(1, c.seeks/len(streams)))
	}
}

// stream reads what is ready of the job in a stream, which holds other jobs' executions as well: it seeks from instant to
// instant, as often as the most.
func (c *chronicle) stream(prefix []byte, most int) {
	end := PrefixEnd(prefix)
	if c.q.ToMS != 0 {
		end = appendTime(bytes.Clone(prefix), c.q.ToMS+1)
	}
	had := len(c.items)
	for atMS, seeks := c.fromMS, 0; ; seeks++ {
		if seeks >= most || len(c.items)-had > c.limit {
			c.leaveOff(appendTime(nil, atMS))
			return
		}
		next := int64(-1)
		c.r.Scan(appendName(appendTime(bytes.Clone(prefix), atMS), c.q.JobID), end, func(key, value []byte) bool {
			id, _, _, _, ok := parseReadyKey(key)
			if !ok {
				panic(corrupt(key))
			}
			if id.JobID == c.q.JobID && id.NominalMS == atMS {
				c.addExecution(decodeExecution(key, bytes.Clone(value)))
				return true
			}
			if next = id.NominalMS; id.JobID > c.q.JobID {
				next++
			}
			return false
		})
		if next < 0 {
			return
		}
		atMS = next
	}
}

// ofJob takes in what the job's row tells: what waits for its time or for an earlier one, and how far all is known.
func (c *chronicle) ofJob(out *Occurrences) {
	j, t := c.j, c.j.Template
	if isOneShot(j) {
		_, e := findWaiting(c.r, c.q.Tenant, c.q.JobID, j)
		switch {
		case e != nil:
			t = e.Template
			c.addExecution(e)
		case j.Template != nil:
			c.addWithout(j.Schedule.GetAtMs(), WhyPaused)
		}
	} else if j.State != storagev1.JobState_JOB_STATE_DELETED {
		for _, at := range j.QueuedMs {
			c.addWithout(at, WhyQueued)
		}
		c.pending()
		if unknown(j) {
			out.KnownToMS = max(j.Horizon.GetToMs(), j.WatermarkMs)
		}
	}
	queue := j.Queue
	if t != nil {
		queue = t.Queue
	}
	kept := retentionOf(t, ReadQueue(c.r, queue), ReadTenant(c.r, c.q.Tenant))
	out.KnownFromMS = max(j.CreatedMs, c.q.NowMS-kept)
}

// pending takes in the instants that have not been decided: those of the range, or just the next one.
func (c *chronicle) pending() {
	j, why := c.j, WhyWaiting
	switch {
	case j.State == storagev1.JobState_JOB_STATE_PAUSED, j.Parked:
		why = WhyPaused
	case j.State == storagev1.JobState_JOB_STATE_EXHAUSTED && ended(j) && runsLeft(j) > 0:
		// Its schedule may name times after its last that it does not fire.
	case j.State != storagev1.JobState_JOB_STATE_ACTIVE:
		return
	}
	first, ok := nextOf(j, j.WatermarkMs)
	for _, v := range j.Horizon.GetSkipped() {
		if v.ToMs > j.WatermarkMs && (c.q.ToMS != 0 || !ok || v.FromMs <= first) {
			c.addVerdict(v, v.Why)
		}
	}
	if !ok {
		return
	}
	left := runsLeft(j)
	at := first
	if c.q.ToMS != 0 && c.fromMS > first {
		if at, ok = nextOf(j, c.fromMS-1); !ok {
			return
		}
		left -= min(left, countOf(j, first, at)-1)
	}
	for n := 0; ok && left > 0 && (at <= c.q.ToMS || c.q.ToMS == 0 && n == 0); n++ {
		if n > c.limit {
			c.leaveOff(occurrenceOrder(at, charSchedule, ""))
			return
		}
		c.addWithout(at, why)
		left--
		at, ok = nextOf(j, at)
	}
}
