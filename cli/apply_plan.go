package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/carillon-scheduler/carillon/cli/manifest"
	"github.com/carillon-scheduler/carillon/client"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// planOf finds out what would happen to each job, and to those that prune deletes. Of a dry run it also knows how their next
// fires change. What is wrong with jobs is one error: then there is no plan.
func (p *program) planOf(ctx context.Context, c *call, jobs []manifest.Job) (*plan, error) {
	plan := &plan{}
	for _, job := range jobs {
		plan.steps = append(plan.steps, &step{job: job})
	}
	if err := each(ctx, plan.steps, p.bar(int64(len(jobs)), "comparing"), func(ctx context.Context, s *step) error {
		return s.decide(ctx, c)
	}); err != nil {
		return nil, err
	}
	if err := plan.faults(); err != nil {
		return nil, err
	}
	if c.Bool("prune") {
		doomed, err := pruned(ctx, c, jobs)
		if err != nil {
			return nil, err
		}
		plan.steps = append(plan.steps, doomed...)
	}
	if !c.Bool("dry-run") {
		return plan, nil
	}
	bar := p.bar(int64(len(plan.steps)), "previewing")
	return plan, each(ctx, plan.steps, bar, func(ctx context.Context, s *step) (err error) {
		s.fires, err = firesOf(ctx, c, s)
		return err
	})
}

// each calls do with every step, several at a time, until one fails. The bar, if there is one, shows how many it has been.
func each(ctx context.Context, steps []*step, bar *progressbar.ProgressBar, do func(context.Context, *step) error) error {
	calls, ctx := errgroup.WithContext(ctx)
	calls.SetLimit(applyInFlight)
	for _, s := range steps {
		if ctx.Err() != nil {
			break
		}
		calls.Go(func() error {
			err := do(ctx, s)
			if bar != nil {
				_ = bar.Add(1) // A bar that cannot be drawn is no reason to stop.
			}
			return err
		})
	}
	err := calls.Wait()
	if bar != nil && err != nil {
		_ = bar.Clear() // A full one clears itself.
	}
	return err
}

// decide asks what the server would make of the file's job, and reads the one that is there.
func (s *step) decide(ctx context.Context, c *call) error {
	planned, err := c.client.PutJob(ctx, &carillonv1.PutJobRequest{
		Id: s.id(), Job: s.job.Spec, ValidateOnly: true,
	})
	switch {
	case errors.Is(err, client.ErrInvalid), errors.Is(err, client.ErrFailedPrecondition):
		s.err = err
		return nil
	case err != nil:
		return fmt.Errorf("check job %s: %w", s.id(), err)
	}
	if planned.GetOutcome() != carillonv1.PutOutcome_PUT_OUTCOME_CREATED {
		current, err := c.client.GetJob(ctx, &carillonv1.GetJobRequest{Id: s.id(), Tenant: s.tenant()})
		switch {
		case errors.Is(err, client.ErrNotFound): // deleted meanwhile
		case err != nil:
			return fmt.Errorf("read job %s: %w", s.id(), err)
		default:
			s.current = current
		}
	}
	s.planned = specIn(planned.GetJob())
	s.changes = manifest.Compare(specIn(s.current), s.planned)
	version := s.job.Version
	switch {
	case s.current == nil && version != 0:
		s.err = fmt.Errorf("%w: the file wants version %d, and the job does not exist", client.ErrVersionConflict, version)
	case s.current == nil && isPast(planned.GetJob()):
		s.action, s.changes = actionPast, nil
	case s.current == nil:
		s.action, s.changes = actionCreate, nil
	case len(s.changes) == 0:
		s.action = actionUnchanged
	case version != 0 && version != s.current.GetVersion():
		s.err = fmt.Errorf("%w: the file wants version %d, and it is %d", client.ErrVersionConflict, version, s.current.GetVersion())
	default:
		s.action = actionUpdate
	}
	return nil
}

// isPast says whether the server knows of nothing that a one-shot would do, because its time has passed.
func isPast(job *carillonv1.Job) bool {
	_, once := job.GetSchedule().GetWhen().(*carillonv1.Schedule_At)
	return once && job.GetNextTime() == nil
}

// specIn is what a job is defined by: the first fields of Job are those of JobSpec.
func specIn(job *carillonv1.Job) *carillonv1.JobSpec {
	spec := new(carillonv1.JobSpec)
	from, to := job.ProtoReflect(), spec.ProtoReflect()
	fields := to.Descriptor().Fields()
	for i := range fields.Len() {
		source := from.Descriptor().Fields().ByNumber(fields.Get(i).Number())
		if job != nil && from.Has(source) {
			to.Set(fields.Get(i), from.Get(source))
		}
	}
	return proto.CloneOf(spec)
}

// planError are the steps that cannot be done, of which the first decides the exit code.
type planError struct{ steps []*step }

// Error is a line per job, at most twenty.
func (e *planError) Error() string {
	const most = 20
	lines := []string{"nothing was done"}
	for _, s := range e.steps[:min(len(e.steps), most)] {
		lines = append(lines, s.failure())
	}
	if more := len(e.steps) - most; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, "\n")
}

func (e *planError) Unwrap() error { return e.steps[0].err }

// failure is why a step cannot be done, and where it stands.
func (s *step) failure() string {
	where := s.id() + ": "
	if s.source() != "" {
		where = s.source() + ": " + where
	}
	var failed *client.Error
	switch {
	case !errors.As(s.err, &failed):
		return where + s.err.Error()
	case len(failed.Violations) == 0:
		return where + failed.Message
	}
	var all []string
	for _, v := range failed.Violations {
		all = append(all, fieldInFile(v.Field)+" "+v.Description)
	}
	return where + strings.Join(all, "; ")
}

// fieldInFile is the path of a field of a request as a file has it: catchUp for job.catch_up.
func fieldInFile(path string) string {
	words := strings.Split(strings.TrimPrefix(path, "job."), "_")
	for i, w := range words[1:] {
		words[i+1] = strings.ToUpper(w[:min(1, len(w))]) + w[min(1, len(w)):]
	}
	return strings.Join(words, "")
}

func (p *plan) faults() error {
	failed := slices.DeleteFunc(slices.Clone(p.steps), func(s *step) bool { return s.err == nil })
	if len(failed) == 0 {
		return nil
	}
	return &planError{steps: failed}
}

// pruned are the deletions: of the tenant's jobs that have the labels and are in no file. One-shots with nothing left to fire
// are history, which goes by itself.
func pruned(ctx context.Context, c *call, jobs []manifest.Job) (doomed []*step, err error) {
	kept := make(map[string]bool, len(jobs))
	for _, job := range jobs {
		if job.Spec.GetTenant() == c.tenant {
			kept[job.Spec.GetId()] = true
		}
	}
	for job, err := range c.client.ListJobs(ctx, &carillonv1.ListJobsRequest{
		Tenant: c.tenant, Label: c.StringSlice("label"), PageSize: 1000,
	}) {
		if err != nil {
			return nil, fmt.Errorf("list jobs to prune: %w", err)
		}
		if !kept[job.GetId()] && !isHistory(job) {
			doomed = append(doomed, &step{action: actionDelete, current: job})
		}
	}
	slices.SortFunc(doomed, func(a, b *step) int { return strings.Compare(a.id(), b.id()) })
	return doomed, nil
}

// isPaused says whether a job fires nothing for now.
func isPaused(job *carillonv1.Job) bool {
	return job.GetState() == carillonv1.JobState_JOB_STATE_PAUSED
}

// isHistory says whether a job is a one-shot with nothing left to fire.
func isHistory(job *carillonv1.Job) bool {
	_, once := job.GetSchedule().GetWhen().(*carillonv1.Schedule_At)
	return once && job.GetState() == carillonv1.JobState_JOB_STATE_EXHAUSTED
}
