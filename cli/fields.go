package cli

import (
	"cmp"
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/carillon-scheduler/carillon/client"
)

// fieldFlags are the flags by which people set fields of requests; of several, a command has one. A field that begins with one of
// these and goes on behind a dot or a bracket is its flag's, too.
var fieldFlags = map[string]string{
	"schedule.at": "at", "schedule.delay": "in", "schedule.spread": "spread", "schedule.max_fires_per_day": "max-fires-per-day",
	"schedule.every": "every", "schedule.every.anchor": "anchor", "schedule.every.start": "start", "schedule.every.end": "end",
	"schedule.every.max_runs": "max-runs",
	"schedule.cron":           "cron", "schedule.cron.zone": "zone", "schedule.cron.gap": "gap", "schedule.cron.repeat": "repeat",
	"schedule.cron.exclude.dates": "exclude-date", "schedule.cron.exclude.weekdays": "exclude-weekdays",
	"schedule.cron.exclude.lines": "exclude-cron", "schedule.cron.start": "start", "schedule.cron.end": "end",
	"schedule.cron.max_runs": "max-runs",
	"overlap":                "overlap", "catch_up": "catch-up", "catch_up_window": "catch-up-window", "catch_up_per_minute": "catch-up-per-minute",
	"pause_after_failures": "pause-after-failures", "start_deadline": "start-deadline",
	"queue": "queue", "payload": "payload", "payload_ref": "payload-ref", "content_type": "content-type", "headers": "header",
	"labels": "label", "label": "label", "priority": "priority", "fairness_key": "fairness-key", "retention": "retention",
	"dead_retention": "dead-retention", "lease": "lease",
	"retry.max_attempts": "max-attempts", "retry.first_delay": "retry-delay", "retry.factor_thousandths": "retry-factor",
	"retry.max_delay": "retry-max-delay", "retry.jitter_thousandths": "retry-jitter",
	"id": "id", "tenant": "tenant", "idempotency_key": "idempotency-key", "expected_version": "expected-version",
	"pause_reason": "reason", "reason": "reason", "paused_by": "by", "pause_until": "until", "until": "until", "resume_rule": "resume rule",
	"after": "after", "count": "n", "from": "from", "to": "to", "from_local": "from", "to_local": "to", "backfill_id": "id",
	"max_occurrences": "max", "state": "state", "id_prefix": "prefix", "kind": "kind", "job_id": "job", "page_size": "limit",
	"filter.queue": "queue", "filter.job_id": "job", "filter.dead_before": "before", "filter.error_contains": "error-contains",
	"request_id": "request-id",
}

// resources are what stands before a field in requests that have a job, settings or a rule.
var resources = regexp.MustCompile(`^(job|queue|tenant|rule)\.`)

// flagOf is the flag or the argument of a command that sets a field; "" if it has none.
func flagOf(c *cli.Command, field string) string {
	path := resources.ReplaceAllString(field, "")
	if argument := strings.ToUpper(path); argument == c.ArgsUsage {
		return argument
	}
	for path != "" {
		for _, flag := range strings.Fields(fieldFlags[path]) {
			if hasFlag(c, flag) {
				return dashed(flag)
			}
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
	return ""
}

func hasFlag(c *cli.Command, name string) bool {
	return slices.ContainsFunc(c.Flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), name) })
}

// flaggedError is a server's error about fields of a request, in the words of who typed flags.
type flaggedError struct {
	error
	text string
}

func (e *flaggedError) Error() string { return e.text }
func (e *flaggedError) Unwrap() error { return e.error }

// inFlags names flags in place of the fields of an error, where the command has them.
func inFlags(c *cli.Command, err error) error {
	var failed *client.Error
	if !errors.As(err, &failed) || len(failed.Violations) == 0 {
		return err
	}
	fields := make([]string, 0, len(failed.Violations))
	for _, v := range failed.Violations {
		fields = append(fields, v.Field)
	}
	// Longer ones first: one may be the beginning of another.
	slices.SortFunc(fields, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	text := err.Error()
	for _, field := range fields {
		if flag := flagOf(c, field); flag != "" {
			text = replaceField(text, field, flag)
		}
	}
	return &flaggedError{err, text}
}

// replaceField replaces a field where it stands at the begin of a message or of what is said of one field.
func replaceField(text, field, flag string) string {
	whole := regexp.MustCompile(`(^|: |; )` + regexp.QuoteMeta(field) + `([ :]|$)`)
	return whole.ReplaceAllString(text, "${1}"+flag+"${2}")
}
