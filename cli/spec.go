package cli

import (
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/urfave/cli/v2"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// maxPayloadFile bounds what is read of a payload file. The server's limit is lower; it names it.
const maxPayloadFile = 2 << 20

// specFlags are the fields of a job that both a create and an update can set.
func specFlags() []cli.Flag {
	when, work, failure := "when:", "work:", "failure:"
	return slices.Concat(scheduleFlags(), []cli.Flag{
		&cli.StringFlag{Name: "queue", Category: work, Usage: "`QUEUE` its executions go to (default: default)"},
		&cli.StringFlag{Name: "catch-up", Category: when, Usage: "what of missed occurrences: `RULE` is none, latest or all"},
		&cli.StringFlag{Name: "catch-up-window", Category: when, Usage: "skip missed occurrences older than this `DURATION`"},
		&cli.Int64Flag{
			Name: "catch-up-per-minute", Category: when, Usage: "with --catch-up all: start at most `N` missed ones a minute", DefaultText: "60",
		},
		&cli.StringFlag{
			Name: "overlap", Category: when,
			Usage: "while an earlier occurrence lives: `RULE` is allow, skip, queue-one, queue-all or cancel-running (default: allow)",
		},
		&cli.Int64Flag{Name: "pause-after-failures", Category: failure, Usage: "pause the job after `N` dead letters in a row", DefaultText: "never"},
		&cli.StringFlag{
			Name: "start-deadline", Category: when, Usage: "expire if not started this `DURATION` after its time",
		},
		&cli.StringFlag{Name: "payload", Category: work, Usage: "`TEXT` for the worker"},
		&cli.StringFlag{Name: "payload-file", Category: work, Usage: "`FILE` with bytes for the worker; -: standard input"},
		&cli.StringFlag{Name: "payload-ref", Category: work, Usage: "`WHERE` the payload is instead"},
		&cli.StringFlag{Name: "content-type", Category: work, Usage: "media `TYPE` of the payload"},
		&cli.StringSliceFlag{Name: "header", Category: work, Usage: "`KEY=VALUE` for the worker; repeatable"},
		&cli.StringSliceFlag{Name: "label", Category: work, Usage: "`KEY=VALUE` for people and filters; repeatable"},
		&cli.Int64Flag{Name: "priority", Category: work, Usage: "`N` from 0 to 9, the most urgent", DefaultText: "5"},
		&cli.StringFlag{Name: "fairness-key", Category: work, Usage: "`KEY` among which a queue is shared out evenly"},
		&cli.StringFlag{Name: "retention", Category: work, Usage: "keep ended executions for this `DURATION`"},
		&cli.StringFlag{Name: "lease", Category: failure, Usage: "a silent worker keeps it for this `DURATION` (default: 30s)"},
		&cli.Int64Flag{Name: "max-attempts", Category: failure, Usage: "`N` attempts in all", DefaultText: "5"},
		&cli.StringFlag{
			Name: "retry-delay", Category: failure, Usage: "`DURATION` before the second attempt (default: 1s)",
		},
		&cli.Float64Flag{Name: "retry-factor", Category: failure, Usage: "`FACTOR` by which delays grow", DefaultText: "2"},
		&cli.StringFlag{Name: "retry-max-delay", Category: failure, Usage: "longest `DURATION` between attempts (default: 1h)"},
		&cli.Float64Flag{Name: "retry-jitter", Category: failure, Usage: "`PART` of a delay that is spread", DefaultText: "0.1"},
	})
}

// spec reads the flags above. What is not set stays unset. Names are those of JobSpec. was is the schedule that a change
// starts from, nil for a new job.
func (p *program) spec(c *cli.Context, was *carillonv1.Schedule) (*carillonv1.JobSpec, error) {
	s := &carillonv1.JobSpec{
		Queue: c.String("queue"), ContentType: c.String("content-type"), PayloadRef: c.String("payload-ref"),
		FairnessKey: c.String("fairness-key"),
	}
	steps := []func() error{
		func() (err error) { s.Schedule, err = schedule(c, was); return err },
		func() (err error) { s.Retry, err = retry(c); return err },
		func() (err error) { s.Payload, err = p.payload(c); return err },
		func() (err error) { s.Labels, err = pairsFlag(c, "label"); return err },
		func() (err error) { s.Headers, err = pairsFlag(c, "header"); return err },
		func() (err error) { s.Priority, err = uint32Flag(c, "priority"); return err },
		func() (err error) { s.CatchUpWindow, err = lengthFlag(c, "catch-up-window"); return err },
		func() (err error) { s.StartDeadline, err = lengthFlag(c, "start-deadline"); return err },
		func() (err error) { s.Retention, err = lengthFlag(c, "retention"); return err },
		func() (err error) { s.Lease, err = lengthFlag(c, "lease"); return err },
		func() error {
			n, err := parseEnum(c, "catch-up", "CATCH_UP_", carillonv1.CatchUp_value)
			s.CatchUp = carillonv1.CatchUp(n)
			return err
		},
		func() error {
			n, err := parseEnum(c, "overlap", "OVERLAP_", carillonv1.Overlap_value)
			s.Overlap = carillonv1.Overlap(n)
			return err
		},
		func() (err error) { s.CatchUpPerMinute, err = numberFlag(c, "catch-up-per-minute"); return err },
		func() (err error) { s.PauseAfterFailures, err = numberFlag(c, "pause-after-failures"); return err },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// retry reads the retry policy; nil if no flag of it is set.
func retry(c *cli.Context) (*carillonv1.RetryPolicy, error) {
	set := false
	for _, name := range []string{"max-attempts", "retry-delay", "retry-factor", "retry-max-delay", "retry-jitter"} {
		set = set || c.IsSet(name)
	}
	if !set {
		return nil, nil
	}
	attempts, err := uint32Flag(c, "max-attempts")
	if err != nil {
		return nil, err
	}
	r := &carillonv1.RetryPolicy{}
	if attempts != nil {
		if *attempts == 0 {
			return nil, usage(c, "--max-attempts must be at least 1")
		}
		r.MaxAttempts = *attempts
	}
	if r.FirstDelay, err = lengthFlag(c, "retry-delay"); err != nil {
		return nil, err
	}
	if r.MaxDelay, err = lengthFlag(c, "retry-max-delay"); err != nil {
		return nil, err
	}
	if c.IsSet("retry-factor") {
		if r.FactorThousandths, err = thousandths(c, "retry-factor"); err != nil {
			return nil, err
		}
	}
	if c.IsSet("retry-jitter") {
		n, err := thousandths(c, "retry-jitter")
		if err != nil {
			return nil, err
		}
		r.JitterThousandths = &n
	}
	return r, nil
}

func thousandths(c *cli.Context, name string) (uint32, error) {
	f := c.Float64(name)
	if !(f >= 0 && f <= 1e6) {
		return 0, usage(c, "--%s: %v is out of range", name, f)
	}
	return uint32(f*1000 + 0.5), nil
}

// payload reads --payload or --payload-file; nil if none is set.
func (p *program) payload(c *cli.Context) ([]byte, error) {
	if c.IsSet("payload") && c.IsSet("payload-file") {
		return nil, usage(c, "--payload and --payload-file exclude each other")
	}
	if !c.IsSet("payload-file") {
		return []byte(c.String("payload")), nil
	}
	name, in := c.String("payload-file"), p.stdin
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("open payload: %w", err)
		}
		defer file.Close()
		in = file
	}
	body, err := io.ReadAll(io.LimitReader(in, maxPayloadFile+1))
	if err != nil {
		return nil, fmt.Errorf("read payload: %w", err)
	}
	if len(body) > maxPayloadFile {
		return nil, usage(c, "--payload-file: %s is longer than %d bytes", name, maxPayloadFile)
	}
	return body, nil
}
