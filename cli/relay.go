package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"

	"github.com/carillon-scheduler/carillon/client"
	"github.com/carillon-scheduler/carillon/relay"
)

func (p *program) relayCommand() *cli.Command {
	const breaker = "breaker:"
	return &cli.Command{
		Name: "relay", Usage: "post each execution of a queue to a URL",
		Description: "The payload is the body and the rest in headers, signed with the secret. Status 2xx: succeeded, with the answer's\n" +
			"body as result; 408, 425, 429 and 5xx: failed, by the retry policy or Retry-After; other 4xx: failed for good. The first\n" +
			"SIGINT or SIGTERM lets requests finish within --grace, the second ends them. docs/workers.md has all of it.",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "url", Usage: "`URL` to post to, https:// or http://"},
			&cli.StringSliceFlag{
				Name: "secret-file", Usage: "`FILE` with the secret that signs requests; repeatable while receivers change it", DefaultText: "not signed",
			},
			&cli.DurationFlag{Name: "timeout", Value: 30 * time.Second, Usage: "how `LONG` an answer may take"},
			&cli.BoolFlag{Name: "allow-private", Usage: "let requests go to addresses that are not public, such as 127.0.0.1"},
			&cli.IntFlag{Name: "max-redirects", Usage: "follow at most `N` redirects that ask for the same request (307, 308)"},
			&cli.DurationFlag{Name: "max-retry-after", Value: time.Hour, Usage: "the `LONGEST` that Retry-After can ask for"},
			&cli.IntFlag{Name: "breaker-failures", Category: breaker, Value: 5, Usage: "so `MANY` failures in a row of the host stop the relay"},
			&cli.DurationFlag{
				Name: "breaker-pause", Category: breaker, Value: 10 * time.Second, Usage: "after this `DURATION` one execution shows whether it is back",
			},
			&cli.StringFlag{Name: "metrics-listen", Usage: "serve /metrics at this `ADDRESS`, host:port", DefaultText: "nowhere"},
		}, workerFlags(10)...),
		Action: func(c *cli.Context) error {
			if err := checkArguments(c, ""); err != nil {
				return err
			}
			logger, err := newLogger(p.stderr, c.String("log-format"), c.String("log-level"))
			if err != nil {
				return usage(c, "%s", err)
			}
			r, err := newRelay(c, logger)
			if err != nil {
				return err
			}
			defer r.Close()
			work := func() error { return p.runWorker(c, client.WorkerConfig{Logger: logger, Gate: r.Gate}, r.Handle) }
			if c.String("metrics-listen") == "" {
				return work()
			}
			registry := prometheus.NewRegistry()
			registry.MustRegister(r.Collectors()...)
			return withMetrics(c.String("metrics-listen"), registry, work)
		},
	}
}

func newRelay(c *cli.Context, logger *slog.Logger) (*relay.Relay, error) {
	if c.String("url") == "" {
		return nil, usage(c, "--url is missing")
	}
	config := relay.Config{
		URL: c.String("url"), Timeout: c.Duration("timeout"), AllowPrivate: c.Bool("allow-private"),
		MaxRedirects: c.Int("max-redirects"), MaxRetryAfter: c.Duration("max-retry-after"),
		Failures: c.Int("breaker-failures"), Pause: c.Duration("breaker-pause"), Logger: logger,
	}
	for _, name := range c.StringSlice("secret-file") {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, usage(c, "--secret-file: %s", err)
		}
		secret, err := relay.ParseSecret(text)
		if err != nil {
			return nil, usage(c, "--secret-file: %s: %s", name, err)
		}
		config.Secrets = append(config.Secrets, secret)
	}
	r, err := relay.New(config)
	if err != nil {
		return nil, usage(c, "--%s", err)
	}
	if len(config.Secrets) == 0 {
		logger.Warn("requests are not signed: see --secret-file")
	}
	return r, nil
}

// withMetrics serves metrics while work goes on.
func withMetrics(address string, metrics prometheus.Gatherer, work func() error) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("serve metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	var serving errgroup.Group
	serving.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve metrics: %w", err)
		}
		return nil
	})
	err = work()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return errors.Join(err, server.Shutdown(ctx), serving.Wait())
}
