package expand

import (
	"testing"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

var minutely = &storagev1.Cron{Lines: []string{"* * * * *"}, Zone: "Europe/Berlin"}

const start = "2026-03-28T12:00:00Z"

// A job that is never told anything but by the expander fires each of its instants once, on time, through a jump of its
// clock.
func TestFiresOnTime(t *testing.T) {
	w := newWorld(t, start)
	daily := &storagev1.Cron{Lines: []string{"30 2 * * *"}, Zone: "Europe/Berlin"}
	w.create("minutely", minutely, nil)
	w.create("daily", daily, nil)
	w.runTo("2026-03-30T12:00:00Z")
	w.check("minutely", minutely, start, "2026-03-30T12:00:00Z")
	w.check("daily", daily, start, "2026-03-30T12:00:00Z")
	if got := w.ranges("minutely"); got != "fired 2880" {
		t.Error(got)
	}
	// The first one adds 16, and each one after it when four are left.
	if n := w.counts.Expanded; n > 2880/16+2 {
		t.Errorf("%d expansions", n)
	}
}

// After a long outage the catch-up rule decides, and of the instants that are passed over there is one range.
func TestOutage(t *testing.T) {
	for _, c := range []struct {
		name string
		rule storagev1.CatchUp
		// window, in ms
		window int64
		want   string
	}{
		{"none", storagev1.CatchUp_CATCH_UP_NONE, 0,
			"fired 28, 2026-03-28T12:17:00Z..2026-03-28T12:32:00Z 16, 2026-03-28T12:33:00Z..2026-03-29T12:18:00Z 1426"},
		{"latest", storagev1.CatchUp_CATCH_UP_LATEST, 0,
			"fired 29, 2026-03-28T12:17:00Z..2026-03-28T12:31:00Z 15, 2026-03-28T12:32:00Z..2026-03-29T12:17:00Z 1426"},
		{"latest, window", storagev1.CatchUp_CATCH_UP_LATEST, 30_000,
			"fired 28, 2026-03-28T12:17:00Z..2026-03-28T12:32:00Z 16, 2026-03-28T12:33:00Z..2026-03-29T12:18:00Z 1426"},
		{"all", storagev1.CatchUp_CATCH_UP_ALL, 0, "fired 1470"},
		{"all, window", storagev1.CatchUp_CATCH_UP_ALL, 3_600_000,
			"fired 87, 2026-03-28T12:17:00Z..2026-03-28T12:32:00Z 16, 2026-03-28T12:33:00Z..2026-03-29T11:19:00Z 1367"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, start)
			w.create("j", minutely, func(item *storagev1.CreateJob) { item.CatchUp, item.CatchUpWindowMs = c.rule, c.window })
			w.runTo("2026-03-28T12:16:30Z")
			w.now = instant(t, "2026-03-29T12:20:00Z") // nobody led it
			w.advance()
			w.runTo("2026-03-29T12:30:00Z")
			w.check("j", minutely, start, "2026-03-29T12:30:00Z")
			if got := w.ranges("j"); got != c.want {
				t.Error(got)
			}
		})
	}
}

// An outage of more instants than one step counts takes several, whose ranges follow on each other.
func TestLongOutage(t *testing.T) {
	secondly := &storagev1.Cron{Lines: []string{"* * * * * *"}}
	for rule, want := range map[storagev1.CatchUp]string{
		storagev1.CatchUp_CATCH_UP_NONE: "fired 81, 2026-03-28T12:00:17Z..2026-03-28T12:00:32Z 16, " +
			"2026-03-28T12:00:33Z..2026-03-29T15:47:12Z 100000, 2026-03-29T15:47:13Z..2026-03-30T11:58:59Z 72707",
		storagev1.CatchUp_CATCH_UP_LATEST: "fired 82, 2026-03-28T12:00:17Z..2026-03-28T12:00:31Z 15, " +
			"2026-03-28T12:00:32Z..2026-03-29T15:47:12Z 100001, 2026-03-29T15:47:13Z..2026-03-30T11:58:58Z 72706",
	} {
		w := newWorld(t, start)
		w.create("j", secondly, func(item *storagev1.CreateJob) { item.CatchUp = rule })
		w.runTo("2026-03-28T12:00:16Z")
		w.now = instant(t, "2026-03-30T12:00:00Z")
		w.advance()
		w.runTo("2026-03-30T12:00:04Z")
		w.check("j", secondly, start, "2026-03-30T12:00:04Z")
		if got := w.ranges("j"); got != want {
			t.Errorf("%s: %s", rule, got)
		}
	}
}

// A step that has taken long enough ends, and leaves the rest to the next.
func TestEnoughIsEnough(t *testing.T) {
	w := newWorld(t, start)
	w.create("j", minutely, func(item *storagev1.CreateJob) { item.CatchUp = storagev1.CatchUp_CATCH_UP_NONE })
	w.create("k", minutely, nil)
	w.settle()
	w.now = instant(t, "2026-04-28T12:00:00Z")
	w.apply(&storagev1.Command{Advance: &storagev1.Advance{Limit: 1000}})
	jobs, _ := w.queue.Take(w.now)
	b := w.eval.Evaluate(w.read(), jobs, w.now, func() bool { return true })
	if len(jobs) != 2 || len(b.Items) != 1 || len(b.left) != 1 || b.Items[0].PassedCount != passChunk || len(b.Items[0].Horizon.NextMs) != 1 {
		t.Fatalf("%d jobs, %d left, items %v", len(jobs), len(b.left), b.Items)
	}
	w.queue.Evaluated(b)
	if err := w.queue.Applied(w.now, b, w.apply(b.Command())[0].Items); err != nil {
		t.Fatal(err)
	}
	w.settle()
	w.runTo("2026-04-28T12:10:00Z")
	w.check("j", minutely, start, "2026-04-28T12:10:00Z")
	w.check("k", minutely, start, "2026-04-28T12:10:00Z")
}

// What a pause held up is decided at the resume, by the catch-up rule, however long it was.
func TestPause(t *testing.T) {
	state := func(w *world, s storagev1.JobState) {
		r := w.apply(&storagev1.Command{UpdateJob: &storagev1.UpdateJob{
			Tenant: tenant, JobId: "j", Hash: []byte("12345678"), Fields: []string{"state"}, State: s,
		}})
		if r[0].Refusal != nil {
			t.Fatal(r[0].Refusal)
		}
	}
	w := newWorld(t, start)
	w.create("j", minutely, nil)
	w.runTo("2026-03-28T12:20:30Z")
	state(w, storagev1.JobState_JOB_STATE_PAUSED)
	w.runTo("2026-03-29T12:20:30Z")
	state(w, storagev1.JobState_JOB_STATE_ACTIVE)
	w.runTo("2026-03-29T12:30:30Z")
	w.check("j", minutely, start, "2026-03-29T12:30:30Z")
}

// An expansion that a change overtakes is refused, and found anew from the job as it is then.
func TestOvertaken(t *testing.T) {
	w := newWorld(t, start)
	hourly := &storagev1.Cron{Lines: []string{"0 * * * *"}}
	w.create("j", minutely, nil)
	w.before = func() {
		w.apply(&storagev1.Command{UpdateJob: &storagev1.UpdateJob{
			Tenant: tenant, JobId: "j", Hash: []byte("12345678"), Fields: []string{"schedule"}, Schedule: &storagev1.Schedule{Cron: hourly},
		}})
	}
	if w.expand(); w.counts.Refused != 1 || w.queue.Len() != 1 {
		t.Fatalf("%+v, %d wait", w.counts, w.queue.Len())
	}
	if jobs, at := w.queue.Take(w.now); jobs != nil || at != w.now+retryFirst {
		t.Fatalf("taken %v, again at %d, now %d", jobs, at, w.now)
	}
	w.now += retryFirst
	w.settle()
	if h := w.job("j").Horizon; len(h.NextMs) != horizon || h.NextMs[0] != instant(t, "2026-03-28T13:00:00Z") {
		t.Fatalf("horizon %v", h)
	}
	// Deleted meanwhile, and deleted before.
	w.queue.Add(w.now, ref("j"))
	w.before = func() {}
	w.apply(&storagev1.Command{DeleteJob: &storagev1.DeleteJob{Tenant: tenant, JobId: "j", Hash: []byte("12345678")}})
	if w.settle(); w.queue.Len() != 0 || w.counts.Failed != 0 {
		t.Fatalf("%+v, %d wait", w.counts, w.queue.Len())
	}
}
