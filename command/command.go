// Package command runs a program per execution: a Runner's Handle is the handler of a client.Worker, which makes any program
// a worker. It knows nothing of claims, leases and heartbeats, which are the worker's. "carillon work" is its one user. Each
// call of Handle owns one process, the process group that it leads, and the goroutines that read what it writes; all of that
// has ended when Handle returns.
package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/client"
)

// ExitTempFail is the exit code by which a program says that it is not the time yet: EX_TEMPFAIL of sysexits.h.
const ExitTempFail = 75

// Config says which program runs, and how its end is understood. Only Args is required.
type Config struct {
	// Args are the program, looked up in PATH if its name has no slash, and its arguments.
	Args []string
	// Timeout is how long a run may take until it is told to stop. Default: for ever.
	Timeout time.Duration
	// KillAfter is how long a program may go on after SIGTERM until SIGKILL ends it. Default: at once.
	KillAfter time.Duration
	// TempFailDelay is when the next attempt comes after ExitTempFail. Default: at once.
	TempFailDelay time.Duration
	// FatalCodes are the exit codes that no further attempt can help, 1 to 255. Default: none.
	FatalCodes []int
	// Address of the servers, which the program finds in CARILLON_ADDR.
	Address string
	// Logger is told what programs write to standard error, and how each ended.
	Logger *slog.Logger
}

// Runner runs a program per execution. Make it with New.
type Runner struct{ config Config }

// New makes a runner. It fails if the configuration names no program, or one that is not there: the error has
// an *exec.Error then.
func New(config Config) (*Runner, error) {
	switch {
	case len(config.Args) == 0:
		return nil, errors.New("args: a program is missing")
	case config.Timeout < 0:
		return nil, fmt.Errorf("timeout: must not be negative, is %s", config.Timeout)
	case config.KillAfter < 0:
		return nil, fmt.Errorf("kill-after: must not be negative, is %s", config.KillAfter)
	case config.TempFailDelay < 0:
		return nil, fmt.Errorf("tempfail-delay: must not be negative, is %s", config.TempFailDelay)
	}
	for _, code := range config.FatalCodes {
		if code < 1 || code > 255 {
			return nil, fmt.Errorf("fatal-exit: want 1 to 255, is %d", code)
		}
	}
	if slices.Contains(config.FatalCodes, ExitTempFail) {
		return nil, fmt.Errorf("fatal-exit: %d asks for another attempt", ExitTempFail)
	}
	if _, err := exec.LookPath(config.Args[0]); err != nil {
		return nil, fmt.Errorf("find program: %w", err)
	}
	return &Runner{config: config}, nil
}

// errTimeout is why a run's context ends after the timeout.
var errTimeout = errors.New("it took too long")

// Handle is a client.Handler. The program gets the payload on standard input and the rest in its environment; what it writes
// to standard output is the result if it ends with exit code 0.
func (r *Runner) Handle(ctx context.Context, e *client.Execution) ([]byte, error) {
	log := r.config.Logger.With("execution", e.ID, "attempt", e.Attempt)
	began := time.Now()
	if r.config.Timeout > 0 {
		limited, cancel := context.WithTimeoutCause(ctx, r.config.Timeout, errTimeout)
		defer cancel()
		ctx = limited
	}
	cmd := exec.Command(r.config.Args[0], r.config.Args[1:]...)
	cmd.Env = environment(cmd.Environ(), e, r.config.Address)
	p, err := start(cmd, e.Payload, func(line string) { log.Info("stderr", "line", line) })
	if err != nil {
		log.Error("program not started", "error", err)
		return nil, fmt.Errorf("start program: %w", err)
	}
	if err := p.end(ctx, r.config.KillAfter); err != nil {
		log.Warn("standard input or output not closed in order", "error", err)
	}
	log.Info("program ended", "state", cmd.ProcessState, "took", time.Since(began).Round(time.Millisecond))
	return r.outcome(ctx, p)
}

// outcome is what a handler says of a program that ended as it did.
func (r *Runner) outcome(ctx context.Context, p *process) ([]byte, error) {
	code := p.cmd.ProcessState.ExitCode() // -1: by a signal
	switch {
	case code == 0 && p.result.total > client.MaxResult:
		return nil, fmt.Errorf("result is too long: %d bytes of standard output, %d are the most", p.result.total, client.MaxResult)
	case code == 0:
		return p.result.kept, nil
	case code == ExitTempFail && ctx.Err() == nil:
		return nil, client.SnoozeFor(r.config.TempFailDelay)
	}
	text := p.cmd.ProcessState.String()
	if meaning := meanings[code]; meaning != "" {
		text += " (" + meaning + ")"
	}
	err := errors.New(withLastWords(text, p.last.String()))
	switch {
	case errors.Is(context.Cause(ctx), errTimeout):
		return nil, fmt.Errorf("stopped after %s: %w", r.config.Timeout, err)
	case ctx.Err() != nil:
		return nil, fmt.Errorf("stopped, %w: %w", context.Cause(ctx), err)
	case slices.Contains(r.config.FatalCodes, code):
		return nil, client.NonRetryable(err)
	}
	return nil, err
}

// meanings of exit codes that are the shell's, not the program's.
var meanings = map[int]string{126: "a command cannot be executed", 127: "a command was not found"}

// withLastWords puts the last line that a program wrote to standard error behind how it ended, and all that was kept below.
func withLastWords(text, words string) string {
	words = strings.TrimRight(words, "\n")
	last := words[strings.LastIndexByte(words, '\n')+1:]
	if last == "" {
		return text
	}
	text += ": " + last
	if last != words {
		text += "\nstandard error:\n" + words
	}
	return text
}
