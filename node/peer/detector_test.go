package peer

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Each line of a script is "<ms> <what>": a peer's beat ("a", "a boot=2 turn=1600 sync=0"), "beats until=<ms>" (a sound
// beat of a and b each 200 ms), "pause until=<ms>" (no checks), or "again" (what stands is to be said again). There are checks each 50 ms. want lists what is said,
// with the time of the check that said it.
func TestDetector(t *testing.T) {
	for name, c := range map[string]struct {
		script, want string
		until        int
	}{
		"sound peers":           {"0 beats until=5000", "", 5000},
		"one that falls silent": {"0 beats until=1000; 1000 a until=4000", "1800 b suspect: it has been silent for 1s", 4000},
		"one that returns": {
			"0 beats until=1000; 1000 a until=4000; 2600 b; 2800 b until=4000",
			"1800 b suspect: it has been silent for 1s; 2600 b alive", 4000,
		},
		"one never heard of": {"0 a until=4000", "1000 b suspect: it has been silent for 1s", 4000},
		"one first heard of late": {
			"0 a until=4000; 1800 b until=4000", "1000 b suspect: it has been silent for 1s; 1800 b alive", 4000,
		},
		"a loop that stands still": {
			"0 beats until=1000; 1000 a until=3000; 1000 b turn=1500; 1200 b turn=1501; 1400 b turn=1701; 1600 b until=3000",
			"1200 b suspect: its loop has stood still for 1.501s; 1600 b alive", 3000,
		},
		"a disk that stands still": {
			"0 beats until=1000; 1000 a until=3000; 1000 b sync=1400; 1200 b sync=1600; 1400 b until=3000",
			"1200 b suspect: its disk has stood still for 1.6s; 1400 b alive", 3000,
		},
		"a new boot": {
			"0 beats until=1000; 1000 a until=3000; 1000 b boot=2 until=3000",
			"1000 b suspect: it has started anew (boot 2); 1050 b alive", 3000,
		},
		"a new boot of one that was suspect already": {
			"0 beats until=1000; 1000 a until=4000; 2500 b boot=2 until=4000",
			"1800 b suspect: it has been silent for 1s; 2500 b alive", 4000,
		},
		"a beat of an earlier boot": {
			"0 a boot=3 until=3000; 0 b boot=3 until=600; 600 b boot=2 until=3000", "1400 b suspect: it has been silent for 1s", 3000,
		},
		"its own pause": {"0 beats until=1000; 1000 pause until=6000; 6200 beats until=9000", "", 9000},
		"its own pause, and nobody there after it": {
			"0 beats until=1000; 1000 pause until=6000",
			"7000 a suspect: it has been silent for 1s; 7000 b suspect: it has been silent for 1s", 9000,
		},
		"a short pause hides nothing": {
			"0 beats until=1000; 1000 a until=4000; 1400 pause until=1650", "1800 b suspect: it has been silent for 1s", 4000,
		},
		"a pause does not bring back who was suspect": {
			"0 beats until=1000; 1000 a until=2500; 2500 pause until=4000; 4000 a until=6000", "1800 b suspect: it has been silent for 1s", 6000,
		},
		"said again": {
			"0 beats until=1000; 1000 a until=4000; 3000 again",
			"1800 b suspect: it has been silent for 1s; 3000 b suspect: it has been silent for 2.2s", 4000,
		},
		"not said again of who comes back just then": {
			"0 beats until=1000; 1000 a until=4000; 2600 b until=4000; 2600 again",
			"1800 b suspect: it has been silent for 1s; 2600 b alive", 4000,
		},
		"nothing to be said again": {"0 beats until=4000; 2000 again", "", 4000},
	} {
		t.Run(name, func(t *testing.T) {
			if got := strings.Join(play(t, c.script, c.until), "; "); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// play runs a script against a detector of peers a and b and returns what it says.
func play(t *testing.T, script string, until int) []string {
	t.Helper()
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	d := newDetector()
	d.add("a", start)
	d.add("b", start)
	type one struct {
		store      string
		boot       uint64
		turn, sync int
	}
	beats, again := make(map[int][]one), make(map[int]bool)
	paused := func(int) bool { return false }
	for _, line := range strings.Split(script, ";") {
		words := strings.Fields(line)
		from := number(t, words[0])
		b, last := one{boot: 1}, from+1
		for _, word := range words[2:] {
			key, value, _ := strings.Cut(word, "=")
			switch n := number(t, value); key {
			case "boot":
				b.boot = uint64(n)
			case "turn":
				b.turn = n
			case "sync":
				b.sync = n
			case "until":
				last = n
			default:
				t.Fatalf("script: %q", word)
			}
		}
		stores := []string{words[1]}
		switch words[1] {
		case "pause":
			paused = func(ms int) bool { return ms >= from && ms < last }
			continue
		case "again":
			again[from] = true
			continue
		case "beats":
			stores = []string{"a", "b"}
		}
		for ms := from; ms < last; ms += 200 {
			for _, store := range stores {
				b.store = store
				beats[ms] = append(beats[ms], b)
			}
		}
	}
	var said []string
	for ms := 0; ms <= until; ms += 50 {
		for _, b := range beats[ms] {
			d.heard(b.store, b.boot, time.Duration(b.turn)*time.Millisecond, time.Duration(b.sync)*time.Millisecond, 0, at(ms))
		}
		if paused(ms) {
			continue
		}
		d.again = d.again || again[ms]
		for _, e := range d.check(at(ms)) {
			if e.suspect {
				said = append(said, fmt.Sprintf("%d %s suspect: %s", ms, e.store, e.reason))
			} else {
				said = append(said, fmt.Sprintf("%d %s alive", ms, e.store))
			}
		}
	}
	return said
}

func number(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// flapping drives one peer through silences; it is checked each 50 ms.
type flapping struct {
	d   *detector
	now time.Time
}

func newFlapping() *flapping {
	f := &flapping{d: newDetector(), now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	f.d.add("a", f.now)
	f.beat(1)
	return f
}

func (f *flapping) beat(boot uint64) []event {
	f.d.heard("a", boot, 0, 0, 0, f.now)
	return f.d.check(f.now)
}

// suspectAfter is how long the peer is silent until it is suspect, at most limit.
func (f *flapping) suspectAfter(limit time.Duration) time.Duration {
	began := f.now
	for f.now.Sub(began) < limit {
		f.now = f.now.Add(checkInterval)
		if len(f.d.check(f.now)) > 0 {
			break
		}
	}
	return f.now.Sub(began)
}

// rest lets the peer beat for a while.
func (f *flapping) rest(d time.Duration) {
	for end := f.now.Add(d); f.now.Before(end); {
		f.now = f.now.Add(beatInterval)
		f.beat(f.d.peers["a"].boot)
	}
}

func TestDetectorGrowsPatient(t *testing.T) {
	f := newFlapping()
	for n, want := range []time.Duration{time.Second, time.Second, time.Second, 2 * time.Second} {
		if got := f.suspectAfter(time.Minute); got != want {
			t.Errorf("silence %d: suspect after %s, want %s", n, got, want)
		}
		if n < 3 {
			f.beat(1)
			f.rest(time.Minute)
		}
	}
	if flaps := f.d.peers["a"].flaps; flaps != 3 {
		t.Errorf("%d flaps", flaps)
	}
	f.beat(1) // the fourth
	f.d.heard("a", 1, 2500*time.Millisecond, 0, 0, f.now)
	if events := f.d.check(f.now); len(events) > 0 {
		t.Errorf("its ages are not given twice the time: %v", events)
	}
	f.rest(doubledFor)
	if got := f.suspectAfter(time.Minute); got != time.Second {
		t.Errorf("after ten minutes: suspect after %s", got)
	}
}

// Three wrong suspicions in longer than ten minutes are none of a saturated machine.
func TestDetectorForgetsFlaps(t *testing.T) {
	f := newFlapping()
	for range 5 {
		if got := f.suspectAfter(time.Minute); got != time.Second {
			t.Errorf("suspect after %s", got)
		}
		f.beat(1)
		f.rest(doubledFor/2 + time.Minute)
	}
}

// A peer that was cut off for long was rightly suspected, though it had been alive: more patience would not have helped.
func TestCutsAreNoFlaps(t *testing.T) {
	f := newFlapping()
	for range 6 {
		if got := f.suspectAfter(time.Minute); got != silentLimit {
			t.Errorf("suspect after %s", got)
		}
		if events := f.d.check(f.now.Add(soonBack)); len(events) > 0 {
			t.Errorf("while it is cut off: %v", events)
		}
		f.now = f.now.Add(soonBack + checkInterval)
		f.beat(1)
		f.rest(time.Second)
	}
	if flaps := f.d.peers["a"].flaps; flaps != 0 {
		t.Errorf("%d flaps", flaps)
	}
}

// Who had really ended was rightly suspected, however often.
func TestRestartsAreNoFlaps(t *testing.T) {
	f := newFlapping()
	for boot := range uint64(6) {
		if got := f.suspectAfter(time.Minute); got != time.Second {
			t.Errorf("suspect after %s", got)
		}
		f.beat(boot + 2)
		f.rest(time.Second)
	}
	for boot := range uint64(6) { // too fast to be silent
		f.now = f.now.Add(checkInterval)
		if events := f.beat(boot + 10); len(events) != 1 || !events[0].suspect {
			t.Errorf("boot %d: %v", boot, events)
		}
		f.now = f.now.Add(checkInterval)
		if events := f.beat(boot + 10); len(events) != 1 || events[0].suspect {
			t.Errorf("boot %d: %v", boot, events)
		}
	}
	if flaps := f.d.peers["a"].flaps; flaps != 0 {
		t.Errorf("%d flaps", flaps)
	}
}

func TestOffsetOfClocks(t *testing.T) {
	var r roundTrips
	if got := r.best(); got != (ClockStatus{}) {
		t.Errorf("before any beat: %+v", got)
	}
	here := Health{WallMS: 10_000, ClockMS: 20_000}
	answer := func(trip, held time.Duration, wall, clock int64) {
		now := time.Minute
		r.add(beat{echoBoot: 1, echoSent: now - held - trip, echoHeld: held, wallMS: wall, clockMS: clock, clockOK: true}, 1, now, here)
	}
	// The other's clocks are 300 ms ahead and 100 ms behind; their words take half the round trip.
	answer(40*time.Millisecond, 150*time.Millisecond, 10_280, 19_880)
	answer(4*time.Millisecond, 20*time.Millisecond, 10_298, 19_898)
	answer(90*time.Millisecond, 0, 10_200, 19_820)
	want := ClockStatus{
		Known: true, OK: true, RoundTrip: 4 * time.Millisecond, WallOffset: 300 * time.Millisecond, ClockOffset: -100 * time.Millisecond,
	}
	if got := r.best(); got != want {
		t.Errorf("got %+v", got)
	}
	// What is no answer of this start, or cannot be, is none.
	for name, b := range map[string]beat{
		"none":            {wallMS: 1},
		"another start":   {echoBoot: 2, echoSent: time.Minute - time.Millisecond, wallMS: 1},
		"from the future": {echoBoot: 1, echoSent: time.Hour, wallMS: 1},
		"held too long":   {echoBoot: 1, echoSent: time.Minute - time.Second, echoHeld: 2 * time.Second, wallMS: 1},
		"negative":        {echoBoot: 1, echoSent: time.Minute - time.Second, echoHeld: -1, wallMS: 1},
		"an age":          {echoBoot: 1, echoSent: time.Second, wallMS: 1},
	} {
		r.add(b, 1, time.Minute, here)
		if got := r.best(); got != want {
			t.Errorf("%s: got %+v", name, got)
		}
	}
	// The best of long ago is not kept.
	for range clockSamples {
		answer(40*time.Millisecond, 0, 10_480, 19_880)
	}
	if got := r.best(); got.RoundTrip != 40*time.Millisecond || got.WallOffset != 500*time.Millisecond {
		t.Errorf("later: %+v", got)
	}
}

// A peer that is heard and does not hear this process is of no use as a leader: it is suspect, unless it was this process that
// stood still.
func TestDetectorSeesDeafPeers(t *testing.T) {
	f := newFlapping()
	f.rest(time.Second)
	hears := func(deaf time.Duration) string {
		f.now = f.now.Add(beatInterval)
		f.d.heard("a", 1, 0, 0, deaf, f.now)
		for _, e := range f.d.check(f.now) {
			return fmt.Sprint(e.suspect, e.reason)
		}
		return ""
	}
	if got := hears(900 * time.Millisecond); got != "" {
		t.Errorf("deaf for less than a second: %s", got)
	}
	if got := hears(1100 * time.Millisecond); got != "trueit has not heard this node for 1.1s" {
		t.Errorf("deaf for more than a second: %q", got)
	}
	if got := hears(100 * time.Millisecond); got != "false" {
		t.Errorf("it hears again: %q", got)
	}
	f.now = f.now.Add(5 * time.Second) // this process is suspended
	if got := hears(5 * time.Second); got != "" {
		t.Errorf("after this process's own pause: %s", got)
	}
}
