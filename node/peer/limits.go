package peer

import "time"

// Of the secret.
const (
	minSecret = 16
	maxSecret = 64 << 10
)

// Of connections that have not yet said what they are.
const (
	// helloTimeout is how long a new connection may take to say what it is, the TLS handshake included.
	helloTimeout = 10 * time.Second
	// maxPending bounds the connections that have not said what they are; one more closes the oldest of them.
	maxPending = 1024
	// maxBacklog bounds the connections that have and wait to be accepted by who serves them.
	maxBacklog = 1024
	// complaintInterval is the least time between two warnings about connections that were refused.
	complaintInterval = 10 * time.Second
)

// maxStoreName bounds the name of a store, a uuid in hexadecimal, on the wire.
const maxStoreName = 64

// Of calls.
const (
	dialTimeout = time.Second
	// callTimeout is for dial and handshake of a snapshot or an HTTP call.
	callTimeout = 2 * time.Second
	// A connection of calls that has been silent for pingAfter is asked, and given up when it has not answered in
	// pingTimeout: a call's own deadline may be a long one.
	pingAfter         = 2 * time.Second
	pingTimeout       = 2 * time.Second
	idleCallsTimeout  = 90 * time.Second
	maxIdleCalls      = 64
	maxIdleCallsAPeer = 2
)
