package fsm

import (
	"slices"

	"github.com/cespare/xxhash/v2"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// payloadOf checks that the payload of an execution is there. One of a job that is deleted may have lost it.
func (c *checker) payloadOf(key []byte, e *storagev1.Execution) {
	if e.Template.GetBlobVersion() == 0 {
		return
	}
	j := c.job(e.Tenant, e.JobId)
	if j == nil || j.Incarnation != e.Incarnation || j.State == storagev1.JobState_JOB_STATE_DELETED {
		return
	}
	c.payload(key, e.Tenant, e.JobId, e.Incarnation, e.Template)
}

func (c *checker) payload(key []byte, tenant, jobID string, incarnation uint64, t *storagev1.Template) {
	if t.GetBlobVersion() == 0 {
		return
	}
	value, ok := c.r.Get(BlobKey(tenant, jobID, incarnation, t.BlobVersion))
	if !ok || uint64(len(value)) != t.BlobSize {
		c.fail(RulePayload, key, "its payload of version %d is not there whole", t.BlobVersion)
	}
}

// blobRow checks that a payload has a job it goes with, or housekeeping that removes it. That of a one-shot that has fired
// goes with its job, whichever execution has it.
func (c *checker) blobRow(key, _ []byte) {
	k := readKey(key, KindBlob)
	tenant, jobID, incarnation, version := k.name(), k.name(), k.u64(), k.u64()
	if !k.end() {
		c.fail(RuleRow, key, "cannot be decoded")
		return
	}
	if _, ok := c.replaced[xxhash.Sum64(key[1:])]; ok {
		return
	}
	j := c.job(tenant, jobID)
	if j == nil || j.Incarnation != incarnation {
		c.stray[jobName{tenant, jobID}] = append([]byte(nil), key...)
		return
	}
	t := j.Template
	if _, e := findWaiting(c.r, tenant, jobID, j); e != nil {
		t = e.Template
	}
	if t != nil && t.BlobVersion != version {
		c.fail(RulePayload, key, "its job has replaced it, and nothing removes it")
	}
}

// strays checks that the payloads of jobs that are not there go when their tombstones would: few are.
func (c *checker) strays() {
	if len(c.stray) == 0 {
		return
	}
	c.each(KindExpiry, func(key, _ []byte) {
		k := readKey(key, KindExpiry)
		if k.time(); k.byte() == expireJob {
			delete(c.stray, jobName{k.name(), k.name()})
		}
	})
	for _, key := range c.stray {
		c.fail(RulePayload, key, "its job is not there, and nothing removes it")
	}
}

// jobRow checks a job without its executions.
func (c *checker) jobRow(key []byte, tenant, jobID string, j *storagev1.Job) {
	c.numbers(key, j.Incarnation, 0)
	if j.State == storagev1.JobState_JOB_STATE_DELETED {
		c.wantExpiry(key, j.DeletedMs+recordKeptMS, expireJob)
	} else {
		c.counted.Jobs++
	}
	switch {
	case j.State < storagev1.JobState_JOB_STATE_ACTIVE || j.State > storagev1.JobState_JOB_STATE_EXHAUSTED:
		c.fail(RuleRow, key, "its state is %d", j.State)
	case isOneShot(j) && j.NextMs != 0, isOneShot(j) && j.Template != nil && j.State != storagev1.JobState_JOB_STATE_PAUSED:
		c.fail(RuleRow, key, "it is a one-shot in the form of another job")
	case !isOneShot(j):
		c.recurringRow(key, tenant, jobID, j)
	}
	until := j.Pause.GetUntilMs()
	switch {
	case j.Pause != nil && j.State != storagev1.JobState_JOB_STATE_PAUSED:
		c.fail(RuleRow, key, "its state is %s, and it has a pause", j.State)
	case until != 0 && !c.has(timerJobKey(until, TimerResume, tenant, jobID)):
		c.fail(RuleTimer, key, "there is no timer at %d, where its pause ends", until)
	}
	c.payload(key, tenant, jobID, j.Incarnation, j.Template)
}

// recurringRow checks that a recurring job has a timer for what comes next, and knows what that is.
func (c *checker) recurringRow(key []byte, tenant, jobID string, j *storagev1.Job) {
	isActive := j.State == storagev1.JobState_JOB_STATE_ACTIVE
	at := timerAt(j)
	switch {
	case j.Parked && (!isActive || at != 0 || !c.has(ParkedKey(tenant, jobID))):
		c.fail(RuleTimer, key, "it is parked, its state is %s and its timer stands at %d, or there is no parked row", j.State, at)
	case isActive != (at != 0) && !j.Parked:
		c.fail(RuleTimer, key, "its state is %s and its timer stands at %d", j.State, at)
	case !isActive || j.Parked:
	case j.NextMs == 0 && !c.has(timerJobKey(at, TimerExpand, tenant, jobID)):
		c.fail(RuleTimer, key, "there is no timer at %d, where it waits for its horizon", at)
	case j.NextMs == 0:
	case j.NextMs <= j.WatermarkMs:
		c.fail(RuleOccurrence, key, "its next occurrence %d was decided: the watermark is %d", j.NextMs, j.WatermarkMs)
	case at < j.NextMs:
		c.fail(RuleTimer, key, "its timer at %d stands before its next occurrence %d", at, j.NextMs)
	case !c.has(timerJobKey(at, TimerRecurring, tenant, jobID)):
		c.fail(RuleTimer, key, "there is no timer at %d for its next occurrence %d", at, j.NextMs)
	case !isNext(j):
		c.fail(RuleOccurrence, key, "its next occurrence %d is not the first of its schedule after the watermark %d", j.NextMs, j.WatermarkMs)
	}
	if h := j.Horizon; h != nil && validHorizon(h, j.WatermarkMs) != nil {
		c.fail(RuleRow, key, "its horizon %v is not what follows the watermark %d", h, j.WatermarkMs)
	}
	if n := c.blocking[jobName{tenant, jobID}]; n != len(j.LiveMs) && j.State != storagev1.JobState_JOB_STATE_DELETED {
		c.fail(RuleOccurrence, key, "%d of its executions are in the way of the next one, it knows of %d", n, len(j.LiveMs))
	}
	if IsOlder(j, c.meta.ZoneVersion) {
		c.fail(RuleOccurrence, key, "its horizon goes by zone data %q, while all of the shard's are said to go by %s or newer",
			j.Horizon.ZoneVersion, c.meta.ZoneVersion)
	}
	switch hasRule := j.HeldRule != storagev1.CatchUp_CATCH_UP_UNSPECIFIED; {
	case j.State == storagev1.JobState_JOB_STATE_EXHAUSTED && !ended(j):
		c.fail(RuleOccurrence, key, "it is exhausted, and has something left")
	case hasRule && (j.Parked || j.State == storagev1.JobState_JOB_STATE_PAUSED):
		c.fail(RuleOccurrence, key, "something stops it, and the rule of a pause that ended before is to decide")
	}
	for _, ms := range j.QueuedLateMs {
		if !slices.Contains(j.QueuedMs, ms) {
			c.fail(RuleOccurrence, key, "its occurrence %d was missed and is said to wait", ms)
		}
	}
	for _, ms := range j.QueuedMs {
		if ms > j.WatermarkMs || len(j.LiveMs) == 0 && !isStopped(j) {
			c.fail(RuleOccurrence, key, "its occurrence %d waits for nothing", ms)
		}
	}
}

func isNext(j *storagev1.Job) bool {
	next, ok := nextOf(j, j.WatermarkMs)
	return ok && next == j.NextMs
}

// identityHash tells executions apart; what it does not is looked at again by the whole identity.
func identityHash(id *Identity) uint64 {
	var buf [256]byte
	return xxhash.Sum64(appendIdent(buf[:0], id, kindChar(id.Kind)))
}

// note takes an execution in, so that a second one of its identity is found.
func (c *checker) note(e *storagev1.Execution) {
	c.seen++
	if c.seen <= c.maxIDs {
		id := IdentityOf(e)
		c.ids = append(c.ids, identityHash(&id))
	}
}

// identities checks that no two executions are of one occurrence, and that every one-shot has its own: in parts by hash, as
// many as memory asks for.
func (c *checker) identities() {
	parts := uint64(c.seen/c.maxIDs + 1)
	for part := range parts {
		if parts > 1 {
			c.ids = c.ids[:0]
			c.executions(func(_ []byte, id *Identity) {
				if h := identityHash(id); h%parts == part {
					c.ids = append(c.ids, h)
				}
			})
		}
		slices.Sort(c.ids)
		c.twice()
		c.jobs(part, parts)
	}
}

// twice reports the occurrences in c.ids, sorted, that have more than one execution.
func (c *checker) twice() {
	same := map[uint64]struct{}{}
	for i := 1; i < len(c.ids); i++ {
		if c.ids[i] == c.ids[i-1] {
			same[c.ids[i]] = struct{}{}
		}
	}
	if len(same) == 0 {
		return
	}
	first := map[Identity]byte{}
	c.executions(func(key []byte, id *Identity) {
		if _, ok := same[identityHash(id)]; !ok {
			return
		}
		if kind, ok := first[*id]; ok {
			c.fail(RuleOccurrence, key, "%s stands twice, also among rows of kind %q", id, kind)
		}
		first[*id] = key[0]
	})
}

// executions calls fn for each execution, wherever it stands. What cannot be decoded was reported before.
func (c *checker) executions(fn func(key []byte, id *Identity)) {
	for _, kind := range [...]byte{KindTimer, KindReady, KindLeased, KindHeld, KindDead, KindEnded} {
		c.each(kind, func(key, value []byte) {
			var id Identity
			isExecution := false
			switch kind {
			case KindReady:
				id, _, _, _, isExecution = parseReadyKey(key)
			case KindHeld, KindDead:
				id, isExecution = parseIdentKey(key, kind)
			case KindEnded:
				ref, ok := parseEndedKey(key)
				_, known := charKind(ref.char)
				id, isExecution = ref.id, ok && known
			case KindTimer:
				t, ok := parseTimerKey(key)
				id, isExecution = t.id, ok && t.kind == TimerRetry
				if ok && t.kind == TimerOneShot {
					id, isExecution = identityIn(value, &t.id)
				}
			case KindLeased:
				id, isExecution = identityIn(value, nil)
			}
			if isExecution {
				fn(key, &id)
			}
		})
	}
}

// identityIn reads the identity in an execution's row; names are what its key has of it.
func identityIn(value []byte, names *Identity) (Identity, bool) {
	e := &storagev1.Execution{}
	if e.UnmarshalVT(value) != nil {
		return Identity{}, false
	}
	if names != nil {
		name(e, names)
	}
	return IdentityOf(e), true
}

// jobs checks the jobs, with the first part, and with each the one-shots in it.
func (c *checker) jobs(part, parts uint64) {
	c.each(KindJob, func(key, value []byte) {
		tenant, jobID, ok := parseJobKey(key, KindJob)
		j := &storagev1.Job{}
		if !ok || j.UnmarshalVT(value) != nil {
			if part == 0 {
				c.fail(RuleRow, key, "cannot be decoded")
			}
			return
		}
		if part == 0 {
			c.owners.found(ownerHash(tenant, jobID, j.Incarnation), c.ownerOf(tenant, jobID, j))
			c.jobRow(key, tenant, jobID, j)
		}
		if !isOneShot(j) || j.State == storagev1.JobState_JOB_STATE_DELETED {
			return
		}
		id := oneShotIdentity(tenant, jobID, j)
		h := identityHash(&id)
		if h%parts != part {
			return
		}
		_, there := slices.BinarySearch(c.ids, h)
		_, purged := c.purged[xxhash.Sum64(identKey(KindDead, &id)[1:])]
		switch {
		case j.Template != nil && there:
			c.fail(RuleOccurrence, key, "it is paused before its time, and its execution is there")
		case j.Template == nil && !there && !purged:
			c.fail(RuleOccurrence, key, "its execution is nowhere")
		}
	})
}
