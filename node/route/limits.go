package route

import "time"

// Limits that are not for configuration.
const (
	// maxAttempts is how often a command is sent: once, and twice more to where a hint points.
	maxAttempts = 3
	// attemptTimeout bounds one call to a peer, so that a dead one does not eat its caller's deadline.
	attemptTimeout = 2 * time.Second
	// answerMargin is how much earlier than its caller's deadline a called node answers with what it knows by then.
	answerMargin = 100 * time.Millisecond
	// maxCallsPerPeer bounds the calls to one peer that are under way; more wait for a place, up to attemptTimeout.
	maxCallsPerPeer = 512
	// maxCallCommands and maxCallBytes cap the commands of one call; what is beyond goes in further calls beside it.
	maxCallCommands = 1024
	maxCallBytes    = 4 << 20
	// maxHandovers bounds the leaderships that one call hands over.
	maxHandovers = 1024
	// maxAnswerBytes cuts the answer of a poll: leases beyond it are given back.
	maxAnswerBytes = 32 << 20
	// maxMessageBytes bounds a message on either side. The largest are the outcomes of maxCallCommands commands.
	maxMessageBytes = 128 << 20
	// bufferedBytes is what an HTTP server holds back until a handler returns: an answer up to it has not left before.
	bufferedBytes = 4 << 10

	// failuresToTrip consecutive failures open a peer's breaker, for minCoolDown at first and maxCoolDown at most.
	failuresToTrip = 3
	minCoolDown    = 200 * time.Millisecond
	maxCoolDown    = 2 * time.Second
	// silenceCounts is how long a call must have gone unanswered when its caller's deadline passed, to count as a failure
	// of the peer rather than of a short deadline.
	silenceCounts = 500 * time.Millisecond

	// retryAfter is what a caller is told to wait for another leader, overloadRetryAfter when a queue is full, and
	// stoppedRetryAfter when this node stops.
	retryAfter         = 100 * time.Millisecond
	overloadRetryAfter = time.Second
	stoppedRetryAfter  = time.Second

	// maxEarlyEnds bounds how often in a row a poll's wait may end early with nothing before that is the answer: this node
	// stops, or other calls of the same claim come and go.
	maxEarlyEnds = 3
	// recheckAfter is how long a poll waits before the other leaders are asked again all the same, once for all polls of a
	// queue: a hint may have been lost on its way, or have found a leader that could not be called.
	recheckAfter = 5 * time.Second
	// disturbedRecheck is how long, while a store is suspected, a waiting poll takes it that there is somebody to ask.
	disturbedRecheck = time.Second
	// interestLinger is how long a queue stays of interest after its last poll: workers come again at once.
	interestLinger = time.Second
	// neglectAfter is how long a queue's other leaders may go without being asked while its polls find enough here: none of
	// those waits, so that nobody hints.
	neglectAfter = time.Second
	// maxHintedQueues bounds the queues that are remembered; hints of more are forgotten. Polls find such work when they
	// begin.
	maxHintedQueues = 10_000

	// claimMemory is how long a claim may be retried and find its leases wherever they are: twice that at most, and as
	// long as memory allows.
	claimMemory = 30 * time.Second
	// maxClaims bounds one generation of claims, of which there are two.
	maxClaims = 50_000

	// maxReleases bounds the leases that wait to be given back to other nodes; what is beyond ends by its deadline.
	maxReleases = 10_000
	// maxReleasesPerCall bounds one call.
	maxReleasesPerCall = 1_000
	// lastReleases is how long giving back may go on when Run is asked to stop.
	lastReleases = time.Second

	// rowsTimeout bounds how long rows are held open for a caller: they keep what they replace from being compacted away.
	rowsTimeout = attemptTimeout + time.Second
	// The rows of a scan come in pages, small at first, because most callers want few.
	firstPage    = 32
	maxPage      = 1024
	maxPageBytes = 1 << 20
)
