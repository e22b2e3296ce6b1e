package client

import (
	"context"
	"iter"

	"google.golang.org/protobuf/proto"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// CreatePauseRule pauses all jobs that have a rule's labels. A rule without an id gets a random one. The answer names the
// shards that have not applied it yet: until they have, jobs of theirs may start.
func (c *Client) CreatePauseRule(
	ctx context.Context, req *carillonv1.CreatePauseRuleRequest,
) (*carillonv1.CreatePauseRuleResponse, error) {
	if req.GetRule() != nil && req.GetRule().GetId() == "" {
		req = proto.CloneOf(req)
		req.Rule.Id = newKey()
	}
	return unary(ctx, c, identified, c.pauses.CreatePauseRule, req)
}

// GetPauseRule reads a rule. ErrNotFound if there is none of this id.
func (c *Client) GetPauseRule(ctx context.Context, req *carillonv1.GetPauseRuleRequest) (*carillonv1.PauseRule, error) {
	res, err := unary(ctx, c, identified, c.pauses.GetPauseRule, req)
	return res.GetRule(), err
}

// ListPauseRules reads all rules, page after page: see ListJobs.
func (c *Client) ListPauseRules(
	ctx context.Context, req *carillonv1.ListPauseRulesRequest,
) iter.Seq2[*carillonv1.PauseRule, error] {
	req = proto.CloneOf(req)
	return pages(req.GetPageToken(), func(token string) ([]*carillonv1.PauseRule, string, error) {
		req.PageToken = token
		res, err := unary(ctx, c, identified, c.pauses.ListPauseRules, req)
		return res.GetRules(), res.GetNextPageToken(), err
	})
}

// DeletePauseRule ends a pause. It is repeated only if nothing was done.
func (c *Client) DeletePauseRule(
	ctx context.Context, req *carillonv1.DeletePauseRuleRequest,
) (*carillonv1.DeletePauseRuleResponse, error) {
	return unary(ctx, c, unidentified, c.pauses.DeletePauseRule, req)
}
