package clock

import (
	"sync"
	"testing"
	"time"
)

func TestVirtualClockStandsStillAndNeverGoesBack(t *testing.T) {
	v := NewVirtual(noon.UnixMilli(), 0)
	for _, step := range []struct {
		what    string
		to, now time.Duration // after noon
	}{
		{"ahead", time.Hour, time.Hour},
		{"back", time.Minute, time.Hour},
		{"where it is", time.Hour, time.Hour},
		{"a millisecond ahead", time.Hour + time.Millisecond, time.Hour + time.Millisecond},
	} {
		v.Set(noon.Add(step.to).UnixMilli())
		if got := time.UnixMilli(v.Now()).Sub(noon); got != step.now {
			t.Errorf("set %s: it stands at noon + %v; want %v", step.what, got, step.now)
		}
	}
	if !v.MayFire() || !v.State().OK() {
		t.Errorf("it holds firing: %v", v.State())
	}
}

func TestVirtualClockBeginsWhereTheLogEndsAtTheEarliest(t *testing.T) {
	for _, c := range []struct{ start, last, want int64 }{{1000, 0, 1000}, {1000, 999, 1000}, {1000, 5000, 5000}} {
		if got := NewVirtual(c.start, c.last).Now(); got != c.want {
			t.Errorf("start %d, last stamp %d: it stands at %d; want %d", c.start, c.last, got, c.want)
		}
	}
}

func TestVirtualClockIsSetByTheLatestOfMany(t *testing.T) {
	v := NewVirtual(1, 0)
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() { v.Set(int64(i)) })
	}
	all.Wait()
	if v.Now() != 99 {
		t.Errorf("it stands at %d; want 99", v.Now())
	}
}
