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
	// MaxPending bounds the connections that have not said what they are; one more closes the oldest of them.
	MaxPending = 1024
	// maxBacklog bounds the connections of each kind that have and wait to be accepted by who serves them.
	maxBacklog = 1024
	// complaintInterval is the least time between two warnings about what others do wrong.
	complaintInterval = 10 * time.Second
)

// Of what is on the wire.
const (
	// maxStoreName bounds the name of a store, a uuid in hexadecimal.
	maxStoreName = 64
	maxHello     = 1 << 10
	maxBeat      = 1 << 10
	// MaxMessage bounds the payload of SendMessage, in bytes.
	MaxMessage = 1 << 20
	maxFrame   = 64 << 20
	// frameSplit is how large a frame gets before its messages go into several, so that beats get in between and the
	// other side need not hold much at once.
	frameSplit = 1 << 20
)

// Of a peer's queue: what does not fit is dropped. What the writer has taken out, up to as much again, is not counted.
const (
	maxQueuedBytes = 16 << 20
	maxQueuedItems = 4096
)

// Of connections for frames.
const (
	redialMin = 50 * time.Millisecond
	redialMax = time.Second
	// writeAtOnce is how many bytes of what is queued are written together.
	writeAtOnce  = 64 << 10
	readBuffer   = 64 << 10
	writeTimeout = 3 * time.Second
	// proofTimeout is how long a connection is kept without word from the other side that beats arrive over it. A
	// network that dropped everything for a while and is back delivers at once over a new connection, and only after the
	// kernel's long retry pauses over the old one.
	proofTimeout = 3 * time.Second
	// incomingTimeout ends a connection over which not even beats have come for that long.
	incomingTimeout = 10 * time.Second
	// maxStrangers bounds the connections from stores that are not, or not yet, peers.
	maxStrangers = 64
	warnAgain    = time.Minute
)

// Of beats and what is concluded from them.
const (
	beatInterval = 200 * time.Millisecond
	// checkInterval is how often the peers are looked at: a suspicion is at most that late.
	checkInterval = 100 * time.Millisecond
	// silentLimit is how long a peer may be silent before it is suspect.
	silentLimit = time.Second
	// ageLimit is how old its loop's last turn and its last sync may be.
	ageLimit = 1500 * time.Millisecond
	// soonBack is how soon after the suspicion a peer must be back for it to count as wrong: with twice the patience it would not have
	// become suspect, give or take a beat and what a saturated machine adds.
	soonBack = 2 * silentLimit
	// A peer that was suspected wrongly flapsToDouble times within doubledFor has twice as long for as long.
	flapsToDouble = 3
	doubledFor    = 10 * time.Minute
	// pauseLimit is the pause of the checks themselves from which on nothing is concluded from silence before it.
	pauseLimit = 300 * time.Millisecond
	// clockSamples is of how many beats the one with the shortest round trip tells the offset of a peer's clock.
	clockSamples = 8
	// maxRoundTrip is the longest round trip that is believed.
	maxRoundTrip = 10 * time.Second
)

// Of calls.
const (
	// dialTimeout is for dial, handshake and hello of a connection for frames.
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
