package clock

import (
	"testing"
	"time"
)

// among puts the machine among others, whose true time is the machine's boot clock since noon plus ahead.
func (m *machine) among(ahead ...time.Duration) *machine {
	start := m.boot
	m.g.cfg.Peers = func() []time.Duration {
		var offsets []time.Duration
		for _, a := range ahead {
			truth := noon.UnixNano() + m.boot - start + int64(a)
			offsets = append(offsets, time.Duration(truth-m.g.line.Load().at(m.boot)))
		}
		return offsets
	}
	return m
}

func TestAStepIsHeldAsLongAsTheOthersDisagree(t *testing.T) {
	m := newMachine(t, 0).among(0, 0)
	m.run(time.Minute)
	m.want(Agreed, time.Minute)
	m.step(2 * time.Hour)
	m.run(10 * time.Minute) // far beyond the time after which a lone node believes
	m.want(Stepped, 11*time.Minute)
	m.step(-2 * time.Hour)
	m.run(DefaultCheckInterval)
	m.want(Agreed, 11*time.Minute+DefaultCheckInterval)
}

func TestAStepToTheOthersTimeIsBelieved(t *testing.T) {
	m := newMachine(t, 0).among(2*time.Hour, 2*time.Hour+100*time.Millisecond)
	m.run(DefaultCheckInterval)
	m.want(Outvoted, DefaultCheckInterval)
	m.run(10 * time.Minute)
	m.want(Outvoted, 10*time.Minute+DefaultCheckInterval)
	m.step(2 * time.Hour)
	m.run(DefaultCheckInterval)
	m.want(Agreed, 2*time.Hour+10*time.Minute+2*DefaultCheckInterval)
}

func TestWhoIsOutvoted(t *testing.T) {
	for _, tc := range []struct {
		name  string
		ahead []time.Duration
		want  Reason
	}{
		{"alone", nil, Agreed},
		{"one of two others disagrees", []time.Duration{time.Hour, 0}, Agreed},
		{"one other disagrees, nobody knows who is right", []time.Duration{time.Hour}, Agreed},
		{"both others disagree and with one another", []time.Duration{time.Hour, 2 * time.Hour}, Agreed},
		{"both others have another time", []time.Duration{time.Hour, time.Hour + 400*time.Millisecond}, Outvoted},
		{"within the limit", []time.Duration{450 * time.Millisecond, 450 * time.Millisecond}, Agreed},
		{"beyond the limit, behind", []time.Duration{-600 * time.Millisecond, -700 * time.Millisecond}, Outvoted},
		{"two of four others", []time.Duration{time.Hour, time.Hour, 0, 0}, Agreed},
		{"three of four others", []time.Duration{time.Hour, time.Hour, time.Hour, 0}, Outvoted},
	} {
		m := newMachine(t, 0).among(tc.ahead...)
		m.run(DefaultCheckInterval)
		if got := m.g.State().Reason; got != tc.want {
			t.Errorf("%s: %v, must be %v", tc.name, m.g.State(), tc.want)
		}
	}
}

// When the others cannot be heard any more, being outvoted stands: they may have been right.
func TestOutvotedStandsWhenNobodyIsHeard(t *testing.T) {
	m := newMachine(t, 0).among(time.Hour, time.Hour)
	m.run(DefaultCheckInterval)
	m.among()
	m.run(10 * time.Minute)
	m.want(Outvoted, 10*time.Minute+DefaultCheckInterval)
}
