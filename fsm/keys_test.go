package fsm

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// TestSlot pins the hash that spreads jobs: a change would strand every job on disk.
func TestSlot(t *testing.T) {
	for _, c := range []struct {
		tenant, job string
		want        uint16
	}{
		{"default", "hello", 3726},
		{"default", "hello2", 1146},
		{"other", "hello", 2942},
		{"default", "{hello}-1", 3726},
		{"default", "a{hello}b{c}", 3726},
		{"default", "{}hello", 2497},
		{"default", "{hello", 3441},
		{"", "", 1896},
	} {
		if got := Slot(c.tenant, c.job); got != c.want {
			t.Errorf("Slot(%q, %q) = %d, want %d", c.tenant, c.job, got, c.want)
		}
	}
}

// TestRetryDelay pins the growth, the cap and the jitter of retries.
func TestRetryDelay(t *testing.T) {
	id := &Identity{"t", "j", 1, storagev1.ExecutionKind_EXECUTION_KIND_SCHEDULE, epochMS, ""}
	for _, c := range []struct {
		first, limit   int64
		factor, jitter uint32
		want           []int64
	}{
		{1000, 60_000, 2000, 0, []int64{1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000}},
		{1000, 60_000, 1500, 0, []int64{1000, 1500, 2250, 3375}},
		{1000, 0, 1000, 0, []int64{1000, 1000, 1000}},
		{0, 60_000, 2000, 500, []int64{0, 0, 0}},
		{90_000, 60_000, 2000, 0, []int64{60_000}},
		{10_000, 60_000, 2000, 100, []int64{9647, 21_347, 43_311}},
		{10_000, 60_000, 0, 1000, []int64{10_952, 14_369, 8754}},
	} {
		p := &storagev1.RetryPolicy{FirstDelayMs: c.first, MaxDelayMs: c.limit, FactorThousandths: c.factor, JitterThousandths: c.jitter}
		for i, want := range c.want {
			n := uint32(i + 1)
			if got := retryDelay(p, id, n, n); got != want {
				t.Errorf("%v: delay before attempt %d is %d, want %d", p, n+1, got, want)
			}
		}
	}
	if got := retryDelay(&storagev1.RetryPolicy{FirstDelayMs: 1000, FactorThousandths: 2000}, id, 1<<31, 1<<31); got != maxRetryMS {
		t.Errorf("delay without a cap is %d", got)
	}
}

// TestExpiryBuckets: history stands in few buckets, and none of them ends before the retention does.
func TestExpiryBuckets(t *testing.T) {
	live := map[uint32]bool{}
	for r := int64(hourMS); r <= maxRetentionMS; r += hourMS {
		b := expiryBucket(epochMS, r)
		live[b] = true
		if end := int64(b) * hourMS; end < epochMS+r {
			t.Fatalf("retention of %d h ends %d ms early", r/hourMS, epochMS+r-end)
		}
	}
	if len(live) > 64 {
		t.Fatalf("%d buckets", len(live))
	}
}

func TestExecutionIDs(t *testing.T) {
	for _, s := range []string{"t~j~1~s~0", "t~j~18446744073709551615~t~-5~k", "a~b~7~b~9223372036854775807~x~y"} {
		id, err := ParseExecutionID(s)
		if err != nil || id.String() != s {
			t.Errorf("%q: %v, %v", s, id, err)
		}
	}
	for _, s := range []string{
		"", "t", "t~j~1~s", "t~j~01~s~1", "t~j~+1~s~1", "t~j~1~s~+1", "t~j~1~s~-0", "t~j~1~s~00", "t~j~1~v~1", "t~j~1~ss~1", "~j~1~s~1",
		"t~~1~s~1", "t~j~-1~s~1", "t~j~1~s~1~", "t~j~1~s~9223372036854775808", "t~j~18446744073709551616~s~1", "t\x00~j~1~s~1",
	} {
		if id, err := ParseExecutionID(s); !errors.Is(err, ErrExecutionID) {
			t.Errorf("%q is accepted as %v, %v", s, id, err)
		}
	}
}

func drawName(t *rapid.T, label string) string {
	return rapid.StringMatching(`[a-z.+-]{1,6}`).Draw(t, label)
}

func drawExecution(t *rapid.T) *storagev1.Execution {
	return &storagev1.Execution{
		Tenant: drawName(t, "tenant"), JobId: drawName(t, "job"), Incarnation: rapid.Uint64().Draw(t, "incarnation"),
		Kind:      storagev1.ExecutionKind(rapid.IntRange(1, 3).Draw(t, "kind")),
		NominalMs: rapid.Int64().Draw(t, "nominal"), Discriminator: rapid.StringMatching(`[a-z~]{0,4}[a-z]?`).Draw(t, "discriminator"),
		Template: &storagev1.Template{
			Queue: drawName(t, "queue"), Priority: rapid.Uint32Range(0, 9).Draw(t, "priority"),
			FairnessKey: rapid.StringMatching(`[a-z]{0,3}`).Draw(t, "fairness"),
		},
	}
}

// TestKeysRoundTrip: what is written into a key is read from it.
func TestKeysRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := drawExecution(t)
		id := IdentityOf(e)
		if got, err := ParseExecutionID(id.String()); err != nil || got != id {
			t.Fatalf("%v: %v, %v", id, got, err)
		}
		got, queue, fairness, priority, ok := parseReadyKey(ReadyKey(e))
		if !ok || got != id || queue != e.Template.Queue || fairness != e.Template.FairnessKey || priority != e.Template.Priority {
			t.Fatalf("ready key of %v: %v %q %q %d", id, got, queue, fairness, priority)
		}
		for _, kind := range []byte{KindHeld, KindRetrying, KindDead} {
			if got, ok := parseIdentKey(identKey(kind, &id), kind); !ok || got != id {
				t.Fatalf("%c key of %v: %v", kind, id, got)
			}
		}
		if ref, ok := parseEndedKey(endedKey(7, &id, kindChar(id.Kind))); !ok || ref.id != id || ref.bucket != 7 {
			t.Fatalf("ended key of %v: %+v", id, ref)
		}
		if ref, ok := parseEndedKey(lateKey(7, &id, 9)); !ok || ref.char != charLate || ref.fencing != 9 {
			t.Fatalf("late key of %v: %+v", id, ref)
		}
		if tk, ok := parseTimerKey(timerIdentKey(5, TimerRetry, &id)); !ok || tk.id != id || tk.atMS != 5 {
			t.Fatalf("timer key of %v: %+v", id, tk)
		}
	})
}

// TestReadyOrder: ready keys sort by queue, then by urgency, tenant, fairness key and nominal time.
func TestReadyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawExecution(t), drawExecution(t)
		want := slices.Compare(order(a), order(b))
		got := bytes.Compare(ReadyKey(a), ReadyKey(b))
		if want != 0 && got != want {
			t.Fatalf("%v and %v: %d, want %d", a, b, got, want)
		}
	})
}

// order is what must decide, as strings that sort.
func order(e *storagev1.Execution) []string {
	return []string{
		e.Template.Queue, string(rune('9' - e.Template.Priority)), e.Tenant, e.Template.FairnessKey, string(appendTime(nil, e.NominalMs)),
	}
}

// TestPrefixesAreTerminated: no prefix of a tenant or job matches another one's rows (case L5).
func TestPrefixesAreTerminated(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawExecution(t), drawExecution(t)
		id := IdentityOf(b)
		for _, key := range [][]byte{JobKey(b.Tenant, b.JobId), identKey(KindJob, &id)} {
			if bytes.HasPrefix(key, tenantPrefix(KindJob, a.Tenant)) && a.Tenant != b.Tenant {
				t.Fatalf("tenant %q matches %q", a.Tenant, b.Tenant)
			}
			if bytes.HasPrefix(key, JobKey(a.Tenant, a.JobId)) && (a.Tenant != b.Tenant || a.JobId != b.JobId) {
				t.Fatalf("job %q %q matches %q %q", a.Tenant, a.JobId, b.Tenant, b.JobId)
			}
		}
	})
}

// FuzzKeys: no bytes make a parser panic, and what it accepts is what it would write.
func FuzzKeys(f *testing.F) {
	e := &storagev1.Execution{Tenant: "t", JobId: "j", Incarnation: 1, Kind: 1, NominalMs: 5, Template: &storagev1.Template{Queue: "q"}}
	id := IdentityOf(e)
	for _, key := range [][]byte{
		ReadyKey(e), JobKey("t", "j"), identKey(KindHeld, &id), endedKey(1, &id, charSchedule), lateKey(1, &id, 2), timerLeaseKey(5, 1),
		timerIdentKey(5, TimerRetry, &id), timerJobKey(5, TimerOneShot, "t", "j"), LeasedKey(7), expiryKey(5, expireDead, []byte("x")),
	} {
		f.Add(key, []byte(nil))
	}
	f.Fuzz(func(t *testing.T, key, value []byte) {
		if ref, err := DecodeReady(key); err == nil {
			prefix := ReadyStreamPrefix(ref.Queue, ref.Priority, ref.Tenant, ref.FairnessKey)
			if !bytes.HasPrefix(key, prefix) {
				t.Fatalf("%q is not in its stream %q", key, prefix)
			}
		}
		if id, ok := parseIdentKey(key, KindHeld); ok && !bytes.Equal(identKey(KindHeld, &id), key) {
			t.Fatalf("%q is read as %v", key, id)
		}
		if ref, ok := parseEndedKey(key); ok && ref.char != charLate && !bytes.Equal(endedKey(ref.bucket, &ref.id, ref.char), key) {
			t.Fatalf("%q is read as %v", key, ref)
		}
		if tenant, jobID, ok := parseJobKey(key, KindJob); ok && !bytes.Equal(JobKey(tenant, jobID), key) {
			t.Fatalf("%q is read as %q %q", key, tenant, jobID)
		}
		_, _ = DecodeTimer(key, value)
		_, _ = decodeStop(value)
		_, _ = fieldVarint(value, executionReadyMS)
		if id, err := ParseExecutionID(string(key)); err == nil && id.String() != string(key) {
			t.Fatalf("%q is read as %v", key, id)
		}
	})
}

// FuzzApply: no entry makes Apply panic or break the counters, whatever its bytes say.
func FuzzApply(f *testing.F) {
	for _, e := range recordLog(9, 40).log {
		f.Add(mustEncode(e.MarshalVT()))
	}
	r := recordLog(10, 60)
	f.Fuzz(func(t *testing.T, data []byte) {
		e := &storagev1.Entry{}
		if e.UnmarshalVT(data) != nil {
			return
		}
		for _, c := range e.Commands {
			// A level that no binary knows stops the node, by intent.
			if c.RaiseLevel != nil && c.RaiseLevel.Level > MaxLevel {
				return
			}
		}
		if e.StampMs < -maxInstantMS || e.StampMs > maxInstantMS {
			return
		}
		s := r.s.clone()
		m := Open(1, s)
		e.Term = r.term
		m.Apply(s, 1000, e)
		checkInvariants(t, s)
		later := &storagev1.Entry{Term: r.term, StampMs: r.now + dayMS, Commands: []*storagev1.Command{{Advance: &storagev1.Advance{}}, {Housekeep: &storagev1.Housekeep{}}}}
		m.Apply(s, 1001, later)
		checkInvariants(t, s)
	})
}
