package node

import (
	"context"

	"github.com/carillon-scheduler/carillon/node/control"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// PutQueue stores a queue's settings; see rpc.Backend.
func (n *Node) PutQueue(ctx context.Context, q *storagev1.QueueSettings, expected uint64) (*storagev1.QueueSettings, error) {
	stored, err := n.settings.put(ctx, control.Setting{Queue: q}, expected)
	return stored.Queue, err
}

// Queue returns a queue's settings.
func (n *Node) Queue(ctx context.Context, name string) (*storagev1.QueueSettings, error) {
	one, err := n.settings.get(ctx, control.Queue, name)
	return one.Queue, err
}

// Queues returns the settings of all queues that have some, by name.
func (n *Node) Queues(ctx context.Context) ([]*storagev1.QueueSettings, error) {
	all, err := n.settings.list(ctx, control.Queue)
	queues := make([]*storagev1.QueueSettings, 0, len(all))
	for _, one := range all {
		queues = append(queues, one.Queue)
	}
	return queues, err
}

// DeleteQueue removes a queue's settings: it goes on with the defaults.
func (n *Node) DeleteQueue(ctx context.Context, name string, expected uint64) error {
	_, err := n.settings.put(ctx, control.Setting{Queue: &storagev1.QueueSettings{Name: name, Deleted: true}}, expected)
	return err
}
