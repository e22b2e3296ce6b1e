package fsm

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// planting spoils one thing in a shard's rows; it is false if there is nothing to spoil.
type planting struct {
	name, rule string
	plant      func(s *memState) bool
}

// firstRow calls fn with a copy of the first row of a kind that fn takes, and says whether there was one.
func firstRow(s *memState, kind byte, fn func(key, value []byte) bool) bool {
	for _, k := range s.keys {
		if k[0] == kind && fn([]byte(k), bytes.Clone(s.values[k])) {
			return true
		}
	}
	return false
}

// without removes the first row of a kind that is meant.
func without(kind byte, meant func(key, value []byte) bool) func(*memState) bool {
	return func(s *memState) bool {
		return firstRow(s, kind, func(key, value []byte) bool {
			if !meant(key, value) {
				return false
			}
			s.Delete(key)
			return true
		})
	}
}

func anyRow(_, _ []byte) bool { return true }

func timerOf(kind TimerKind) func(key, _ []byte) bool {
	return func(key, _ []byte) bool {
		t, _ := parseTimerKey(key)
		return t.kind == kind
	}
}

func expiryOf(what byte) func(key, _ []byte) bool {
	return func(key, _ []byte) bool { return key[9] == what }
}

// changed changes a row's message.
func changed[T any, M interface {
	*T
	UnmarshalVT([]byte) error
	MarshalVT() ([]byte, error)
}](kind byte, change func(M) bool) func(*memState) bool {
	return func(s *memState) bool {
		return firstRow(s, kind, func(key, value []byte) bool {
			m := M(new(T))
			if m.UnmarshalVT(value) != nil || !change(m) {
				return false
			}
			s.Set(key, mustEncode(m.MarshalVT()))
			return true
		})
	}
}

func metaChanged(change func(*storagev1.Meta)) func(*memState) bool {
	return changed(KindMeta, func(m *storagev1.Meta) bool { change(m); return true })
}

func added(key, value []byte) func(*memState) bool {
	return func(s *memState) bool { s.Set(bytes.Clone(key), bytes.Clone(value)); return true }
}

// timerMoved moves the first timer of a kind by a minute.
func timerMoved(kind TimerKind) func(*memState) bool {
	return func(s *memState) bool {
		return firstRow(s, KindTimer, func(key, value []byte) bool {
			t, _ := parseTimerKey(key)
			if t.kind != kind {
				return false
			}
			s.Delete(key)
			s.Set(append(timerStart(t.atMS+minuteMS), key[9:]...), value)
			return true
		})
	}
}

// again puts an execution that stands elsewhere among the ended ones, too.
func again(kind byte) func(*memState) bool {
	return func(s *memState) bool {
		return firstRow(s, kind, func(key, _ []byte) bool {
			_, e := readHint(s, key)
			if e == nil || e.State == storagev1.ExecutionState_EXECUTION_STATE_WAITING {
				return false
			}
			e.State = storagev1.ExecutionState_EXECUTION_STATE_SUCCEEDED
			id := IdentityOf(e)
			s.Set(endedKey(1<<30, &id, kindChar(e.Kind)), encodeNamed(e))
			return true
		})
	}
}

var plantings = []planting{
	{"a job too many", RuleCounter, metaChanged(func(m *storagev1.Meta) { m.Jobs++ })},
	{"one waits less", RuleCounter, metaChanged(func(m *storagev1.Meta) { m.Waiting-- })},
	{"one ready more", RuleCounter, metaChanged(func(m *storagev1.Meta) { m.Ready++ })},
	{"one leased more", RuleCounter, metaChanged(func(m *storagev1.Meta) { m.Leased++ })},
	{"one retrying more", RuleCounter, metaChanged(func(m *storagev1.Meta) { m.Retrying++ })},
	{"one held more", RuleCounter, metaChanged(func(m *storagev1.Meta) { m.Held++ })},
	{"one dead more", RuleCounter, metaChanged(func(m *storagev1.Meta) { m.Dead++ })},
	{"fencing numbers given twice", RuleCounter, metaChanged(func(m *storagev1.Meta) { m.Fencing = 1 })},
	{"incarnations given twice", RuleCounter, metaChanged(func(m *storagev1.Meta) { m.Incarnation = 0 })},
	{"a timer is passed over", RuleTimer, metaChanged(func(m *storagev1.Meta) { m.LowWaterMs = maxInstantMS })},
	{"an event too few", RuleEvents, metaChanged(func(m *storagev1.Meta) { m.EventOffset++ })},
	{"an event that was trimmed", RuleEvents, metaChanged(func(m *storagev1.Meta) { m.EventTrimmed++ })},
	{"an event is gone", RuleEvents, without(KindEvent, func(key, _ []byte) bool { return key[8]%2 == 1 })},
	{"events out of order", RuleEvents, changed(KindEvent, func(r *storagev1.EventRecord) bool { r.Index += 1 << 40; return true })},

	{"a one-shot without its timer", RuleOccurrence, without(KindTimer, timerOf(TimerOneShot))},
	{"a one-shot at another time", RuleTimer, timerMoved(TimerOneShot)},
	{"a recurring job without its timer", RuleTimer, without(KindTimer, timerOf(TimerRecurring))},
	{"a recurring job at another time", RuleTimer, timerMoved(TimerRecurring)},
	{"a cron job without its wait for a horizon", RuleTimer, without(KindTimer, timerOf(TimerExpand))},
	{"a cron job's wait at another time", RuleTimer, timerMoved(TimerExpand)},
	{"an execution in the way that its job does not know of", RuleOccurrence, changed(KindJob, func(j *storagev1.Job) bool {
		known := len(j.LiveMs) > 0
		j.LiveMs = nil
		return known
	})},
	{"an execution in the way that is not there", RuleOccurrence, changed(KindJob, func(j *storagev1.Job) bool {
		j.LiveMs = append(j.LiveMs, 1)
		return j.State == storagev1.JobState_JOB_STATE_ACTIVE && j.Horizon != nil
	})},
	{"a horizon out of order", RuleRow, changed(KindJob, func(j *storagev1.Job) bool {
		next := j.Horizon.GetNextMs()
		slices.Reverse(next)
		return len(next) > 1
	})},
	{"a horizon by older zone data than is promised", RuleOccurrence, changed(KindMeta, func(m *storagev1.Meta) bool {
		m.ZoneVersion = "9999z"
		return true
	})},
	{"a retry without its timer", RuleTimer, without(KindTimer, timerOf(TimerRetry))},
	{"a retry at another time", RuleTimer, timerMoved(TimerRetry)},
	{"a retry that is not indexed", RuleTimer, without(KindRetrying, anyRow)},
	{"a start deadline without its timer", RuleTimer, func(s *memState) bool {
		return firstRow(s, KindTimer, func(key, value []byte) bool {
			if t, _ := parseTimerKey(key); t.kind != TimerStartDeadline {
				return false
			}
			if _, stands := s.Get(value); !stands {
				return false
			}
			s.Delete(key)
			return true
		})
	}},
	{"a pause without the timer of its end", RuleTimer, without(KindTimer, timerOf(TimerPauseEnd))},
	{"a pause that ends at another time", RuleTimer, timerMoved(TimerPauseEnd)},
	{"the end of a pause that is not there", RuleTimer, added(timerPauseKey(maxInstantMS, ofRule, "nobody"), nil)},
	{"a paused job without the timer of its end", RuleTimer, without(KindTimer, timerOf(TimerResume))},
	{"a paused job that is resumed at another time", RuleTimer, timerMoved(TimerResume)},
	{"a parked job without its row", RuleTimer, without(KindParked, anyRow)},
	{"a parked job that has a timer as well", RuleTimer, func(s *memState) bool {
		return firstRow(s, KindParked, func(key, _ []byte) bool {
			tenant, jobID, _ := parseJobKey(key, KindParked)
			j := getJob(s, JobKey(tenant, jobID))
			j.NextMs = maxInstantMS
			s.Set(JobKey(tenant, jobID), mustEncode(j.MarshalVT()))
			return true
		})
	}},
	{"a job is parked that is not there", RuleTimer, added(ParkedKey("t", "nobody"), nil)},
	{"more jobs parked than there are", RuleCounter, metaChanged(func(m *storagev1.Meta) { m.Parked++ })},
	{"jobs parked by nothing", RuleMarker, func(s *memState) bool {
		if slices.ContainsFunc(Tasks(s), isRelease) || !firstRow(s, KindParked, anyRow) {
			return false
		}
		s.DeleteRange([]byte{KindSettings}, []byte{KindSettings + 1})
		return true
	}},
	{"a lease without its timer", RuleLease, leaseTimer(func(*memState, timerKey, []byte) {})},
	{"a timer of a job that is not there", RuleTimer, added(timerJobKey(maxInstantMS, TimerRecurring, "t", "nobody"), nil)},
	{"a lease that ends in years", RuleLease, leaseTimer(func(s *memState, t timerKey, value []byte) {
		s.Set(timerLeaseKey(maxInstantMS, t.first), value)
	})},

	{"twice: ready", RuleOccurrence, again(KindReady)},
	{"twice: leased", RuleOccurrence, again(KindLeased)},
	{"twice: held", RuleOccurrence, again(KindHeld)},
	{"twice: retrying", RuleOccurrence, again(KindTimer)},
	{"twice: dead", RuleOccurrence, again(KindDead)},
	{"twice: ended", RuleOccurrence, again(KindEnded)},
	{"a one-shot whose history is gone", RuleOccurrence, without(KindEnded, func(key, value []byte) bool {
		e := &storagev1.Execution{}
		ref, ok := parseEndedKey(key)
		return ok && ref.char == charSchedule && e.UnmarshalVT(value) == nil && e.OneShot
	})},
	{"an occurrence that was decided", RuleOccurrence, changed(KindJob, func(j *storagev1.Job) bool {
		j.WatermarkMs = j.NextMs
		return j.NextMs != 0
	})},

	{"a marker that nothing removes", RuleMarker, added(StopKey("t", "nobody"), stop{deletedTo: 1}.encode())},
	{"a pause without a paused job", RuleMarker, added(StopKey("t", "nobody"), stop{paused: true}.encode())},
	{"ready, of a paused job without its marker", RuleMarker, func(s *memState) bool {
		return firstRow(s, KindReady, func(key, _ []byte) bool {
			_, e := readHint(s, key)
			j := getJob(s, JobKey(e.Tenant, e.JobId))
			if j == nil || j.State != storagev1.JobState_JOB_STATE_PAUSED || j.Incarnation != e.Incarnation {
				return false
			}
			s.Delete(StopKey(e.Tenant, e.JobId))
			return true
		})
	}},
	{"exhausted with runs left", RuleOccurrence, changed(KindJob, func(j *storagev1.Job) bool {
		left := j.Schedule.GetEvery().GetMaxRuns() > 0 && j.State == storagev1.JobState_JOB_STATE_EXHAUSTED
		j.Runs, j.QueuedMs = 0, nil
		return left
	})},
	{"stopped, and the rule of a pause that ended is to decide", RuleOccurrence, changed(KindJob, func(j *storagev1.Job) bool {
		j.HeldRule = storagev1.CatchUp_CATCH_UP_NONE
		return j.Parked
	})},
	{"held without a pause", RuleMarker, func(s *memState) bool {
		return firstRow(s, KindHeld, func(key, _ []byte) bool {
			_, e := readHint(s, key)
			j := getJob(s, JobKey(e.Tenant, e.JobId))
			if j == nil || j.State != storagev1.JobState_JOB_STATE_PAUSED || j.Incarnation != e.Incarnation {
				return false
			}
			j.State = storagev1.JobState_JOB_STATE_EXHAUSTED
			s.Set(JobKey(e.Tenant, e.JobId), mustEncode(j.MarshalVT()))
			return true
		})
	}},
	{"a job that is gone", RuleJob, func(s *memState) bool {
		return firstRow(s, KindReady, func(key, _ []byte) bool {
			_, e := readHint(s, key)
			j := getJob(s, JobKey(e.Tenant, e.JobId))
			if j == nil || j.Incarnation != e.Incarnation || j.State != storagev1.JobState_JOB_STATE_ACTIVE {
				return false
			}
			s.Delete(JobKey(e.Tenant, e.JobId))
			return true
		})
	}},

	{"a payload that is gone", RulePayload, func(s *memState) bool {
		return firstRow(s, KindJob, func(key, _ []byte) bool {
			tenant, jobID, _ := parseJobKey(key, KindJob)
			j := getJob(s, key)
			if j.Template.GetBlobVersion() == 0 {
				return false
			}
			s.Delete(BlobKey(tenant, jobID, j.Incarnation, j.Template.BlobVersion))
			return true
		})
	}},
	{"a payload of nobody", RulePayload, added(BlobKey("t", "nobody", 1, 1), []byte("x"))},
	{"a payload that was replaced", RulePayload, func(s *memState) bool {
		return firstRow(s, KindJob, func(key, _ []byte) bool {
			tenant, jobID, _ := parseJobKey(key, KindJob)
			j := getJob(s, key)
			if j.Template == nil {
				return false
			}
			s.Set(BlobKey(tenant, jobID, j.Incarnation, 1<<40), []byte("x"))
			return true
		})
	}},

	{"a record that stays", RuleHousekeeping, without(KindExpiry, expiryOf(expireRecord))},
	{"a dead letter that stays", RuleHousekeeping, without(KindExpiry, expiryOf(expireDead))},
	{"a record that is gone", RuleHousekeeping, without(KindIdempotency, anyRow)},
	{"a dead letter that is gone", RuleHousekeeping, without(KindDead, anyRow)},
	{"a tombstone that stays", RuleHousekeeping, func(s *memState) bool {
		return firstRow(s, KindJob, func(key, _ []byte) bool {
			j := getJob(s, key)
			if j.State != storagev1.JobState_JOB_STATE_DELETED {
				return false
			}
			s.Delete(expiryKey(j.DeletedMs+recordKeptMS, expireJob, key[1:]))
			return true
		})
	}},
	{"a task that stays", RuleHousekeeping, added(TaskKey("done"), mustEncode((&storagev1.Task{Id: "done", Finished: true}).MarshalVT()))},

	{"a row of no kind", RuleRow, added([]byte("yes"), nil)},
	{"a job that cannot be read", RuleRow, added(JobKey("t", "nobody"), []byte{0xFF})},
	{"ready under another key", RuleRow, changed(KindReady, func(e *storagev1.Execution) bool { e.NominalMs++; return true })},
	{"leased in another state", RuleRow, changed(KindLeased, func(e *storagev1.Execution) bool { e.State++; return true })},
	{"dead in another state", RuleRow, changed(KindDead, func(e *storagev1.Execution) bool { e.State++; return true })},
	{"ended without an end", RuleRow, changed(KindEnded, func(e *storagev1.Execution) bool {
		e.State = storagev1.ExecutionState_EXECUTION_STATE_READY
		return e.Attempt > 0
	})},
	{"a rule under another name", RuleRow, added(PauseRuleKey("nobody"), mustEncode((&storagev1.PauseRule{Id: "r"}).MarshalVT()))},
	{"settings under another name", RuleRow, added(QueueKey("nobody"), mustEncode((&storagev1.QueueSettings{Name: "q"}).MarshalVT()))},
}

// leaseTimer removes a lease-end timer that has a lease to look at, and puts something in its place.
func leaseTimer(put func(s *memState, t timerKey, value []byte)) func(*memState) bool {
	return func(s *memState) bool {
		return firstRow(s, KindTimer, func(key, value []byte) bool {
			t, _ := parseTimerKey(key)
			if t.kind != TimerLeaseEnd {
				return false
			}
			last, _ := decodeU64(value)
			has := false
			s.Scan(LeasedKey(t.first), LeasedKey(last+1), func(_, _ []byte) bool { has = true; return false })
			if !has {
				return false
			}
			s.Delete(key)
			put(s, t, value)
			return true
		})
	}
}

// TestCheckFindsWhatIsPlanted: each kind of violation is found under its rule, in what a random log leaves behind.
func TestCheckFindsWhatIsPlanted(t *testing.T) {
	states := make([]*memState, 90)
	for i := range states {
		states[i] = recordLog(uint64(i)+1, 150).s
		checkInvariants(t, states[i])
	}
	for _, p := range plantings {
		t.Run(p.name, func(t *testing.T) {
			for i, s := range states {
				s = s.clone()
				before, rows := Digest(s)
				if !p.plant(s) {
					continue
				}
				found := map[string]int{}
				Check(s, func(v Violation) { found[v.Rule]++ })
				if after, n := Digest(s); after == before {
					t.Errorf("the digest of %d rows is that of %d without it", n, rows)
				}
				if found[p.rule] > 0 {
					return
				}
				t.Fatalf("in the rows of log %d it finds %v", i+1, found)
			}
			t.Fatal("no log leaves anything to spoil")
		})
	}
}

// TestCheckEndsAtACorruptRow: what cannot be decoded where another row is judged by it is reported, and no panic.
func TestCheckEndsAtACorruptRow(t *testing.T) {
	s := newMemState()
	j := &storagev1.Job{Version: 1, Incarnation: 1, State: storagev1.JobState_JOB_STATE_ACTIVE, Schedule: &storagev1.Schedule{AtMs: epochMS}}
	s.Set(JobKey("t", "j"), mustEncode(j.MarshalVT()))
	s.Set(timerJobKey(epochMS, TimerOneShot, "t", "j"), []byte{0xFF})
	s.Set(BlobKey("t", "j", 1, 1), []byte("x"))
	ended := false
	Check(s, func(v Violation) { ended = ended || v.Rule == RuleRow && strings.Contains(v.Detail, "ends the check") })
	if !ended {
		t.Error("it goes on")
	}
}

// withoutJob removes the job of something that is ready.
func withoutJob(s *memState) bool {
	return firstRow(s, KindReady, func(key, _ []byte) bool {
		id, _, _, _, _ := parseReadyKey(key)
		s.Delete(JobKey(id.Tenant, id.JobID))
		return true
	})
}

// TestCheckInParts: of more executions than are compared at once all are.
func TestCheckInParts(t *testing.T) {
	for seed := range uint64(4) {
		s := recordLog(seed+1, 150).s
		for _, plant := range []func(*memState) bool{nil, again(KindEnded), again(KindReady), without(KindTimer, timerOf(TimerOneShot)), withoutJob} {
			s := s.clone()
			if plant != nil && !plant(s) {
				continue
			}
			whole, parts := map[string]int{}, map[string]int{}
			Check(s, func(v Violation) { whole[v.String()]++ })
			c := newChecker(s, func(v Violation) { parts[v.String()]++ })
			c.maxIDs = 7
			c.run()
			if c.seen <= c.maxIDs {
				t.Fatalf("seed %d: %d executions are one part", seed+1, c.seen)
			}
			if got, want := fmt.Sprint(parts), fmt.Sprint(whole); got != want {
				t.Errorf("seed %d: in parts\n%s\nat once\n%s", seed+1, got, want)
			}
			if (plant == nil) != (len(whole) == 0) {
				t.Errorf("seed %d: found %v", seed+1, whole)
			}
		}
	}
}

// TestCheckWhileTenantsGo: a tenant's deletion, however far it is and whatever comes between its steps, leaves nothing that
// Check would complain of, and the tenant may come again when it is over.
func TestCheckWhileTenantsGo(t *testing.T) {
	for seed := range uint64(6) {
		r := recordLog(seed+1, 100)
		version, task, finished := uint64(1), "", 0
		put := func(deleting bool) {
			version++
			r.entry(&storagev1.Command{PutTenant: &storagev1.TenantSettings{Name: "t", Version: version, Deleting: deleting}})
		}
		for n := range 400 {
			switch {
			case task == "" && r.rng.IntN(20) == 0:
				put(true)
				task = fmt.Sprint("gone-", n)
				r.entry(&storagev1.Command{StartTask: &storagev1.StartTask{
					Id: task, Kind: storagev1.TaskKind_TASK_KIND_DELETE_TENANT, Filter: &storagev1.Filter{Tenant: "t"},
				}})
			case task != "" && r.rng.IntN(2) == 0:
				r.entry(&storagev1.Command{StepTask: &storagev1.StepTask{Id: task, Limit: uint32(1 + r.rng.IntN(8))}})
				if done := taskOf(r.s, task); done == nil || done.Finished {
					task, finished = "", finished+1
					put(false)
				}
			default:
				r.now += r.rng.Int64N(20_000)
				r.entry(r.command())
			}
			Check(uncounted{r.s}, func(v Violation) { t.Fatalf("seed %d, entry %d: %s", seed+1, len(r.log), v) })
		}
		if finished == 0 {
			t.Errorf("seed %d: no deletion has come to its end", seed+1)
		}
	}
}

func taskOf(s *memState, id string) (found *storagev1.Task) {
	for _, t := range Tasks(s) {
		if t.Id == id {
			found = t
		}
	}
	return found
}
