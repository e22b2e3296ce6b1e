package rpc

import "context"

// Operator changes the cluster. Nodes are named by their names or by the ids of their stores. Errors are those of Backend.
type Operator interface {
	// TransferLeaders moves leaderships and waits a moment for them; the answers, in order of the shards, say which are there
	// and why the others are not. To ask again is harmless.
	TransferLeaders(ctx context.Context, req TransferRequest) ([]LeaderTransfer, error)
	// Drain begins the drain of a node, or goes on with it, and says how far it is; Undrain ends it.
	Drain(ctx context.Context, node string) (NodeChange, error)
	Undrain(ctx context.Context, node string) (NodeChange, error)
	// RemoveNode takes a node out of the cluster, ReplaceStore declares its store lost; both do what can be done at once and
	// say how far it is.
	RemoveNode(ctx context.Context, node string) (NodeChange, error)
	ReplaceStore(ctx context.Context, node string) (NodeChange, error)
}

// TransferRequest names leaderships and where they are to go: Shards, or all that From leads; those of From only, unless it is
// empty; to To, or to whoever votes and leads fewest.
type TransferRequest struct {
	Shards   []uint32
	From, To string
}

// LeaderTransfer is a leadership that was to be moved, between nodes by name.
type LeaderTransfer struct {
	Shard    uint32
	From, To string
	// Reason says why To does not lead; empty: it does.
	Reason string
}

// StoreState is what is wanted of a store.
type StoreState uint8

const (
	// StateUnknown: the control plane has not told.
	StateUnknown StoreState = iota
	StateUp
	StateDraining
	StateGone
)

// NodeChange is how far a change of a node is.
type NodeChange struct {
	Node, Store string
	State       StoreState
	// Done: nothing is left to be done.
	Done bool
	// Led shards and Replicas it has still; Staying of the replicas have nowhere to go.
	Led, Replicas, Staying int
	// Message says what is waited for, or what that leaves.
	Message string
}
