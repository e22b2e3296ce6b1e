//go:build !unix

package node

// maxConnections is what a common limit of open files allows: there is none to ask for here.
func maxConnections() (int, error) { return connectionsWithin(16_384), nil }
