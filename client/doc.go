// Package client is the Go library of Carillon: producers create and look after jobs with a Client, workers run them with
// a Worker. It speaks Connect over HTTP/2 to any node of a cluster.
//
// It is not a second place of decisions: the server says what happened, and the library makes its answers safe to ask for
// again. Every changing call carries an identity that is kept over its retries, so that it happens once however often it
// is sent.
//
// A Client is safe for concurrent use, and meant to be shared. It starts goroutines only while it sends merged creates;
// Close waits for them. A Worker owns its goroutines inside Run.
package client
