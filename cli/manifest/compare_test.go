package manifest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// specOf is the one job of a text.
func specOf(t *testing.T, text string) *carillonv1.JobSpec {
	t.Helper()
	jobs, err := Read([]string{Stdin}, strings.NewReader(text), "")
	if err != nil || len(jobs) != 1 {
		t.Fatalf("%d jobs, %v", len(jobs), err)
	}
	return jobs[0].Spec
}

func TestCompare(t *testing.T) {
	const head = "id: a\nschedule: {cron: {lines: [0 2 * * *], zone: UTC}}\n"
	for _, c := range []struct {
		old, new string
		want     []string
	}{
		{"", "", nil},
		{"queue: a", "queue: b", []string{"queue: a → b"}},
		{"priority: 0", "", []string{"priority: 0 → "}},
		{"", "priority: 0", []string{"priority:  → 0"}},
		{"lease: 90s", "lease: 24h", []string{"lease: 1m30s → 1d"}},
		{"overlap: skip", "overlap: queue-one", []string{"overlap: skip → queue-one"}},
		{"labels: {a: x, b: y, c: z}", "labels: {b: y, c: w, d: ''}", []string{"labels.a: x → ", "labels.c: z → w", `labels.d:  → ""`}},
		{"", "retry: {}", []string{"retry:  → {}"}},
		{"retry: {maxAttempts: 3}", "retry: {maxAttempts: 4, maxDelay: 1h}", []string{"retry.maxAttempts: 3 → 4", "retry.maxDelay:  → 1h"}},
		{"payloadText: hello", "payloadText: good bye", []string{"payload: hello → good bye"}},
		{"payload: AA==", "payload: AQ==", []string{"payload: 1 bytes, sha256 6e340b9c… → 1 bytes, sha256 4bf5122f…"}},
		{"payloadRef: x", "payloadText: x", []string{"payload:  → x", "payloadRef: x → "}},
	} {
		got := texts(Compare(specOf(t, head+c.old), specOf(t, head+c.new)))
		if !slices.Equal(got, c.want) {
			t.Errorf("%q to %q: %q, want %q", c.old, c.new, got, c.want)
		}
	}
}

func TestCompareSchedules(t *testing.T) {
	for _, c := range []struct {
		old, new string
		want     []string
	}{
		{"{at: 2026-01-01T00:00:00Z}", "{at: 2026-01-01T01:00:00+01:00}", nil},
		{"{at: 2026-01-01T00:00:00Z}", "{at: 2026-01-02T00:00:00Z}", []string{"schedule.at: 2026-01-01T00:00:00Z → 2026-01-02T00:00:00Z"}},
		{"{every: {interval: 60s}}", "{every: {interval: 2m, maxRuns: 3}}", []string{
			"schedule.every.interval: 1m → 2m", "schedule.every.maxRuns:  → 3",
		}},
		{"{every: {interval: 60s}}", "{cron: {lines: [0 2 * * *]}}", []string{
			"schedule.every.interval: 1m → ", "schedule.cron.lines:  → 0 2 * * *",
		}},
		{"{cron: {lines: [0 2 * * *]}}", "{cron: {lines: [0 3 * * *]}}", []string{"schedule.cron.lines: 0 2 * * * → 0 3 * * *"}},
		{"{cron: {lines: [a, b, c]}}", "{cron: {lines: [c, d, e]}}", []string{
			"schedule.cron.lines: a → ", "schedule.cron.lines: b → ", "schedule.cron.lines:  → d", "schedule.cron.lines:  → e",
		}},
		{"{cron: {lines: [a, b]}}", "{cron: {lines: [b, a]}}", []string{"schedule.cron.lines: [a b] → [b a]"}},
	} {
		got := texts(Compare(specOf(t, "id: a\nschedule: "+c.old), specOf(t, "id: a\nschedule: "+c.new)))
		if !slices.Equal(got, c.want) {
			t.Errorf("%q to %q: %q, want %q", c.old, c.new, got, c.want)
		}
	}
}

func texts(changes []Change) (all []string) {
	for _, c := range changes {
		all = append(all, fmt.Sprintf("%s: %s → %s", c.Field, c.Old, c.New))
	}
	return all
}
