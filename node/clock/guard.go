// Package clock is the clock guard: it watches this machine's wall clock and decides whether it may make anything fire.
//
// Its disciplined clock is a wall time it accepted plus the time elapsed since, measured by a clock that nobody can set and
// that counts sleep, so that a suspended laptop is not a step. Small drift is slewed. A step beyond the limit holds firing
// at once and leaves the disciplined clock alone; if the wall clock is put right, firing goes on as if nothing had been;
// if it is not, the guard believes it after a while. What was held is late and goes by catch-up rules.
//
// With peers their majority decides: a node whose clock is not theirs holds until it is, and a step is believed exactly if it
// leads to their time.
//
// It does not set clocks and knows nothing of jobs. Package node makes one per process. Now, MayFire and State are for any
// goroutine; Run is the guard's only goroutine and the only one to call check.
package clock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// DefaultCheckInterval is how often the wall clock is looked at. A step is noticed within it, and cannot make anything
	// fire before: the disciplined clock does not follow it.
	DefaultCheckInterval = 250 * time.Millisecond
	// slewPerMille bounds how much faster or slower than real time the disciplined clock runs to meet the wall clock.
	slewPerMille = 5
	// readAttempts bounds how often the two clocks are read again because the process was interrupted in between.
	readAttempts = 4
)

// Config says how strict the guard is.
type Config struct {
	// StepLimit is the disagreement up to which the wall clock is followed, and beyond which it holds firing.
	StepLimit time.Duration
	// Hold is how long a wall clock that stepped is waited for to be put right, before it is believed.
	Hold time.Duration
	// CheckInterval: 0 is DefaultCheckInterval.
	CheckInterval time.Duration
	// Peers returns how far the disciplined clocks of the other nodes are ahead of this one's, of those that were heard of
	// just now and hold nothing themselves. It is called by Run's goroutine. nil: the node is alone.
	Peers func() []time.Duration
	// Sources: nil is SystemSources.
	Sources Sources
	// Changed, if set, is called by Run's goroutine after MayFire has changed, and once at its start if firing is held
	// since New. It must not block.
	Changed func()
	Logger  *slog.Logger
}

func (c *Config) validate() error {
	if c.CheckInterval == 0 {
		c.CheckInterval = DefaultCheckInterval
	}
	if c.Sources == nil {
		c.Sources = SystemSources()
	}
	switch {
	case c.StepLimit < time.Millisecond:
		return fmt.Errorf("make clock guard: StepLimit is %s, must be at least 1ms", c.StepLimit)
	case c.Hold < 0:
		return fmt.Errorf("make clock guard: Hold is %s", c.Hold)
	case c.CheckInterval < time.Millisecond:
		return fmt.Errorf("make clock guard: CheckInterval is %s, must be at least 1ms", c.CheckInterval)
	case c.Logger == nil:
		return errors.New("make clock guard: Logger is nil")
	}
	return nil
}

// Reason says why firing is held.
type Reason uint8

const (
	// Agreed: it is not held.
	Agreed Reason = iota
	// Stepped: the wall clock and the disciplined clock disagree by more than the limit.
	Stepped
	// StartedBehind: at the start the wall clock was behind the newest stamp in the log.
	StartedBehind
	// StandingStill: a wall clock that stepped back was believed. The disciplined clock, which never goes back, waits for
	// it to catch up. A restart believes it without that wait.
	StandingStill
	// Outvoted: the majority of the nodes has another time.
	Outvoted
)

// State is how the guard stands.
type State struct {
	Reason Reason
	// Offset is the wall clock minus the disciplined clock; for StartedBehind, minus the newest stamp; for Outvoted, the
	// disciplined clock minus that of the others.
	Offset time.Duration
	// Held is for how long, by the last check.
	Held time.Duration
}

// OK says that firing is not held.
func (s State) OK() bool { return s.Reason == Agreed }

func (s State) String() string {
	offset, held := s.Offset.Round(time.Millisecond), s.Held.Round(time.Second)
	switch s.Reason {
	case Agreed:
		return "wall clock agrees"
	case Stepped:
		return fmt.Sprintf("wall clock stepped by %s, waited for %s to be put right", offset, held)
	case StartedBehind:
		return fmt.Sprintf("wall clock is %s behind the newest record of this node, waited for %s to be put right", -offset, held)
	case Outvoted:
		return fmt.Sprintf("the other nodes' clocks agree with one another, this one is %s ahead of them", offset)
	default:
		return fmt.Sprintf("wall clock stepped back; it is %s behind and has to catch up, or the node to be restarted", -offset)
	}
}

// Guard is the clock guard.
type Guard struct {
	cfg Config

	// line is what Now computes from; replaced by check.
	line atomic.Pointer[line]
	// lastMS is the greatest time Now has returned.
	lastMS  atomic.Int64
	mayFire atomic.Bool

	// The rest belongs to check. newestMS is the newest stamp as of the start; heldAt the boot time since when the present
	// offset is held; warned that a disagreement beyond half the limit was logged.
	newestMS int64
	heldAt   int64
	warned   bool

	mu    sync.Mutex
	state State // guarded by mu
}

// line is the disciplined clock: base at boot time from, then with the boot clock, adjust being spread over the time after.
// All are nanoseconds.
type line struct{ from, base, adjust int64 }

func (l *line) at(boot int64) int64 {
	elapsed := max(0, boot-l.from)
	slew := elapsed / 1000 * slewPerMille
	return l.base + elapsed + max(-slew, min(slew, l.adjust))
}

// New returns a guard that starts from the wall clock. lastStampMS is the newest stamp in this node's log, 0 if there is
// none: a wall clock behind it by more than the limit is held from the start, and believed after the usual wait.
func New(cfg Config, lastStampMS int64) (*Guard, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	g := &Guard{cfg: cfg, newestMS: lastStampMS}
	wall, boot := g.read()
	behind := lastStampMS*int64(time.Millisecond) - wall
	if behind > int64(cfg.StepLimit) {
		g.line.Store(&line{from: boot, base: wall})
		g.heldAt = boot
		g.setState(State{Reason: StartedBehind, Offset: -time.Duration(behind)})
		g.cfg.Logger.Warn("clock held", "reason", g.State().String())
		return g, nil
	}
	// Within the limit the clock goes on where the log ends.
	g.line.Store(&line{from: boot, base: wall + max(0, behind), adjust: min(0, -behind)})
	g.setState(State{})
	return g, nil
}

// Now is the disciplined clock in milliseconds since 1970 UTC. It never goes back.
func (g *Guard) Now() int64 {
	now := g.line.Load().at(g.cfg.Sources.Boot()) / int64(time.Millisecond)
	for {
		last := g.lastMS.Load()
		if now <= last {
			return last
		}
		if g.lastMS.CompareAndSwap(last, now) {
			return now
		}
	}
}

// MayFire says whether time may make anything due.
func (g *Guard) MayFire() bool { return g.mayFire.Load() }

// State is how the guard stood at its last check.
func (g *Guard) State() State {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state
}

func (g *Guard) setState(s State) {
	g.mu.Lock()
	g.state = s
	g.mu.Unlock()
	g.mayFire.Store(s.OK())
}

// Run checks the wall clock until ctx ends; then it returns nil.
func (g *Guard) Run(ctx context.Context) error {
	ticker := time.NewTicker(g.cfg.CheckInterval)
	defer ticker.Stop()
	if g.cfg.Changed != nil && !g.MayFire() {
		g.cfg.Changed()
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			g.check()
		}
	}
}

// check compares the clocks once.
func (g *Guard) check() {
	wall, boot := g.read()
	before := g.State()
	after := g.judge(before, wall, boot, g.majority())
	g.setState(after)
	if before.Reason == after.Reason {
		return
	}
	if after.OK() {
		g.cfg.Logger.Info("clock released", "after", before.String())
	} else {
		g.cfg.Logger.Warn("clock held", "reason", after.String())
	}
	if g.cfg.Changed != nil && before.OK() != after.OK() {
		g.cfg.Changed()
	}
}

// read reads the wall and the boot clock as if at one instant.
func (g *Guard) read() (wall, boot int64) {
	for range readAttempts {
		before := g.cfg.Sources.Boot()
		wall = g.cfg.Sources.Wall()
		boot = g.cfg.Sources.Boot()
		if boot-before < int64(g.cfg.StepLimit)/10 {
			break
		}
	}
	return wall, boot
}

// verdict is what the other nodes' clocks say: how far their time is ahead of this node's disciplined clock. known is false
// if there are too few that agree with one another to outvote this one.
type verdict struct {
	ahead time.Duration
	known bool
}

// majority asks the peers. Those that agree with one another decide if they are more than half of all, this node included.
func (g *Guard) majority() verdict {
	if g.cfg.Peers == nil {
		return verdict{}
	}
	offsets := slices.Sorted(slices.Values(g.cfg.Peers()))
	best := verdict{}
	most := 0
	for i, low := range offsets {
		n := 0
		for _, offset := range offsets[i:] {
			if offset-low <= g.cfg.StepLimit {
				n++
			}
		}
		if n > most {
			most, best.ahead = n, offsets[i+n/2]
		}
	}
	best.known = 2*most > len(offsets)+1
	return best
}

// judge moves the disciplined clock on and says how the guard stands then.
func (g *Guard) judge(before State, wall, boot int64, others verdict) State {
	disciplined := g.line.Load().at(boot)
	offset := time.Duration(wall - disciplined)
	switch {
	case others.known && before.Reason != StandingStill:
		return g.judgeAmongOthers(before, offset, wall, boot, others.ahead)
	case before.Reason == StartedBehind:
		return g.judgeStart(before, offset, wall, boot)
	case before.Reason == Outvoted:
		return State{Reason: Outvoted, Offset: before.Offset, Held: g.held(boot)} // until they say otherwise
	case before.Reason == Stepped:
		if offset.Abs() <= g.cfg.StepLimit {
			return g.follow(disciplined, offset, boot)
		}
		if g.waited(before.Offset, offset, boot) {
			return g.believe(wall, boot)
		}
		return State{Reason: Stepped, Offset: offset, Held: g.held(boot)}
	case offset.Abs() > g.cfg.StepLimit:
		g.heldAt = boot
		return State{Reason: Stepped, Offset: offset}
	}
	return g.follow(disciplined, offset, boot)
}

// judgeAmongOthers is judge where a majority has one time, which is ahead of the disciplined clock: what the wall clock says
// is followed if it is that time, believed if it steps there, and nothing else is.
func (g *Guard) judgeAmongOthers(before State, offset time.Duration, wall, boot int64, ahead time.Duration) State {
	limit := g.cfg.StepLimit
	steps, agrees := offset.Abs() > limit, (offset-ahead).Abs() <= limit
	switch {
	case !steps && ahead.Abs() <= limit:
		return g.follow(g.line.Load().at(boot), offset, boot)
	case steps && agrees:
		return g.believe(wall, boot)
	}
	if before.OK() {
		g.heldAt = boot
	}
	if steps {
		return State{Reason: Stepped, Offset: offset, Held: g.held(boot)}
	}
	return State{Reason: Outvoted, Offset: -ahead, Held: g.held(boot)}
}

// judgeStart holds until the wall clock has reached the newest stamp or was waited for. No time has been accepted yet, so
// that the disciplined clock goes with the wall clock.
func (g *Guard) judgeStart(before State, step time.Duration, wall, boot int64) State {
	behind := time.Duration(g.newestMS*int64(time.Millisecond) - wall)
	waited := g.waited(0, step, boot)
	if behind <= g.cfg.StepLimit || waited {
		return g.believe(wall, boot)
	}
	g.line.Store(&line{from: boot, base: wall})
	return State{Reason: before.Reason, Offset: -behind, Held: g.held(boot)}
}

// waited says whether an offset was held for long enough. One that changes by more than the limit is another step, to be
// waited for anew.
func (g *Guard) waited(before, offset time.Duration, boot int64) bool {
	if (offset - before).Abs() > g.cfg.StepLimit {
		g.heldAt = boot
	}
	return g.held(boot) >= g.cfg.Hold
}

func (g *Guard) held(boot int64) time.Duration { return time.Duration(boot - g.heldAt) }

// believe accepts the wall clock as it is.
func (g *Guard) believe(wall, boot int64) State {
	g.line.Store(&line{from: boot, base: wall})
	return g.standing(boot)
}

// follow slews the disciplined clock towards the wall clock.
func (g *Guard) follow(disciplined int64, offset time.Duration, boot int64) State {
	warn := offset.Abs() > g.cfg.StepLimit/2
	if warn && !g.warned {
		g.cfg.Logger.Warn("wall clock disagrees", "offset", offset.String(), "limit", g.cfg.StepLimit.String())
	}
	g.warned = warn
	g.line.Store(&line{from: boot, base: disciplined, adjust: int64(offset)})
	return g.standing(boot)
}

// standing is the state of a guard that agrees with the wall clock: it may fire unless Now had been further. Now goes on
// while check works, and check may be kept waiting for a processor: what it returned last is compared with the line as it
// stands after that, and a tenth of the limit is nobody's step.
func (g *Guard) standing(boot int64) State {
	last := g.lastMS.Load() * int64(time.Millisecond)
	behind := last - g.line.Load().at(g.cfg.Sources.Boot())
	if behind <= int64(g.cfg.StepLimit)/10 {
		return State{}
	}
	return State{Reason: StandingStill, Offset: -time.Duration(behind), Held: g.held(boot)}
}
