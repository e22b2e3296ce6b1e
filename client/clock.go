package client

import (
	"context"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// GetClock says what time it is for jobs, by the node in use.
func (c *Client) GetClock(ctx context.Context, req *carillonv1.GetClockRequest) (*carillonv1.Clock, error) {
	res, err := unary(ctx, c, identified, c.cluster.GetClock, req)
	return res.GetClock(), err
}

// AdvanceClock moves a virtual clock ahead and returns when everything that is due up to the goal has fired, or how far it
// has come by then: call it again, with the answer's goal as To, until the answer says that it is done. With By it is not
// repeated by itself where it may have been applied. Fails with ErrFailedPrecondition on a server that was not started with
// --virtual-clock, and for a goal that the clock has passed.
func (c *Client) AdvanceClock(
	ctx context.Context, req *carillonv1.AdvanceClockRequest,
) (*carillonv1.AdvanceClockResponse, error) {
	p := advance
	_, p.identified = req.GetGoal().(*carillonv1.AdvanceClockRequest_To)
	return unary(ctx, c, p, c.cluster.AdvanceClock, req)
}
