// Package peer is the connections between a cluster's nodes: who may be one, what they send each other, and who of them is
// alive.
//
// A node has one port (Mux). Its callers speak plain HTTP there; nodes speak TLS, mutual, with certificates that are made
// from the cluster's secret at every start (Secret, Credentials): who knows the secret is a node, nobody else is. Between two
// nodes there is one connection in each direction (Transport) for raft frames, small messages and beats; snapshots have
// connections of their own (Credentials.DialBulk), and so have the nodes' HTTP calls (Credentials.HTTPClient).
//
// From the beats the transport concludes which peers are suspect. That starts elections and nothing else; no safety rests on
// it, nor on anything arriving: what does not fit a queue is dropped and counted, because raft repeats what matters.
//
// The package knows frames and not what is in them; it places nothing, elects nobody and keeps nothing on the disk but the
// files WriteTLSFiles writes for etcd. Package node makes one Mux and one Transport.
//
// Goroutines: Mux.Run and Transport.Run own all there are and return when all have ended. Everything else may be called from
// any goroutine and does not block, save where it says so. Callbacks run on goroutines of the Transport and must not block.
package peer
