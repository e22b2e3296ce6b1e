package node

import (
	"context"

	"github.com/carillon-scheduler/carillon/node/control"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// PutPauseRule stores a pause rule, a deleted one too; see rpc.Backend.
func (n *Node) PutPauseRule(ctx context.Context, r *storagev1.PauseRule, expected uint64) (*storagev1.PauseRule, error) {
	stored, err := n.settings.put(ctx, control.Setting{Rule: r}, expected)
	return stored.Rule, err
}

// PauseRule returns a pause rule.
func (n *Node) PauseRule(ctx context.Context, id string) (*storagev1.PauseRule, error) {
	one, err := n.settings.get(ctx, control.PauseRule, id)
	return one.Rule, err
}

// PauseRules returns all pause rules, by id.
func (n *Node) PauseRules(ctx context.Context) ([]*storagev1.PauseRule, error) {
	all, err := n.settings.list(ctx, control.PauseRule)
	rules := make([]*storagev1.PauseRule, 0, len(all))
	for _, one := range all {
		rules = append(rules, one.Rule)
	}
	return rules, err
}
