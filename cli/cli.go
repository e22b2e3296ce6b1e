// Package cli is the command line of Carillon: flags and files in, calls of the client library or a node's configuration
// out, answers printed as tables or JSON. It decides nothing about jobs. Run is its one entry; it is called once by main,
// and everything it starts has ended when it returns.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	"github.com/carillon-scheduler/carillon/client"
	"github.com/carillon-scheduler/carillon/node"
)

// program is one run of the command line.
type program struct {
	// name is what the program was called by.
	name           string
	stdin          io.Reader
	stdout, stderr io.Writer
	// transport takes the place of the network in tests; nil: the network.
	transport connect.HTTPClient
}

// Run runs the command in args, of which the first is the program's name, and returns its exit code: see docs/cli.md. It
// ends early when ctx does.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	p := &program{name: "carillon", stdin: stdin, stdout: stdout, stderr: stderr}
	if len(args) > 0 {
		p.name = args[0]
	}
	return p.run(ctx, args)
}

func (p *program) run(ctx context.Context, args []string) int {
	app := p.app()
	err := app.RunContext(ctx, arrange(app, args))
	if err == nil {
		return exitOK
	}
	code := exitCode(ctx, err)
	text := err.Error()
	if code == exitInterrupted && errors.Is(err, context.Canceled) {
		text = "interrupted"
	}
	if text != "" {
		fmt.Fprintf(p.stderr, "carillon: %s\n", text)
	}
	var usage *usageError
	if errors.As(err, &usage) && usage.command != "" {
		fmt.Fprintf(p.stderr, "See '%s --help'.\n", usage.command)
	}
	if hint := nextStep(err); hint != "" && code != exitInterrupted {
		fmt.Fprintln(p.stderr, hint)
	}
	return code
}

func (p *program) app() *cli.App {
	app := &cli.App{
		Name:                      "carillon",
		Usage:                     "a distributed job scheduler in one binary",
		Version:                   node.Version,
		EnableBashCompletion:      true,
		DisableSliceFlagSeparator: true,
		Reader:                    p.stdin,
		Writer:                    p.stdout,
		ErrWriter:                 p.stderr,
		// Run prints errors and chooses the exit code.
		ExitErrHandler: func(*cli.Context, error) {},
		Commands: []*cli.Command{
			p.serveCommand(),
			p.demoCommand(),
			p.workCommand(),
			p.relayCommand(),
			benchCommand(),
			p.applyCommand(),
			p.jobsCommand(),
			p.scheduleCommand(),
			p.executionsCommand(),
			p.deadLettersCommand(),
			p.queuesCommand(),
			p.tenantsCommand(),
			p.pauseCommand(),
			p.clusterCommand(),
			p.clockCommand(),
			p.versionCommand(),
			p.completionCommand(),
		},
	}
	app.Action = group(app.Name)
	app.OnUsageError = onUsageError
	prepare(app.Name, app.Commands)
	return app
}

// prepare gives commands what they have in common: usage errors that say where help is, and groups that refuse words they
// do not know.
func prepare(parent string, commands []*cli.Command) {
	for _, c := range commands {
		name := parent + " " + c.Name
		if c.OnUsageError == nil {
			c.OnUsageError = onUsageError
		}
		c.HideHelpCommand = true
		c.UsageText = strings.TrimSpace(name + " [options] " + c.ArgsUsage)
		if c.Action == nil {
			c.UsageText = name + " COMMAND"
			c.Action = group(name)
		}
		prepare(name, c.Subcommands)
	}
}

// group is the action of a command that only has subcommands.
func group(name string) cli.ActionFunc {
	return func(c *cli.Context) error {
		if c.Args().Present() {
			var known []string
			for _, command := range c.Command.Subcommands {
				known = append(known, command.Name)
			}
			typed := c.Args().First()
			return &usageError{command: name, text: fmt.Sprintf("unknown command %q%s", typed, didYouMean(typed, known))}
		}
		if c.Command.Name == "" || name == c.App.Name {
			return cli.ShowAppHelp(c)
		}
		return cli.ShowSubcommandHelp(c)
	}
}

// defaultTenant is the one of who names none.
const defaultTenant = "default"

// defaultTimeout is short enough for a person who waits.
const defaultTimeout = 10 * time.Second

// Flags of every command that calls a server.
func connectionFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{
			Name: "addr", EnvVars: []string{"CARILLON_ADDR"}, Value: client.DefaultAddress, Category: "common:",
			Usage: "`ADDRESS` of the server: host:port or URL, several separated by commas",
		},
		&cli.StringFlag{
			Name: "tenant", EnvVars: []string{"CARILLON_TENANT"}, Value: defaultTenant, Category: "common:",
			Usage: "`TENANT` the command is about",
		},
		&cli.DurationFlag{
			Name: "timeout", Value: defaultTimeout, Category: "common:",
			Usage: "give up after this `DURATION`, retries included",
		},
		&cli.StringFlag{
			Name: "output", Aliases: []string{"o"}, Value: "table", Category: "common:",
			Usage: "`FORMAT` of the answer: table or json",
		},
	}
}

// call is a command's view of a server.
type call struct {
	*cli.Context
	client *client.Client
	print  *printer
	tenant string
}

// calling is a command that calls a server with exactly the arguments named, a last one ending in "..." standing for any
// number of them.
func (p *program) calling(c cli.Command, action func(context.Context, *call) error) *cli.Command {
	c.Flags = append(c.Flags, connectionFlags()...)
	c.Action = func(ctx *cli.Context) error {
		if err := checkArguments(ctx, c.ArgsUsage); err != nil {
			return err
		}
		print, err := newPrinter(ctx, p.stdout)
		if err != nil {
			return err
		}
		api, err := p.connect(ctx)
		if err != nil {
			return err
		}
		timed, cancel := context.WithTimeout(ctx.Context, ctx.Duration("timeout"))
		defer cancel()
		call := &call{Context: ctx, client: api, print: print, tenant: ctx.String("tenant")}
		if err = settleTimes(timed, call); err == nil {
			err = inFlags(ctx.Command, action(timed, call))
		}
		return errors.Join(err, api.Close())
	}
	return &c
}

func (p *program) connect(c *cli.Context) (*client.Client, error) {
	if c.Duration("timeout") <= 0 {
		return nil, usage(c, "--timeout must be positive")
	}
	patience := slog.New(&patience{w: p.stderr, timeout: c.Duration("timeout")})
	opts := []client.Option{client.WithTimeout(c.Duration("timeout")), client.WithLogger(patience)}
	if p.transport != nil {
		opts = append(opts, client.WithTransport(p.transport))
	}
	api, err := client.New(c.String("addr"), opts...)
	if err != nil {
		return nil, usage(c, "--addr: %s", err)
	}
	return api, nil
}
