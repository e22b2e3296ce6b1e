package client_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/carillon-scheduler/carillon/client"
	"github.com/carillon-scheduler/carillon/client/clienttest"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// An answer that is lost: with a goal that is an instant the call is made again, with one that is a length it is not, since
// the clock may have gone.
func TestAdvanceClockIsRepeatedIfItsGoalIsAnInstant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Date(2026, 3, 8, 0, 0, 0, 0, time.UTC)
		s := clienttest.NewServer()
		s.VirtualClock(begin)
		c, err := client.New("", client.WithTransport(s))
		if err != nil {
			t.Fatal(err)
		}
		s.After(func(_ context.Context, call clienttest.Call) error {
			if call.Method == "AdvanceClock" && call.N%2 == 1 {
				return clienttest.Fail(connect.CodeUnavailable, "the answer is lost")
			}
			return nil
		})
		to := begin.Add(time.Hour)
		res, err := c.AdvanceClock(t.Context(), &carillonv1.AdvanceClockRequest{
			Goal: &carillonv1.AdvanceClockRequest_To{To: timestamppb.New(to)},
		})
		if err != nil || !res.GetDone() || s.Calls("AdvanceClock") != 2 {
			t.Errorf("after %d calls: %v, %v", s.Calls("AdvanceClock"), res, err)
		}
		_, err = c.AdvanceClock(t.Context(), &carillonv1.AdvanceClockRequest{
			Goal: &carillonv1.AdvanceClockRequest_By{By: durationpb.New(time.Hour)},
		})
		if !errors.Is(err, client.ErrUnavailable) || s.Calls("AdvanceClock") != 3 {
			t.Errorf("after %d calls: %v", s.Calls("AdvanceClock"), err)
		}
		clock, err := c.GetClock(t.Context(), &carillonv1.GetClockRequest{})
		if err != nil || !clock.GetTime().AsTime().Equal(to.Add(time.Hour)) {
			t.Errorf("the clock is %v, %v", clock, err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}
