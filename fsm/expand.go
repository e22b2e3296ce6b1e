package fsm

import (
	"bytes"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// What the leader's evaluator asks of rows. It decides by the same functions as Apply, so that little of what it proposes is
// refused.

// ReadJob returns a job's row, nil when there is none. It must not be changed.
func ReadJob(r Reader, tenant, jobID string) *storagev1.Job { return getJob(r, JobKey(tenant, jobID)) }

// PassOver says which of a recurring job's instants its catch-up rule passes over at nowMS: all those up to untilMS, but the
// last of them if that is not before keepFromMS.
func PassOver(j *storagev1.Job, nowMS int64) (untilMS, keepFromMS int64) {
	if j.Parked {
		return -maxInstantMS, maxInstantMS + 1 // nothing of it is decided before the pause that stops it ends
	}
	untilMS, keepFromMS = missedTo(j, nowMS), maxInstantMS+1
	switch missedRule(j) {
	case storagev1.CatchUp_CATCH_UP_ALL:
		untilMS = min(untilMS, windowStart(j, nowMS)-1)
	case storagev1.CatchUp_CATCH_UP_LATEST:
		keepFromMS = windowStart(j, nowMS)
	}
	return untilMS, keepFromMS
}

// IsOlder says whether a job that may still fire has a horizon that was computed with older zone data than version.
func IsOlder(j *storagev1.Job, version string) bool {
	alive := j.GetState() == storagev1.JobState_JOB_STATE_ACTIVE || j.GetState() == storagev1.JobState_JOB_STATE_PAUSED
	return alive && says(j.GetHorizon()) && j.Horizon.ZoneVersion < version
}

// says is whether a horizon tells anything: one that is used up does not.
func says(h *storagev1.Horizon) bool {
	return len(h.GetNextMs()) > 0 || len(h.GetSkipped()) > 0 || h.GetEnded()
}

// FirstJob is the cursor of the first job.
func FirstJob() []byte { return []byte{KindJob} }

// OlderHorizons returns up to limit of the jobs with IsOlder, from cursor on, and where to go on; nil is the end. It reads
// budget rows at most.
func OlderHorizons(r Reader, version string, cursor []byte, limit, budget int) (older []JobRef, next []byte) {
	read := 0
	r.Scan(cursor, PrefixEnd(FirstJob()), func(key, value []byte) bool {
		if len(older) == limit || read == budget {
			next = bytes.Clone(key)
			return false
		}
		read++
		if ref, j := cronJob(key, value); j != nil && IsOlder(j, version) {
			older = append(older, ref)
		}
		return true
	})
	return older, next
}

// ScanCron calls fn for the cron jobs with their rows' keys, until it returns false.
func ScanCron(r Reader, fn func(key []byte, ref JobRef, j *storagev1.Job) bool) {
	r.Scan(FirstJob(), PrefixEnd(FirstJob()), func(key, value []byte) bool {
		ref, j := cronJob(key, value)
		return j == nil || fn(bytes.Clone(key), ref, j)
	})
}

// cronJob decodes a job's row if it is a cron job's; nil: it is not.
func cronJob(key, value []byte) (JobRef, *storagev1.Job) {
	if c, ok := fieldBytes(value, jobSchedule, scheduleCron); ok && c == nil {
		return JobRef{}, nil
	}
	return decodeJob(key, value)
}

func decodeJob(key, value []byte) (JobRef, *storagev1.Job) {
	tenant, jobID, ok := parseJobKey(key, KindJob)
	j := &storagev1.Job{}
	if !ok || j.UnmarshalVT(value) != nil {
		panic(corrupt(key))
	}
	return JobRef{tenant, jobID}, j
}

// ZoneChanges returns up to limit of a tenant's jobs whose instants newer zone data has moved, by id, from cursor on; an
// empty tenant: those of all, by tenant and id. It reads budget rows at most: a page may be short, or empty, and still carry
// the cursor of the next.
func ZoneChanges(r Reader, tenant string, cursor []byte, limit, budget int) (jobs []JobView, next []byte) {
	prefix := FirstJob()
	if tenant != "" {
		prefix = tenantPrefix(KindJob, tenant)
	}
	start := prefix
	if bytes.HasPrefix(cursor, prefix) {
		start = cursor
	}
	read := 0
	r.Scan(start, PrefixEnd(prefix), func(key, value []byte) bool {
		if len(jobs) == limit || read == max(budget, 1) {
			next = bytes.Clone(key)
			return false
		}
		read++
		if c, ok := fieldBytes(value, jobZoneChange); ok && c == nil {
			return true
		}
		if ref, j := decodeJob(key, value); j.State != storagev1.JobState_JOB_STATE_DELETED {
			jobs = append(jobs, JobView{Tenant: ref.Tenant, JobID: ref.JobID, Job: j, State: j.State, NextMS: j.NextMs})
		}
		return true
	})
	return jobs, next
}
