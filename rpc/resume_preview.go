package rpc

import (
	"context"
	"maps"
	"slices"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
	"github.com/carillon-scheduler/carillon/schedule"
)

// maxPreviewInstants is how many instants of a cron job a preview counts.
const maxPreviewInstants = 100_000

func (s *server) previewResume(
	ctx context.Context, req *carillonv1.PreviewResumeRequest,
) (*carillonv1.PreviewResumeResponse, error) {
	var v violations
	ref := v.job(req.Id, req.Tenant)
	rule := v.resumeRule("resume_rule", req.ResumeRule)
	if err := v.err(); err != nil {
		return nil, err
	}
	done, err := s.turns.take(ctx, turnPatience)
	if err != nil {
		return nil, err
	}
	defer done()
	var preview fsm.ResumePreview
	exists, nowMS := false, s.backend.NowMS()
	err = s.backend.View(ctx, s.backend.ShardOf(ref.tenant, ref.id), req.Stale, func(r fsm.Reader) (err error) {
		preview, exists, err = fsm.PreviewResume(r, ref.tenant, ref.id, rule, nowMS, countInstants)
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case !exists:
		return nil, notFound("no job %q in tenant %q", ref.id, ref.tenant)
	}
	res := &carillonv1.PreviewResumeResponse{
		Fired: preview.Fired, Held: preview.Held, IsMore: preview.More, StoppedBy: preview.StoppedBy,
	}
	for _, why := range slices.Sorted(maps.Keys(preview.Skipped)) {
		res.Skipped = append(res.Skipped, &carillonv1.SkippedCount{Why: why, Count: preview.Skipped[why]})
	}
	return res, nil
}

func countInstants(s *storagev1.Schedule, fromMS, toMS int64) (n uint64, more bool, err error) {
	if s.Every != nil {
		return fsm.CountEvery(s.Every, fromMS, toMS), false, nil
	}
	_, _, n, more, err = schedule.Pass(s.Cron, fromMS, toMS, maxPreviewInstants)
	return n, more, err
}
