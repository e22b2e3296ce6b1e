package fsm

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"slices"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// failer is a test: *testing.T or *rapid.T.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// memState is a shard's rows in a sorted slice. It counts what it is asked for. What a scan hands out it spoils at the
// next write: whoever keeps it is found out.
type memState struct {
	keys   []string
	values map[string][]byte
	lent   [][]byte

	puts, dels, rangeDels, hits, misses map[byte]int
}

func newMemState() *memState {
	s := &memState{values: map[string][]byte{}}
	s.resetCounts()
	return s
}

func (s *memState) resetCounts() {
	s.puts, s.dels, s.rangeDels = map[byte]int{}, map[byte]int{}, map[byte]int{}
	s.hits, s.misses = map[byte]int{}, map[byte]int{}
}

func (s *memState) clone() *memState {
	c := newMemState()
	c.keys = slices.Clone(s.keys)
	for k, v := range s.values {
		c.values[k] = bytes.Clone(v)
	}
	return c
}

func (s *memState) lend(b []byte) []byte {
	c := bytes.Clone(b)
	s.lent = append(s.lent, c)
	return c
}

func (s *memState) spoil() {
	for _, b := range s.lent {
		for i := range b {
			b[i] = 0xEE
		}
	}
	s.lent = s.lent[:0]
}

func (s *memState) Get(key []byte) ([]byte, bool) {
	v, ok := s.values[string(key)]
	if !ok {
		s.misses[key[0]]++
		return nil, false
	}
	s.hits[key[0]]++
	return v, true
}

func (s *memState) Scan(start, end []byte, fn func(key, value []byte) bool) {
	i, _ := slices.BinarySearch(s.keys, string(start))
	for _, k := range slices.Clone(s.keys[i:]) {
		if end != nil && k >= string(end) {
			return
		}
		key, value := []byte(k), s.lend(s.values[k])
		if !fn(key, value) {
			return
		}
		for i := range key {
			key[i] = 0xEE
		}
	}
}

func (s *memState) Set(key, value []byte) {
	s.spoil()
	s.puts[key[0]]++
	k := string(key)
	if _, ok := s.values[k]; !ok {
		i, _ := slices.BinarySearch(s.keys, k)
		s.keys = slices.Insert(s.keys, i, k)
	}
	s.values[k] = bytes.Clone(value)
}

func (s *memState) Delete(key []byte) {
	s.spoil()
	s.dels[key[0]]++
	k := string(key)
	if i, ok := slices.BinarySearch(s.keys, k); ok {
		s.keys = slices.Delete(s.keys, i, i+1)
		delete(s.values, k)
	}
}

func (s *memState) DeleteRange(start, end []byte) {
	s.spoil()
	s.rangeDels[start[0]]++
	i, _ := slices.BinarySearch(s.keys, string(start))
	j, _ := slices.BinarySearch(s.keys, string(end))
	for _, k := range s.keys[i:max(i, j)] {
		delete(s.values, k)
	}
	s.keys = slices.Delete(s.keys, i, max(i, j))
}

// hash is over all rows in order.
func (s *memState) hash() string {
	h := sha256.New()
	for _, k := range s.keys {
		h.Write(encodeU64(uint64(len(k))))
		h.Write([]byte(k))
		h.Write(encodeU64(uint64(len(s.values[k]))))
		h.Write(s.values[k])
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// checkInvariants recounts what meta counts and checks what must hold of the rows after every entry.
func checkInvariants(t failer, s *memState) {
	t.Helper()
	meta := ReadMeta(s)
	var n storagev1.Meta
	pending := map[string]int{}
	from := timerStart(meta.LowWaterMs)
	retryTimers := uint64(0)
	for _, k := range s.keys {
		key, value := []byte(k), s.values[k]
		switch key[0] {
		case KindJob:
			j := getJob(s, key)
			tenant, jobID, _ := parseJobKey(key, KindJob)
			if j.State != storagev1.JobState_JOB_STATE_DELETED {
				n.Jobs++
			}
			if j.NextMs != 0 {
				if _, ok := s.values[string(timerJobKey(j.NextMs, TimerRecurring, tenant, jobID))]; !ok {
					t.Fatalf("job %s: no timer at its next_ms %d", jobID, j.NextMs)
				}
				if j.NextMs <= j.WatermarkMs {
					t.Fatalf("job %s: next %d at or below watermark %d", jobID, j.NextMs, j.WatermarkMs)
				}
			}
		case KindTimer:
			tk, ok := parseTimerKey(key)
			if !ok {
				t.Fatalf("bad timer key %q", key)
			}
			if bytes.Compare(key, from) < 0 {
				t.Fatalf("timer at %d below the low water %d", tk.atMS, meta.LowWaterMs)
			}
			switch tk.kind {
			case TimerOneShot:
				n.Waiting++
				pending[tk.id.Tenant+"/"+tk.id.JobID]++
			case TimerRecurring:
				pending[tk.id.Tenant+"/"+tk.id.JobID]++
			case TimerRetry:
				retryTimers++
			}
			if _, err := DecodeTimer(key, value); err != nil {
				t.Fatalf("%v", err)
			}
		case KindReady:
			n.Ready++
		case KindLeased:
			n.Leased++
		case KindRetrying:
			n.Retrying++
		case KindHeld:
			n.Held++
		case KindDead:
			n.Dead++
		}
	}
	for job, count := range pending {
		if count > 1 {
			t.Fatalf("job %s has %d pending occurrences", job, count)
		}
	}
	if n.Jobs != meta.Jobs || n.Waiting != meta.Waiting || n.Ready != meta.Ready || n.Leased != meta.Leased ||
		n.Retrying != meta.Retrying || n.Held != meta.Held || n.Dead != meta.Dead || retryTimers != n.Retrying {
		t.Fatalf("counters differ from a recount:\n%v\n%v", meta, &n)
	}
}
