package integration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/carillon-scheduler/carillon/client"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// fates says what became of a job's instants, those after an instant left out, in their order. Without an instant it ends
// with the one that is pending. Ranges of one fate that follow each other are one.
func (s *server) fates(id string, to time.Time) string {
	s.t.Helper()
	req := &carillonv1.ListOccurrencesRequest{Id: id, PageSize: 100}
	if !to.IsZero() {
		req.To = timestamppb.New(to)
	}
	var list []*carillonv1.Occurrence
	for _, o := range s.occurrences(req) {
		if n := len(list); n > 0 && o.GetUntil() != nil && list[n-1].GetUntil() != nil && o.GetWhy() == list[n-1].GetWhy() {
			list[n-1].Until, list[n-1].Count = o.GetUntil(), list[n-1].GetCount()+o.GetCount()
			continue
		}
		list = append(list, o)
	}
	var lines []string
	for _, o := range list {
		verdict, _ := strings.CutPrefix(o.GetVerdict().String(), "VERDICT_")
		line := strings.TrimSpace(o.GetTime().AsTime().Format("01-02 15:04 ") + strings.ToLower(verdict) + " " + o.GetWhy())
		if o.GetUntil() != nil {
			line += fmt.Sprintf(", %d to %s", o.GetCount(), o.GetUntil().AsTime().Format("01-02 15:04"))
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "; ")
}

// wantFates compares them with what they should be.
func (s *server) wantFates(id string, to time.Time, want string) {
	s.t.Helper()
	if got := s.fates(id, to); got != want {
		s.t.Errorf("%s:\n got %s\nwant %s", id, got, want)
	}
}

// series writes instants that have one fate as fates does.
func series(first time.Time, step time.Duration, n int, fate string) string {
	lines := make([]string, n)
	for i := range lines {
		lines[i] = first.Add(time.Duration(i)*step).Format("01-02 15:04 ") + fate
	}
	return strings.Join(lines, "; ")
}

// form is one of the two ways to say the same schedules: of a time of each day in UTC, and of each so many minutes.
type form struct {
	name    string
	daily   func(hour, minute int) *carillonv1.Schedule
	minutes func(n int) *carillonv1.Schedule
}

var forms = []form{
	{
		"every",
		func(hour, minute int) *carillonv1.Schedule {
			return every(day, march.Add(-30*day+time.Duration(hour)*time.Hour+time.Duration(minute)*time.Minute))
		},
		func(n int) *carillonv1.Schedule { return every(time.Duration(n)*time.Minute, march) },
	},
	{
		"cron",
		func(hour, minute int) *carillonv1.Schedule {
			return cronIn("", fmt.Sprintf("%d %d * * *", minute, hour))
		},
		func(n int) *carillonv1.Schedule { return cronIn("", fmt.Sprintf("*/%d * * * *", n)) },
	},
}

// A daily job of 08:00 is changed at 14:00, in many ways: next is tomorrow's if its time has passed, no update makes a past
// occurrence, and none loses one that is to come.
func TestR1ChangedAtTwoOClock(t *testing.T) {
	t.Parallel()
	s := startVirtual(t, march)
	pausing := func(id string) { call(t, s.jobs().PauseJob, &carillonv1.PauseJobRequest{Id: id}) }
	resuming := func(id string) { call(t, s.jobs().ResumeJob, &carillonv1.ResumeJobRequest{Id: id}) }
	patch := func(p *carillonv1.JobPatch) func(string) { return func(id string) { s.update(id, p) } }
	type change struct {
		name        string
		early, late func(id string) // at 07:00 and at 14:00
		want        string
	}
	const usual = "03-08 08:00 fired; 03-09 08:00 fired; 03-10 08:00 fired; 03-11 08:00 waiting"
	var cases []change
	for _, f := range forms {
		to := func(hour, minute int) func(string) {
			return patch(&carillonv1.JobPatch{Schedule: f.daily(hour, minute)})
		}
		for _, c := range []change{
			{"to-13", nil, to(13, 0), "03-08 08:00 fired; 03-09 13:00 fired; 03-10 13:00 fired; 03-11 13:00 waiting"},
			{"to-15", nil, to(15, 0), "03-08 08:00 fired; 03-08 15:00 fired; 03-09 15:00 fired; 03-10 15:00 fired; 03-11 15:00 waiting"},
			{"to-now", nil, to(14, 0), "03-08 08:00 fired; 03-09 14:00 fired; 03-10 14:00 fired; 03-11 14:00 waiting"},
			{"to-at-once", nil, to(14, 1), "03-08 08:00 fired; 03-08 14:01 fired; 03-09 14:01 fired; 03-10 14:01 fired; 03-11 14:01 waiting"},
			{"to-and-fro", nil, func(id string) {
				for _, hour := range []int{15, 13, 14, 8} {
					to(hour, 0)(id)
				}
			}, usual},
			{"to-itself", nil, to(8, 0), usual},
			{"labels", nil, patch(&carillonv1.JobPatch{Labels: map[string]string{"a": "b"}}), usual},
			{"payload", nil, patch(&carillonv1.JobPatch{Payload: []byte("p")}), usual},
			{"queue", nil, patch(&carillonv1.JobPatch{Queue: new("other")}), usual},
			{"rule", nil, patch(&carillonv1.JobPatch{CatchUp: new(carillonv1.CatchUp_CATCH_UP_ALL)}), usual},
			{"changed-and-resumed", pausing, func(id string) { to(13, 0)(id); resuming(id) },
				"03-08 08:00 skipped paused; 03-09 13:00 fired; 03-10 13:00 fired; 03-11 13:00 waiting"},
			{"resumed-and-changed", pausing, func(id string) { resuming(id); to(13, 0)(id) },
				"03-08 08:00 late; 03-09 13:00 fired; 03-10 13:00 fired; 03-11 13:00 waiting"},
		} {
			c.name = f.name + "-" + c.name
			cases = append(cases, c)
			s.create(&carillonv1.JobSpec{Id: c.name, Schedule: f.daily(8, 0)})
		}
	}
	zone := "cron-to-another-zone"
	s.create(&carillonv1.JobSpec{Id: zone, Schedule: cronIn("", "0 8 * * *")})
	cases = append(cases, change{zone, nil, patch(&carillonv1.JobPatch{Schedule: cronIn("Asia/Tokyo", "0 8 * * *")}),
		"03-08 08:00 fired; 03-08 23:00 fired; 03-09 23:00 fired; 03-10 23:00 waiting"})

	s.advance(march.Add(7 * time.Hour))
	for _, c := range cases {
		if c.early != nil {
			c.early(c.name)
		}
	}
	s.advance(march.Add(14 * time.Hour))
	for _, c := range cases {
		c.late(c.name)
	}
	s.advance(march.Add(2*day + 20*time.Hour))
	for _, c := range cases {
		s.wantFates(c.name, time.Time{}, c.want)
	}
	s.wantClean(4, 1)
}

// The same with a spread: an occurrence that has come and waits for its share of it stays, whatever is changed of the job, as
// long as its schedule names it. What a gap took is told after a change as before.
func TestR1ChangedBeforeTheSpreadIsOver(t *testing.T) {
	t.Parallel()
	s := startVirtual(t, march)
	daily := func(f form) *carillonv1.Schedule { return spreadOver(12*time.Hour, f.daily(8, 0)) }
	jobs := map[string]form{}
	var ids []string
	for _, f := range forms {
		for i, n := 0, 0; n < 3; i++ { // of those that wait at 14:00
			id := fmt.Sprint(f.name, "-", i)
			if _, offset := s.preview(id, daily(f), march, march.Add(day)); offset > 7*time.Hour && offset < 11*time.Hour {
				s.create(&carillonv1.JobSpec{Id: id, Schedule: daily(f)})
				ids, jobs[id], n = append(ids, id), f, n+1
			}
		}
	}
	s.create(&carillonv1.JobSpec{Id: "gap", Schedule: cronJob(&carillonv1.Cron{
		Lines: []string{"30 2 * * *"}, Zone: newYork, Gap: carillonv1.Gap_GAP_SKIP,
	})})
	s.advance(march.Add(14 * time.Hour))
	for i, id := range ids {
		schedule := daily(jobs[id])
		switch i % 3 {
		case 0:
			s.update(id, &carillonv1.JobPatch{Labels: map[string]string{"a": "b"}})
			continue
		case 1:
			schedule.MaxFiresPerDay = 10
		case 2:
			if end := timestamppb.New(march.Add(100 * day)); schedule.GetCron() != nil {
				schedule.GetCron().End = end
			} else {
				schedule.GetEvery().End = end
			}
		}
		s.update(id, &carillonv1.JobPatch{Schedule: schedule})
	}
	s.update("gap", &carillonv1.JobPatch{Schedule: cronIn(newYork, "30 3 * * *")})
	s.advance(march.Add(2*day + 22*time.Hour))
	for _, id := range ids {
		s.wantFates(id, time.Time{}, "03-08 08:00 fired; 03-09 08:00 fired; 03-10 08:00 fired; 03-11 08:00 waiting")
	}
	s.wantFates("gap", time.Time{}, "03-08 07:00 skipped gap; 03-09 07:30 fired; 03-10 07:30 fired; 03-11 07:30 waiting")
	s.wantClean(4, 1)
}

// One id is deleted and created again, changed again and again, and by a hundred callers at once, in both forms: one
// occurrence is pending, of the latest definition, and only that fires in the days after.
func TestR2OnlyTheLatestDefinitionFires(t *testing.T) {
	t.Parallel()
	s := startVirtual(t, march)
	wants := map[string]time.Time{}
	for _, f := range forms {
		definition := func(i int) *carillonv1.Schedule { return f.daily(10+i/60, i%60) }
		again, changed, contended := f.name+"-again", f.name+"-changed", f.name+"-contended"
		for i := range 10 {
			if i > 0 {
				s.delete(again)
			}
			s.create(&carillonv1.JobSpec{Id: again, Schedule: definition(i)})
		}
		s.create(&carillonv1.JobSpec{Id: changed, Schedule: definition(0)})
		for i := range 50 {
			s.update(changed, &carillonv1.JobPatch{Schedule: definition(49 - i)})
		}
		s.create(&carillonv1.JobSpec{Id: contended, Schedule: definition(0)})
		wants[again], wants[changed] = march.Add(10*time.Hour+9*time.Minute), march.Add(10*time.Hour)
		wants[contended] = updateAtOnce(t, s, contended, definition)
	}
	for id, first := range wants {
		s.wantFates(id, time.Time{}, series(first, day, 1, "waiting"))
	}
	s.advance(march.Add(3 * day))
	for id, first := range wants {
		s.wantFates(id, time.Time{}, series(first, day, 3, "fired")+"; "+series(first.Add(3*day), day, 1, "waiting"))
	}
	if fired := s.metric("carillon_fired_total"); fired != float64(3*len(wants)) {
		t.Errorf("%v have fired; want 3 of each of %d jobs", fired, len(wants))
	}
}

// Jobs of every ten minutes, and a day on which nobody leads: none fires 0 of the 144, latest the newest, all every one of
// its window, oldest first and at the job's pace.
func TestR4AnOutageOfADay(t *testing.T) {
	t.Parallel()
	s := startVirtual(t, march.Add(5*time.Minute))
	const none, latest, all = carillonv1.CatchUp_CATCH_UP_NONE, carillonv1.CatchUp_CATCH_UP_LATEST, carillonv1.CatchUp_CATCH_UP_ALL
	const step = 10 * time.Minute
	first := march.Add(step)
	rules := []struct {
		name      string
		rule      carillonv1.CatchUp
		window    time.Duration
		perMinute uint32
		in10s     int // at most so many start in ten seconds
		want      string
	}{
		{"none", none, 0, 0, 0, "03-08 00:10 skipped missed, 144 to 03-09 00:00"},
		{"latest", latest, 0, 0, 1, "03-08 00:10 coalesced, 143 to 03-08 23:50; 03-09 00:00 late"},
		{"all", all, 0, 0, 10, series(first, step, 144, "late")},
		{"all-slowly", all, 0, 6, 1, series(first, step, 144, "late")},
		{"all-fast", all, 0, 600, 100, series(first, step, 144, "late")},
		{"window", all, 6 * time.Hour, 0, 10, "03-08 00:10 skipped window, 108 to 03-08 18:00; " + series(march.Add(18*time.Hour+step), step, 36, "late")},
		{"short-window", latest, time.Minute, 0, 0, "03-08 00:10 skipped window, 144 to 03-09 00:00"},
	}
	for _, f := range forms {
		for _, r := range rules {
			spec := &carillonv1.JobSpec{Id: f.name + "-" + r.name, Schedule: f.minutes(10), CatchUp: r.rule, CatchUpPerMinute: r.perMinute}
			if r.window > 0 {
				spec.CatchUpWindow = durationpb.New(r.window)
			}
			s.create(spec)
		}
	}
	s.kill()
	now := march.Add(day + 5*time.Minute)
	s.args[len(s.args)-1] = now.Format(time.RFC3339)
	s.start()
	runs := map[string]int{}
	for i := 0; i <= 24; i++ { // for four minutes, until the next occurrence is near
		s.advance(now.Add(time.Duration(i) * 10 * time.Second))
		for _, f := range forms {
			for _, r := range rules {
				id := f.name + "-" + r.name
				n := int(s.job(id).GetRuns())
				if n-runs[id] > r.in10s+1 {
					t.Errorf("%s: %d started in ten seconds", id, n-runs[id])
				}
				runs[id] = n
			}
		}
	}
	s.advance(march.Add(day + 35*time.Minute))
	for _, f := range forms {
		for _, r := range rules {
			s.wantFates(f.name+"-"+r.name, march.Add(day), r.want)
		}
	}
	s.advance(march.Add(day + 2*time.Hour))
	for _, f := range forms {
		for _, r := range rules { // and from there on as ever
			id := f.name + "-" + r.name
			if got, want := s.fates(id, time.Time{}), series(march.Add(day+2*time.Hour+step), step, 1, "waiting"); !strings.HasSuffix(got, want) {
				t.Errorf("%s ends with %s; want %s", id, got, want)
			}
		}
	}
	s.wantClean(4, 1)
}

// workerEnv makes the tests' program a worker that takes what comes and never ends it: the address of its server, and the
// queue.
const workerEnv = "CARILLON_TEST_WORKER"

// stuckWorker runs a worker in a process of its own.
func (s *server) stuckWorker(queue string) *exec.Cmd {
	s.t.Helper()
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), workerEnv+"="+s.addr+" "+queue)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	return cmd
}

// workForever is that process.
func workForever(text string) int {
	addr, queue, _ := strings.Cut(text, " ")
	c, err := client.New(addr)
	if err == nil {
		err = client.NewWorker(c, client.WorkerConfig{Queues: []string{queue}, Name: "stuck"},
			func(ctx context.Context, _ *client.Execution) ([]byte, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}).Run(context.Background())
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// Overlap is forbidden. A worker's process is killed in the middle of its work: later occurrences are
// skipped only while the first lives, which is until its lease has ended and its attempts are used up, and no two leases live.
func TestR5KilledInTheMiddle(t *testing.T) {
	t.Parallel()
	s := startVirtual(t, march.Add(30*time.Second))
	at := func(minute, second int) time.Time {
		return march.Add(time.Duration(minute)*time.Minute + time.Duration(second)*time.Second)
	}
	once := &carillonv1.RetryPolicy{MaxAttempts: 1}
	var ids []string
	for _, f := range forms {
		for name, retry := range map[string]*carillonv1.RetryPolicy{"retried": nil, "dead": once} {
			id := f.name + "-" + name
			ids = append(ids, id)
			s.create(&carillonv1.JobSpec{
				Id: id, Queue: id, Schedule: f.minutes(1), Retry: retry, Overlap: carillonv1.Overlap_OVERLAP_SKIP,
				Lease: durationpb.New(90 * time.Second),
			})
		}
	}
	s.advance(at(1, 0))
	for _, id := range ids {
		worker := s.stuckWorker(id)
		await(t, 20*time.Second, "the worker has it", func() bool { return s.onlyExecution(id).GetState() == leasedState })
		if err := worker.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = worker.Wait() // it says that it was killed
	}
	s.advance(at(2, 0))
	for _, id := range ids {
		s.nothing(id)
		s.wantFates(id, time.Time{}, "03-08 00:01 fired; 03-08 00:02 skipped overlap; 03-08 00:03 waiting")
	}
	s.advance(at(2, 29)) // the lease began at 00:01:00
	for _, id := range ids {
		s.nothing(id)
	}
	s.advance(at(3, 0))
	for _, id := range ids {
		if strings.HasSuffix(id, "dead") {
			if e := s.list(&carillonv1.ListExecutionsRequest{JobId: id, State: deadState}); len(e) != 1 {
				t.Errorf("%s: dead are %v", id, e)
			}
			s.wantFates(id, time.Time{}, "03-08 00:01 fired; 03-08 00:02 skipped overlap; 03-08 00:03 fired; 03-08 00:04 waiting")
			continue
		}
		lease := s.claimOne("second", id)
		s.nothing(id)
		if lease.GetAttempt() != 2 || !lease.GetNominalTime().AsTime().Equal(at(1, 0)) {
			t.Errorf("%s: the second lease is %v", id, lease)
		}
		s.complete(succeeded(lease, "second", ""), succeededState)
		a := s.onlyExecution(id).GetAttempts()
		if end := a[0].GetEndTime().AsTime(); a[1].GetStartTime().AsTime().Before(end) || end.Before(at(2, 30)) {
			t.Errorf("%s: two leases lived: %v", id, a)
		}
		s.wantFates(id, time.Time{}, "03-08 00:01 fired; 03-08 00:02 skipped overlap; 03-08 00:03 skipped overlap; 03-08 00:04 waiting")
	}
	s.advance(at(4, 0))
	for _, id := range ids {
		want := "03-08 00:04 fired; 03-08 00:05 waiting" // nothing is in the way of the retried one
		if strings.HasSuffix(id, "dead") {
			want = "03-08 00:04 skipped overlap; 03-08 00:05 waiting"
		}
		if got := s.fates(id, time.Time{}); !strings.HasSuffix(got, want) {
			t.Errorf("%s: %s; want it to end with %s", id, got, want)
		}
	}
	s.wantClean(4, 1)
}

// Jobs of every second are paused and deleted while the clock runs and workers take what comes: once the call has returned no
// later occurrence starts, and what was deleted does not come back, not even when its tombstone has gone.
func TestR6StoppedWhileTimeRuns(t *testing.T) {
	t.Parallel()
	s := startVirtual(t, march)
	l := &stopping{s: s, stopped: map[string]bool{}, delivered: map[string]int{}}
	var ids []string
	for i := range 20 {
		id := fmt.Sprintf("r6-%03d", i)
		schedule := every(time.Second, march)
		if i%4 < 2 {
			schedule = cronIn("", "* * * * * *")
		}
		ids = append(ids, id)
		s.create(&carillonv1.JobSpec{Id: id, Schedule: schedule, Lease: durationpb.New(day)})
	}
	var workers, clock errgroup.Group
	for range 3 {
		workers.Go(l.work)
	}
	stop := make(chan struct{})
	clock.Go(func() error {
		for {
			select {
			case <-stop:
				return nil
			default:
			}
			_, err := try(s.cluster().AdvanceClock, &carillonv1.AdvanceClockRequest{
				Goal: &carillonv1.AdvanceClockRequest_By{By: durationpb.New(5 * time.Second)},
			})
			if err != nil {
				return err
			}
		}
	})
	until := map[string]time.Time{} // not later than that anything of it falls due
	for i, id := range ids {
		began := s.clock().GetTime().AsTime()
		await(t, 20*time.Second, "time goes on", func() bool { return s.clock().GetTime().AsTime().After(began.Add(5 * time.Second)) })
		if i%2 == 0 {
			s.delete(id)
		} else {
			call(t, s.jobs().PauseJob, &carillonv1.PauseJobRequest{Id: id})
		}
		l.note(i)
		until[id] = s.clock().GetTime().AsTime()
	}
	close(stop)
	if err := clock.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := workers.Wait(); err != nil {
		t.Fatal(err)
	}
	s.kill()
	s.start()
	s.advance(s.clock().GetTime().AsTime().Add(time.Minute))
	s.nothing("default")
	for i, id := range ids {
		if l.delivered[id] == 0 {
			t.Errorf("%s never ran: the test shows nothing", id)
		}
		for _, e := range s.list(&carillonv1.ListExecutionsRequest{JobId: id}) {
			if at := e.GetNominalTime().AsTime(); at.After(until[id]) {
				t.Errorf("%s: %v has an execution; it was stopped by %v", id, at, until[id])
			}
		}
		if i%2 == 1 {
			call(t, s.jobs().ResumeJob, &carillonv1.ResumeJobRequest{Id: id})
			call(t, s.jobs().DeleteJob, &carillonv1.DeleteJobRequest{Id: id})
		}
	}
	s.advance(s.clock().GetTime().AsTime().Add(5 * day))
	s.nothing("default")
	if jobs := call(t, s.jobs().ListJobs, &carillonv1.ListJobsRequest{}).GetJobs(); len(jobs) != 0 {
		t.Errorf("deleted, and here again: %v", jobs)
	}
	s.wantClean(4, 1)
}
