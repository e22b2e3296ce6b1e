package fsm

import (
	"math"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// Reads are pure functions over any consistent Reader, on any goroutine. They panic with CorruptRow on a row that cannot be
// decoded. Cursors are opaque: the next row's key; nil is the end.

// ReadMeta returns the shard's own row; that of a fresh shard when there is none.
func ReadMeta(r Reader) *storagev1.Meta {
	meta := &storagev1.Meta{Level: 1}
	if value, ok := r.Get(MetaKey()); ok {
		mustDecode(MetaKey(), value, meta.UnmarshalVT)
	}
	return meta
}

// JobView is a job as it stands, put together from its rows.
type JobView struct {
	Tenant, JobID string
	// Job is the row with its template filled in from wherever it stands, without payload.
	Job *storagev1.Job
	// Payload is set by GetJob only.
	Payload []byte
	// State is the effective one: a one-shot that has fired is EXHAUSTED.
	State storagev1.JobState
	// NextMS is the next nominal instant; 0: none is pending.
	NextMS int64
	// Execution is a one-shot's own, wherever it stands, and ExecutionKey its row's key. Set by GetJob only.
	Execution    *storagev1.Execution
	ExecutionKey []byte
}

// GetJob returns a job, a tombstone too; ok is false when there is no row.
func GetJob(r Reader, tenant, jobID string) (view JobView, ok bool) {
	j := getJob(r, JobKey(tenant, jobID))
	if j == nil {
		return JobView{}, false
	}
	t := j.Template
	view = viewOf(newFinder(r, 0), tenant, jobID, j, true)
	if view.Execution != nil {
		t = view.Execution.Template
	}
	if t != nil {
		view.Payload, _ = Payload(r, tenant, jobID, j.Incarnation, t)
	}
	return view, true
}

// viewOf puts a view together, without payload. whole also looks for what is not cheap to find: a fired one-shot's
// execution.
func viewOf(f *finder, tenant, jobID string, j *storagev1.Job, whole bool) JobView {
	v := JobView{Tenant: tenant, JobID: jobID, Job: j, State: j.State, NextMS: j.NextMs}
	if isOneShot(j) && j.Template == nil && j.State != storagev1.JobState_JOB_STATE_DELETED {
		f.spend()
		v.ExecutionKey, v.Execution = findWaiting(f.r, tenant, jobID, j)
		if v.Execution != nil {
			v.NextMS = j.Schedule.GetAtMs()
		} else {
			if v.State == storagev1.JobState_JOB_STATE_ACTIVE {
				v.State = storagev1.JobState_JOB_STATE_EXHAUSTED
			}
			if whole {
				id := oneShotIdentity(tenant, jobID, j)
				v.Execution, v.ExecutionKey = f.find(&id)
			}
		}
	}
	if j.Parked {
		v.NextMS, _ = nextOf(j, j.WatermarkMs)
	}
	t := j.Template
	if v.Execution != nil {
		t = v.Execution.Template
	}
	if t == nil {
		return v
	}
	slim := t.CloneVT()
	slim.Payload = nil
	j.Template = slim
	return v
}

// Payload returns the payload of a template, from its blob row if it stands there; ok is false when that is gone.
func Payload(r Reader, tenant, jobID string, incarnation uint64, t *storagev1.Template) (payload []byte, ok bool) {
	if t.GetBlobVersion() == 0 {
		return t.GetPayload(), true
	}
	value, ok := r.Get(BlobKey(tenant, jobID, incarnation, t.BlobVersion))
	return append([]byte(nil), value...), ok
}

// ScanTimers calls fn for the timers in [fromMS, toMS) in their order, until it returns false.
func ScanTimers(r Reader, fromMS, toMS int64, fn func(TimerRef) bool) {
	r.Scan(timerStart(fromMS), timerStart(toMS), func(key, value []byte) bool {
		ref, err := DecodeTimer(key, value)
		if err != nil {
			panic(corrupt(key))
		}
		return fn(ref)
	})
}

// FirstTimer is the instant of the earliest timer; ok is false if there is none.
func FirstTimer(r Reader) (atMS int64, ok bool) {
	ScanTimers(r, ReadMeta(r).GetLowWaterMs(), math.MaxInt64, func(t TimerRef) bool {
		atMS, ok = t.AtMS, true
		return false
	})
	return atMS, ok
}

// ScanReady calls fn for the ready rows with keys in [start, end) until it returns false. A nil start is the first one, a
// nil end behind the last. What fn gets is its own.
func ScanReady(r Reader, start, end []byte, fn func(ReadyRef) bool) {
	if start == nil {
		start = []byte{KindReady}
	}
	if end == nil {
		end = []byte{KindReady + 1}
	}
	r.Scan(start, end, func(key, value []byte) bool {
		ref, err := DecodeReady(append([]byte(nil), key...))
		readyMS, ok := fieldVarint(value, executionReadyMS)
		if err != nil || !ok {
			panic(corrupt(key))
		}
		ref.ReadyMS = int64(readyMS)
		return fn(ref)
	})
}

// ScanLeases calls fn for the live leases by fencing number, until it returns false.
func ScanLeases(r Reader, fn func(*storagev1.Execution) bool) {
	newFinder(r, 0).leases(func(_ []byte, e *storagev1.Execution) bool { return fn(e) })
}

// Events calls fn for the event records from offset on, until it returns false. Records below meta.event_trimmed are
// gone.
func Events(r Reader, fromOffset uint64, fn func(offset uint64, record *storagev1.EventRecord) bool) {
	r.Scan(EventKey(fromOffset), []byte{KindEvent + 1}, func(key, value []byte) bool {
		k := readKey(key, KindEvent)
		offset := k.u64()
		record := &storagev1.EventRecord{}
		if !k.end() || record.UnmarshalVT(value) != nil {
			panic(corrupt(key))
		}
		return fn(offset, record)
	})
}

// ReadQueue returns a queue's settings as the shard has them; nil when none were put.
func ReadQueue(r Reader, name string) *storagev1.QueueSettings {
	key := QueueKey(name)
	value, ok := r.Get(key)
	if !ok {
		return nil
	}
	q := &storagev1.QueueSettings{}
	mustDecode(key, value, q.UnmarshalVT)
	return q
}

// ReadTenant returns a tenant's settings as the shard has them; nil when none were put.
func ReadTenant(r Reader, name string) *storagev1.TenantSettings {
	key := TenantKey(name)
	value, ok := r.Get(key)
	if !ok {
		return nil
	}
	t := &storagev1.TenantSettings{}
	mustDecode(key, value, t.UnmarshalVT)
	return t
}

// ReadPauseRule returns a pause rule as the shard has it; nil when none was put.
func ReadPauseRule(r Reader, id string) *storagev1.PauseRule {
	key := PauseRuleKey(id)
	value, ok := r.Get(key)
	if !ok {
		return nil
	}
	rule := &storagev1.PauseRule{}
	mustDecode(key, value, rule.UnmarshalVT)
	return rule
}
