package integration

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// A job of every second, as an interval or by the calendar; the clock jumps two hours ahead, then back: no occurrence runs early
// or twice, and it goes on within a tick of the corrected time.
func TestT10ClockJumpsAheadAndBack(t *testing.T) {
	t.Parallel()
	t.Run("every", func(t *testing.T) { jumpAheadAndBack(t, every(time.Second, soon(0))) })
	t.Run("cron", func(t *testing.T) { jumpAheadAndBack(t, cronIn(newYork, "* * * * * *")) })
}

func jumpAheadAndBack(t *testing.T, schedule *carillonv1.Schedule) {
	t.Parallel()
	s := &server{t: t, dir: t.TempDir(), clockDir: t.TempDir(), args: []string{"--shards", "4"}, addr: freeAddr(t), http: newHTTPClient()}
	t.Cleanup(s.kill)
	s.start()
	first := s.create(&carillonv1.JobSpec{
		Id: "ticking", Schedule: schedule, CatchUp: carillonv1.CatchUp_CATCH_UP_ALL, CatchUpWindow: durationpb.New(time.Hour),
	}).GetNextTime().AsTime()
	next := first
	run := func() {
		t.Helper()
		lease := s.claimOne("w", "default")
		nominal := lease.GetNominalTime().AsTime()
		if !nominal.Equal(next) || time.Now().Before(nominal) {
			t.Fatalf("ran for %v at %v; next is %v", nominal, time.Now(), next)
		}
		s.complete(succeeded(lease, "w", ""), succeededState)
		next = next.Add(time.Second)
	}
	for range 3 {
		run()
	}
	s.step(2 * time.Hour)
	held := time.Now()
	for s.metric("carillon_clock_held") == 0 { // within one look at the clock, unless the machine is busy
		if time.Since(held) > 10*time.Second {
			t.Fatal("a step of two hours does not hold firing")
		}
		pause(t, 20*time.Millisecond)
	}
	s.claim("w", "default", 100, 0) // what fell due before that
	next = s.job("ticking").GetNextTime().AsTime()
	pause(t, 3*time.Second)
	s.nothing("default")
	s.step(0)
	corrected := time.Now()
	for next.Before(corrected) {
		run() // late, not lost
	}
	if late := time.Since(corrected); late > 5*time.Second {
		t.Errorf("firing went on %v after the clock was put right", late)
	}
	run()
	seen := map[time.Time]bool{}
	for _, e := range s.list(&carillonv1.ListExecutionsRequest{JobId: "ticking"}) {
		nominal := e.GetNominalTime().AsTime()
		if seen[nominal] || nominal.Sub(first)%time.Second != 0 || nominal.After(time.Now()) {
			t.Errorf("an execution for %v", nominal)
		}
		seen[nominal] = true
	}
	for at := first; at.Before(next); at = at.Add(time.Second) {
		if !seen[at] {
			t.Errorf("none for %v", at)
		}
	}
}
