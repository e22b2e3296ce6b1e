package cli

import (
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"
)

const completionFlag = "--generate-bash-completion"

// arrange moves flags in front of positional arguments, where the parser looks for them: people type "jobs get ID -o json"
// and "-o json jobs get ID" as well as "jobs get -o json ID". What follows "--" is positional.
func arrange(app *cli.App, args []string) []string {
	if len(args) < 2 || args[len(args)-1] == completionFlag {
		return args
	}
	out := []string{args[0]}
	commands, flags := app.Commands, slices.Concat(connectionFlags(), app.Flags)
	var options, positional []string
	for i := 1; i < len(args); i++ {
		arg := args[i]
		switch {
		case arg == "--":
			positional = append(positional, args[i+1:]...)
			i = len(args)
		case len(arg) > 1 && arg[0] == '-':
			if i+1 < len(args) && mayTakeValue(flags, arg) && isNumber(args[i+1]) {
				i++
				arg += "=" + args[i]
			}
			options = append(options, arg)
			if i+1 < len(args) && takesValue(flags, arg) {
				i++
				options = append(options, args[i])
			}
		default:
			if arg == "help" && commands != nil && len(positional) == 0 {
				// "help jobs create" and "jobs help create" are "jobs create --help".
				options = append(options, "--help")
				continue
			}
			command := find(commands, arg)
			if command == nil || len(positional) > 0 {
				positional = append(positional, arg)
				continue
			}
			out = append(out, arg)
			commands, flags = command.Subcommands, slices.Concat(command.Flags, flags)
		}
	}
	out = append(out, options...)
	if slices.ContainsFunc(positional, func(s string) bool { return len(s) > 1 && s[0] == '-' }) {
		out = append(out, "--")
	}
	return append(out, positional...)
}

func find(commands []*cli.Command, name string) *cli.Command {
	for _, c := range commands {
		if c.HasName(name) {
			return c
		}
	}
	return nil
}

// takesValue reports whether the value of the flag in arg is the next argument.
func takesValue(flags []cli.Flag, arg string) bool {
	name := strings.TrimLeft(arg, "-")
	if strings.Contains(name, "=") {
		return false
	}
	for _, f := range flags {
		if slices.Contains(f.Names(), name) {
			documented, ok := f.(cli.DocGenerationFlag)
			return ok && documented.TakesValue() && !isOptional(f)
		}
	}
	return false
}

// mayTakeValue reports whether a number behind the flag in arg is its value.
func mayTakeValue(flags []cli.Flag, arg string) bool {
	name := strings.TrimLeft(arg, "-")
	return slices.ContainsFunc(flags, func(f cli.Flag) bool { return isOptional(f) && slices.Contains(f.Names(), name) })
}

func isOptional(f cli.Flag) bool {
	generic, ok := f.(*cli.GenericFlag)
	if !ok {
		return false
	}
	_, ok = generic.Value.(*optionalNumber)
	return ok
}

func isNumber(s string) bool {
	_, err := strconv.ParseUint(s, 10, 32)
	return err == nil
}

// checkArguments compares the positional arguments with what a command's help says of them: "ID", "FILE", "ID...", "[ID...]".
func checkArguments(c *cli.Context, want string) error {
	names := strings.Fields(want)
	least, most := len(names), len(names)
	if n := len(names); n > 0 && strings.HasSuffix(strings.TrimSuffix(names[n-1], "]"), "...") {
		most = c.NArg()
		if strings.HasPrefix(names[n-1], "[") {
			least--
		}
	}
	switch {
	case c.NArg() < least:
		return usage(c, "%s is missing", strings.TrimSuffix(names[c.NArg()], "..."))
	case c.NArg() > most:
		return usage(c, "unexpected argument %q", c.Args().Get(most))
	}
	return nil
}
