package clienttest

import (
	"context"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/carillon-scheduler/carillon/cron"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// ListOccurrences knows executions only, and nothing of ranges and of what waits.
func (s jobService) ListOccurrences(
	_ context.Context, req *connect.Request[carillonv1.ListOccurrencesRequest],
) (*connect.Response[carillonv1.ListOccurrencesResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j, err := s.find(req.Msg.GetTenant(), req.Msg.GetId())
	if err != nil {
		return nil, err
	}
	from, to, err := j.span(req.Msg)
	if err != nil {
		return nil, err
	}
	var all []*carillonv1.Occurrence
	for _, e := range s.executions {
		at := e.GetNominalTime()
		isOther := e.GetKind() != carillonv1.ExecutionKind_EXECUTION_KIND_SCHEDULE && !req.Msg.GetAllKinds()
		if e.job != j || isOther || isBefore(at, from) || isBefore(to, at) {
			continue
		}
		verdict := carillonv1.Verdict_VERDICT_FIRED
		if e.GetState() == carillonv1.ExecutionState_EXECUTION_STATE_WAITING {
			verdict = carillonv1.Verdict_VERDICT_WAITING
		}
		all = append(all, &carillonv1.Occurrence{
			Time: at, Count: 1, Verdict: verdict, ExecutionId: e.GetId(), State: e.GetState(), Kind: e.GetKind(),
			StartTime: e.GetStartTime(), Lateness: e.GetLateness(), FinishTime: e.GetFinishTime(), Error: e.GetError(),
			Local: j.local(at),
		})
	}
	slices.SortStableFunc(all, func(a, b *carillonv1.Occurrence) int { return a.GetTime().AsTime().Compare(b.GetTime().AsTime()) })
	res := &carillonv1.ListOccurrencesResponse{}
	res.Occurrences, res.NextPageToken = page(all, req.Msg.GetPageSize(), req.Msg.GetPageToken())
	return connect.NewResponse(res), nil
}

// span is the range that a request asks for. A day is its first second.
func (j *job) span(req *carillonv1.ListOccurrencesRequest) (from, to *timestamppb.Timestamp, err error) {
	from, to = req.GetFrom(), req.GetTo()
	if req.GetFromLocal() != "" {
		from, err = j.instant(req.GetFromLocal())
	}
	if req.GetToLocal() != "" && err == nil {
		to, err = j.instant(req.GetToLocal())
	}
	return from, to, err
}

// instant is when the clock of a job's zone shows a day or a time.
func (j *job) instant(local string) (*timestamppb.Timestamp, error) {
	at, err := time.Parse(time.DateOnly, local)
	if err != nil {
		at, err = time.Parse("2006-01-02T15:04", local)
	}
	if err != nil {
		return nil, invalid("from_local", err.Error())
	}
	if j.cron != nil {
		at, _ = j.cron.Zone().Instants(cron.Civil(at.Unix()))
	}
	return timestamppb.New(at), nil
}

// isBefore is never so of an instant that is not set.
func isBefore(a, b *timestamppb.Timestamp) bool {
	return a != nil && b != nil && a.AsTime().Before(b.AsTime())
}
