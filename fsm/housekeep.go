package fsm

import (
	"bytes"
	"sort"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// housekeep removes what has outlived its retention by the entry's own stamp, at most limit rows.
func (a *apply) housekeep(c *storagev1.Housekeep) Result {
	limit := int(c.Limit)
	if limit <= 0 || limit > MaxBatch {
		limit = MaxBatch
	}
	removed, more := a.expireRows(limit)
	if removed < limit {
		n, moreHistory := a.expireHistory(limit - removed)
		removed += n
		more = more || moreHistory
	}
	removed += a.trimEvents(c)
	return Result{Removed: removed, More: more}
}

// expireRows works off the expiry index up to the stamp, until limit rows are removed or the searches for live executions
// that go with some of them have read enough.
func (a *apply) expireRows(limit int) (removed int, more bool) {
	end := appendTime([]byte{KindExpiry}, a.stamp+1)
	if bytes.Compare(a.m.expiryFrom, end) >= 0 {
		return 0, false
	}
	rows, next := rowsFrom(a.s, a.m.expiryFrom, end, limit)
	a.m.expiryFrom = end
	if next != nil {
		a.m.expiryFrom = next
	}
	for i, row := range rows {
		if a.searched >= maxFindRows {
			a.m.expiryFrom = row.key
			return i, true
		}
		a.s.Delete(row.key)
		a.expire(row.key)
	}
	return len(rows), next != nil
}

// expire removes what an expiry row refers to, if it is still what the row meant.
func (a *apply) expire(key []byte) {
	k := readKey(key, KindExpiry)
	at := k.time()
	what := k.byte()
	if k.bad {
		panic(corrupt(key))
	}
	ref := key[1+8+1:]
	switch what {
	case expireJob:
		tenant, jobID, ok := parseJobKey(append([]byte{KindJob}, ref...), KindJob)
		if !ok {
			panic(corrupt(key))
		}
		a.sweepTombstone(at, tenant, jobID)
	case expireOneShot:
		id, ok := parseIdentKey(append([]byte{KindDead}, ref...), KindDead)
		if !ok {
			panic(corrupt(key))
		}
		a.removeOneShot(&id)
	case expireRecord:
		row := append([]byte{KindIdempotency}, ref...)
		rec := &storagev1.IdempotencyRecord{}
		if value, ok := a.s.Get(row); ok {
			mustDecode(row, value, rec.UnmarshalVT)
			if rec.RecordedMs+recordKeptMS <= at {
				a.s.Delete(row)
			}
		}
	case expireTask:
		a.s.Delete(append([]byte{KindTask}, ref...))
	case expireBlob:
		a.sweepBlob(append([]byte{KindBlob}, ref...))
	case expireDead:
		row := append([]byte{KindDead}, ref...)
		id, ok := parseIdentKey(row, KindDead)
		if !ok {
			panic(corrupt(key))
		}
		if value, ok := a.s.Get(row); ok {
			if e := decodeNamed(row, value, &id); e.ExpiresMs <= at {
				a.purge(row, e)
			}
		}
	default:
		panic(corrupt(key))
	}
}

// sweepTombstone removes a deleted job's row and payloads. Its marker stays as long as executions of it may be alive:
// those that were missed when it was deleted are cancelled now.
func (a *apply) sweepTombstone(atMS int64, tenant, jobID string) {
	key := JobKey(tenant, jobID)
	j := a.job(key)
	if j != nil && j.State == storagev1.JobState_JOB_STATE_DELETED && j.DeletedMs+recordKeptMS <= atMS {
		a.sweepJob(tenant, jobID, j, false)
		j = nil
	}
	a.sweepPayloads(tenant, jobID, j)
	name := jobName{tenant, jobID}
	s, marked := a.m.stops[name]
	if !marked || s.deletedTo == 0 {
		return
	}
	f := newFinder(a.s, maxFindRows)
	keys, complete := f.live(tenant, jobID, inlineResume)
	a.searched += f.spent
	for _, key := range keys {
		_, e := readHint(a.s, key)
		if e == nil || e.Incarnation > s.deletedTo {
			continue
		}
		a.cancel(key, e, "")
		complete = false
	}
	if !complete {
		a.putExpiry(a.stamp+hourMS, expireJob, key[1:])
		return
	}
	a.setStop(name, stop{paused: s.paused})
}

// sweepJob removes a job's row, and its payloads if it may have some that stand apart.
func (a *apply) sweepJob(tenant, jobID string, j *storagev1.Job, payloads bool) {
	a.s.Delete(JobKey(tenant, jobID))
	a.dropPause(tenant, jobID, j)
	if j.State != storagev1.JobState_JOB_STATE_DELETED {
		a.meta.Jobs--
	}
	a.emitJob(storagev1.EventType_EVENT_TYPE_JOB_SWEPT, tenant, jobID, j.Incarnation, j.Version)
	if !payloads {
		return
	}
	prefix := blobPrefix(tenant, jobID, j.Incarnation)
	a.sweepBlobs(prefix, PrefixEnd(prefix))
}

// sweepPayloads removes the payloads of a job that is gone, or of the deleted ones before j, which was created over their
// tombstone.
func (a *apply) sweepPayloads(tenant, jobID string, j *storagev1.Job) {
	start := namedKey(KindBlob, tenant, jobID)
	end := PrefixEnd(start)
	if j != nil {
		end = blobPrefix(tenant, jobID, j.Incarnation)
	}
	a.sweepBlobs(start, end)
}

// sweepBlobs removes payloads. Few jobs have any apart, and a range delete costs more than to look.
func (a *apply) sweepBlobs(start, end []byte) {
	if key, _ := newFinder(a.s, 0).first(start, end); key != nil {
		a.s.DeleteRange(start, end)
	}
}

// sweepBlob removes a payload that its job has replaced, unless an execution may still run with it: then it is looked at
// again a day later. What has ended by then was kept as long as its history, save what lived on beyond that.
func (a *apply) sweepBlob(key []byte) {
	k := readKey(key, KindBlob)
	tenant, jobID, incarnation, version := k.name(), k.name(), k.u64(), k.u64()
	if !k.end() {
		panic(corrupt(key))
	}
	if _, ok := a.s.Get(key); !ok {
		// It went with its job.
		return
	}
	if a.blobInUse(tenant, jobID, incarnation, version) {
		a.putExpiry(a.stamp+dayMS, expireBlob, key[1:])
		return
	}
	a.s.Delete(key)
}

// blobInUse says whether a live execution or a dead letter, which may be requeued, has the payload of a job's version, or
// may have: the search is bounded.
func (a *apply) blobInUse(tenant, jobID string, incarnation, version uint64) bool {
	has := func(e *storagev1.Execution) bool {
		return e != nil && e.Incarnation == incarnation && e.Template.GetBlobVersion() == version
	}
	f := newFinder(a.s, maxFindRows)
	keys, complete := f.live(tenant, jobID, MaxBatch)
	prefix := namedKey(KindDead, tenant, jobID)
	dead, next := rowsFrom(a.s, prefix, PrefixEnd(prefix), MaxBatch)
	a.searched += f.spent + len(keys) + len(dead)
	for _, key := range keys {
		if _, e := readHint(a.s, key); has(e) {
			return true
		}
	}
	for _, row := range dead {
		if has(decodeExecution(row.key, row.value)) {
			return true
		}
	}
	return !complete || next != nil
}

// expireHistory removes rows of the oldest history bucket if it is over, and the jobs of the one-shots among them.
func (a *apply) expireHistory(limit int) (removed int, more bool) {
	if limit <= 0 || a.stamp < 0 {
		return 0, limit <= 0
	}
	// A bucket is over when its hour has come.
	end := endedBucket(uint32(a.stamp/hourMS) + 1)
	start := []byte{KindEnded}
	rows, next := rowsFrom(a.s, start, end, limit)
	if len(rows) == 0 {
		return 0, false
	}
	for _, row := range rows {
		ref, ok := parseEndedKey(row.key)
		if !ok {
			panic(corrupt(row.key))
		}
		if ref.char == charSchedule {
			if e := decodeNamed(row.key, row.value, &ref.id); e.OneShot {
				a.sweepOneShot(e)
			}
		}
	}
	if next == nil {
		next = append(bytes.Clone(rows[len(rows)-1].key), 0)
		a.s.DeleteRange(start, next)
		return len(rows), false
	}
	a.s.DeleteRange(start, next)
	return len(rows), true
}

// sweepOneShot removes the job of a one-shot whose history is over. Its row is the record of its create: younger than
// such records are kept, it becomes a tombstone first. While what was triggered of it may be alive both stay: what was
// accepted is not cancelled by a retention.
func (a *apply) sweepOneShot(e *storagev1.Execution) {
	j := a.job(JobKey(e.Tenant, e.JobId))
	if j == nil || j.Incarnation != e.Incarnation || j.State == storagev1.JobState_JOB_STATE_DELETED {
		return
	}
	if j.Triggered && a.mayLive(e.Tenant, e.JobId) {
		id := IdentityOf(e)
		a.s.Set(endedKey(expiryBucket(a.stamp, hourMS), &id, charSchedule), encodeNamed(e))
		return
	}
	if j.Triggered || j.CreatedMs+recordKeptMS > a.stamp {
		a.removeJob(e.Tenant, e.JobId, j, j.Triggered)
		return
	}
	a.setStop(jobName{e.Tenant, e.JobId}, stop{deletedTo: a.m.stops[jobName{e.Tenant, e.JobId}].deletedTo})
	a.sweepJob(e.Tenant, e.JobId, j, j.Version > 1 || e.Template.GetBlobVersion() != 0)
}

// removeOneShot removes the job of a one-shot whose dead letter is gone: as a tombstone, for its create may still be
// retried. While what was triggered of it may be alive it stays, and is looked at again.
func (a *apply) removeOneShot(id *Identity) {
	j := a.job(JobKey(id.Tenant, id.JobID))
	if j == nil || j.Incarnation != id.Incarnation || j.State == storagev1.JobState_JOB_STATE_DELETED {
		return
	}
	if j.Triggered && a.mayLive(id.Tenant, id.JobID) {
		a.putExpiry(a.stamp+hourMS, expireOneShot, identKey(KindDead, id)[1:])
		return
	}
	a.removeJob(id.Tenant, id.JobID, j, j.Triggered)
}

// mayLive says whether executions of a job may be alive. An entry that has searched enough takes it that they are.
func (a *apply) mayLive(tenant, jobID string) bool {
	if a.searched >= maxFindRows {
		return true
	}
	f := newFinder(a.s, maxFindRows)
	keys, complete := f.live(tenant, jobID, 1)
	a.searched += f.spent
	return len(keys) > 0 || !complete
}

// trimEvents forgets the event records below an offset and those that are older than an age.
func (a *apply) trimEvents(c *storagev1.Housekeep) int {
	from, to := a.meta.EventTrimmed, a.meta.EventOffset
	trim := max(from, min(c.TrimEventsBelow, to))
	if c.EventsMaxAgeMs > 0 {
		oldest := a.stamp - c.EventsMaxAgeMs
		// Records stand in the order of the shard's clock.
		young := sort.Search(int(to-trim), func(i int) bool { return a.eventTime(trim+uint64(i)) >= oldest })
		trim += uint64(young)
	}
	if trim == from {
		return 0
	}
	a.s.DeleteRange(EventKey(from), EventKey(trim))
	a.meta.EventTrimmed = trim
	return int(trim - from)
}

func (a *apply) eventTime(offset uint64) int64 {
	key := EventKey(offset)
	value, ok := a.s.Get(key)
	at, okValue := fieldVarint(value, eventRecordAtMS)
	if !ok || !okValue {
		panic(corrupt(key))
	}
	return int64(at)
}

// HousekeepDue says whether a Housekeep at an instant would find anything to remove, so that idle shards need no entries.
func HousekeepDue(r Reader, nowMS, eventsMaxAgeMS int64) bool {
	f := newFinder(r, 0)
	if key, _ := f.first([]byte{KindExpiry}, appendTime([]byte{KindExpiry}, nowMS+1)); key != nil {
		return true
	}
	if key, _ := f.first([]byte{KindEnded}, endedBucket(uint32(max(nowMS, 0)/hourMS)+1)); key != nil {
		return true
	}
	if eventsMaxAgeMS <= 0 {
		return false
	}
	_, value := f.first([]byte{KindEvent}, []byte{KindEvent + 1})
	at, ok := fieldVarint(value, eventRecordAtMS)
	return value != nil && ok && int64(at) < nowMS-eventsMaxAgeMS
}
