package fsm

import (
	"bytes"
	"slices"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// JobFilter selects jobs. Empty fields match all; deleted jobs only when their state is asked for.
type JobFilter struct {
	Tenant   string
	Queue    string
	State    storagev1.JobState
	IDPrefix string
	Labels   []LabelFilter
}

// LabelFilter asks for a label, of any value or of one.
type LabelFilter struct {
	Key, Value string
	AnyValue   bool
}

// ListJobs returns up to limit of a tenant's jobs by id, from cursor on. It reads about budget rows at most: a page may
// be short, or empty, and still carry the cursor of the next.
func ListJobs(r Reader, filter JobFilter, cursor []byte, limit, budget int) (jobs []JobView, next []byte) {
	prefix := append(tenantPrefix(KindJob, filter.Tenant), filter.IDPrefix...)
	start := prefix
	if bytes.HasPrefix(cursor, prefix) {
		start = cursor
	}
	// The finder itself is not bounded: a job is looked up to its end, or not at all.
	f := newFinder(r, 0)
	r.Scan(start, PrefixEnd(prefix), func(key, value []byte) bool {
		if f.spend(); len(jobs) == limit || f.spent > max(budget, 1) {
			next = bytes.Clone(key)
			return false
		}
		tenant, jobID, ok := parseJobKey(key, KindJob)
		j := &storagev1.Job{}
		if !ok || j.UnmarshalVT(value) != nil {
			panic(corrupt(key))
		}
		if !filter.mayMatch(j) {
			return true
		}
		if v := viewOf(f, tenant, jobID, j, filter.Queue != ""); filter.matches(&v) {
			jobs = append(jobs, v)
		}
		return true
	})
	return jobs, next
}

// mayMatch refuses what the row alone tells.
func (f *JobFilter) mayMatch(j *storagev1.Job) bool {
	if (j.State == storagev1.JobState_JOB_STATE_DELETED) != (f.State == storagev1.JobState_JOB_STATE_DELETED) {
		return false
	}
	if f.Queue != "" && isOneShot(j) && j.Queue != f.Queue {
		return false
	}
	for _, want := range f.Labels {
		if !hasLabel(j.Labels, want.Key, want.Value, want.AnyValue) {
			return false
		}
	}
	return true
}

func (f *JobFilter) matches(v *JobView) bool {
	return (f.State == storagev1.JobState_JOB_STATE_UNSPECIFIED || f.State == v.State) &&
		(f.Queue == "" || f.Queue == v.Job.Template.GetQueue())
}

// ExecutionFilter selects executions. Empty fields match all; a job needs its tenant.
type ExecutionFilter struct {
	Tenant string
	JobID  string
	Queue  string
	State  storagev1.ExecutionState
	Kind   storagev1.ExecutionKind
}

func (f *ExecutionFilter) matches(e *storagev1.Execution) bool {
	return (f.Tenant == "" || f.Tenant == e.Tenant) && (f.JobID == "" || f.JobID == e.JobId) &&
		(f.Queue == "" || f.Queue == e.Template.GetQueue()) &&
		(f.State == storagev1.ExecutionState_EXECUTION_STATE_UNSPECIFIED || f.State == e.State) &&
		(f.Kind == storagev1.ExecutionKind_EXECUTION_KIND_UNSPECIFIED || f.Kind == e.Kind)
}

// ListExecutions returns up to limit executions from cursor on, in no order that means anything but the same on every
// page. It reads about budget rows at most, and little more than maxPageBytes of what it returns: a page may be short, or
// empty, and still carry the cursor of the next.
func ListExecutions(r Reader, filter ExecutionFilter, cursor []byte, limit, budget int) (found []*storagev1.Execution, next []byte) {
	w := walk{finder: newFinder(r, max(budget, 1)), filter: filter, limit: limit}
	next = w.run(cursor, func(e *storagev1.Execution, _ *storagev1.RangeVerdict, late bool) bool {
		if e == nil || late || !filter.matches(e) {
			return false
		}
		found = append(found, e)
		return true
	})
	return found, next
}

// ListDead returns up to limit dead letters from cursor on; it is ListExecutions for one state.
func ListDead(r Reader, filter ExecutionFilter, cursor []byte, limit, budget int) (found []*storagev1.Execution, next []byte) {
	filter.State = storagev1.ExecutionState_EXECUTION_STATE_DEAD
	return ListExecutions(r, filter, cursor, limit, budget)
}

// History is a page of what became of a job's occurrences.
type History struct {
	// Executions, those not yet ended among them.
	Executions []*storagev1.Execution
	Verdicts   []*storagev1.RangeVerdict
	// Late are attempts that were refused: an execution's identity with the one attempt.
	Late []*storagev1.Execution
	// Next is the cursor of the next page; nil: this is the last.
	Next []byte
}

// maxHistoryRows bounds the rows that one page of history reads.
const maxHistoryRows = 20_000

// ReadHistory returns a page of up to limit items of a job's history, of all its incarnations that are still kept.
func ReadHistory(r Reader, tenant, jobID string, cursor []byte, limit int) *History {
	h := &History{}
	w := walk{finder: newFinder(r, maxHistoryRows), filter: ExecutionFilter{Tenant: tenant, JobID: jobID}, limit: limit}
	h.Next = w.run(cursor, func(e *storagev1.Execution, v *storagev1.RangeVerdict, late bool) bool {
		switch {
		case v != nil:
			h.Verdicts = append(h.Verdicts, v)
		case !w.filter.matches(e):
			return false
		case late:
			h.Late = append(h.Late, e)
		default:
			h.Executions = append(h.Executions, e)
		}
		return true
	})
	return h
}

// walk goes through the rows where executions can stand, in the order of their keys, so that a key is a cursor.
type walk struct {
	*finder
	filter ExecutionFilter
	limit  int
}

type span struct{ start, end []byte }

func prefixSpan(prefix []byte) span { return span{prefix, PrefixEnd(prefix)} }

// run calls fn for each row from cursor on; fn says whether it took it. It returns the next page's cursor.
func (w *walk) run(cursor []byte, fn func(e *storagev1.Execution, v *storagev1.RangeVerdict, late bool) bool) (next []byte) {
	taken, size := 0, 0
	for _, s := range w.spans() {
		if s.end != nil && bytes.Compare(cursor, s.end) >= 0 {
			continue
		}
		start := s.start
		if bytes.Compare(cursor, start) > 0 {
			start = cursor
		}
		w.r.Scan(start, s.end, func(key, value []byte) bool {
			if taken >= w.limit || size >= maxPageBytes || !w.spend() {
				next = bytes.Clone(key)
				return false
			}
			if e, v, late := w.decode(key, bytes.Clone(value)); (e != nil || v != nil) && fn(e, v, late) {
				taken++
				size += e.SizeVT()
			}
			return true
		})
		if next != nil {
			break
		}
	}
	return next
}

// spans lists what has to be read for the filter, in key order.
func (w *walk) spans() []span {
	f := w.filter
	var spans []span
	wants := func(states ...storagev1.ExecutionState) bool {
		return f.State == storagev1.ExecutionState_EXECUTION_STATE_UNSPECIFIED || slices.Contains(states, f.State)
	}
	if wants(storagev1.ExecutionState_EXECUTION_STATE_RETRYING) {
		spans = append(spans, w.identSpan(KindRetrying))
	}
	if wants(storagev1.ExecutionState_EXECUTION_STATE_DEAD) {
		spans = append(spans, w.identSpan(KindDead))
	}
	if wants(storagev1.ExecutionState_EXECUTION_STATE_READY) {
		spans = append(spans, w.identSpan(KindHeld))
	}
	if wants(storagev1.ExecutionState_EXECUTION_STATE_LEASED) {
		spans = append(spans, prefixSpan([]byte{KindLeased}))
	}
	if wants(storagev1.ExecutionState_EXECUTION_STATE_READY) {
		spans = append(spans, w.readySpans()...)
	}
	if wants(storagev1.ExecutionState_EXECUTION_STATE_WAITING) {
		spans = append(spans, w.waitingSpans()...)
	}
	if wants(storagev1.ExecutionState_EXECUTION_STATE_SUCCEEDED, storagev1.ExecutionState_EXECUTION_STATE_CANCELLED,
		storagev1.ExecutionState_EXECUTION_STATE_EXPIRED, storagev1.ExecutionState_EXECUTION_STATE_SKIPPED) {
		spans = append(spans, w.endedSpans()...)
	}
	return spans
}

// identSpan is the rows of a kind whose keys start with tenant and job.
func (w *walk) identSpan(kind byte) span {
	switch f := w.filter; {
	case f.Tenant == "":
		return prefixSpan([]byte{kind})
	case f.JobID == "":
		return prefixSpan(tenantPrefix(kind, f.Tenant))
	default:
		return prefixSpan(namedKey(kind, f.Tenant, f.JobID))
	}
}

func (w *walk) readySpans() []span {
	switch f := w.filter; {
	case f.Queue != "":
		return []span{prefixSpan(ReadyQueuePrefix(f.Queue))}
	case f.Tenant == "":
		return []span{prefixSpan([]byte{KindReady})}
	default:
		var spans []span
		seek := newFinder(w.r, maxListSeeks)
		seek.streams(f.Tenant, func(_, _ string, _ uint32, prefix []byte) bool {
			spans = append(spans, prefixSpan(prefix))
			return true
		})
		if seek.exceeded() {
			return []span{prefixSpan([]byte{KindReady})}
		}
		return spans
	}
}

// waitingSpans is the timer index, or the one timer that a job can have there.
func (w *walk) waitingSpans() []span {
	f := w.filter
	if f.Tenant == "" || f.JobID == "" {
		return []span{prefixSpan([]byte{KindTimer})}
	}
	j := getJob(w.r, JobKey(f.Tenant, f.JobID))
	if j == nil || !isOneShot(j) {
		return nil
	}
	return []span{prefixSpan(timerJobKey(j.Schedule.GetAtMs(), TimerOneShot, f.Tenant, f.JobID))}
}

func (w *walk) endedSpans() []span {
	var spans []span
	for _, bucket := range newFinder(w.r, 0).liveBuckets() {
		prefix := endedBucket(bucket)
		if w.filter.Tenant != "" {
			prefix = appendName(prefix, w.filter.Tenant)
			if w.filter.JobID != "" {
				prefix = appendName(prefix, w.filter.JobID)
			}
		}
		spans = append(spans, prefixSpan(prefix))
	}
	return spans
}

// decode reads a row as what it holds, sharing value; nothing for a timer that is no waiting execution.
func (w *walk) decode(key, value []byte) (e *storagev1.Execution, v *storagev1.RangeVerdict, late bool) {
	switch key[0] {
	case KindRetrying:
		id, ok := parseIdentKey(key, KindRetrying)
		if !ok {
			panic(corrupt(key))
		}
		e, _ = w.at(timerIdentKey(retryTime(key, value), TimerRetry, &id), &id)
		return e, nil, false
	case KindTimer:
		t, ok := parseTimerKey(key)
		if !ok {
			panic(corrupt(key))
		}
		if t.kind != TimerOneShot {
			return nil, nil, false
		}
		return decodeNamed(key, value, &t.id), nil, false
	case KindEnded:
		ref, ok := parseEndedKey(key)
		if !ok {
			panic(corrupt(key))
		}
		if ref.char == charRange {
			v = &storagev1.RangeVerdict{}
			mustDecode(key, value, v.UnmarshalVT)
			return nil, v, false
		}
		return decodeNamed(key, value, &ref.id), nil, ref.char == charLate
	case KindHeld, KindDead:
		id, ok := parseIdentKey(key, key[0])
		if !ok {
			panic(corrupt(key))
		}
		return decodeNamed(key, value, &id), nil, false
	default:
		return decodeExecution(key, value), nil, false
	}
}
