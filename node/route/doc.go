// Package route carries calls between the nodes of a cluster: commands to the node that leads their shard, polls to the
// leaders that have work, and the calls by which nodes find, admit and describe each other.
//
// It is not a source of truth and it repeats nothing that may have happened: a command whose fate is unknown is answered
// as ambiguous, and its caller retries with the same identity. Router and Poller are the calling side, Handler is the
// called one; it serves from this node alone and never passes anything on, so that no call goes round in circles. Package
// node makes them and tells them who leads what.
//
// # Goroutines
//
// Calls run on their callers' goroutines; one that goes to several nodes at once adds one for each until it returns.
// Poller.Run owns the goroutine that gives leases back to other nodes.
package route
