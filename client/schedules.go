package client

import (
	"context"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// PreviewSchedule says when a schedule would fire, and what its zone's rules and its exclusions do, without creating
// anything. ErrInvalid, as a create, if it is refused.
func (c *Client) PreviewSchedule(
	ctx context.Context, req *carillonv1.PreviewScheduleRequest,
) (*carillonv1.PreviewScheduleResponse, error) {
	return unary(ctx, c, identified, c.schedules.PreviewSchedule, req)
}
