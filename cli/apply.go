package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/carillon-scheduler/carillon/cli/manifest"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// applyInFlight is how many calls of an apply are on their way: calls that write wait for the disk, and share its syncs.
const applyInFlight = 32

func (p *program) applyCommand() *cli.Command {
	c := p.calling(cli.Command{
		Name: "apply", Usage: "make jobs be what files say",
		Description: "Files are YAML or JSON as 'jobs export' writes them; a directory stands for all that is below it, - for standard\n" +
			"input. Jobs are created or changed, each only if it is still at the version that was read; what already is as the\n" +
			"files say stays untouched, so that it is safe to repeat. Nothing is done if anything in the files is wrong.",
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "file", Aliases: []string{"f"}, Usage: "`FILE`, directory or - with jobs; repeatable"},
			&cli.BoolFlag{Name: "dry-run", Usage: "only show what would change, and how the next ten fires of each job would"},
			&cli.BoolFlag{Name: "exit-code", Usage: "with --dry-run: exit with 2 if anything would change"},
			&cli.BoolFlag{Name: "prune", Usage: "delete jobs that have the labels of -l and are in no file"},
			&cli.StringSliceFlag{Name: "label", Aliases: []string{"l"}, Usage: "with --prune: `KEY=VALUE`, or KEY; repeatable"},
			&cli.BoolFlag{Name: "yes", Usage: "prune without asking"},
			&cli.BoolFlag{Name: "allow-empty", Usage: "go on if the files have no jobs, or pruning would leave none with the labels"},
		},
	}, p.apply)
	perRequest(c)
	return c
}

// perRequest says in the help of a command that takes as long as it takes what its timeout is for.
func perRequest(c *cli.Command) {
	for _, f := range c.Flags {
		if timeout, ok := f.(*cli.DurationFlag); ok && timeout.Name == "timeout" {
			timeout.Usage = "give up after a request failed for this `DURATION`, retries included"
		}
	}
}

// apply reads the files, finds out what would change, and does it.
func (p *program) apply(_ context.Context, c *call) error {
	if err := checkApply(c.Context); err != nil {
		return err
	}
	c.tenant = cmp.Or(c.tenant, defaultTenant)
	jobs, err := p.readJobs(c)
	if err != nil {
		return err
	}
	// An apply takes as long as it takes; the timeout is that of each request.
	ctx := c.Context.Context
	plan, err := p.planOf(ctx, c, jobs)
	if err != nil {
		return err
	}
	if c.Bool("dry-run") {
		if err := c.print.planned(plan); err != nil {
			return err
		}
		if c.Bool("exit-code") && plan.differs() {
			return errDiffers
		}
		return nil
	}
	if err := p.confirmPrune(ctx, c, plan); err != nil {
		return err
	}
	return p.carryOut(ctx, c, plan)
}

// checkApply refuses flags that do not go together.
func checkApply(c *cli.Context) error {
	switch {
	case len(c.StringSlice("file")) == 0:
		return usage(c, "-f is missing: a file or directory with jobs, or -")
	case c.Bool("exit-code") && !c.Bool("dry-run"):
		return usage(c, "--exit-code goes with --dry-run only")
	case c.Bool("prune") && len(c.StringSlice("label")) == 0:
		return usage(c, "--prune needs the labels of the jobs that it may delete: -l KEY=VALUE")
	case !c.Bool("prune") && len(c.StringSlice("label")) > 0:
		return usage(c, "--label goes with --prune only")
	}
	for _, label := range c.StringSlice("label") {
		if key, _, _ := strings.Cut(label, "="); key == "" {
			return usage(c, "--label: %q is neither key=value nor a key", label)
		}
	}
	return nil
}

// readJobs reads the files and refuses those that would do what nobody means.
func (p *program) readJobs(c *call) ([]manifest.Job, error) {
	jobs, err := manifest.Read(c.StringSlice("file"), p.stdin, c.tenant)
	if err != nil {
		var faults manifest.Faults
		if errors.As(err, &faults) {
			return nil, &usageError{text: "nothing was done, the files are wrong\n" + faults.Error()}
		}
		return nil, err
	}
	for _, job := range jobs {
		if tenant := job.Spec.GetTenant(); c.String("tenant") != "" && c.IsSet("tenant") && tenant != c.tenant {
			return nil, usage(c.Context, "%s:%d: tenant is %q, --tenant is %q", job.File, job.Line, tenant, c.tenant)
		}
	}
	if c.Bool("allow-empty") {
		return jobs, nil
	}
	if len(jobs) == 0 {
		return nil, usage(c.Context, "the files have no jobs; if that is meant: --allow-empty")
	}
	if c.Bool("prune") && !slices.ContainsFunc(jobs, func(job manifest.Job) bool {
		return job.Spec.GetTenant() == c.tenant && hasLabels(job.Spec.GetLabels(), c.StringSlice("label"))
	}) {
		return nil, usage(c.Context, "no job of the files has the labels of --prune, so that it would delete all that have them; "+
			"if that is meant: --allow-empty")
	}
	return jobs, nil
}

// hasLabels says whether labels have all that filters name, as ListJobs does: "key=value", or "key" for any value.
func hasLabels(labels map[string]string, filters []string) bool {
	for _, filter := range filters {
		key, value, exact := strings.Cut(filter, "=")
		if have, ok := labels[key]; !ok || exact && have != value {
			return false
		}
	}
	return true
}

// confirmPrune has a person at a terminal agree to what is deleted.
func (p *program) confirmPrune(ctx context.Context, c *call, plan *plan) error {
	if plan.count(actionDelete) == 0 || c.Bool("yes") || !isTerminal(p.stdin) {
		return nil
	}
	for _, s := range plan.steps {
		if s.action == actionDelete {
			if _, err := fmt.Fprintf(p.stderr, "delete %s\n", s.id()); err != nil {
				return err
			}
		}
	}
	return p.confirm(ctx, "To delete what is listed, type yes: ", "yes")
}

// errDiffers says by its exit code alone that a dry run found differences.
var errDiffers = &differsError{}

type differsError struct{}

func (*differsError) Error() string { return "" }

// plan is what an apply would do, in the order of the files; deletions are last.
type plan struct {
	steps []*step
}

// The actions of steps.
const (
	actionCreate    = "create"
	actionUpdate    = "update"
	actionUnchanged = "unchanged"
	actionDelete    = "delete"
	// actionPast is a one-shot whose time has passed and which is not there: it ran, and is not to run again.
	actionPast = "past"
)

// step is what happens to one job.
type step struct {
	action string
	// job is what the file says; without a Spec for a deletion.
	job manifest.Job
	// current is the job as it was read; nil if there is none.
	current *carillonv1.Job
	// planned is what the job would be defined by; nil for a deletion.
	planned *carillonv1.JobSpec
	changes []manifest.Change
	fires   *fireChange
	// done: it was taken.
	done bool
	// err is why it failed.
	err error
}

func (s *step) id() string {
	if s.job.Spec == nil {
		return s.current.GetId()
	}
	return s.job.Spec.GetId()
}

func (s *step) tenant() string {
	if s.job.Spec == nil {
		return s.current.GetTenant()
	}
	return s.job.Spec.GetTenant()
}

// source is where a job stands in the files; empty for a deletion.
func (s *step) source() string {
	if s.job.File == "" {
		return ""
	}
	return fmt.Sprintf("%s:%d", s.job.File, s.job.Line)
}

func (p *plan) count(action string) (n int) {
	for _, s := range p.steps {
		if s.action == action && s.err == nil {
			n++
		}
	}
	return n
}

func (p *plan) differs() bool {
	return p.count(actionCreate)+p.count(actionUpdate)+p.count(actionDelete) > 0
}
