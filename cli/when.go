package cli

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/carillon-scheduler/carillon/cli/manifest"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// whenFlags are the flags that hold an instant. Of all of them +5m is five minutes from now, and -2h two hours ago, by the
// server's clock.
var whenFlags = []string{"at", "anchor", "start", "end", "after", "before", "until", "from", "to"}

// settleTimes puts instants in place of the durations in a command's flags.
func settleTimes(ctx context.Context, c *call) error {
	var now *timestamppb.Timestamp
	for _, flag := range c.Command.Flags {
		name := flag.Names()[0]
		if !slices.Contains(whenFlags, name) || !c.IsSet(name) {
			continue
		}
		away, ok := fromNow(name, c.String(name))
		if !ok {
			continue
		}
		if now == nil {
			clock, err := c.client.GetClock(ctx, &carillonv1.GetClockRequest{})
			if err != nil {
				return fmt.Errorf("ask what time it is, for --%s: %w", name, err)
			}
			now = clock.GetTime()
		}
		at := timestamppb.New(now.AsTime().Add(away))
		if at.CheckValid() != nil {
			return usage(c.Context, "--%s: %s is too far away", name, c.String(name))
		}
		if err := c.Set(name, instant(at)); err != nil {
			return fmt.Errorf("set --%s: %w", name, err)
		}
	}
	return nil
}

// fromNow reads a duration with its sign. Of --until, which lies ahead, it may be left out.
func fromNow(flag, value string) (away time.Duration, ok bool) {
	if flag != "until" && !strings.HasPrefix(value, "+") && !strings.HasPrefix(value, "-") {
		return 0, false
	}
	away, err := manifest.ParseDuration(value)
	return away, err == nil
}

// civilText is a day, or a day and a time, as the clock of a job's zone shows it.
var civilText = regexp.MustCompile(`^\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d)?)?$`)

// spanFlag reads one end of a range of a job's occurrences: an instant, or what the clock of the job's zone shows.
func spanFlag(c *call, name string) (at *timestamppb.Timestamp, civil string, err error) {
	if !c.IsSet(name) {
		return nil, "", nil
	}
	text := c.String(name)
	if civilText.MatchString(text) {
		return nil, strings.Replace(text, " ", "T", 1), nil
	}
	if at, err = parseInstant(text); err != nil {
		return nil, "", usage(c.Context, "--%s: %q is not an instant such as 2026-01-31T09:00:00Z, a day or a time in the job's zone such as "+
			"2026-01-31 or 2026-01-31T09:00, or a duration back such as -2h", name, text)
	}
	return at, "", nil
}
