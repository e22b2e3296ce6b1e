package rpc

import (
	"context"
	"strconv"
	"strings"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

func (s *server) listOccurrences(
	ctx context.Context, req *carillonv1.ListOccurrencesRequest,
) (*carillonv1.ListOccurrencesResponse, error) {
	var v violations
	ref := v.job(req.Id, req.Tenant)
	limit := v.pageSize(req.PageSize)
	if err := v.err(); err != nil {
		return nil, err
	}
	if err := s.instantsOf(ctx, ref, req.FromLocal, req.ToLocal, &req.From, &req.To); err != nil {
		return nil, err
	}
	now := s.backend.NowMS()
	query := fsm.OccurrenceQuery{
		Tenant: ref.tenant, JobID: ref.id, FromMS: v.instant("from", req.From, now), ToMS: v.instant("to", req.To, now),
		AllKinds: req.AllKinds, NowMS: now,
	}
	if query.ToMS != 0 && query.ToMS < query.FromMS {
		v.add("to", "is before from")
	}
	if err := v.err(); err != nil {
		return nil, err
	}
	list := listID("occurrences", ref.tenant, ref.id, strconv.FormatInt(query.FromMS, 10), strconv.FormatInt(query.ToMS, 10),
		strconv.FormatBool(query.AllKinds))
	var at pageToken
	if req.PageToken != "" {
		var err error
		if at, err = parsePageToken(req.PageToken, list); err != nil {
			return nil, invalidField("page_token", "is malformed, or of another list")
		}
	}
	var page *fsm.Occurrences
	shard := s.backend.ShardOf(ref.tenant, ref.id)
	err := s.backend.View(ctx, shard, req.Stale, func(r fsm.Reader) error {
		page, _ = fsm.ReadOccurrences(r, query, at.cursor, limit)
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case page == nil:
		return nil, notFound("no job %q in tenant %q", ref.id, ref.tenant)
	}
	return occurrencesOf(&query, page, pageToken{list: list, shard: shard, cursor: page.Next}), nil
}

func occurrencesOf(query *fsm.OccurrenceQuery, page *fsm.Occurrences, next pageToken) *carillonv1.ListOccurrencesResponse {
	out := &carillonv1.ListOccurrencesResponse{}
	zone := zoneOf(page.Job.Schedule)
	for i := range page.List {
		o := occurrenceOf(&page.List[i])
		o.Local = localOf(zone, page.List[i].FromMS)
		if o.Until != nil {
			o.UntilLocal = localOf(zone, page.List[i].ToMS)
		}
		out.Occurrences = append(out.Occurrences, o)
	}
	if query.FromMS < page.KnownFromMS && (query.FromMS != 0 || page.KnownFromMS > page.Job.CreatedMs) {
		out.KnownFrom = timeOf(page.KnownFromMS)
	}
	if page.KnownToMS != 0 && query.ToMS > page.KnownToMS {
		out.KnownTo = timeOf(page.KnownToMS)
	}
	if page.Next != nil {
		out.NextPageToken = next.String()
	}
	return out
}

func occurrenceOf(o *fsm.Occurrence) *carillonv1.Occurrence {
	out := &carillonv1.Occurrence{
		Time: timeOf(o.FromMS), Count: o.Count, RecordTime: optionalTime(o.RecordedMS),
		Kind: carillonv1.ExecutionKind_EXECUTION_KIND_SCHEDULE,
	}
	if o.Count > 1 || o.ToMS != o.FromMS {
		out.Until = timeOf(o.ToMS)
	}
	if o.Execution == nil {
		out.Verdict, out.Why = verdictWithout(o.Why)
		return out
	}
	e := executionOf(o.Execution, fsm.ExecutionID(o.Execution), false)
	out.Verdict = verdictWith(o.Execution)
	if out.Verdict == carillonv1.Verdict_VERDICT_SKIPPED {
		out.Why = "missed"
	}
	out.ExecutionId, out.State, out.Kind, out.StartTime = e.Id, e.State, e.Kind, e.StartTime
	out.Lateness, out.FinishTime, out.Error = e.Lateness, e.FinishTime, e.Error
	return out
}

// verdictWithout is the verdict of an occurrence without an execution, and the rest of why that is.
func verdictWithout(why string) (carillonv1.Verdict, string) {
	switch why {
	case fsm.WhyWaiting:
		return carillonv1.Verdict_VERDICT_WAITING, ""
	case fsm.WhyPaused:
		return carillonv1.Verdict_VERDICT_WAITING, why
	case fsm.WhyQueued:
		return carillonv1.Verdict_VERDICT_QUEUED, ""
	case "coalesced":
		return carillonv1.Verdict_VERDICT_COALESCED, ""
	}
	return carillonv1.Verdict_VERDICT_SKIPPED, strings.TrimPrefix(why, "skipped_")
}

// verdictWith is the verdict of an occurrence by its execution.
func verdictWith(e *storagev1.Execution) carillonv1.Verdict {
	switch e.State {
	case storagev1.ExecutionState_EXECUTION_STATE_WAITING:
		return carillonv1.Verdict_VERDICT_WAITING
	case storagev1.ExecutionState_EXECUTION_STATE_SKIPPED:
		return carillonv1.Verdict_VERDICT_SKIPPED
	case storagev1.ExecutionState_EXECUTION_STATE_EXPIRED:
		return carillonv1.Verdict_VERDICT_EXPIRED
	case storagev1.ExecutionState_EXECUTION_STATE_CANCELLED:
		return carillonv1.Verdict_VERDICT_CANCELLED
	}
	if e.Late {
		return carillonv1.Verdict_VERDICT_LATE
	}
	return carillonv1.Verdict_VERDICT_FIRED
}
