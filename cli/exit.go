package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os/exec"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	"github.com/carillon-scheduler/carillon/client"
	"github.com/carillon-scheduler/carillon/node"
)

// Exit codes. docs/cli.md describes them.
const (
	exitOK           = 0
	exitFailed       = 1
	exitUsage        = 2
	exitDiffers      = 2 // what diff programs that CI knows say, see docs/cli.md
	exitNotFound     = 3
	exitConflict     = 4
	exitUnavailable  = 5
	exitPrecondition = 6
	exitDenied       = 7
	exitNotRunnable  = 126 // these two are what programs that run others say
	exitNoProgram    = 127
	exitInterrupted  = 130
)

// exitCode is the code for how a command failed.
func exitCode(ctx context.Context, err error) int {
	var (
		wrong   *wrongError
		misused *usageError
		failed  *client.Error
		coded   cli.ExitCoder
	)
	switch {
	case errors.Is(err, errDiffers):
		return exitDiffers
	case errors.As(err, &wrong):
		return exitFailed
	case isNoProgram(err):
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
			return exitNoProgram
		}
		return exitNotRunnable
	case errors.As(err, &coded), // the parser's own: help for a command that is not there
		errors.As(err, &misused), errors.Is(err, client.ErrInvalid), isParserError(err):
		return exitUsage
	case errors.Is(err, client.ErrNotFound):
		return exitNotFound
	case errors.Is(err, client.ErrAlreadyExists), errors.Is(err, client.ErrVersionConflict):
		return exitConflict
	case errors.Is(err, client.ErrFailedPrecondition), errors.Is(err, node.ErrNoRescue):
		return exitPrecondition
	case errors.Is(err, client.ErrUnauthenticated), errors.Is(err, client.ErrPermissionDenied):
		return exitDenied
	case ctx.Err() != nil:
		return exitInterrupted
	case errors.Is(err, client.ErrUnavailable), errors.Is(err, client.ErrOverloaded), isUnreachable(err),
		errors.As(err, &failed) && failed.Code == connect.CodeDeadlineExceeded:
		return exitUnavailable
	default:
		return exitFailed
	}
}

// wrongError is what a command was to find out and found to be wrong: it decides the exit code, whatever else failed.
type wrongError struct{ error }

// isNoProgram reports whether err is about a program that work is to run and cannot.
func isNoProgram(err error) bool {
	var missing *exec.Error
	return errors.As(err, &missing)
}

// isParserError reports whether err is the parser's own about required flags, which it does not let a program name.
func isParserError(err error) bool {
	return strings.HasPrefix(err.Error(), "Required flag")
}

// usageError says that the command was called wrongly.
type usageError struct {
	// command is where help is.
	command, text string
}

func (e *usageError) Error() string { return e.text }

func usage(c *cli.Context, format string, args ...any) error {
	return &usageError{command: c.Command.HelpName, text: fmt.Sprintf(format, args...)}
}

func onUsageError(c *cli.Context, err error, _ bool) error {
	name, flags := c.App.Name, c.App.Flags
	if c.Command != nil && c.Command.HelpName != "" {
		name, flags = c.Command.HelpName, c.Command.Flags
	}
	return &usageError{command: name, text: parserText(err.Error(), flags)}
}

// parserText says in this program's words what its parser says of flags.
func parserText(text string, flags []cli.Flag) string {
	if typed, ok := strings.CutPrefix(text, "flag provided but not defined: "); ok {
		var known []string
		for _, f := range flags {
			known = append(known, dashed(f.Names()[0]))
		}
		typed = dashed(strings.TrimLeft(typed, "-"))
		return fmt.Sprintf("unknown flag %s%s", typed, didYouMean(typed, known))
	}
	if flag, ok := strings.CutPrefix(text, "flag needs an argument: "); ok {
		return dashed(strings.TrimLeft(flag, "-")) + " needs a value"
	}
	value, rest, ok := strings.Cut(strings.TrimPrefix(text, "invalid value "), " for flag -")
	flag, reason, _ := strings.Cut(rest, ": ")
	switch {
	case !ok:
		return text
	case strings.HasSuffix(reason, "value out of range"):
		return fmt.Sprintf("%s: %s is out of range", dashed(flag), value)
	case !strings.HasPrefix(reason, "parse error") && !strings.HasPrefix(reason, "strconv."): // of one number, of several
		return text
	}
	for _, f := range flags {
		if _, isDuration := f.(*cli.DurationFlag); isDuration && slices.Contains(f.Names(), flag) {
			return fmt.Sprintf("%s: %s is not a duration such as 90s or 1h30m", dashed(flag), value)
		}
	}
	return fmt.Sprintf("%s: %s is not a number", dashed(flag), value)
}

// dashed is a flag's name as people type it.
func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// nextStep is what to do about an error that does not say so itself, or "".
func nextStep(err error) string {
	switch {
	case isUnreachable(err):
		return "Is a server running there? 'carillon serve' starts one; --addr or $CARILLON_ADDR (of bench: --target) names another."
	case errors.Is(err, node.ErrDataDirInUse):
		return "One server has a data directory at a time: stop that one, or choose another directory with --data."
	}
	return ""
}

// isUnreachable reports whether nobody answered at an address.
func isUnreachable(err error) bool {
	var dial *net.OpError
	return errors.As(err, &dial) && dial.Op == "dial"
}
