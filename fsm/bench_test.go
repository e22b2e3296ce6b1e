package fsm

import (
	"fmt"
	"testing"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// benchState keeps rows in maps, so that what is measured is the state machine. Timers are walked in the order they were
// written, which is right for the benchmark's own.
type benchState struct {
	rows   map[string][]byte
	timers []string
}

func (s *benchState) Get(key []byte) ([]byte, bool) { v, ok := s.rows[string(key)]; return v, ok }

func (s *benchState) Scan(start, end []byte, fn func(key, value []byte) bool) {
	for _, k := range s.timers {
		if v, ok := s.rows[k]; ok && k >= string(start) && k < string(end) && !fn([]byte(k), v) {
			return
		}
	}
}

func (s *benchState) Set(key, value []byte) {
	k := string(key)
	if key[0] == KindTimer && key[9] == byte(TimerOneShot) {
		s.timers = append(s.timers, k)
	}
	if key[0] != KindEvent && key[0] != KindEnded {
		s.rows[k] = value
	}
}

func (s *benchState) Delete(key []byte) { delete(s.rows, string(key)) }

func (s *benchState) DeleteRange(_, _ []byte) { panic("not used") }

// BenchmarkLife measures a one-shot's whole life, 100 jobs an entry: create, fire and claim, complete. One operation is
// one job.
func BenchmarkLife(b *testing.B) {
	for _, phase := range []string{"create", "fire", "complete", "all"} {
		b.Run(phase, func(b *testing.B) { benchLife(b, phase) })
	}
}

func benchLife(b *testing.B, phase string) {
	const batch = 100
	s := &benchState{rows: map[string][]byte{}}
	m := Open(1, s)
	now, index := int64(epochMS), uint64(0)
	apply := func(name string, c *storagev1.Command) Result {
		if name == phase || phase == "all" {
			b.StartTimer()
			defer b.StopTimer()
		}
		index++
		results, _ := m.Apply(s, index, &storagev1.Entry{Term: 1, StampMs: now, Commands: []*storagev1.Command{c}})
		return results[0]
	}
	b.ReportAllocs()
	b.StopTimer()
	apply("", &storagev1.Command{LeaderStart: &storagev1.LeaderStart{Term: 1}})
	for n := 0; n < b.N; n += batch {
		s.timers = s.timers[:0]
		now += 10
		create := createMany(n, batch, now+5)
		for i, item := range create.CreateJobs.Items {
			item.Tenant = fmt.Sprintf("tenant-%d", i)
		}
		apply("create", create)
		now += 5
		leases := apply("fire", demand(batch)).Leases
		if len(leases) != batch {
			b.Fatalf("%d leases", len(leases))
		}
		apply("complete", completeAll(leases, storagev1.Outcome_OUTCOME_SUCCEEDED))
		clear(s.rows)
	}
}
