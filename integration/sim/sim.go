package sim

import (
	"container/heap"
	crand "crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/carillon-scheduler/carillon/node/control"
	"github.com/carillon-scheduler/carillon/node/replica"
	"github.com/cespare/xxhash/v2"
)

// Virtual time is in microseconds since the start of a run.
const (
	microsecond = int64(1)
	millisecond = 1000 * microsecond
	second      = 1000 * millisecond

	// epochMS is the true time at which every run begins.
	epochMS = 1_800_000_000_000
	// clockLimit is by how much a node's disciplined clock may be wrong either way.
	clockLimit = 200 * millisecond
)

// Config says what to play.
type Config struct {
	Seed uint64
	// Steps is how many events are played before the trouble ends.
	Steps int
	// Quiet leaves the trouble out.
	Quiet  bool
	Faults Faults
	// Log takes what happens, a line each; nil: nobody.
	Log io.Writer
}

// Faults are deliberate mistakes. Tests switch one on to prove that it would be noticed.
type Faults struct {
	Replica replica.Faults
	// StaleTokenAccepted takes a completion under any token for one under the live token.
	StaleTokenAccepted bool
	// TimerLostAtTakeover has a fresh leader read the timers from now on only, and not those that fell due before.
	TimerLostAtTakeover bool
	// LowWaterAhead writes the low-water mark of the timers a second too high.
	LowWaterAhead bool
	// LeasesExpireInOutage ends leases by their deadlines alone, however long nobody could extend them.
	LeasesExpireInOutage bool
	// FollowerReadsUnasked lets followers show their rows as they are, without asking their leader up to where they must be.
	FollowerReadsUnasked bool
	// InstantLost has the evaluator leave an instant of a cron job out.
	InstantLost bool
	// RowLost has the disk of one node lose rows without a word, a job's each time it is to look at them.
	RowLost bool
}

// Report is what a run did.
type Report struct {
	Seed uint64
	// Steps that were played, those after the trouble included, and how much virtual time passed, in ms.
	Steps     int
	VirtualMS int64
	// Trace is a hash of everything that happened in its order.
	Trace  uint64
	Counts [Kinds]int
	// LedMS is how long after the end of the trouble every shard was served, EndedMS until everything had come to its end.
	LedMS, EndedMS int64
}

// event is something that happens at an instant.
type event struct {
	at  int64
	seq uint64
	do  func()
}

// agenda is a heap of events, those of one instant in the order they were made.
type agenda []event

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].seq < a[j].seq
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(event)) }
func (a *agenda) Pop() any {
	last := len(*a) - 1
	e := (*a)[last]
	(*a)[last] = event{}
	*a = (*a)[:last]
	return e
}

// cluster is the whole of a run.
type cluster struct {
	cfg    Config
	rng    *rand.Rand
	logger *slog.Logger
	report Report
	now    int64
	seq    uint64
	agenda agenda
	trace  xxhash.Digest
	err    error
	// trouble is on until the steps are played; busy as long as producers make new jobs.
	trouble, busy bool

	shards uint32
	nodes  []*node
	// peers are the nodes and those that were lost for good.
	peers  []*node
	net    network
	plane  plane
	checks checks
	model  model
	crew   crew
}

// Run plays a seed and returns the first thing that is wrong.
func Run(cfg Config) (report Report, err error) {
	was := crand.Reader
	defer func() { crand.Reader = was }()
	var key [32]byte
	binary.BigEndian.PutUint64(key[:], cfg.Seed)
	crand.Reader = rand.NewChaCha8(key)

	c := newCluster(cfg)
	defer func() {
		if p := recover(); p != nil {
			err = &panicked{fmt.Sprint(p), string(debug.Stack())}
		}
		c.report.VirtualMS, c.report.Trace = c.now/millisecond, c.trace.Sum64()
		report = c.report
	}()
	return c.report, c.play()
}

// panicked is a panic of what was tested, or of the test itself: then it is a runtime error.
type panicked struct{ value, stack string }

func (p *panicked) Error() string { return "panic: " + p.value + "\n" + p.stack }

// ours says that the simulation broke by itself.
func (p *panicked) ours() bool { return strings.Contains(p.value, "runtime error") }

func newCluster(cfg Config) *cluster {
	c := &cluster{
		cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 2)), logger: slog.New(slog.DiscardHandler), shards: 2, busy: true,
		net: network{cut: map[[2]string]bool{}}, plane: newPlane(), checks: newChecks(), report: Report{Seed: cfg.Seed},
	}
	c.trace.Reset()
	c.model = newModel(c)
	c.crew = crew{c: c, paused: map[string]bool{}}
	return c
}

func (c *cluster) play() error {
	if err := c.form(3 + int(c.cfg.Seed%3)); err != nil {
		return err
	}
	c.trouble = !c.cfg.Quiet
	c.crew.start()
	c.plane.start(c)
	if c.trouble {
		c.after(second, c.upset)
	}
	for c.report.Steps < c.cfg.Steps && c.err == nil {
		c.step()
	}
	if c.err == nil {
		c.settle()
	}
	return c.err
}

// step plays the next event.
func (c *cluster) step() {
	e := heap.Pop(&c.agenda).(event)
	c.now = e.at
	c.report.Steps++
	c.note(uint64(e.at), e.seq)
	e.do()
}

// after lets do happen in d from now.
func (c *cluster) after(d int64, do func()) {
	c.seq++
	heap.Push(&c.agenda, event{at: c.now + max(d, 1), seq: c.seq, do: do})
}

// between is a random duration.
func (c *cluster) between(low, high int64) int64 { return low + c.rng.Int64N(high-low+1) }

// chance is true once in n times; during trouble only.
func (c *cluster) chance(n int) bool { return c.trouble && c.rng.IntN(n) == 0 }

// note takes numbers into the trace.
func (c *cluster) note(numbers ...uint64) {
	var b [8]byte
	for _, v := range numbers {
		binary.BigEndian.PutUint64(b[:], v)
		_, _ = c.trace.Write(b[:]) // never fails
	}
}

func (c *cluster) count(k Kind) { c.report.Counts[k]++ }

// trueMS is the true time.
func (c *cluster) trueMS() int64 { return epochMS + c.now/millisecond }

func (c *cluster) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("at %d ms, step %d: "+format, append([]any{c.now / millisecond, c.report.Steps}, args...)...)
	}
}

func (c *cluster) logf(format string, args ...any) {
	if c.cfg.Log != nil {
		fmt.Fprintf(c.cfg.Log, "%9.3f "+format+"\n", append([]any{float64(c.now) / float64(millisecond)}, args...)...)
	}
}

// form makes a cluster of nodes, each with its first store, whose shards are placed as a control plane's first map says.
func (c *cluster) form(count int) error {
	for i := range count {
		c.nodes = append(c.nodes, newNode(c, fmt.Sprintf("n%d", i+1)))
	}
	c.peers = slices.Clone(c.nodes)
	first := c.nodes[:3]
	seed := control.Seed{ClusterID: clusterID, Shards: int(c.shards)}
	for _, n := range first {
		seed.Stores = append(seed.Stores, n.store)
	}
	if err := c.plane.bootstrap(seed); err != nil {
		return err
	}
	for _, s := range c.plane.view.Wanted {
		for _, r := range s.Replicas {
			c.checks.created(c, uint32(s.ID), r.RID, r.Store)
		}
	}
	for _, n := range first {
		if err := replica.Bootstrap(n.engine, seedsOf(c.plane.view.Wanted, n.store)); err != nil {
			return err
		}
	}
	for _, n := range c.nodes {
		n.start()
	}
	return c.err
}

// seedsOf are the replicas that a store begins with.
func seedsOf(wanted []control.Shard, store string) (seeds []replica.Seed) {
	for _, s := range wanted {
		seed := replica.Seed{Shard: s.ID}
		for _, r := range s.Replicas {
			seed.Voters = append(seed.Voters, r.RID)
			if r.Store == store {
				seed.ID = r.RID
			}
		}
		if seed.ID != 0 {
			seeds = append(seeds, seed)
		}
	}
	return seeds
}
