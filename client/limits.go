package client

import "time"

// DefaultTimeout bounds calls whose context has no deadline.
const DefaultTimeout = 30 * time.Second

// MaxProgress bounds what SetProgress takes.
const MaxProgress = 16 << 10

// MaxResult is how many bytes of a handler's result the server takes.
const MaxResult = 256 << 10

const (
	// tryTimeout bounds one try of a call, so that a frozen node costs a try and not the call; those of bulk operations, of
	// verifications and of a clock's advance wait for work to be done.
	tryTimeout          = 10 * time.Second
	advanceTimeout      = 25 * time.Second
	taskTimeout         = 2 * time.Minute
	verificationTimeout = 15 * time.Minute

	// Delays between tries double from the first to the last; each is lengthened by up to half of itself.
	firstDelay = 20 * time.Millisecond
	lastDelay  = 2 * time.Second

	// Retries may be a tenth of the calls, and one a second: see budget.
	budgetPerCall   = 0.1
	budgetPerSecond = 1.0
	budgetMax       = 10.0

	// maxResponseBytes bounds what the library reads of one answer: a full Claim is 32 MiB.
	maxResponseBytes = 48 << 20
	// maxErrorBytes is what the server keeps of an error.
	maxErrorBytes = 4096
	// maxBeats bounds one heartbeat call.
	maxBeats = 1000

	// slotsLinger is how long a busy worker lets slots come together, so that it does not claim them one by one.
	slotsLinger = 10 * time.Millisecond
	// gateDelay is when a gate that admits nothing is asked again.
	gateDelay = time.Second
	// drainTimeout is how long completions are tried after the last handler of a stopping worker has ended.
	drainTimeout = 10 * time.Second
)

// Batches of creates and of completions that share requests.
var (
	createLimits     = mergeLimits{items: 1000, bytes: 8 << 20, linger: time.Millisecond, inFlight: 8}
	completionLimits = mergeLimits{items: 1000, bytes: 8 << 20, linger: time.Millisecond, inFlight: 4}
)
