package cli

import (
	"fmt"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	"github.com/carillon-scheduler/carillon/client"
)

// Every flag that stands for a field, and every one that holds an instant, is one of some command.
func TestFlagsOfFieldsExist(t *testing.T) {
	known := map[string]bool{}
	var walk func(commands []*cli.Command)
	walk = func(commands []*cli.Command) {
		for _, c := range commands {
			for _, flag := range c.Flags {
				for _, name := range flag.Names() {
					known[name] = true
				}
			}
			walk(c.Subcommands)
		}
	}
	walk((&program{}).app().Commands)
	for _, flag := range whenFlags {
		if !known[flag] {
			t.Errorf("no command has --%s", flag)
		}
	}
	for field, flags := range fieldFlags {
		for _, flag := range strings.Fields(flags) {
			if !known[flag] {
				t.Errorf("%s is said to be --%s, which no command has", field, flag)
			}
		}
	}
}

func TestErrorsNameFlags(t *testing.T) {
	create := &cli.Command{Flags: specFlags()}
	resume := &cli.Command{Flags: []cli.Flag{ruleFlag()}, ArgsUsage: "ID"}
	for _, c := range []struct {
		command *cli.Command
		message string
		fields  []string
		want    string
	}{
		{create, "job.schedule.cron.zone is unknown", []string{"job.schedule.cron.zone"}, "--zone is unknown"},
		{create, "job.schedule.cron.lines[1] is refused", []string{"job.schedule.cron.lines[1]"}, "--cron is refused"},
		{create, "job.schedule.every.interval is 0s", []string{"job.schedule.every.interval"}, "--every is 0s"},
		{create, "job.queue is odd (and 1 more)", []string{"job.queue", "job.retry.max_delay"}, "--queue is odd (and 1 more); --retry-max-delay: is wrong"},
		{create, "job.unheard is odd", []string{"job.unheard"}, "job.unheard is odd"},
		{resume, "resume_rule is 9", []string{"resume_rule"}, "--rule is 9"},
		{resume, "id is empty", []string{"id"}, "ID is empty"},
		{resume, "job.queue is odd", []string{"job.queue"}, "job.queue is odd"},
	} {
		failed := &client.Error{Code: connect.CodeInvalidArgument, Message: c.message}
		for _, field := range c.fields {
			failed.Violations = append(failed.Violations, client.Violation{Field: field, Description: "is wrong"})
		}
		failed.Violations[0].Description, _ = strings.CutPrefix(strings.TrimSuffix(c.message, " (and 1 more)"), c.fields[0]+" ")
		got := inFlags(c.command, fmt.Errorf("put job: %w", failed))
		if got.Error() != "put job: invalid_argument: "+c.want {
			t.Errorf("%s: %s", c.message, got)
		}
		if exitCode(t.Context(), got) != exitUsage {
			t.Errorf("%s ends with %d", c.message, exitCode(t.Context(), got))
		}
	}
}
