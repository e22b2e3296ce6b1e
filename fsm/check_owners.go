package fsm

import (
	"encoding/binary"
	"slices"

	"github.com/cespare/xxhash/v2"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// owners are the jobs that have something alive, by a hash of their names and incarnations: to read each one's row for each
// of its executions is most of what a check of many would cost.
type owners struct {
	hashes []uint64
	// full: no more are taken in. They are sorted then.
	full bool
	// states says of each what the walk over the jobs has found, from end on.
	states []ownerState
}

type ownerState uint8

const (
	// ownerMissing: there is no such job.
	ownerMissing ownerState = iota
	// ownerUnmarked: it is paused, and no marker says so.
	ownerUnmarked
	ownerGood
)

func ownerHash(tenant, jobID string, incarnation uint64) uint64 {
	var buf [256]byte
	key := appendName(appendName(buf[:0], tenant), jobID)
	return xxhash.Sum64(binary.BigEndian.AppendUint64(key, incarnation))
}

// add takes in a job, or says that it is not among those that were, and there is no room for more than limit.
func (o *owners) add(hash uint64, limit int) bool {
	if len(o.hashes) >= limit && !o.full {
		o.sort()
		o.full = len(o.hashes) > limit/2
	}
	if o.full {
		_, ok := slices.BinarySearch(o.hashes, hash)
		return ok
	}
	o.hashes = append(o.hashes, hash)
	return true
}

// sort brings each job to its place, once.
func (o *owners) sort() {
	slices.Sort(o.hashes)
	o.hashes = slices.Compact(o.hashes)
}

// end is called after the last add and before the first found.
func (o *owners) end() {
	o.sort()
	o.states = make([]ownerState, len(o.hashes))
}

// found takes in a job that is there.
func (o *owners) found(hash uint64, state ownerState) {
	if i, ok := slices.BinarySearch(o.hashes, hash); ok {
		o.states[i] = state
	}
}

// ownerOf says what a job is to what is alive of it.
func (c *checker) ownerOf(tenant, jobID string, j *storagev1.Job) ownerState {
	if j.State == storagev1.JobState_JOB_STATE_PAUSED && !c.stops[jobName{tenant, jobID}].paused {
		return ownerUnmarked
	}
	return ownerGood
}

// needJob checks the job of what is alive: when the jobs are walked, but at once where there are too many to remember.
func (c *checker) needJob(key []byte, id *Identity) {
	if c.owners.add(ownerHash(id.Tenant, id.JobID, id.Incarnation), c.maxIDs) {
		return
	}
	state := ownerMissing
	if j := c.job(id.Tenant, id.JobID); j != nil && j.Incarnation == id.Incarnation {
		state = c.ownerOf(id.Tenant, id.JobID, j)
	}
	c.owned(key, id, state)
}

// owned reports what is alive of a job that is not there, and not ended by a marker, or is paused without one.
func (c *checker) owned(key []byte, id *Identity, state ownerState) {
	switch {
	case state == ownerMissing && !c.stopped(id.Tenant, id.JobID, id.Incarnation):
		c.fail(RuleJob, key, "the job of %s is not there", id)
	case state == ownerUnmarked:
		c.fail(RuleMarker, key, "the job of %s is paused, and no marker says so", id)
	}
}

// orphans looks again at what is alive if some of the jobs were not found as they must be.
func (c *checker) orphans() {
	if !slices.ContainsFunc(c.owners.states, func(s ownerState) bool { return s != ownerGood }) {
		return
	}
	c.executions(func(key []byte, id *Identity) {
		if !isLive(key) {
			return
		}
		if i, ok := slices.BinarySearch(c.owners.hashes, ownerHash(id.Tenant, id.JobID, id.Incarnation)); ok {
			c.owned(key, id, c.owners.states[i])
		}
	})
}

// isLive says whether an execution's row is one of those that live looks at: a one-shot's before its time is judged with its
// timer.
func isLive(key []byte) bool {
	switch key[0] {
	case KindReady, KindLeased, KindHeld:
		return true
	case KindTimer:
		t, ok := parseTimerKey(key)
		return ok && t.kind == TimerRetry
	default:
		return false
	}
}
