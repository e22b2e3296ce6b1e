package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/schollz/progressbar/v3"

	"github.com/carillon-scheduler/carillon/client"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// applyBlock is how many steps are taken before their results are told.
const applyBlock = 512

// carryOut takes the steps of a plan: first all creations and changes, then the deletions if none of those failed. A job that
// cannot be changed does not keep the others from it; a server that cannot be reached does.
func (p *program) carryOut(ctx context.Context, c *call, plan *plan) error {
	var stopped error
	bar := p.applyBar(c, len(plan.steps))
	for left := plan.steps; len(left) > 0 && stopped == nil; {
		n := blockOf(left)
		if left[0].action == actionDelete && plan.failed() > 0 {
			break
		}
		block := left[:n]
		left = left[n:]
		stopped = each(ctx, block, bar, func(ctx context.Context, s *step) error { return s.take(ctx, c) })
		for _, s := range block {
			if err := p.tell(c, s); err != nil {
				return err
			}
		}
	}
	if err := c.print.planSummary(plan); err != nil {
		return err
	}
	if stopped != nil {
		return fmt.Errorf("apply stopped, run it again to go on: %w", stopped)
	}
	return plan.failures()
}

// applyBar shows how many steps were taken, unless a line for each of them does on the same terminal.
func (p *program) applyBar(c *call, steps int) *progressbar.ProgressBar {
	if isTerminal(p.stdout) && !c.print.json {
		return nil
	}
	return p.bar(int64(steps), "applying")
}

// blockOf is how many of the steps are taken together: deletions apart from the others.
func blockOf(steps []*step) int {
	n := 0
	for n < min(len(steps), applyBlock) && (steps[n].action == actionDelete) == (steps[0].action == actionDelete) {
		n++
	}
	return n
}

// take does one step. It returns an error only if there is no use in going on.
func (s *step) take(ctx context.Context, c *call) error {
	var err error
	switch s.action {
	case actionCreate:
		_, err = c.client.PutJob(ctx, &carillonv1.PutJobRequest{Id: s.id(), Job: s.job.Spec, MustNotExist: true})
	case actionUpdate:
		_, err = c.client.PutJob(ctx, &carillonv1.PutJobRequest{
			Id: s.id(), Job: s.job.Spec, ExpectedVersion: s.current.GetVersion(),
		})
	case actionDelete:
		_, err = c.client.DeleteJob(ctx, &carillonv1.DeleteJobRequest{
			Id: s.id(), Tenant: s.tenant(), ExpectedVersion: s.current.GetVersion(),
		})
		if errors.Is(err, client.ErrNotFound) {
			err = nil // somebody else has deleted it
		}
	}
	if err == nil {
		s.done = true
		return nil
	}
	s.err = err
	if errors.Is(err, client.ErrVersionConflict) || s.action == actionUpdate && errors.Is(err, client.ErrNotFound) {
		s.err = &raceError{read: s.current.GetVersion(), err: err}
		return nil
	}
	if errors.Is(err, client.ErrInvalid) || errors.Is(err, client.ErrFailedPrecondition) || errors.Is(err, client.ErrAlreadyExists) {
		return nil
	}
	return fmt.Errorf("%s job %s: %w", s.action, s.id(), err)
}

// raceError says that somebody else was faster.
type raceError struct {
	// read is the version that was read; 0: there was no job.
	read uint64
	err  error
}

func (e *raceError) Error() string {
	var failed *client.Error
	switch {
	case errors.Is(e.err, client.ErrNotFound):
		return "was deleted by somebody else since it was read; run it again to create it"
	case e.read == 0:
		return "was created by somebody else since it was looked for; nothing was overwritten"
	case errors.As(e.err, &failed) && failed.CurrentVersion != 0:
		return fmt.Sprintf("was changed by somebody else since it was read: it was version %d and is %d; nothing was overwritten",
			e.read, failed.CurrentVersion)
	}
	return fmt.Sprintf("was changed by somebody else since it was read as version %d; nothing was overwritten", e.read)
}

// Unwrap is a conflict, whatever the server called it.
func (e *raceError) Unwrap() error { return client.ErrVersionConflict }

// tell prints what became of a step: on standard output what was done, on standard error what was not.
func (p *program) tell(c *call, s *step) error {
	if s.err != nil {
		_, err := fmt.Fprintln(p.stderr, s.failure())
		return err
	}
	text := map[string]string{
		actionCreate: "created ", actionUpdate: "updated ", actionDelete: "deleted ", actionPast: "past ",
	}[s.action]
	if text == "" || !s.done || c.print.json {
		return nil
	}
	text += s.id()
	switch s.action {
	case actionPast:
		text += ": its time has passed, so that it is not created"
	case actionUpdate:
		var fields []string
		for _, change := range s.changes {
			if n := len(fields); n == 0 || fields[n-1] != change.Field {
				fields = append(fields, change.Field)
			}
		}
		text += ": " + strings.Join(fields, ", ")
	}
	_, err := fmt.Fprintln(c.print.w, text)
	return err
}

func (p *plan) failed() (n int) {
	for _, s := range p.steps {
		if s.err != nil {
			n++
		}
	}
	return n
}

// failures is an error if steps failed; the first decides the exit code.
func (p *plan) failures() error {
	for _, s := range p.steps {
		if s.err != nil {
			return &failuresError{n: p.failed(), first: s.err}
		}
	}
	return nil
}

type failuresError struct {
	n     int
	first error
}

func (e *failuresError) Error() string {
	return fmt.Sprintf("%d of the jobs could not be changed; the others were, but nothing was deleted", e.n)
}

func (e *failuresError) Unwrap() error { return e.first }
