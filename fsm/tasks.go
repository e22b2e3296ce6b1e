package fsm

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// Tasks returns the shard's bulk operations, ended ones that were not swept yet among them.
func Tasks(r Reader) []*storagev1.Task {
	var tasks []*storagev1.Task
	r.Scan([]byte{KindTask}, []byte{KindTask + 1}, func(key, value []byte) bool {
		t := &storagev1.Task{}
		mustDecode(key, value, t.UnmarshalVT)
		tasks = append(tasks, t)
		return true
	})
	return tasks
}

func resumeTaskID(tenant, jobID string, j *storagev1.Job) string {
	return fmt.Sprintf("resume~%s~%s~%d~%d", tenant, jobID, j.Incarnation, j.Version)
}

func (a *apply) task(id string) *storagev1.Task { return ReadTask(a.s, id) }

// putTask writes a task's row; an ended one is swept later.
func (a *apply) putTask(t *storagev1.Task) {
	key := TaskKey(t.Id)
	a.s.Set(key, mustEncode(t.MarshalVT()))
	if t.Finished {
		a.putExpiry(t.UpdatedMs+taskKeptMS(t), expireTask, key[1:])
		a.m.releases = slices.DeleteFunc(a.m.releases, func(r *storagev1.Task) bool { return r.Id == t.Id })
	}
}

// startTask accepts a bulk operation; the same id again finds it as it stands.
func (a *apply) startTask(c *storagev1.StartTask) Result {
	if c.Id == "" || len(c.Id) > 4*maxNameBytes || strings.IndexByte(c.Id, 0) >= 0 {
		return Result{Refusal: refuseField("id", "malformed")}
	}
	filter := c.Filter
	if filter == nil {
		filter = &storagev1.Filter{}
	}
	if old := a.task(c.Id); old != nil {
		if old.Kind == c.Kind && sameFilter(old.Filter, filter) {
			return Result{Task: old}
		}
		return Result{Refusal: refuse(AlreadyExists, "task %q does something else", c.Id)}
	}
	switch c.Kind {
	case storagev1.TaskKind_TASK_KIND_REQUEUE_DEAD, storagev1.TaskKind_TASK_KIND_PURGE_DEAD:
	case storagev1.TaskKind_TASK_KIND_DELETE_TENANT:
		if !isID(filter.Tenant) {
			return Result{Refusal: refuseField("filter.tenant", "missing or malformed")}
		}
		if !a.m.tenantGone(filter.Tenant) {
			return Result{Refusal: refuse(FailedPrecondition, "tenant %q is not marked as deleting", filter.Tenant)}
		}
	default:
		return Result{Refusal: refuseField("kind", "not one that can be started")}
	}
	t := &storagev1.Task{Id: c.Id, Kind: c.Kind, Filter: filter, CreatedMs: a.meta.ClockMs, UpdatedMs: a.meta.ClockMs}
	a.putTask(t)
	return Result{Task: t}
}

func sameFilter(a, b *storagev1.Filter) bool {
	return a.GetTenant() == b.GetTenant() && a.GetQueue() == b.GetQueue() && a.GetJobId() == b.GetJobId() &&
		a.GetBeforeMs() == b.GetBeforeMs() && a.GetErrorContains() == b.GetErrorContains()
}

// stepTask advances a task by at most limit rows.
func (a *apply) stepTask(c *storagev1.StepTask) Result {
	t := a.task(c.Id)
	if t == nil {
		return Result{Refusal: refuse(NotFound, "no task %q", clip(c.Id))}
	}
	if t.Finished {
		return Result{Task: t}
	}
	limit := int(c.Limit)
	if limit <= 0 || limit > MaxBatch {
		limit = MaxBatch
	}
	t.UpdatedMs = a.meta.ClockMs
	more := true
	switch t.Kind {
	case storagev1.TaskKind_TASK_KIND_REQUEUE_DEAD:
		a.stepDead(t, limit, a.requeue)
	case storagev1.TaskKind_TASK_KIND_PURGE_DEAD:
		a.stepDead(t, limit, a.purge)
	case storagev1.TaskKind_TASK_KIND_DELETE_TENANT:
		a.stepDeleteTenant(t, limit)
	case storagev1.TaskKind_TASK_KIND_BACKFILL:
		more = a.stepBackfill(t, c, limit)
	default:
		a.stepRelease(t, limit)
	}
	a.putTask(t)
	return Result{Task: t, More: more && !t.Finished}
}

// row is a copy of a row.
type row struct{ key, value []byte }

// rowsFrom copies up to limit rows of [start, end); next is where the following ones start, nil if there are none.
func rowsFrom(r Reader, start, end []byte, limit int) (rows []row, next []byte) {
	r.Scan(start, end, func(key, value []byte) bool {
		if len(rows) == limit {
			next = bytes.Clone(key)
			return false
		}
		rows = append(rows, row{bytes.Clone(key), bytes.Clone(value)})
		return true
	})
	return rows, next
}

// stepDead walks the dead letters that were there when the task was started.
func (a *apply) stepDead(t *storagev1.Task, limit int, do func([]byte, *storagev1.Execution) Item) {
	f := t.Filter
	prefix := []byte{KindDead}
	if f.GetTenant() != "" {
		prefix = tenantPrefix(KindDead, f.Tenant)
		if f.JobId != "" {
			prefix = namedKey(KindDead, f.Tenant, f.JobId)
		}
	}
	start := prefix
	if len(t.Cursor) > 0 {
		start = t.Cursor
	}
	rows, next := rowsFrom(a.s, start, PrefixEnd(prefix), limit)
	for _, row := range rows {
		id, ok := parseIdentKey(row.key, KindDead)
		if !ok {
			panic(corrupt(row.key))
		}
		t.SeenCount++
		e := decodeNamed(row.key, row.value, &id)
		if e.FinishedMs > t.CreatedMs || !matchesDead(f, e) {
			continue
		}
		if item := do(row.key, e); item.Refusal == nil {
			t.DoneCount++
		}
	}
	t.Cursor, t.Finished = next, next == nil
}

func matchesDead(f *storagev1.Filter, e *storagev1.Execution) bool {
	return (f.GetTenant() == "" || f.Tenant == e.Tenant) &&
		(f.GetQueue() == "" || f.Queue == e.Template.GetQueue()) &&
		(f.GetJobId() == "" || f.JobId == e.JobId) &&
		(f.GetBeforeMs() == 0 || e.FinishedMs < f.BeforeMs) &&
		strings.Contains(e.Error, f.GetErrorContains())
}

// tenantKinds is the order in which a tenant's rows go. Nothing new comes meanwhile: its creates are refused, and what is
// alive is cancelled when it is touched.
var tenantKinds = [...]byte{KindJob, KindHeld, KindRetrying, KindReady, KindLeased, KindDead, KindEnded}

// stepDeleteTenant removes a tenant's jobs and executions, one kind of rows after the other. The cursor is the next row
// to look at, or just the next kind.
func (a *apply) stepDeleteTenant(t *storagev1.Task, limit int) {
	if len(t.Cursor) == 0 {
		t.Cursor = tenantKinds[:1]
	}
	tenant := t.Filter.GetTenant()
	if !a.m.tenantGone(tenant) {
		// Created again meanwhile: what is left is not the old tenant's.
		t.Finished = true
		return
	}
	kind := t.Cursor[0]
	if kind == KindEnded {
		for _, bucket := range newFinder(a.s, 0).liveBuckets() {
			prefix := appendName(endedBucket(bucket), tenant)
			a.s.DeleteRange(prefix, PrefixEnd(prefix))
		}
		t.Cursor, t.Finished = nil, true
		return
	}
	prefix := tenantPrefix(kind, tenant)
	if kind == KindReady || kind == KindLeased {
		// Not sorted by tenant: all of them are looked at.
		prefix = []byte{kind}
	}
	start := prefix
	if len(t.Cursor) > 1 {
		start = t.Cursor
	}
	rows, next := rowsFrom(a.s, start, PrefixEnd(prefix), limit)
	for _, row := range rows {
		if a.work >= MaxBatch { // Its jobs have left many verdicts.
			next = row.key
			break
		}
		t.SeenCount++
		if a.removeOfTenant(tenant, row) {
			t.DoneCount++
		}
	}
	t.Cursor = next
	if next == nil {
		at := bytes.IndexByte(tenantKinds[:], kind)
		t.Cursor = tenantKinds[at+1 : at+2]
	}
}

// removeOfTenant removes or cancels what stands in a row if it is the tenant's.
func (a *apply) removeOfTenant(tenant string, row row) bool {
	switch row.key[0] {
	case KindJob:
		_, jobID, _ := parseJobKey(row.key, KindJob)
		j := &storagev1.Job{}
		mustDecode(row.key, row.value, j.UnmarshalVT)
		if j.State == storagev1.JobState_JOB_STATE_DELETED {
			return false
		}
		a.removeJob(tenant, jobID, j, false)
		return true
	case KindRetrying:
		id, ok := parseIdentKey(row.key, KindRetrying)
		if !ok {
			panic(corrupt(row.key))
		}
		row.key = timerIdentKey(retryTime(row.key, row.value), TimerRetry, &id)
	}
	_, e := readHint(a.s, row.key)
	if e == nil {
		panic(corrupt(row.key))
	}
	if e.Tenant != tenant {
		return false
	}
	if row.key[0] == KindDead {
		a.purge(row.key, e)
		return true
	}
	a.cancel(row.key, e, "")
	return true
}
