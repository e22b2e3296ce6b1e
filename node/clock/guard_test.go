package clock

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// noon is where the tests' wall clock starts.
var noon = time.Date(2026, 3, 8, 12, 0, 0, 0, time.UTC)

// machine is a manual pair of clocks with a guard on it that is checked every 250 ms.
type machine struct {
	t          *testing.T
	g          *Guard
	wall, boot int64
	// interrupted delays the process after the wall clock was read, this often.
	interrupted int
	changes     int
	last        int64
}

func (m *machine) Wall() int64 {
	wall := m.wall
	if m.interrupted > 0 {
		m.interrupted--
		m.elapse(300*time.Millisecond, 300*time.Millisecond)
	}
	return wall
}

func (m *machine) Boot() int64 { return m.boot }

// elapse lets real time pass without a check; the wall clock may run at another speed.
func (m *machine) elapse(real, wall time.Duration) {
	m.boot += int64(real)
	m.wall += int64(wall)
}

// run lets time pass with checks, and sees that the disciplined clock never goes back.
func (m *machine) run(d time.Duration) {
	m.t.Helper()
	for ; d > 0; d -= DefaultCheckInterval {
		m.elapse(min(d, DefaultCheckInterval), min(d, DefaultCheckInterval))
		m.check()
	}
}

func (m *machine) check() {
	m.t.Helper()
	m.g.check()
	now := m.g.Now()
	if now < m.last {
		m.t.Fatalf("went back from %d to %d", m.last, now)
	}
	m.last = now
}

func (m *machine) step(d time.Duration) { m.wall += int64(d) }

// now is the disciplined clock as an offset from noon.
func (m *machine) now() time.Duration {
	return time.Duration(m.g.Now()-noon.UnixMilli()) * time.Millisecond
}

func (m *machine) want(reason Reason, now time.Duration) {
	m.t.Helper()
	s := m.g.State()
	if s.Reason != reason || m.g.MayFire() != (reason == Agreed) || m.now() != now {
		m.t.Fatalf("%s after noon: %s (may fire: %t); want reason %d, %s after noon", m.now(), s, m.g.MayFire(), reason, now)
	}
}

func newMachine(t *testing.T, lastStamp time.Duration) *machine {
	t.Helper()
	m := &machine{t: t, wall: noon.UnixNano(), boot: int64(time.Hour)}
	g, err := New(Config{
		StepLimit: 500 * time.Millisecond, Hold: time.Minute, Sources: m,
		Changed: func() { m.changes++ }, Logger: slog.New(slog.DiscardHandler),
	}, noon.Add(lastStamp).UnixMilli())
	if err != nil {
		t.Fatal(err)
	}
	m.g = g
	return m
}

func TestTimePassesWithTheWallClock(t *testing.T) {
	m := newMachine(t, -time.Hour)
	m.want(Agreed, 0)
	m.run(time.Hour)
	m.want(Agreed, time.Hour)
}

// T10: a minutely job; the clock jumps two hours ahead and then back. What a guard lets fire is played here as a node does
// it: whatever is due by Now, once, while MayFire says so.
func TestT10ClockJumpsAheadAndBack(t *testing.T) {
	m := newMachine(t, 0)
	fired := map[time.Duration]int{}
	play := func(d time.Duration) {
		for ; d > 0; d -= DefaultCheckInterval {
			m.run(DefaultCheckInterval)
			if !m.g.MayFire() {
				continue
			}
			for at := time.Minute; at <= m.now(); at += time.Minute {
				if fired[at] == 0 {
					fired[at]++
					if real := time.Duration(m.boot) - time.Hour; real < at {
						t.Errorf("the one of %s fired at %s", at, real)
					}
				}
			}
		}
	}
	play(90 * time.Second)
	m.step(2 * time.Hour)
	play(40 * time.Second)
	if len(fired) != 1 || m.g.MayFire() {
		t.Fatalf("fired while held: %v", fired)
	}
	m.step(-2 * time.Hour)
	play(DefaultCheckInterval)
	// The occurrence of 12:02 fell into the hold: it fires within one tick of the corrected time.
	if len(fired) != 2 || !m.g.MayFire() {
		t.Fatalf("not resumed within one tick: %v, %s", fired, m.g.State())
	}
	play(5 * time.Minute)
	if want := int(m.now() / time.Minute); len(fired) != want {
		t.Fatalf("fired %d of %d", len(fired), want)
	}
	if m.changes != 2 {
		t.Errorf("%d changes were told, want held and released", m.changes)
	}
}

func TestAJumpAheadThatStaysIsBelievedAfterTheHold(t *testing.T) {
	m := newMachine(t, 0)
	m.step(2 * time.Hour)
	m.run(DefaultCheckInterval)
	m.want(Stepped, DefaultCheckInterval)
	m.run(time.Minute - DefaultCheckInterval)
	m.want(Stepped, time.Minute)
	m.run(DefaultCheckInterval)
	m.want(Agreed, 2*time.Hour+time.Minute+DefaultCheckInterval)
}

func TestAClockThatKeepsJumpingIsWaitedForAnew(t *testing.T) {
	m := newMachine(t, 0)
	for range 5 {
		m.step(time.Hour)
		m.run(50 * time.Second)
	}
	m.want(Stepped, 250*time.Second)
	m.run(time.Minute)
	m.want(Agreed, 5*time.Hour+310*time.Second)
}

func TestAJumpBackThatStaysIsBelievedWhenItHasCaughtUp(t *testing.T) {
	m := newMachine(t, 0)
	m.run(time.Minute)
	m.step(-10 * time.Minute)
	m.run(time.Minute)
	m.want(Stepped, 2*time.Minute)
	m.run(DefaultCheckInterval)
	// Believed, but the disciplined clock never goes back, and nothing fires early.
	stood := 2 * time.Minute
	m.want(StandingStill, stood)
	m.run(10*time.Minute - 2*DefaultCheckInterval)
	m.want(StandingStill, stood)
	m.run(DefaultCheckInterval)
	m.want(Agreed, stood)
	m.run(time.Minute)
	m.want(Agreed, stood+time.Minute)
}

func TestAJumpBackThatIsPutRightChangesNothing(t *testing.T) {
	m := newMachine(t, 0)
	m.step(-10 * time.Minute)
	m.run(30 * time.Second)
	m.want(Stepped, 30*time.Second)
	m.step(10 * time.Minute)
	m.run(DefaultCheckInterval)
	m.want(Agreed, 30*time.Second+DefaultCheckInterval)
}

func TestAStepUpToTheLimitIsFollowedSlowly(t *testing.T) {
	for step, soon := range map[time.Duration]time.Duration{
		500 * time.Millisecond:  2003 * time.Millisecond,
		-500 * time.Millisecond: 1996 * time.Millisecond,
	} {
		m := newMachine(t, 0)
		m.run(time.Second)
		m.step(step)
		m.run(time.Second)
		// 5 ms a second, from the first check after it: all of it after 100 s, and no more.
		m.want(Agreed, soon)
		m.run(200 * time.Second)
		m.want(Agreed, 202*time.Second+step)
		if m.changes != 0 {
			t.Errorf("held by a step of %s", step)
		}
	}
}

func TestAStepBeyondTheLimitHolds(t *testing.T) {
	for _, step := range []time.Duration{501 * time.Millisecond, -501 * time.Millisecond} {
		m := newMachine(t, 0)
		m.step(step)
		m.check()
		m.want(Stepped, 0)
	}
}

func TestAWallClockThatDriftsIsFollowedForEver(t *testing.T) {
	m := newMachine(t, 0)
	// 200 ppm, a bad crystal: 17 s a day.
	for range 24 * 60 * 60 {
		m.elapse(time.Second, time.Second+200*time.Microsecond)
		m.check()
	}
	if !m.g.MayFire() || m.changes != 0 || m.now() < 24*time.Hour+17*time.Second {
		t.Fatalf("at %s: %s", m.now(), m.g.State())
	}
}

func TestASuspendedLaptopIsNoStep(t *testing.T) {
	m := newMachine(t, 0)
	m.run(time.Minute)
	m.elapse(8*time.Hour, 8*time.Hour)
	// Also between two checks.
	if m.now() != 8*time.Hour+time.Minute || !m.g.MayFire() {
		t.Fatalf("at %s: %s", m.now(), m.g.State())
	}
	m.check()
	m.want(Agreed, 8*time.Hour+time.Minute)
	if m.changes != 0 {
		t.Error("held by a suspension")
	}
}

func TestAnInterruptionWhileReadingIsNoStep(t *testing.T) {
	m := newMachine(t, 0)
	m.run(time.Second)
	m.interrupted = readAttempts - 1
	m.check()
	m.want(Agreed, time.Second+(readAttempts-1)*300*time.Millisecond)
}

// A check may be kept waiting for a processor while others ask for the time: what they were told is no step.
func TestNowGoesOnWhileACheckWaits(t *testing.T) {
	m := newMachine(t, 0)
	m.run(time.Minute)
	wall, boot := m.g.read()
	m.elapse(400*time.Millisecond, 400*time.Millisecond)
	m.g.Now()
	if s := m.g.judge(m.g.State(), wall, boot, verdict{}); !s.OK() {
		t.Fatalf("the check holds: %s", s)
	}
	m.run(time.Second)
	m.want(Agreed, time.Minute+time.Second+400*time.Millisecond)
}

func TestAStartBehindTheLogHolds(t *testing.T) {
	t.Run("until the wall clock is put right", func(t *testing.T) {
		m := newMachine(t, time.Hour)
		m.want(StartedBehind, 0)
		m.run(30 * time.Second)
		m.want(StartedBehind, 30*time.Second)
		m.step(time.Hour)
		m.run(DefaultCheckInterval)
		m.want(Agreed, time.Hour+30*time.Second+DefaultCheckInterval)
	})
	t.Run("until it is believed", func(t *testing.T) {
		m := newMachine(t, 365*24*time.Hour)
		m.run(time.Minute - DefaultCheckInterval)
		m.want(StartedBehind, time.Minute-DefaultCheckInterval)
		m.run(DefaultCheckInterval)
		m.want(Agreed, time.Minute)
	})
	t.Run("until it has caught up", func(t *testing.T) {
		m := newMachine(t, 30*time.Second)
		m.run(30*time.Second - 500*time.Millisecond)
		m.want(Agreed, 30*time.Second-500*time.Millisecond)
	})
	t.Run("anew with each further step", func(t *testing.T) {
		m := newMachine(t, 24*time.Hour)
		m.run(50 * time.Second)
		m.step(time.Hour)
		m.run(50 * time.Second)
		m.want(StartedBehind, time.Hour+100*time.Second)
		m.step(-time.Hour)
		m.run(time.Minute)
		// The one time seen meanwhile was an hour ahead, and Now does not go back.
		m.want(StartedBehind, time.Hour+100*time.Second)
		m.run(DefaultCheckInterval)
		m.want(StandingStill, time.Hour+100*time.Second)
	})
}

func TestAStartBarelyBehindTheLogGoesOnWhereItEnds(t *testing.T) {
	m := newMachine(t, 400*time.Millisecond)
	m.want(Agreed, 400*time.Millisecond)
	m.run(100 * time.Second)
	m.want(Agreed, 100*time.Second)
}

func TestStateSaysWhatIsWrong(t *testing.T) {
	for want, s := range map[string]State{
		"agrees":                     {},
		"stepped by 2h0m0s":          {Reason: Stepped, Offset: 2 * time.Hour, Held: time.Second},
		"is 1h0m0s behind the newes": {Reason: StartedBehind, Offset: -time.Hour},
		"is 3s behind and has to":    {Reason: StandingStill, Offset: -3 * time.Second},
	} {
		if !strings.Contains(s.String(), want) {
			t.Errorf("%q does not say %q", s, want)
		}
	}
}

func TestConfigIsValidated(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for field, cfg := range map[string]Config{
		"StepLimit":     {Logger: log},
		"Hold":          {Logger: log, StepLimit: time.Second, Hold: -1},
		"CheckInterval": {Logger: log, StepLimit: time.Second, CheckInterval: 1},
		"Logger":        {StepLimit: time.Second},
	} {
		if _, err := New(cfg, 0); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("error for %s is %v", field, err)
		}
	}
}

// Whatever the wall clock does, the disciplined clock never goes back, never outruns real time by more than the slew while
// it may fire, and nothing may fire after a check that found the two clocks to disagree.
func TestRandomWallClocks(t *testing.T) {
	seed := rand.Uint64()
	if repeat := os.Getenv("CLOCK_SEED"); repeat != "" {
		var err error
		if seed, err = strconv.ParseUint(repeat, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("repeat with CLOCK_SEED=%d go test -run TestRandomWallClocks ./node/clock", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		m := newMachine(t, time.Duration(random.Int64N(int64(4*time.Minute)))-2*time.Minute)
		for range 500 {
			if random.IntN(40) == 0 {
				m.step(time.Duration(random.Int64N(int64(2*time.Hour))) - time.Hour)
			}
			real := time.Duration(random.Int64N(int64(10 * time.Second)))
			drift := time.Duration(random.Int64N(int64(real/1000) + 1))
			before := m.g.Now()
			mayFire := m.g.MayFire()
			m.elapse(real, real+drift)
			m.check()
			ran := time.Duration(m.g.Now()-before) * time.Millisecond
			if mayFire && ran > real+real*slewPerMille/1000+2*time.Millisecond {
				t.Fatalf("seed %d: ran %s in %s", seed, ran, real)
			}
			if disagree := time.Duration(m.wall - m.g.Now()*int64(time.Millisecond)).Abs(); m.g.MayFire() &&
				disagree > 502*time.Millisecond {
				t.Fatalf("seed %d: may fire although the clocks disagree by %s", seed, disagree)
			}
		}
	}
}

func TestRunChecksUntilItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, 0)
		m.step(time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- m.g.Run(ctx) }()
		time.Sleep(DefaultCheckInterval + time.Millisecond)
		synctest.Wait()
		m.want(Stepped, 0)
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}

func TestRunTellsOfAStartThatIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := m.g.Run(ctx); err != nil || m.changes != 1 {
			t.Fatalf("%d changes told, %v", m.changes, err)
		}
	})
}

func TestNowIsForAnyGoroutine(t *testing.T) {
	g, err := New(Config{StepLimit: time.Second, Logger: slog.New(slog.DiscardHandler)}, 0)
	if err != nil {
		t.Fatal(err)
	}
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			last := int64(0)
			for range 10_000 {
				now := g.Now()
				if now < last {
					t.Errorf("went back from %d to %d", last, now)
				}
				last = now
			}
		})
	}
	for range 1_000 {
		g.check()
	}
	readers.Wait()
	if off := time.Since(time.UnixMilli(g.Now())).Abs(); off > time.Second || !g.MayFire() {
		t.Errorf("off by %s, %s", off, g.State())
	}
}

func TestBothSourcesRunWithRealTime(t *testing.T) {
	for _, s := range []Sources{SystemSources(), newMonotonic()} {
		t.Run(fmt.Sprintf("%T", s), func(t *testing.T) {
			started, from := time.Now(), s.Boot()
			for s.Boot()-from < int64(5*time.Millisecond) {
			}
			if took := time.Since(started); took < 4*time.Millisecond {
				t.Errorf("5 ms took %s", took)
			}
			if off := time.Since(time.Unix(0, s.Wall())).Abs(); off > time.Second {
				t.Errorf("wall clock is off by %s", off)
			}
		})
	}
}

func BenchmarkNow(b *testing.B) {
	g, err := New(Config{StepLimit: time.Second, Logger: slog.New(slog.DiscardHandler)}, 0)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		g.Now()
	}
}

func BenchmarkCheck(b *testing.B) {
	g, err := New(Config{StepLimit: time.Second, Logger: slog.New(slog.DiscardHandler)}, 0)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		g.check()
	}
}
