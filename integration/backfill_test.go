package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// I1: a backfill of a cron job over more instants than one step makes, through a kill: each has one execution, and repeating it
// makes none; and of an interval job over an instant that ran, in turn.
func TestI1Backfill(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	s.create(&carillonv1.JobSpec{Id: "cron", Queue: "cron", Schedule: &carillonv1.Schedule{When: &carillonv1.Schedule_Cron{
		Cron: &carillonv1.Cron{Lines: []string{"* * * * *"}, Zone: "Europe/Berlin"},
	}}})
	to := time.Now().Truncate(time.Minute).Add(-time.Hour)
	const n = 1200
	req := &carillonv1.BackfillJobRequest{
		Id: "cron", From: timestamppb.New(to.Add(-(n - 1) * time.Minute)), To: timestamppb.New(to), MaxOccurrences: n, BackfillId: "b",
	}
	call(t, s.jobs().BackfillJob, req)
	s.kill()
	s.start()
	await(t, 30*time.Second, "the backfill is made", func() bool { return call(t, s.jobs().BackfillJob, req).GetTask().GetFinished() })
	if task := call(t, s.jobs().BackfillJob, req).GetTask(); task.GetDoneCount() != n {
		t.Errorf("the backfill made %v, want %d", task, n)
	}
	var nominal []int64
	for _, e := range s.list(&carillonv1.ListExecutionsRequest{JobId: "cron", Kind: carillonv1.ExecutionKind_EXECUTION_KIND_BACKFILL}) {
		nominal = append(nominal, e.GetNominalTime().GetSeconds())
	}
	slices.Sort(nominal)
	if distinct := len(slices.Compact(slices.Clone(nominal))); len(nominal) != n || distinct != n || nominal[0] != req.GetFrom().GetSeconds() {
		t.Errorf("%d executions of %d instants, want %d", len(nominal), distinct, n)
	}

	s.create(&carillonv1.JobSpec{Id: "tick", Schedule: every(2*time.Second, soon(-time.Minute))})
	ran := s.claimOne("w", "default")
	s.complete(succeeded(ran, "w", ""), succeededState)
	call(t, s.jobs().PauseJob, &carillonv1.PauseJobRequest{Id: "tick"})
	call(t, s.jobs().ResumeJob, &carillonv1.ResumeJobRequest{Id: "tick"})
	at := ran.GetNominalTime().AsTime()
	out := s.cli("jobs", "backfill", "tick", "--from", at.Add(-4*time.Second).Format(time.RFC3339Nano), "--to", at.Format(time.RFC3339Nano),
		"--overlap", "queue-all", "--id", "again", "--priority", "9")
	if !strings.Contains(out, "again") {
		t.Errorf("carillon jobs backfill: %s", out)
	}
	for i := range 3 {
		var lease *carillonv1.Lease
		await(t, 20*time.Second, "the next one of the backfill", func() bool {
			for _, l := range call(t, s.workers().Claim, &carillonv1.ClaimRequest{Worker: "w", Queues: []string{"default"}, MaxExecutions: 5}).GetLeases() {
				if strings.HasSuffix(l.GetExecutionId(), "~again") {
					if lease != nil {
						t.Errorf("two of it live: %v and %v", lease, l)
					}
					lease = l
				}
			}
			return lease != nil
		})
		if want := at.Add(time.Duration(2*i-4) * time.Second); !lease.GetNominalTime().AsTime().Equal(want) {
			t.Errorf("number %d is for %v, want %v", i, lease.GetNominalTime().AsTime(), want)
		}
		s.complete(succeeded(lease, "w", ""), succeededState)
	}
	kinds := map[string]int{}
	for _, o := range s.occurrences(&carillonv1.ListOccurrencesRequest{Id: "tick", From: timestamppb.New(at), To: timestamppb.New(at), AllKinds: true}) {
		kinds[fmt.Sprint(o.GetKind(), o.GetState())]++
	}
	if len(kinds) != 2 || kinds[fmt.Sprint(carillonv1.ExecutionKind_EXECUTION_KIND_BACKFILL, succeededState)] != 1 {
		t.Errorf("of the instant that ran there are %v", kinds)
	}
}
