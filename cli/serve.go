package cli

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/urfave/cli/v2"

	"github.com/carillon-scheduler/carillon/node"
)

func (p *program) serveCommand() *cli.Command {
	d := node.DefaultConfig()
	memory, clock, cluster := "memory:", "clock:", "cluster:"
	return &cli.Command{
		Name: "serve", Usage: "run a node",
		Description: "It serves Connect, gRPC, gRPC-web and REST on one port, and keeps everything in the data directory, " +
			"where\nthe file \"address\" holds the address it listens at. SIGINT and SIGTERM stop it in order.",
		Flags: []cli.Flag{
			&cli.StringFlag{
				Name: "data", Value: d.DataDir, EnvVars: []string{"CARILLON_DATA"}, Usage: "`DIRECTORY` of everything it keeps",
			},
			&cli.StringFlag{
				Name: "listen", Value: d.Listen, EnvVars: []string{"CARILLON_LISTEN"},
				Usage: "`ADDRESS` to serve at, host:port; port 0 takes a free one",
			},
			&cli.StringFlag{Name: "name", Value: d.Name, EnvVars: []string{"CARILLON_NAME"}, Usage: "`NAME` of the node"},
			&cli.StringFlag{
				Name: "peers", Category: cluster, EnvVars: []string{"CARILLON_PEERS"},
				Usage: "the `NODES` that form the cluster, the same on each: n1=host:port,n2=host:port,n3=host:port",
			},
			&cli.StringSliceFlag{
				Name: "join", Category: cluster, Usage: "`ADDRESS` of a node of the cluster to join; repeatable",
			},
			&cli.StringFlag{
				Name: "cluster-secret-file", Category: cluster, EnvVars: []string{"CARILLON_CLUSTER_SECRET_FILE"},
				Usage: "`FILE` with the secret that makes a node one of the cluster",
			},
			&cli.BoolFlag{Name: "insecure", Usage: "allow an address that other machines reach: there is no authentication"},
			&cli.StringSliceFlag{Name: "cors-origin", Usage: "`ORIGIN` that may call from a browser; repeatable"},
			&cli.IntFlag{Name: "shards", Value: d.Shards, Usage: "`NUMBER` of shards; taken at the first start only"},
			&cli.IntFlag{Name: "max-payload-bytes", Value: d.MaxPayloadBytes, Usage: "`BYTES` of a payload at most"},
			&cli.IntFlag{
				Name: "max-fires-per-day", Usage: "refuse schedules that fire more than `N` times on their busiest day; 0: no bound",
			},
			&cli.DurationFlag{
				Name: "verify-every", Value: d.VerifyEvery,
				Usage: "compare and check the replicas of each shard led here once in this `DURATION`; 0: never",
			},
			&cli.DurationFlag{
				Name: "raise-level-after", Value: d.RaiseLevelAfter,
				Usage: "after an upgrade, use what is new once all nodes have had it for this `DURATION`",
			},
			&cli.DurationFlag{
				Name: "shutdown-timeout", Value: d.ShutdownTimeout, Usage: "stop for good after this `DURATION`",
			},
			&cli.StringFlag{
				Name: "etcd-socket", Usage: "serve the embedded etcd at this unix socket `PATH`, for operators (default: nowhere)",
			},
			&cli.StringFlag{Name: "log-level", Value: "info", Usage: "`LEVEL`: debug, info, warn or error"},
			&cli.StringFlag{Name: "log-format", Value: "text", Usage: "`FORMAT`: text or json"},
			&cli.Int64Flag{Name: "cache-bytes", Category: memory, Value: d.CacheBytes, Usage: "`BYTES` of the block cache"},
			&cli.Int64Flag{Name: "memtable-bytes", Category: memory, Value: d.MemTableBytes, Usage: "`BYTES` of a memtable"},
			&cli.Int64Flag{
				Name: "row-cache-bytes", Category: memory, Value: d.RowCacheBytes, Usage: "`BYTES` of the cache of written rows",
			},
			&cli.DurationFlag{
				Name: "clock-step-limit", Category: clock, Value: d.ClockStepLimit, Usage: "a `STEP` beyond it stops firing",
			},
			&cli.DurationFlag{
				Name: "clock-hold", Category: clock, Value: d.ClockHold,
				Usage: "how `LONG` a lone node waits for a stepped clock before it believes it",
			},
			&cli.StringFlag{
				Name: "virtual-clock", Category: clock,
				Usage: "for development: time begins at this `INSTANT` and stands still until 'carillon clock advance'",
			},
		},
		Action: func(c *cli.Context) error {
			if err := checkArguments(c, ""); err != nil {
				return err
			}
			config, err := p.nodeConfig(c)
			if err != nil {
				return err
			}
			return node.Run(c.Context, config)
		},
	}
}

func (p *program) nodeConfig(c *cli.Context) (node.Config, error) {
	config := node.DefaultConfig()
	config.DataDir, config.Listen, config.Name = c.String("data"), c.String("listen"), c.String("name")
	if text := c.String("peers"); text != "" {
		peers, err := node.ParsePeers(text)
		if err != nil {
			return config, usage(c, "--peers: %s", err)
		}
		config.Peers = peers
	}
	config.Join, config.ClusterSecretFile = c.StringSlice("join"), c.String("cluster-secret-file")
	config.Insecure, config.CORSOrigins = c.Bool("insecure"), c.StringSlice("cors-origin")
	config.Shards, config.MaxPayloadBytes = c.Int("shards"), c.Int("max-payload-bytes")
	config.MaxFiresPerDay = c.Int("max-fires-per-day")
	config.CacheBytes, config.MemTableBytes = c.Int64("cache-bytes"), c.Int64("memtable-bytes")
	config.RowCacheBytes = c.Int64("row-cache-bytes")
	config.ClockStepLimit, config.ClockHold = c.Duration("clock-step-limit"), c.Duration("clock-hold")
	begin, err := instantFlag(c, "virtual-clock")
	if err != nil {
		return config, err
	}
	if begin != nil {
		config.VirtualClock = begin.AsTime()
	}
	config.VerifyEvery = c.Duration("verify-every")
	config.RaiseLevelAfter = c.Duration("raise-level-after")
	config.ShutdownTimeout, config.EtcdSocket = c.Duration("shutdown-timeout"), c.String("etcd-socket")
	logger, err := newLogger(p.stderr, c.String("log-format"), c.String("log-level"))
	if err != nil {
		return config, usage(c, "%s", err)
	}
	config.Logger = logger
	if err := config.Validate(); err != nil {
		return config, usage(c, "--%s", err)
	}
	return config, nil
}

func newLogger(w io.Writer, format, level string) (*slog.Logger, error) {
	var at slog.Level
	if err := at.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level must be debug, info, warn or error, is %q", level)
	}
	options := &slog.HandlerOptions{Level: at}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return nil, fmt.Errorf("--log-format must be text or json, is %q", format)
}
