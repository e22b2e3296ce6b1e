package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/carillon-scheduler/carillon/client"
	"github.com/carillon-scheduler/carillon/command"
)

// Defaults of workers that are commands.
const (
	defaultGrace         = 20 * time.Second
	defaultKillAfter     = 10 * time.Second
	defaultTempFailDelay = time.Minute
)

func (p *program) workCommand() *cli.Command {
	return &cli.Command{
		Name: "work", ArgsUsage: "-- CMD [ARG...]", Usage: "run a program for each execution of a queue",
		Description: "The payload is the program's standard input, what it writes to standard output the result, and the rest is in\n" +
			"CARILLON_… variables. Exit code 0: succeeded; 75: not now, another attempt follows; others: failed. The first SIGINT or\n" +
			"SIGTERM lets programs finish within --grace, the second ends them. docs/workers.md has all of it.",
		Flags: append([]cli.Flag{
			&cli.DurationFlag{
				Name: "timeout", Usage: "a program that runs for this `DURATION` is stopped, and has failed", DefaultText: "none",
			},
			&cli.DurationFlag{
				Name: "kill-after", Value: defaultKillAfter,
				Usage: "a program that goes on for this `DURATION` after SIGTERM gets SIGKILL",
			},
			&cli.DurationFlag{
				Name: "tempfail-delay", Value: defaultTempFailDelay,
				Usage: "after exit code 75 the next attempt comes in this `DURATION`",
			},
			&cli.IntSliceFlag{Name: "fatal-exit", Usage: "exit `CODE` that no further attempt can help; repeatable"},
		}, workerFlags(1)...),
		OnUsageError: func(c *cli.Context, err error, isSubcommand bool) error {
			return fmt.Errorf("%w (the program and its flags stand after --)", onUsageError(c, err, isSubcommand))
		},
		Action: func(c *cli.Context) error {
			if c.NArg() == 0 {
				return usage(c, "CMD is missing")
			}
			logger, err := newLogger(p.stderr, c.String("log-format"), c.String("log-level"))
			if err != nil {
				return usage(c, "%s", err)
			}
			runner, err := command.New(command.Config{
				Args: c.Args().Slice(), Timeout: c.Duration("timeout"), KillAfter: c.Duration("kill-after"),
				TempFailDelay: c.Duration("tempfail-delay"), FatalCodes: c.IntSlice("fatal-exit"),
				Address: c.String("addr"), Logger: logger,
			})
			switch {
			case isNoProgram(err):
				return err
			case err != nil:
				return usage(c, "--%s", err)
			}
			return p.runWorker(c, client.WorkerConfig{Logger: logger}, runner.Handle)
		},
	}
}

// workerFlags are those of all commands that are workers.
func workerFlags(concurrency int) []cli.Flag {
	const worker = "worker:"
	return []cli.Flag{
		&cli.StringSliceFlag{Name: "queue", Category: worker, Usage: "`QUEUE` to take from; repeatable"},
		&cli.IntFlag{
			Name: "concurrency", Category: worker, Value: concurrency, Usage: "run `N` executions at once",
		},
		&cli.DurationFlag{
			Name: "lease", Category: worker, DefaultText: "each job's own",
			Usage: "how `LONG` an execution stays here if this process falls silent",
		},
		&cli.DurationFlag{
			Name: "grace", Category: worker, Value: defaultGrace,
			Usage: "how `LONG` executions may go on after SIGINT or SIGTERM, before they are given back uncounted",
		},
		&cli.StringFlag{
			Name: "name", Category: worker, DefaultText: "host name and process id", Usage: "`NAME` of the worker in history",
		},
		&cli.StringFlag{
			Name: "addr", EnvVars: []string{"CARILLON_ADDR"}, Value: client.DefaultAddress, Category: worker,
			Usage: "`ADDRESS` of the server: host:port or URL, several separated by commas",
		},
		&cli.StringFlag{Name: "log-level", Category: worker, Value: "info", Usage: "`LEVEL`: debug, info, warn or error"},
		&cli.StringFlag{Name: "log-format", Category: worker, Value: "text", Usage: "`FORMAT`: text or json"},
	}
}

// runWorker works with handle until the command's context ends or a signal comes; a second signal ends the grace.
func (p *program) runWorker(c *cli.Context, config client.WorkerConfig, handle client.Handler) error {
	switch {
	case len(c.StringSlice("queue")) == 0:
		return usage(c, "--queue is missing")
	case c.Int("concurrency") < 1: // 0 would be the library's default
		return usage(c, "--concurrency must be positive, is %d", c.Int("concurrency"))
	case c.Duration("grace") < 0:
		return usage(c, "--grace must not be negative, is %s", c.Duration("grace"))
	}
	config.Queues, config.Name = c.StringSlice("queue"), c.String("name")
	config.Concurrency, config.Lease = c.Int("concurrency"), c.Duration("lease")
	if config.Grace = c.Duration("grace"); config.Grace == 0 {
		config.Grace = -1 // none
	}
	opts := []client.Option{client.WithLogger(config.Logger)}
	if p.transport != nil {
		opts = append(opts, client.WithTransport(p.transport))
	}
	api, err := client.New(c.String("addr"), opts...)
	if err != nil {
		return usage(c, "--addr: %s", err)
	}
	ctx, hurry, release := untilSignals(c.Context, config.Logger)
	defer release()
	config.Hurry = hurry
	config.Logger.Info("working", "queues", config.Queues, "concurrency", config.Concurrency)
	err = client.NewWorker(api, config, handle).Run(ctx)
	return errors.Join(err, api.Close())
}

// untilSignals is a context that a signal ends as well as parent, and a channel that is closed by the second signal. Signals
// are as they were after release.
func untilSignals(parent context.Context, log *slog.Logger) (ctx context.Context, second <-chan struct{}, release func()) {
	ctx, stop := context.WithCancel(parent)
	signals, released, hurry := make(chan os.Signal, 2), make(chan struct{}), make(chan struct{})
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	var watching sync.WaitGroup
	watching.Go(func() {
		for n := 1; n <= 2; n++ {
			select {
			case <-released:
				return
			case got := <-signals:
				if n == 2 {
					log.Info("ending what runs", "signal", got.String())
					close(hurry)
					return
				}
				log.Info("stopping: what runs may finish, a second signal ends it", "signal", got.String())
				stop()
			}
		}
	})
	return ctx, hurry, func() {
		signal.Stop(signals)
		close(released)
		watching.Wait()
		stop()
	}
}
