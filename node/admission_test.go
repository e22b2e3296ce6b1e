package node

import (
	"testing"
	"time"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

func TestOnlyNewWorkCanBeShed(t *testing.T) {
	create := func(priority uint32) *storagev1.Command {
		return &storagev1.Command{CreateJobs: &storagev1.CreateJobs{Items: []*storagev1.CreateJob{
			{Template: &storagev1.Template{Priority: priority}},
		}}}
	}
	for _, tc := range []struct {
		name string
		cmd  *storagev1.Command
		want time.Duration
	}{
		{"least urgent", create(0), 100 * time.Millisecond},
		{"by default", create(5), 600 * time.Millisecond},
		{"most urgent", create(9), time.Second},
		{"trigger", &storagev1.Command{TriggerJob: &storagev1.TriggerJob{}}, 600 * time.Millisecond},
		{"claim", &storagev1.Command{Claim: &storagev1.Claim{}}, 0},
		{"completion", &storagev1.Command{Completions: &storagev1.Completions{}}, 0},
		{"firing", &storagev1.Command{Advance: &storagev1.Advance{}}, 0},
		{"pause", &storagev1.Command{UpdateJob: &storagev1.UpdateJob{}}, 0},
		{"delete", &storagev1.Command{DeleteJob: &storagev1.DeleteJob{}}, 0},
	} {
		if got := patience(tc.cmd); got != tc.want {
			t.Errorf("%s: %v, must be %v", tc.name, got, tc.want)
		}
	}
}
