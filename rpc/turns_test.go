package rpc

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// Who waits for a turn gets it, gives up, or is refused with a hint when it does not come.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		places := make(turns, 1)
		done, err := places.take(t.Context(), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := places.take(ctx, time.Second); !errors.Is(err, context.Canceled) {
			t.Errorf("who gives up waiting gets %v", err)
		}
		var overloaded *Overloaded
		if _, err := places.take(t.Context(), time.Second); !errors.As(err, &overloaded) || overloaded.RetryAfter <= 0 {
			t.Errorf("who waited in vain gets %v", err)
		}
		time.AfterFunc(time.Minute, done)
		if done, err = places.await(t.Context(), costly()); err != nil {
			t.Fatalf("who waits on gets %v", err)
		}
		done()
		if done, err = places.take(t.Context(), time.Second); err != nil {
			t.Errorf("when the turn is free: %v", err)
		}
		done()
	})
}

// costly is a schedule that only evaluating it could show to be cheap.
func costly() *carillonv1.Schedule {
	return cronJob(&carillonv1.Cron{Lines: []string{"0 0 * * *"}, Exclude: &carillonv1.Exclusions{Weekdays: "MON"}})
}

// While somebody else evaluates, whatever may be costly waits, and is refused as a whole; the others are not kept.
func TestCostlySchedulesTakeTurns(t *testing.T) {
	spec := func(s *carillonv1.Schedule) *carillonv1.JobSpec { return &carillonv1.JobSpec{Id: "j", Schedule: s} }
	gapSkip := cronJob(&carillonv1.Cron{Lines: []string{"0 0 * * *"}, Gap: carillonv1.Gap_GAP_SKIP})
	calls := map[string]func(*scene, *carillonv1.Schedule) error{
		"create": func(s *scene, sched *carillonv1.Schedule) error {
			_, err := s.createJob(s.t.Context(), &carillonv1.CreateJobRequest{Job: spec(sched)})
			return err
		},
		"batch": func(s *scene, sched *carillonv1.Schedule) error {
			_, err := s.batchCreateJobs(s.t.Context(), &carillonv1.BatchCreateJobsRequest{Items: []*carillonv1.CreateJobRequest{
				{Job: &carillonv1.JobSpec{Id: "first", Schedule: in(time.Hour)}}, {Job: spec(sched)},
			}})
			return err
		},
		"put": func(s *scene, sched *carillonv1.Schedule) error {
			_, err := s.putJob(s.t.Context(), &carillonv1.PutJobRequest{Id: "j", Job: spec(sched)})
			return err
		},
		"update": func(s *scene, sched *carillonv1.Schedule) error {
			_, err := s.updateJob(s.t.Context(), &carillonv1.UpdateJobRequest{Id: "there", Job: &carillonv1.JobPatch{Schedule: sched}})
			return err
		},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t, 2)
				s.create(&carillonv1.JobSpec{Id: "there", Schedule: cronJob(&carillonv1.Cron{Lines: []string{"0 1 * * *"}})})
				s.turns = make(turns, 1)
				done, err := s.turns.take(t.Context(), time.Second)
				if err != nil {
					t.Fatal(err)
				}
				for _, sched := range []*carillonv1.Schedule{costly(), gapSkip} {
					wantCode(t, call(s, sched), connect.CodeResourceExhausted)
				}
				for _, id := range []string{"first", "j"} {
					_, err := s.getJob(t.Context(), &carillonv1.GetJobRequest{Id: id})
					wantCode(t, err, connect.CodeNotFound)
				}
				if err := call(s, cronJob(&carillonv1.Cron{Lines: []string{"0 0 * * *"}})); err != nil {
					t.Errorf("a schedule that is surely cheap: %v", err)
				}
				done()
				if err := call(s, costly()); err != nil && connect.CodeOf(answered(err)) != connect.CodeAlreadyExists {
					t.Errorf("when it is its turn: %v", err)
				}
			})
		})
	}
}
