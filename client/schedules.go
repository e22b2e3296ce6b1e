package client

import (
	"context"
	"iter"

	"google.golang.org/protobuf/proto"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// PreviewSchedule says when a schedule would fire, and what its zone's rules and its exclusions do, without creating
// anything. ErrInvalid, as a create, if it is refused.
func (c *Client) PreviewSchedule(
	ctx context.Context, req *carillonv1.PreviewScheduleRequest,
) (*carillonv1.PreviewScheduleResponse, error) {
	return unary(ctx, c, identified, c.schedules.PreviewSchedule, req)
}

// ListZoneChanges lists the cron jobs whose next times newer zone data has moved, page after page: see ListJobs.
func (c *Client) ListZoneChanges(
	ctx context.Context, req *carillonv1.ListZoneChangesRequest,
) iter.Seq2[*carillonv1.ZoneChange, error] {
	req = proto.CloneOf(req)
	return pages(req.GetPageToken(), func(token string) ([]*carillonv1.ZoneChange, string, error) {
		req.PageToken = token
		res, err := unary(ctx, c, identified, c.schedules.ListZoneChanges, req)
		return res.GetChanges(), res.GetNextPageToken(), err
	})
}
