package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/cli/manifest"
)

// summary is how many jobs a plan is about, by what happens to them.
type summary struct {
	Created   int `json:"created"`
	Updated   int `json:"updated"`
	Unchanged int `json:"unchanged"`
	Deleted   int `json:"deleted"`
	Past      int `json:"past,omitempty"`
	Failed    int `json:"failed,omitempty"`
	// NotTried are those that were left when the apply stopped.
	NotTried int `json:"notTried,omitempty"`
}

// summary counts what was done, or of a dry run what would be.
func (p *plan) summary(dry bool) (sum summary) {
	for _, s := range p.steps {
		switch {
		case s.err != nil:
			sum.Failed++
		case s.action == actionUnchanged:
			sum.Unchanged++
		case s.action == actionPast:
			sum.Past++
		case !dry && !s.done:
			sum.NotTried++
		case s.action == actionCreate:
			sum.Created++
		case s.action == actionUpdate:
			sum.Updated++
		case s.action == actionDelete:
			sum.Deleted++
		}
	}
	return sum
}

func (s summary) text(dry bool) string {
	names := []string{"created", "updated", "unchanged", "deleted"}
	if dry {
		names = []string{"to create", "to update", "unchanged", "to delete"}
	}
	parts := []string{}
	for i, n := range []int{s.Created, s.Updated, s.Unchanged, s.Deleted} {
		parts = append(parts, fmt.Sprintf("%d %s", n, names[i]))
	}
	for _, more := range []struct {
		n    int
		name string
	}{{s.Past, "past"}, {s.Failed, "failed"}, {s.NotTried, "not tried"}} {
		if more.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", more.n, more.name))
		}
	}
	return strings.Join(parts, ", ")
}

// shownStep is a step as JSON has it.
type shownStep struct {
	ID     string `json:"id"`
	Tenant string `json:"tenant"`
	Action string `json:"action"`
	// Done: it was carried out.
	Done   bool   `json:"done,omitempty"`
	Source string `json:"source,omitempty"`
	// Version is the one that was read; 0: there was no job.
	Version uint64            `json:"version,omitempty"`
	Paused  bool              `json:"paused,omitempty"`
	Changes []manifest.Change `json:"changes,omitempty"`
	Fires   []fire            `json:"fires,omitempty"`
	// MoreRemoved is how many removed fires are not shown; AtLeast, that there may be more than that.
	MoreRemoved int    `json:"moreRemoved,omitempty"`
	AtLeast     bool   `json:"atLeast,omitempty"`
	Error       string `json:"error,omitempty"`
}

func (s *step) shown() shownStep {
	out := shownStep{
		ID: s.id(), Tenant: s.tenant(), Action: s.action, Done: s.done, Source: s.source(), Version: s.current.GetVersion(),
		Paused: isPaused(s.current), Changes: s.changes,
	}
	if s.fires != nil {
		out.Fires, out.MoreRemoved, out.AtLeast = s.fires.fires, s.fires.more, s.fires.atLeast
	}
	if s.err != nil {
		out.Error = s.failure()
	}
	return out
}

// planJSON prints a plan, carried out or not, as one document.
func (p *printer) planJSON(plan *plan, dry bool) error {
	shown := []shownStep{}
	for _, s := range plan.steps {
		shown = append(shown, s.shown())
	}
	e := json.NewEncoder(p.w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(map[string]any{"jobs": shown, "dryRun": dry, "summary": plan.summary(dry)})
}

// planSummary prints what an apply has done.
func (p *printer) planSummary(plan *plan) error {
	if p.json {
		return p.planJSON(plan, false)
	}
	_, err := fmt.Fprintln(p.w, plan.summary(false).text(false))
	return err
}

// planned prints what an apply would do: per job the fields that change and the next fires.
func (p *printer) planned(plan *plan) error {
	if p.json {
		return p.planJSON(plan, true)
	}
	for _, s := range plan.steps {
		if err := p.step(s); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(p.w, plan.summary(true).text(true))
	return err
}

func (p *printer) step(s *step) error {
	line := s.action + " " + s.id()
	if s.source() != "" {
		line += " (" + s.source() + ")"
	}
	switch {
	case s.action == actionPast:
		line += ": its time has passed, so that it is not created"
	case s.action != actionUnchanged && isPaused(s.current):
		line += ": it is paused, and stays so"
	}
	if _, err := fmt.Fprintln(p.w, line); err != nil {
		return err
	}
	var rows [][]string
	for _, change := range s.changes {
		rows = append(rows, []string{"    " + change.Field, orNone(change.Old) + " → " + orNone(change.New)})
	}
	if err := p.table(rows); err != nil {
		return err
	}
	if s.fires == nil {
		return nil
	}
	return s.fires.print(p.w)
}

func orNone(s string) string {
	if s == "" {
		return "(none)"
	}
	return s
}

// marks stand before fires.
var marks = map[string]string{"added": "+", "removed": "-", "kept": " "}

func (f *fireChange) print(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "    next fires, %s\n", strings.Join(f.zones, " → ")); err != nil {
		return err
	}
	for _, one := range f.fires {
		if _, err := fmt.Fprintf(w, "      %s %s\n", marks[one.Change], localTime(one.Local)); err != nil {
			return err
		}
	}
	switch {
	case len(f.fires) == 0:
		_, err := fmt.Fprintln(w, "        none")
		return err
	case f.more > 0 && f.atLeast:
		_, err := fmt.Fprintf(w, "      - and more than %d others\n", f.more)
		return err
	case f.more > 0:
		_, err := fmt.Fprintf(w, "      - and %d others\n", f.more)
		return err
	}
	return nil
}

// localTime is a time with its weekday, for people.
func localTime(rfc3339 string) string {
	t, err := time.Parse(time.RFC3339Nano, rfc3339)
	if err != nil {
		return rfc3339
	}
	return t.Format("Mon 2006-01-02 15:04:05.999 -07:00")
}
