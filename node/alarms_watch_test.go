package node

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/node/expand"
	"github.com/carillon-scheduler/carillon/node/replica"
)

// A replica is far behind when it has been so for a while, and no more once it has caught up.
func TestLagIsAnAlarmWhenItLasts(t *testing.T) {
	var w lagWatch
	all := []replica.Status{{Shard: 1}, {Shard: 2}}
	look := func(lag1, lag2 uint64) []string {
		return w.look(all, map[uint32][]replica.Progress{
			1: {{ReplicaID: 1}, {ReplicaID: 2, Lag: lag1}}, 2: {{ReplicaID: 2, Lag: lag2}},
		}, func(s replica.Status, id uint64) string { return fmt.Sprintf("store-%d-%d", s.Shard, id) })
	}
	for i := range lagFor - 1 {
		if behind := look(lagAlarm, lagAlarm-1); len(behind) > 0 {
			t.Fatalf("look %d: %v", i, behind)
		}
	}
	if behind := look(lagAlarm+5, lagAlarm-1); len(behind) != 1 || behind[0] != "store-1-2 lacks 10005 entries of shard 1" {
		t.Errorf("after %d looks: %v", lagFor, behind)
	}
	if behind := look(0, lagAlarm); len(behind) > 0 {
		t.Errorf("caught up: %v", behind)
	}
	if behind := look(lagAlarm, lagAlarm); len(behind) > 0 {
		t.Errorf("behind again for a moment: %v", behind)
	}
}

func TestADiskIsNearlyFull(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		free, total uint64
		full        bool
	}{
		{2 * gib, 10 * gib, false},
		{gib - 1, 10 * gib, true},
		{4 * gib, 100 * gib, true},
		{5 * gib, 100 * gib, false},
		{0, 10 * gib, true},
		{0, 0, false}, // nothing is known
	} {
		if full := diskNearlyFull(c.free, c.total); full != c.full {
			t.Errorf("%d of %d: %v", c.free, c.total, full)
		}
	}
	free, total, err := diskSpace(t.TempDir())
	if err != nil || free > total {
		t.Errorf("%d of %d: %v", free, total, err)
	}
}

func TestMessagesNameNotTooMuch(t *testing.T) {
	if text := named([]string{"a", "b"}); text != "a, b" {
		t.Error(text)
	}
	if text := named(strings.Split("1 2 3 4 5 6 7 8 9 10 11 12", " ")); text != "1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 2 more" {
		t.Error(text)
	}
}

func TestExpanderWatch(t *testing.T) {
	var w expanderWatch
	began := time.Now()
	for _, c := range []struct {
		after time.Duration
		stats expand.Stats
		want  string
	}{
		{0, expand.Stats{Waiting: 5, Oldest: expanderAlarm - time.Second}, ""},
		{1, expand.Stats{Waiting: 5, Oldest: expanderAlarm}, "5 cron jobs wait for their next instants, the first for 30s"},
		{2, expand.Stats{}, ""},
		{3, expand.Stats{Counters: expand.Counters{Failed: 2}}, "cron jobs cannot be evaluated, and do not fire: the log names one"},
		{32, expand.Stats{Counters: expand.Counters{Failed: 2}}, "cron jobs cannot be evaluated, and do not fire: the log names one"},
		{33, expand.Stats{Counters: expand.Counters{Failed: 2}}, ""},
	} {
		if got := w.look(c.stats, began.Add(c.after*time.Second)); got != c.want {
			t.Errorf("after %d s: %q", c.after, got)
		}
	}
}
