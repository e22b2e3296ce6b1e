package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

func cronIn(zone string, lines ...string) *carillonv1.Schedule {
	return &carillonv1.Schedule{When: &carillonv1.Schedule_Cron{Cron: &carillonv1.Cron{Lines: lines, Zone: zone}}}
}

// A cron job of every second, longer than what its row knows ahead and across two changes of its leadership: each second runs
// once, in order, and on time while somebody leads.
func TestCronFiresAcrossLeaderships(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	created := s.create(&carillonv1.JobSpec{Id: "ticking", Schedule: cronIn("", "* * * * * *"), CatchUp: carillonv1.CatchUp_CATCH_UP_ALL})
	next := created.GetNextTime().AsTime()
	for i := range 30 {
		if i == 10 || i == 20 {
			s.kill()
			s.start()
		}
		lease := s.claimOne("w", "default")
		if got := lease.GetNominalTime().AsTime(); !got.Equal(next) || time.Now().Before(got) {
			t.Fatalf("ran for %v at %v; next is %v", got, time.Now(), next)
		}
		s.complete(succeeded(lease, "w", ""), succeededState)
		next = next.Add(time.Second)
	}
	if late := time.Since(next); late > 5*time.Second {
		t.Errorf("it lags by %v", late)
	}
	if s.metric("carillon_expansions_total") == 0 {
		t.Error("nothing was expanded")
	}
}

// Nobody leads for two days. What becomes of the minutes that were missed is up to each job's catch-up rule: a range with
// one verdict, however long it is, and what the rule wants runs.
func TestCronAfterALongOutage(t *testing.T) {
	t.Parallel()
	s := startVirtual(t, march)
	for id, rule := range map[string]carillonv1.CatchUp{
		"none": carillonv1.CatchUp_CATCH_UP_NONE, "latest": carillonv1.CatchUp_CATCH_UP_LATEST, "all": carillonv1.CatchUp_CATCH_UP_ALL,
	} {
		spec := &carillonv1.JobSpec{Id: id, Queue: id, Schedule: cronIn("Europe/Berlin", "* * * * *"), CatchUp: rule}
		if id == "all" {
			spec.CatchUpWindow, spec.CatchUpPerMinute = durationpb.New(10*time.Minute), 60_000
		}
		s.create(spec)
	}
	if fired := s.advance(march.Add(30 * time.Minute)); fired != 90 {
		t.Fatalf("%d fired in 30 minutes", fired)
	}
	s.kill()
	outage := march.Add(48*time.Hour + 30*time.Minute)
	s.args[len(s.args)-1] = outage.Format(time.RFC3339)
	s.start()
	s.advance(outage.Add(5 * time.Minute))
	for id, want := range map[string]string{
		// The minute before the start is not missed.
		"none":   "37 fired, 2878 skipped",
		"latest": "38 fired, 2877 skipped",
		"all":    "46 fired, 2869 skipped",
	} {
		runs, skipped := s.job(id).GetRuns(), uint64(0)
		for _, v := range s.history("", id).GetVerdicts() {
			skipped += v.GetCount()
		}
		if got := fmt.Sprintf("%d fired, %d skipped", runs, skipped); got != want {
			t.Errorf("%s: %s; want %s", id, got, want)
		}
	}
	if out := s.cli("cluster", "verify"); !strings.Contains(out, "ok") {
		t.Error(out)
	}
}
