package fsm

import (
	"bytes"
	"slices"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// maxLastSeeks bounds what finding a job's last run spends on the backlog of ready executions.
const maxLastSeeks = 1000

// LastRun returns the newest execution that the schedule of a job made, as GetJob has it, wherever it stands; nil: there is none,
// or it is not kept any more. removed says which of the two. It costs a look-up, as of any execution, and some hundred seeks if the
// job's last instants got no execution.
func LastRun(r Reader, view *JobView) (e *storagev1.Execution, removed bool) {
	j := view.Job
	if isOneShot(j) {
		if e = view.Execution; e != nil && e.State == storagev1.ExecutionState_EXECUTION_STATE_WAITING {
			return nil, false
		}
		return e, e == nil && view.State == storagev1.JobState_JOB_STATE_EXHAUSTED
	}
	if j.Runs == 0 {
		return nil, false
	}
	f := newFinder(r, 0)
	id := Identity{
		Tenant: view.Tenant, JobID: view.JobID, Incarnation: j.Incarnation, Kind: storagev1.ExecutionKind_EXECUTION_KIND_SCHEDULE,
		NominalMS: j.WatermarkMs,
	}
	if e, _ = f.find(&id); e == nil {
		e = f.newest(&id, j)
	}
	return e, e == nil
}

// newest finds the execution of a job's schedule with the highest nominal instant before id's.
func (f *finder) newest(id *Identity, j *storagev1.Job) *storagev1.Execution {
	c := &chronicle{finder: f, q: OccurrenceQuery{Tenant: id.Tenant, JobID: id.JobID}, j: j, limit: maxLastSeeks, seeks: maxLastSeeks}
	c.leased()
	for _, g := range slices.Backward(c.groups()) {
		// Of one group only what is newer than what was found in the others matters. Later buckets hold newer ones as a rule.
		if g.char == charRange {
			continue
		}
		for _, item := range c.items {
			c.fromMS = max(c.fromMS, item.FromMS+1)
		}
		if key, value := f.newestOf(g.prefix, c.fromMS, id.NominalMS); key != nil {
			at := *id
			k := keyReader{s: string(key[len(g.prefix):])}
			at.NominalMS, at.Discriminator = k.time(), k.name()
			c.row(key, value, &at)
		}
	}
	c.ready()
	var last *storagev1.Execution
	for _, item := range c.items {
		if last == nil || item.FromMS > last.NominalMs {
			last = item.Execution
		}
	}
	return last
}

// newestOf finds the row with the highest instant in [fromMS, toMS] of those that begin with a prefix and have it next; nil if
// there is none. Rows are only read forward, so that it halves the time in which the last can be.
func (f *finder) newestOf(prefix []byte, fromMS, toMS int64) (key, value []byte) {
	end := appendTime(bytes.Clone(prefix), toMS+1)
	for fromMS <= toMS {
		at := fromMS
		if key != nil {
			at += (toMS - fromMS) / 2
		}
		k, v := f.first(appendTime(bytes.Clone(prefix), at), end)
		if k == nil {
			if toMS = at - 1; key == nil {
				break
			}
			continue
		}
		key, value = k, v
		order := keyReader{s: string(k[len(prefix):])}
		fromMS = order.time() + 1
	}
	return key, value
}
