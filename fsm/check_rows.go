package fsm

import (
	"bytes"
	"slices"
	"sort"

	"github.com/cespare/xxhash/v2"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

func (c *checker) settingsRow(key, value []byte) {
	k := readKey(key, KindSettings)
	what, name := k.byte(), k.name()
	q, t, r := &storagev1.QueueSettings{}, &storagev1.TenantSettings{}, &storagev1.PauseRule{}
	var p pause
	switch {
	case k.end() && what == ofQueue && q.UnmarshalVT(value) == nil && q.Name == name:
		c.settings.queues[name], p = q, pauseOfQueue(q)
	case k.end() && what == ofTenant && t.UnmarshalVT(value) == nil && t.Name == name:
		c.settings.tenants[name], p = t, pauseOfTenant(t)
		c.gone[name] = t.Deleting || t.Deleted
	case k.end() && what == ofRule && r.UnmarshalVT(value) == nil && r.Id == name:
		c.settings.rules[name], p = r, pauseOfRule(r)
	default:
		c.fail(RuleRow, key, "cannot be decoded")
	}
	if timer := p.timerKey(); timer != nil && !c.has(timer) {
		c.fail(RuleTimer, key, "there is no timer at %d, where its pause ends", p.untilMS)
	}
}

// pauseEndRow checks that a pause ends at its timer.
func (c *checker) pauseEndRow(key []byte, t *timerKey) {
	var p pause
	switch t.of {
	case ofQueue:
		p = pauseOfQueue(c.settings.queues[t.name])
	case ofTenant:
		p = pauseOfTenant(c.settings.tenants[t.name])
	default:
		p = pauseOfRule(c.settings.rules[t.name])
	}
	if !bytes.Equal(p.timerKey(), key) {
		c.fail(RuleTimer, key, "no pause ends there")
	}
}

// parkedRow checks that a parked job is one, and that something stops it, or a task releases it.
func (c *checker) parkedRow(key, value []byte) {
	c.counted.Parked++
	tenant, jobID, ok := parseJobKey(key, KindParked)
	if !ok || len(value) != 0 {
		c.fail(RuleRow, key, "cannot be decoded")
		return
	}
	j := c.job(tenant, jobID)
	switch {
	case !j.GetParked():
		c.fail(RuleTimer, key, "no job is parked there")
	case !c.settings.stoppedAround(tenant, j) && !slices.ContainsFunc(c.releasing, func(t *storagev1.Task) bool { return releases(t, tenant, j) }):
		c.fail(RuleMarker, key, "nothing stops its job, and no task of a pause that did releases it")
	}
}

// releases says whether a task looks at all that is held of a tenant.
func (c *checker) releases(tenant string) bool {
	return slices.ContainsFunc(c.releasing, func(t *storagev1.Task) bool { return t.Filter.GetTenant() == "" || t.Filter.Tenant == tenant })
}

func (c *checker) stopRow(key, value []byte) {
	tenant, jobID, ok := parseJobKey(key, KindStop)
	s, okValue := decodeStop(value)
	if !ok || !okValue || s == (stop{}) {
		c.fail(RuleRow, key, "cannot be decoded")
		return
	}
	c.stops[jobName{tenant, jobID}] = s
}

// markerRow checks a marker when the housekeeping index has been read.
func (c *checker) markerRow(key, _ []byte) {
	tenant, jobID, _ := parseJobKey(key, KindStop)
	name := jobName{tenant, jobID}
	s := c.stops[name]
	if s.deletedTo > 0 && !c.swept[name] {
		c.fail(RuleMarker, key, "nothing removes the marker of incarnation %d", s.deletedTo)
	}
	if j := c.job(tenant, jobID); s.paused && j.GetState() != storagev1.JobState_JOB_STATE_PAUSED {
		c.fail(RuleMarker, key, "it pauses a job whose state is %s", j.GetState())
	}
}

func (c *checker) taskRow(key, value []byte) {
	t := &storagev1.Task{}
	switch {
	case t.UnmarshalVT(value) != nil || !bytes.Equal(key, TaskKey(t.Id)):
		c.fail(RuleRow, key, "cannot be decoded")
	case t.Finished:
		c.wantExpiry(key, t.UpdatedMs+taskKeptMS(t), expireTask)
	case isRelease(t):
		c.releasing = append(c.releasing, t)
	case t.Kind == storagev1.TaskKind_TASK_KIND_RELEASE:
		c.resuming[jobName{t.Filter.GetTenant(), t.Filter.GetJobId()}] = true
	}
}

func (c *checker) wantExpiry(key []byte, atMS int64, what byte) {
	if !c.has(expiryKey(atMS, what, key[1:])) {
		c.fail(RuleHousekeeping, key, "nothing removes it at %d", atMS)
	}
}

// expiryRow checks that a housekeeping row has what it removes, if that cannot have gone another way.
func (c *checker) expiryRow(key, value []byte) {
	k := readKey(key, KindExpiry)
	at, what := k.time(), k.byte()
	if k.bad || len(value) != 0 {
		c.fail(RuleRow, key, "cannot be decoded")
		return
	}
	ref := key[1+8+1:]
	row := func(kind byte) []byte { return append([]byte{kind}, ref...) }
	switch what {
	case expireJob:
		tenant, jobID, ok := parseJobKey(row(KindJob), KindJob)
		if !ok {
			c.fail(RuleRow, key, "cannot be decoded")
			return
		}
		if _, marked := c.stops[jobName{tenant, jobID}]; marked {
			c.swept[jobName{tenant, jobID}] = true
		}
	case expireOneShot:
		c.purged[xxhash.Sum64(ref)] = struct{}{}
	case expireBlob:
		c.replaced[xxhash.Sum64(ref)] = struct{}{}
	case expireRecord:
		rec := &storagev1.IdempotencyRecord{}
		c.wantRow(key, row(KindIdempotency), at, rec.UnmarshalVT, func() int64 { return rec.RecordedMs + recordKeptMS })
	case expireTask:
		t := &storagev1.Task{}
		c.wantRow(key, row(KindTask), at, t.UnmarshalVT, func() int64 { return t.UpdatedMs + taskKeptMS(t) })
	case expireDead:
		e := &storagev1.Execution{}
		c.wantRow(key, row(KindDead), at, e.UnmarshalVT, func() int64 { return e.ExpiresMs })
	default:
		c.fail(RuleRow, key, "cannot be decoded")
	}
}

// wantRow checks that a row is there and wants to be removed at an instant.
func (c *checker) wantRow(expiry, row []byte, atMS int64, unmarshal func([]byte) error, removedAt func() int64) {
	value, ok := c.r.Get(row)
	switch {
	case !ok:
		c.fail(RuleHousekeeping, expiry, "what it removes is not there")
	case unmarshal(value) == nil && removedAt() != atMS: // what cannot be decoded is reported where it stands
		c.fail(RuleHousekeeping, expiry, "what it removes is to go at %d", removedAt())
	}
}

func (c *checker) recordRow(key, value []byte) {
	rec := &storagev1.IdempotencyRecord{}
	if rec.UnmarshalVT(value) != nil {
		c.fail(RuleRow, key, "cannot be decoded")
		return
	}
	c.wantExpiry(key, rec.RecordedMs+recordKeptMS, expireRecord)
}

func (c *checker) timerRow(key, value []byte) {
	t, ok := parseTimerKey(key)
	if !ok {
		c.fail(RuleRow, key, "cannot be decoded")
		return
	}
	if bytes.Compare(key, timerStart(c.meta.LowWaterMs)) < 0 {
		c.fail(RuleTimer, key, "it stands below the low-water mark %d, where nobody looks", c.meta.LowWaterMs)
	}
	switch t.kind {
	case TimerOneShot:
		c.waitingRow(key, value, &t)
	case TimerRecurring:
		j := c.job(t.id.Tenant, t.id.JobID)
		if j == nil || isOneShot(j) || j.State != storagev1.JobState_JOB_STATE_ACTIVE || j.NextMs == 0 || timerAt(j) != t.atMS ||
			string(value) != j.Template.GetQueue() {
			c.fail(RuleTimer, key, "no recurring job of this queue waits for it")
		}
	case TimerExpand:
		j := c.job(t.id.Tenant, t.id.JobID)
		if j == nil || j.State != storagev1.JobState_JOB_STATE_ACTIVE || j.NextMs != 0 || j.TimerMs != t.atMS || !unknown(j) {
			c.fail(RuleTimer, key, "no cron job waits for its horizon")
		}
	case TimerRetry:
		c.retryRow(key, value, &t)
	case TimerPauseEnd:
		c.pauseEndRow(key, &t)
	case TimerResume:
		j := c.job(t.id.Tenant, t.id.JobID)
		if j.GetState() != storagev1.JobState_JOB_STATE_PAUSED || j.GetPause().GetUntilMs() != t.atMS {
			c.fail(RuleTimer, key, "no pause of a job ends there")
		}
	case TimerStartDeadline:
		// It may have outlived its execution's start: see fireStartDeadline.
		if id, _, _, _, ok := parseReadyKey(value); !ok || id != t.id {
			c.fail(RuleRow, key, "its value is not its execution's ready key")
		}
	case TimerLeaseEnd:
		last, ok := decodeU64(value)
		if !ok || last < t.first {
			c.fail(RuleRow, key, "cannot be decoded")
			return
		}
		c.numbers(key, 0, last)
		c.leases = append(c.leases, leaseRange{t.first, last, t.atMS})
	}
}

// waitingRow checks a one-shot that waits for its time.
func (c *checker) waitingRow(key, value []byte, t *timerKey) {
	e := c.decode(key, value, &t.id, storagev1.ExecutionState_EXECUTION_STATE_WAITING)
	if e == nil {
		return
	}
	c.counted.Waiting++
	c.note(e)
	j := c.job(e.Tenant, e.JobId)
	if j == nil || !isOneShot(j) || j.State != storagev1.JobState_JOB_STATE_ACTIVE || j.Incarnation != e.Incarnation ||
		j.Schedule.GetAtMs() != t.atMS || j.Template != nil || !e.OneShot {
		c.fail(RuleTimer, key, "no one-shot waits for it")
	}
	c.payloadOf(key, e)
}

func (c *checker) retryRow(key, value []byte, t *timerKey) {
	e := c.decode(key, value, &t.id, storagev1.ExecutionState_EXECUTION_STATE_RETRYING)
	if e == nil {
		return
	}
	at, ok := c.r.Get(identKey(KindRetrying, &t.id))
	if !ok || !bytes.Equal(at, appendTime(nil, t.atMS)) {
		c.fail(RuleTimer, key, "no retrying execution waits for it")
	}
	c.note(e)
	c.live(key, e)
}

func (c *checker) retryingRow(key, value []byte) {
	id, ok := parseIdentKey(key, KindRetrying)
	k := keyReader{s: string(value)}
	at := k.time()
	if !ok || !k.end() {
		c.fail(RuleRow, key, "cannot be decoded")
		return
	}
	c.counted.Retrying++
	if !c.has(timerIdentKey(at, TimerRetry, &id)) {
		c.fail(RuleTimer, key, "there is no timer at %d for its next attempt", at)
	}
}

func (c *checker) readyRow(key, value []byte) {
	c.counted.Ready++
	e := c.decode(key, value, nil, storagev1.ExecutionState_EXECUTION_STATE_READY)
	if e == nil {
		return
	}
	if !bytes.Equal(key, ReadyKey(e)) {
		c.fail(RuleRow, key, "its key is not that of %s", ExecutionID(e))
	}
	c.note(e)
	c.live(key, e)
	c.startDeadline(key, e)
}

// leasedRow returns the check of leased rows, which come in the order of their numbers, as the timers are sorted then.
func (c *checker) leasedRow() func(key, value []byte) {
	at, sorted := 0, false
	return func(key, value []byte) {
		c.counted.Leased++
		e := c.decode(key, value, nil, storagev1.ExecutionState_EXECUTION_STATE_LEASED)
		if e == nil {
			return
		}
		if !bytes.Equal(key, LeasedKey(e.Fencing)) {
			c.fail(RuleRow, key, "its key is not that of fencing number %d", e.Fencing)
		}
		c.numbers(key, 0, e.Fencing)
		c.note(e)
		c.live(key, e)
		if !sorted {
			sort.Slice(c.leases, func(i, k int) bool { return c.leases[i].first < c.leases[k].first })
			sorted = true
		}
		for at < len(c.leases) && c.leases[at].last < e.Fencing {
			at++
		}
		switch {
		case at == len(c.leases) || c.leases[at].first > e.Fencing:
			c.fail(RuleLease, key, "no timer looks at the end of the lease of %s", ExecutionID(e))
		case c.leases[at].atMS > max(e.DeadlineMs, c.meta.ClockMs+maxLeaseMS):
			c.fail(RuleLease, key, "the timer of its end stands at %d, its deadline is %d", c.leases[at].atMS, e.DeadlineMs)
		}
	}
}

func (c *checker) heldRow(key, value []byte) {
	c.counted.Held++
	id, ok := parseIdentKey(key, KindHeld)
	if !ok {
		c.fail(RuleRow, key, "cannot be decoded")
		return
	}
	e := c.decode(key, value, &id, storagev1.ExecutionState_EXECUTION_STATE_READY)
	if e == nil {
		return
	}
	c.note(e)
	c.live(key, e)
	c.startDeadline(key, e)
	j := c.job(e.Tenant, e.JobId)
	isHeld := c.stops[jobName{e.Tenant, e.JobId}].paused || j != nil && c.settings.ruled(e.Tenant, j.Labels)
	isReleased := c.resuming[jobName{e.Tenant, e.JobId}] || c.releases(e.Tenant)
	if !isHeld && !isReleased && !c.stopped(e.Tenant, e.JobId, e.Incarnation) {
		c.fail(RuleMarker, key, "its job is not paused, and nothing releases it")
	}
}

// startDeadline checks that what has not started expires in time.
func (c *checker) startDeadline(key []byte, e *storagev1.Execution) {
	at, ok := startDeadline(e)
	if !ok {
		return
	}
	id := IdentityOf(e)
	value, ok := c.r.Get(timerIdentKey(at, TimerStartDeadline, &id))
	if !ok || !bytes.Equal(value, ReadyKey(e)) {
		c.fail(RuleTimer, key, "there is no timer at its start deadline %d", at)
	}
}

func (c *checker) deadRow(key, value []byte) {
	c.counted.Dead++
	id, ok := parseIdentKey(key, KindDead)
	if !ok {
		c.fail(RuleRow, key, "cannot be decoded")
		return
	}
	e := c.decode(key, value, &id, storagev1.ExecutionState_EXECUTION_STATE_DEAD)
	if e == nil {
		return
	}
	c.note(e)
	c.numbers(key, e.Incarnation, 0)
	c.wantExpiry(key, e.ExpiresMs, expireDead)
	c.payloadOf(key, e)
}

func (c *checker) endedRow(key, value []byte) {
	ref, ok := parseEndedKey(key)
	if !ok {
		c.fail(RuleRow, key, "cannot be decoded")
		return
	}
	c.numbers(key, ref.id.Incarnation, ref.fencing)
	switch ref.char {
	case charRange:
		v := &storagev1.RangeVerdict{}
		if v.UnmarshalVT(value) != nil || v.FromMs != ref.id.NominalMS || v.ToMs < v.FromMs || v.Count == 0 && v.ToMs == v.FromMs {
			c.fail(RuleRow, key, "is no range of instants")
		}
	case charLate:
		if (&storagev1.Execution{}).UnmarshalVT(value) != nil {
			c.fail(RuleRow, key, "cannot be decoded")
		}
	default:
		if e := c.decode(key, value, &ref.id, storagev1.ExecutionState_EXECUTION_STATE_UNSPECIFIED); e != nil {
			c.note(e)
		}
	}
}

// decode decodes an execution and checks that it is what its key says, if that has its identity, and in a state that stands
// in its key space: the one given, or one that is an end. nil: it is reported and no more to be looked at.
func (c *checker) decode(key, value []byte, id *Identity, state storagev1.ExecutionState) *storagev1.Execution {
	e := &storagev1.Execution{}
	if e.UnmarshalVT(value) != nil || len(e.Attempts) > maxKeptAttempts || uint64(len(e.Attempts)) > e.AttemptsTotal {
		c.fail(RuleRow, key, "cannot be decoded")
		return nil
	}
	if id != nil {
		name(e, id)
		want := *id
		if t, isTimer := parseTimerKey(key); isTimer && t.kind == TimerOneShot { // its key has no more
			want.Incarnation, want.Kind = e.Incarnation, storagev1.ExecutionKind_EXECUTION_KIND_SCHEDULE
		}
		if IdentityOf(e) != want {
			c.fail(RuleRow, key, "it is %s", ExecutionID(e))
			return nil
		}
	}
	ended := false
	switch e.State {
	case storagev1.ExecutionState_EXECUTION_STATE_SUCCEEDED, storagev1.ExecutionState_EXECUTION_STATE_CANCELLED,
		storagev1.ExecutionState_EXECUTION_STATE_EXPIRED, storagev1.ExecutionState_EXECUTION_STATE_SKIPPED:
		ended = true
	default:
	}
	if e.State != state && !(ended && key[0] == KindEnded) {
		c.fail(RuleRow, key, "its state is %s", e.State)
	}
	return e
}

// live checks what is common to executions that are ready, run, wait for another attempt or are held.
func (c *checker) live(key []byte, e *storagev1.Execution) {
	c.numbers(key, e.Incarnation, 0)
	id := IdentityOf(e)
	c.needJob(key, &id)
	if e.Blocks {
		c.blocks(key, e)
	}
	c.payloadOf(key, e)
}

// blocks checks that the job of an execution that is in the way of the next one knows of it.
func (c *checker) blocks(key []byte, e *storagev1.Execution) {
	j := c.job(e.Tenant, e.JobId)
	if j == nil || j.Incarnation != e.Incarnation || j.State == storagev1.JobState_JOB_STATE_DELETED {
		return
	}
	c.blocking[jobName{e.Tenant, e.JobId}]++
	if !slices.Contains(j.LiveMs, e.NominalMs) {
		c.fail(RuleOccurrence, key, "its job does not know that it is in the way of the next one")
	}
}
