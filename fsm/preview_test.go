package fsm

import (
	"fmt"
	"maps"
	"testing"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

func countForTest(s *storagev1.Schedule, fromMS, toMS int64) (uint64, bool, error) {
	return CountEvery(s.Every, fromMS, toMS), false, nil
}

// TestPreviewIsWhatResumes: what a preview says is what the resume does, by every rule, window and number of runs, of a paused job
// and of a parked one.
func TestPreviewIsWhatResumes(t *testing.T) {
	for _, parked := range []bool{false, true} {
		for rule := storagev1.CatchUp_CATCH_UP_UNSPECIFIED; rule <= storagev1.CatchUp_CATCH_UP_ALL; rule++ {
			for own := rule; own <= storagev1.CatchUp_CATCH_UP_ALL; own++ {
				for _, window := range []int64{0, 30 * minuteMS, 1000} {
					for _, runs := range []uint64{0, 1, 12} {
						name := fmt.Sprintf("parked=%v/rule=%d/own=%d/window=%d/runs=%d", parked, rule, own, window, runs)
						t.Run(name, func(t *testing.T) { previewed(t, parked, rule, own, window, runs) })
					}
				}
			}
		}
	}
}

func previewed(t *testing.T, parked bool, rule, own storagev1.CatchUp, windowMS int64, runs uint64) {
	sc := newScript(t)
	sc.apply(&storagev1.Command{CreateJobs: &storagev1.CreateJobs{Items: []*storagev1.CreateJob{{
		Tenant: "t", JobId: "j", Hash: []byte{1}, CatchUp: own, CatchUpWindowMs: windowMS,
		Schedule: &storagev1.Schedule{
			Every: &storagev1.Every{IntervalMs: minuteMS, AnchorMs: epochMS, MaxRuns: runs}, SpreadMs: 9000, OffsetMs: 7000,
		},
		Template: &storagev1.Template{Queue: "q"},
	}}}})
	pause := func(paused bool, version uint64) Result {
		if parked {
			return sc.apply(&storagev1.Command{PutQueue: &storagev1.QueueSettings{
				Name: "q", Paused: paused, Version: version, Pause: &storagev1.Pause{Resume: rule},
			}})[0]
		}
		u := &storagev1.UpdateJob{Tenant: "t", JobId: "j", Fields: []string{"state", "pause"}, State: storagev1.JobState_JOB_STATE_ACTIVE}
		if paused {
			u.State, u.Pause = storagev1.JobState_JOB_STATE_PAUSED, &storagev1.Pause{Resume: rule}
		}
		return sc.apply(&storagev1.Command{UpdateJob: u})[0]
	}
	pause(true, 1)
	sc.now += 2 * minuteMS
	sc.apply(&storagev1.Command{Advance: &storagev1.Advance{}})
	sc.now += 100*minuteMS + 3000
	resumed := sc.now

	asked := storagev1.CatchUp_CATCH_UP_UNSPECIFIED
	if parked {
		asked = rule // a parked job does not know which pause will be the last to end
	}
	want, ok, err := PreviewResume(sc.s, "t", "j", asked, sc.now, countForTest)
	if !ok || err != nil || len(want.StoppedBy) != map[bool]int{true: 1}[parked] {
		t.Fatalf("preview %+v, %v, %v", want, ok, err)
	}
	if task := pause(false, 2).Task; task != nil {
		sc.apply(&storagev1.Command{StepTask: &storagev1.StepTask{Id: task.Id}})
	}
	sc.apply(&storagev1.Command{Advance: &storagev1.Advance{}})
	for range 200 {
		sc.apply(&storagev1.Command{Advance: &storagev1.Advance{}})
	}
	got := ResumePreview{Skipped: map[string]uint64{}}
	h := ReadHistory(sc.s, "t", "j", nil, 10_000)
	for _, e := range h.Executions {
		if e.NominalMs <= resumed {
			got.Fired++
		}
	}
	for _, v := range h.Verdicts {
		got.Skipped[v.Why] += v.Count
	}
	if got.Fired != want.Fired || !maps.Equal(got.Skipped, want.Skipped) {
		t.Errorf("previewed %+v, got %+v", want, got)
	}
	after, _, _ := PreviewResume(sc.s, "t", "j", 0, sc.now, countForTest)
	if after.Fired != 0 || len(after.Skipped) != 0 || len(after.StoppedBy) != 0 {
		t.Errorf("an active job would resume: %+v", after)
	}
}

// TestPreviewOfOneShots: they go by their own rule; what is held goes on.
func TestPreviewOfOneShots(t *testing.T) {
	sc := newScript(t)
	create := func(id string, own storagev1.CatchUp) {
		sc.apply(&storagev1.Command{CreateJobs: &storagev1.CreateJobs{Items: []*storagev1.CreateJob{{
			Tenant: "t", JobId: id, Hash: []byte{1}, CatchUp: own, Schedule: &storagev1.Schedule{AtMs: epochMS + minuteMS},
			Template: &storagev1.Template{Queue: "q"},
		}}}})
		sc.apply(&storagev1.Command{UpdateJob: &storagev1.UpdateJob{
			Tenant: "t", JobId: id, Fields: []string{"state"}, State: storagev1.JobState_JOB_STATE_PAUSED,
		}})
	}
	create("all", 0)
	create("none", storagev1.CatchUp_CATCH_UP_NONE)
	sc.apply(&storagev1.Command{TriggerJob: &storagev1.TriggerJob{Tenant: "t", JobId: "all", Discriminator: "k", Hash: []byte{1}}})
	sc.apply(&storagev1.Command{PutPauseRule: &storagev1.PauseRule{Id: "r", Version: 1}})
	for _, c := range []struct {
		id                   string
		after                int64
		fired, skipped, held uint64
	}{
		{"all", 0, 0, 0, 1}, {"none", 0, 0, 0, 0}, {"all", minuteMS, 1, 0, 1}, {"none", minuteMS, 1, 0, 0},
		{"all", 3 * minuteMS, 1, 0, 1}, {"none", 3 * minuteMS, 0, 1, 0},
	} {
		p, ok, err := PreviewResume(sc.s, "t", c.id, storagev1.CatchUp_CATCH_UP_NONE, epochMS+c.after, nil)
		if !ok || err != nil || p.Fired != c.fired || p.Skipped[whySkippedMissed] != c.skipped || p.Held != c.held ||
			len(p.StoppedBy) != 1 || p.StoppedBy[0] != "rule:r" {
			t.Errorf("%s after %d ms: %+v, want %+v", c.id, c.after, p, c)
		}
	}
	if _, ok, _ := PreviewResume(sc.s, "t", "nobody", 0, epochMS, nil); ok {
		t.Error("a job that there is not")
	}
}

// What became ready before the pause and nobody has asked for since goes on with the resume as well: it is held only when it would
// start.
func TestPreviewCountsWhatIsReady(t *testing.T) {
	sc := newScript(t)
	sc.apply(&storagev1.Command{CreateJobs: &storagev1.CreateJobs{Items: []*storagev1.CreateJob{{
		Tenant: "t", JobId: "j", Hash: []byte{1}, CatchUp: storagev1.CatchUp_CATCH_UP_ALL,
		Schedule: &storagev1.Schedule{Every: &storagev1.Every{IntervalMs: minuteMS, AnchorMs: epochMS}},
		Template: &storagev1.Template{Queue: "q"},
	}}}})
	for range 3 {
		sc.now += minuteMS
		sc.apply(&storagev1.Command{Advance: &storagev1.Advance{Limit: 1000}})
	}
	sc.apply(&storagev1.Command{UpdateJob: &storagev1.UpdateJob{
		Tenant: "t", JobId: "j", Fields: []string{"state"}, State: storagev1.JobState_JOB_STATE_PAUSED,
	}})
	sc.apply(&storagev1.Command{TriggerJob: &storagev1.TriggerJob{Tenant: "t", JobId: "j", Discriminator: "k", Hash: []byte{1}}})
	p, ok, err := PreviewResume(sc.s, "t", "j", 0, sc.now, countForTest)
	if !ok || err != nil || p.Held != 4 || p.More {
		t.Errorf("three are ready and one is held: %+v, %v, %v", p, ok, err)
	}
}
