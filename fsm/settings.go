package fsm

import (
	"cmp"
	"slices"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

func (m *Machine) loadSettings(r Reader) {
	r.Scan([]byte{KindSettings}, []byte{KindSettings + 1}, func(key, value []byte) bool {
		k := readKey(key, KindSettings)
		switch what, name := k.byte(), k.name(); {
		case what == ofQueue && k.end():
			q := &storagev1.QueueSettings{}
			mustDecode(key, value, q.UnmarshalVT)
			m.queues[name] = q
		case what == ofTenant && k.end():
			t := &storagev1.TenantSettings{}
			mustDecode(key, value, t.UnmarshalVT)
			m.tenants[name] = t
		case what == ofRule && k.end():
			r := &storagev1.PauseRule{}
			mustDecode(key, value, r.UnmarshalVT)
			m.rules[name] = r
		default:
			panic(corrupt(key))
		}
		return true
	})
	m.findHolding()
	prefix := append([]byte{KindTask}, releasePrefixOfID...)
	r.Scan(prefix, PrefixEnd(prefix), func(key, value []byte) bool {
		t := &storagev1.Task{}
		mustDecode(key, value, t.UnmarshalVT)
		if isRelease(t) {
			m.releases = append(m.releases, t)
		}
		return true
	})
	slices.SortFunc(m.releases, func(x, y *storagev1.Task) int { return cmp.Compare(y.EndedOrder, x.EndedOrder) })
}

// isRelease says whether a task has to release yet what a pause around jobs stopped.
func isRelease(t *storagev1.Task) bool {
	return t.Kind == storagev1.TaskKind_TASK_KIND_RELEASE && t.Filter.GetJobId() == "" && !t.Finished
}

// putQueue replaces a queue's settings unless newer ones stand.
func (a *apply) putQueue(q *storagev1.QueueSettings) Result {
	if q.Name == "" || !isName(q.Name) {
		return Result{Refusal: refuseField("name", "malformed queue name")}
	}
	if r := validPause(q.Pause); r != nil {
		return Result{Refusal: r}
	}
	old := a.m.queues[q.Name]
	if old != nil && old.Version >= q.Version {
		return Result{}
	}
	value := mustEncode(q.MarshalVT())
	kept := &storagev1.QueueSettings{}
	key := QueueKey(q.Name)
	mustDecode(key, value, kept.UnmarshalVT)
	a.m.queues[kept.Name] = kept
	a.s.Set(key, value)
	return a.pauseChanged(pauseOfQueue(old), pauseOfQueue(kept))
}

// putTenant replaces a tenant's settings unless newer ones stand.
func (a *apply) putTenant(t *storagev1.TenantSettings) Result {
	if !isID(t.Name) || !isName(t.Name) {
		return Result{Refusal: refuseField("name", "malformed tenant name")}
	}
	if r := validPause(t.Pause); r != nil {
		return Result{Refusal: r}
	}
	old := a.m.tenants[t.Name]
	if old != nil && old.Version >= t.Version {
		return Result{}
	}
	value := mustEncode(t.MarshalVT())
	kept := &storagev1.TenantSettings{}
	key := TenantKey(t.Name)
	mustDecode(key, value, kept.UnmarshalVT)
	a.m.tenants[kept.Name] = kept
	a.s.Set(key, value)
	return a.pauseChanged(pauseOfTenant(old), pauseOfTenant(kept))
}

// tenantGone says whether a tenant was deleted, or is being deleted.
func (m *Machine) tenantGone(tenant string) bool {
	t := m.tenants[tenant]
	return t.GetDeleting() || t.GetDeleted()
}

// retention is how long an ended execution with a template is kept.
func (m *Machine) retention(tenant string, t *storagev1.Template) int64 {
	return retentionOf(t, m.queues[t.GetQueue()], m.tenants[tenant])
}

// retentionOf is the job's own, else its queue's, else its tenant's, else the default.
func retentionOf(t *storagev1.Template, q *storagev1.QueueSettings, tenant *storagev1.TenantSettings) int64 {
	for _, ms := range [...]int64{t.GetRetentionMs(), q.GetRetentionMs(), tenant.GetRetentionMs()} {
		if ms > 0 {
			return min(ms, maxRetentionMS)
		}
	}
	return defaultRetentionMS
}

func (m *Machine) deadRetention(e *storagev1.Execution) int64 {
	if ms := m.queues[e.Template.GetQueue()].GetDeadRetentionMs(); ms > 0 {
		return min(ms, maxDurationMS)
	}
	return defaultDeadRetentionMS
}

// stop is a job's marker: what its live executions have to obey.
type stop struct {
	paused bool
	// deletedTo is the last incarnation that was deleted; 0: none.
	deletedTo uint64
}

func (s stop) encode() []byte {
	state := byte(storagev1.JobState_JOB_STATE_ACTIVE)
	if s.paused {
		state = byte(storagev1.JobState_JOB_STATE_PAUSED)
	}
	return append([]byte{state}, encodeU64(s.deletedTo)...)
}

func decodeStop(b []byte) (stop, bool) {
	if len(b) != 9 {
		return stop{}, false
	}
	to, ok := decodeU64(b[1:])
	return stop{paused: b[0] == byte(storagev1.JobState_JOB_STATE_PAUSED), deletedTo: to}, ok
}

// setStop writes or removes a job's marker.
func (a *apply) setStop(name jobName, s stop) {
	if s == (stop{}) {
		if _, ok := a.m.stops[name]; ok {
			a.s.Delete(StopKey(name.tenant, name.jobID))
			delete(a.m.stops, name)
		}
		return
	}
	key := StopKey(name.tenant, name.jobID)
	k := readKey(key, KindStop)
	a.m.stops[jobName{k.name(), k.name()}] = s
	a.s.Set(key, s.encode())
}

// stopOf says what e has to obey: JOB_STATE_DELETED, JOB_STATE_PAUSED, or unspecified for nothing.
func (m *Machine) stopOf(e *storagev1.Execution) storagev1.JobState {
	if m.tenantGone(e.Tenant) {
		return storagev1.JobState_JOB_STATE_DELETED
	}
	if len(m.stops) == 0 {
		return storagev1.JobState_JOB_STATE_UNSPECIFIED
	}
	s := m.stops[jobName{e.Tenant, e.JobId}]
	switch {
	case e.Incarnation <= s.deletedTo:
		return storagev1.JobState_JOB_STATE_DELETED
	case s.paused:
		return storagev1.JobState_JOB_STATE_PAUSED
	default:
		return storagev1.JobState_JOB_STATE_UNSPECIFIED
	}
}
