package fsm

import (
	"bytes"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// CachedKinds are the rows worth keeping in memory after they were written: what is ready or leased is read again soon.
var CachedKinds = []byte{KindReady, KindLeased}

// Find looks an execution up by its id, wherever it stands, and returns it with its row's key. It is for reads, and for
// the leader to make hints from. It walks the leases, but of the backlog it reads a bounded part: see finder.ready.
func Find(r Reader, executionID string) (e *storagev1.Execution, key []byte, ok bool) {
	id, err := ParseExecutionID(executionID)
	if err != nil {
		return nil, nil, false
	}
	e, key = newFinder(r, 0).find(&id)
	return e, key, e != nil
}

// FindAll looks several executions up, as Find does one, and calls fn for each with its place in the list; e is nil for
// what is not found. The leases are walked once for all of them.
func FindAll(r Reader, executionIDs []string, fn func(i int, e *storagev1.Execution, key []byte)) {
	f := newFinder(r, 0)
	f.byIdentity = map[Identity]leasedRow{}
	f.leases(func(key []byte, e *storagev1.Execution) bool {
		f.byIdentity[IdentityOf(e)] = leasedRow{e, key}
		return true
	})
	for i, s := range executionIDs {
		id, err := ParseExecutionID(s)
		if err != nil {
			fn(i, nil, nil)
			continue
		}
		e, key := f.find(&id)
		fn(i, e, key)
	}
}

// LiveExecutionKeys returns the row keys of up to limit executions of a job that are held, retrying, ready or leased, of
// any incarnation; a one-shot that waits for its time is not among them. complete says that there are no more; it may be
// false with few keys, too, as a tenant's backlog is searched up to a bound.
func LiveExecutionKeys(r Reader, tenant, jobID string, limit int) (keys [][]byte, complete bool) {
	return newFinder(r, maxHintRows).live(tenant, jobID, limit)
}

// finder searches a shard's rows. It counts the rows and seeks that it spends; a budget bounds them, 0 is no bound.
type finder struct {
	r             Reader
	spent, budget int
	buckets       []uint32
	loaded        bool
	// byIdentity are all leases, if many executions are looked up; nil: they are walked for each.
	byIdentity map[Identity]leasedRow
	// streamReads counts what ready has read, of maxStreamReads.
	streamReads int
}

// leasedRow is a leased execution and its row's key.
type leasedRow struct {
	e   *storagev1.Execution
	key []byte
}

func newFinder(r Reader, budget int) *finder { return &finder{r: r, budget: budget} }

// spend counts one row; false when that is beyond the budget.
func (f *finder) spend() bool {
	f.spent++
	return !f.exceeded()
}

func (f *finder) exceeded() bool { return f.budget > 0 && f.spent > f.budget }

// find looks where it costs least first. A backlog of ready executions can be larger than anything.
func (f *finder) find(id *Identity) (*storagev1.Execution, []byte) {
	for _, look := range [...]func(*Identity) (*storagev1.Execution, []byte){
		f.waiting, f.held, f.retrying, f.dead, f.ended,
	} {
		if e, key := look(id); e != nil {
			return e, key
		}
	}
	e, key, only := f.ownStream(id)
	if e != nil {
		return e, key
	}
	if e, key = f.leased(id); e != nil || only {
		return e, key
	}
	return f.ready(id)
}

// at reads the execution at key if it is id.
func (f *finder) at(key []byte, id *Identity) (*storagev1.Execution, []byte) {
	f.spend()
	value, ok := f.r.Get(key)
	if !ok {
		return nil, nil
	}
	e := decodeExecution(key, value)
	name(e, id)
	if IdentityOf(e) != *id {
		return nil, nil
	}
	return e, key
}

func (f *finder) waiting(id *Identity) (*storagev1.Execution, []byte) {
	return f.at(timerJobKey(id.NominalMS, TimerOneShot, id.Tenant, id.JobID), id)
}

func (f *finder) held(id *Identity) (*storagev1.Execution, []byte) {
	return f.at(identKey(KindHeld, id), id)
}

func (f *finder) dead(id *Identity) (*storagev1.Execution, []byte) {
	return f.at(identKey(KindDead, id), id)
}

func (f *finder) retrying(id *Identity) (*storagev1.Execution, []byte) {
	key := identKey(KindRetrying, id)
	value, ok := f.r.Get(key)
	if !ok {
		return nil, nil
	}
	return f.at(timerIdentKey(retryTime(key, value), TimerRetry, id), id)
}

// retryTime is where a retrying execution's timer stands.
func retryTime(key, value []byte) int64 {
	k := keyReader{s: string(value)}
	at := k.time()
	if !k.end() {
		panic(corrupt(key))
	}
	return at
}

func (f *finder) ended(id *Identity) (*storagev1.Execution, []byte) {
	for _, bucket := range f.liveBuckets() {
		if e, key := f.at(endedKey(bucket, id, kindChar(id.Kind)), id); e != nil {
			return e, key
		}
	}
	return nil, nil
}

// liveBuckets lists the history buckets that hold rows: at most 64.
func (f *finder) liveBuckets() []uint32 {
	if f.loaded {
		return f.buckets
	}
	f.loaded = true
	for start := []byte{KindEnded}; start != nil && f.spend(); {
		key, _ := f.first(start, []byte{KindEnded + 1})
		if key == nil {
			break
		}
		k := readKey(key, KindEnded)
		bucket := k.u32()
		if k.bad {
			panic(corrupt(key))
		}
		f.buckets = append(f.buckets, bucket)
		start = PrefixEnd(endedBucket(bucket))
	}
	return f.buckets
}

// first returns a copy of the first row in [start, end).
func (f *finder) first(start, end []byte) (key, value []byte) {
	f.r.Scan(start, end, func(k, v []byte) bool {
		key, value = bytes.Clone(k), bytes.Clone(v)
		return false
	})
	return key, value
}

// ownStream looks in the stream of the job as it is now. only says that id can be ready in no other: a one-shot's stream
// does not change once it has fired.
func (f *finder) ownStream(id *Identity) (e *storagev1.Execution, key []byte, only bool) {
	f.spend()
	j := getJob(f.r, JobKey(id.Tenant, id.JobID))
	if j == nil || j.Incarnation != id.Incarnation {
		return nil, nil, false
	}
	if isOneShot(j) {
		e, key = f.inStream(id, j.Queue, j.Priority, j.FairnessKey)
		return e, key, id.Kind == storagev1.ExecutionKind_EXECUTION_KIND_SCHEDULE
	}
	t := j.Template
	if t == nil {
		return nil, nil, false
	}
	e, key = f.inStream(id, t.Queue, t.Priority, t.FairnessKey)
	return e, key, false
}

// inStream looks at the one key that id can have in a stream.
func (f *finder) inStream(id *Identity, queue string, priority uint32, fairness string) (*storagev1.Execution, []byte) {
	return f.at(ReadyKey(&storagev1.Execution{
		Tenant: id.Tenant, JobId: id.JobID, Incarnation: id.Incarnation, Kind: id.Kind, NominalMs: id.NominalMS,
		Discriminator: id.Discriminator,
		Template:      &storagev1.Template{Queue: queue, Priority: priority, FairnessKey: fairness},
	}), id)
}

// ready looks in each stream of the tenant, up to maxStreamReads: there stands what was accepted before its job's queue,
// priority or fairness key was changed, or the job deleted. Of a tenant with more streams such an execution may not be
// found until it is leased or has ended; it runs all the same.
func (f *finder) ready(id *Identity) (e *storagev1.Execution, key []byte) {
	if f.streamReads >= maxStreamReads {
		return nil, nil
	}
	walk := newFinder(f.r, maxStreamReads-f.streamReads)
	walk.streams(id.Tenant, func(queue, fairness string, priority uint32, _ []byte) bool {
		e, key = walk.inStream(id, queue, priority, fairness)
		return e == nil
	})
	f.streamReads += walk.spent
	f.spent += walk.spent
	return e, key
}

// streams calls fn for the tenant's distinct (queue, priority, fairness key) among the ready rows, with the prefix of
// their keys. It seeks from one to the next.
func (f *finder) streams(tenant string, fn func(queue, fairness string, priority uint32, prefix []byte) bool) {
	start := []byte{KindReady}
	for start != nil && f.spend() {
		key, _ := f.first(start, []byte{KindReady + 1})
		if key == nil {
			return
		}
		id, queue, fairness, priority, ok := parseReadyKey(key)
		if !ok {
			panic(corrupt(key))
		}
		switch {
		case id.Tenant < tenant:
			start = appendName(ReadyPriorityPrefix(queue, priority), tenant)
		case id.Tenant > tenant:
			start = PrefixEnd(ReadyPriorityPrefix(queue, priority))
		default:
			prefix := ReadyStreamPrefix(queue, priority, tenant, fairness)
			if !fn(queue, fairness, priority, prefix) {
				return
			}
			start = PrefixEnd(prefix)
		}
	}
}

// leased walks the leases: there are few, and nothing else leads to them.
func (f *finder) leased(id *Identity) (found *storagev1.Execution, at []byte) {
	if f.byIdentity != nil {
		row := f.byIdentity[*id]
		return row.e, row.key
	}
	f.leases(func(key []byte, e *storagev1.Execution) bool {
		if IdentityOf(e) == *id {
			found, at = e, key
		}
		return found == nil
	})
	return found, at
}

func (f *finder) leases(fn func(key []byte, e *storagev1.Execution) bool) {
	f.r.Scan([]byte{KindLeased}, []byte{KindLeased + 1}, func(key, value []byte) bool {
		return f.spend() && fn(bytes.Clone(key), decodeExecution(key, bytes.Clone(value)))
	})
}

// live collects the keys of a job's live executions, the ready ones last: a backlog may use up the budget, and those that
// run must be told to stop. complete is false if limit or the budget ended the search.
func (f *finder) live(tenant, jobID string, limit int) (keys [][]byte, complete bool) {
	add := func(key []byte) bool {
		if len(keys) >= limit || f.exceeded() {
			complete = false
			return false
		}
		keys = append(keys, key)
		return true
	}
	complete = true
	prefix := namedKey(KindHeld, tenant, jobID)
	f.r.Scan(prefix, PrefixEnd(prefix), func(key, _ []byte) bool { f.spend(); return add(bytes.Clone(key)) })
	prefix = namedKey(KindRetrying, tenant, jobID)
	f.r.Scan(prefix, PrefixEnd(prefix), func(key, value []byte) bool {
		id, ok := parseIdentKey(key, KindRetrying)
		if !ok {
			panic(corrupt(key))
		}
		f.spend()
		return add(timerIdentKey(retryTime(key, value), TimerRetry, &id))
	})
	if complete {
		f.leases(func(key []byte, e *storagev1.Execution) bool {
			return e.Tenant != tenant || e.JobId != jobID || add(key)
		})
	}
	if complete {
		f.streams(tenant, func(_, _ string, _ uint32, prefix []byte) bool {
			f.r.Scan(prefix, PrefixEnd(prefix), func(key, _ []byte) bool {
				id, _, _, _, ok := parseReadyKey(key)
				return f.spend() && (!ok || id.JobID != jobID || add(bytes.Clone(key)))
			})
			return complete && !f.exceeded()
		})
	}
	return keys, complete && !f.exceeded()
}
