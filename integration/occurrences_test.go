package integration

import (
	"strings"
	"testing"
	"time"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// occurrences is all pages of them, of three each if nothing else is asked for.
func (s *server) occurrences(req *carillonv1.ListOccurrencesRequest) (all []*carillonv1.Occurrence) {
	s.t.Helper()
	if req.GetPageSize() == 0 {
		req.PageSize = 3
	}
	for {
		page := call(s.t, s.jobs().ListOccurrences, req)
		all = append(all, page.GetOccurrences()...)
		if req.PageToken = page.GetNextPageToken(); req.GetPageToken() == "" {
			return all
		}
	}
}

// R4, and why it did not run: a job runs, is paused and resumed, and the server is killed meanwhile. Each nominal instant has
// exactly one verdict, in order, and the command line tells the same.
func TestOccurrencesOfAnInterruptedJob(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	s.create(&carillonv1.JobSpec{Id: "tick", CatchUp: carillonv1.CatchUp_CATCH_UP_NONE, Schedule: every(time.Second, soon(-time.Minute))})
	first := s.claimOne("w", "default")
	s.complete(succeeded(first, "w", ""), succeededState)
	call(t, s.jobs().PauseJob, &carillonv1.PauseJobRequest{Id: "tick"})
	pause(t, 3*time.Second)
	s.kill()
	s.start()
	call(t, s.jobs().ResumeJob, &carillonv1.ResumeJobRequest{Id: "tick"})
	await(t, 20*time.Second, "it fires again", func() bool {
		list := s.occurrences(&carillonv1.ListOccurrencesRequest{Id: "tick"})
		return list[len(list)-2].GetVerdict() == carillonv1.Verdict_VERDICT_FIRED && len(list) > 3
	})

	list := s.occurrences(&carillonv1.ListOccurrencesRequest{Id: "tick"})
	skipped := uint64(0)
	for i, o := range list {
		until := o.GetTime()
		if o.GetUntil() != nil {
			until = o.GetUntil()
		}
		if n := until.AsTime().Sub(o.GetTime().AsTime()) / time.Second; o.GetCount() != uint64(n)+1 {
			t.Errorf("%v does not cover its range", o)
		}
		if i+1 < len(list) && !until.AsTime().Add(time.Second).Equal(list[i+1].GetTime().AsTime()) {
			t.Errorf("%v is followed by %v", o, list[i+1])
		}
		if o.GetWhy() == "paused" && o.GetVerdict() == carillonv1.Verdict_VERDICT_SKIPPED {
			skipped += o.GetCount()
		}
	}
	if skipped < 3 {
		t.Errorf("the pause skipped %d: %v", skipped, list)
	}
	if o := list[0]; o.GetExecutionId() != first.GetExecutionId() || o.GetState() != succeededState || o.GetStartTime() == nil {
		t.Errorf("the first is %v; want %s", o, first.GetExecutionId())
	}
	if o := list[len(list)-1]; o.GetVerdict() != carillonv1.Verdict_VERDICT_WAITING || o.GetExecutionId() != "" {
		t.Errorf("the last is %v; want the one that waits", o)
	}
	text := s.cli("jobs", "occurrences", "tick", "--from", list[0].GetTime().AsTime().Format(time.RFC3339Nano))
	for _, want := range []string{"fired", "skipped  paused", first.GetExecutionId(), "waiting"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}
