package control

import (
	"cmp"
	"context"
	"errors"
	"expvar"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// DefaultQuotaBytes bounds etcd's database. Ours stays below 20 MB; past the quota etcd turns read-only.
const DefaultQuotaBytes = 512 << 20

// maxSocketPath is what a unix socket's address can hold.
const maxSocketPath = 107

const (
	// A lone member has nobody to hear from: its ticks are slow, so that it costs little when idle, and it does not wait for
	// an election timeout (electSelf). etcd grants no lease shorter than one and a half timeouts.
	loneTickMS     = 250
	loneElectionMS = 1250
	// electEvery is how often it tries, while it still applies what its log holds.
	electEvery = 5 * time.Millisecond
	// commitInterval is how often etcd's database file is brought up to its log; the log alone makes a write durable.
	commitInterval = time.Second
	// walSegmentBytes: etcd preallocates two segments of its log. Its default of 64 MB each is meant for a server whose
	// work is to write; ours writes a few entries at a start.
	walSegmentBytes = 4 << 20
	// Entries until etcd snapshots and lets go of older ones, in memory and at a restart.
	snapshotEntries = 2_000
	catchUpEntries  = 500
	// progressInterval is how often a silent watch is told that it is alive.
	progressInterval = time.Minute
	// readyTimeout bounds the start of a lone member. With others it may have to wait for them, however long.
	readyTimeout = 30 * time.Second

	// A member among others: etcd is not in the way of a shard's failover, so that stability and an idle node's rest are worth
	// more than haste.
	memberTickMS     = 250
	memberElectionMS = 2500
	// loneURL stands in the record of a member that nobody can reach. A second one comes only after SetPeerURL.
	loneURL = "http://127.0.0.1:1"
)

// ServerConfig says how to run the embedded etcd.
type ServerConfig struct {
	// Dir holds its data; created if missing. Required.
	Dir string
	// Name of the member (see MemberName) and Token, the id of its cluster. The token makes the cluster at the first start
	// and is what Admit tells others to belong to. Required.
	Name  string
	Token string
	// PeerURL is where the other members reach this one, "https://host:port"; whoever listens there serves PeerHandler.
	// Empty: alone, and nobody can join.
	PeerURL string
	// TLS is required with a PeerURL.
	TLS TLSFiles
	// InitialCluster is what Admit has told a node without a member: it joins that cluster. Without it, a first start makes a
	// new cluster. Ignored by a directory that holds a member.
	InitialCluster string
	// QuotaBytes bounds its database; 0: DefaultQuotaBytes.
	QuotaBytes int64
	// ClientSocket is the path of a unix socket to serve etcd's own API at, for operators and drills; empty: none. This
	// process needs none.
	ClientSocket string
	// OnFatal is called where etcd would end the process: it cannot write what it must. It must not return. Nil: exit code 1.
	OnFatal func(error)
	// Logger gets etcd's log. Required.
	Logger *slog.Logger
}

func (c ServerConfig) validate() error {
	switch {
	case c.Dir == "":
		return errors.New("start etcd: Dir is empty")
	case c.Name == "":
		return errors.New("start etcd: Name is empty")
	case c.Token == "":
		return errors.New("start etcd: Token is empty")
	case c.Logger == nil:
		return errors.New("start etcd: Logger is nil")
	case c.QuotaBytes < 0:
		return fmt.Errorf("start etcd: QuotaBytes is %d", c.QuotaBytes)
	case len(c.ClientSocket) > maxSocketPath:
		return fmt.Errorf("start etcd: ClientSocket %q is longer than %d bytes", c.ClientSocket, maxSocketPath)
	case c.PeerURL == "" && c.InitialCluster != "":
		return errors.New("start etcd: InitialCluster without a PeerURL")
	}
	if c.PeerURL == "" {
		return nil
	}
	if err := checkPeerURL(c.PeerURL); err != nil {
		return fmt.Errorf("start etcd: PeerURL: %w", err)
	}
	if err := c.TLS.validate(); err != nil {
		return fmt.Errorf("start etcd: TLS: %w", err)
	}
	return nil
}

// Server is an etcd member inside this process. It listens on nothing, unless told to serve a client socket.
type Server struct {
	cfg    ServerConfig
	etcd   *embed.Etcd
	client *clientv3.Client
	// api is etcd's own, for nodes without a member.
	api interface {
		http.Handler
		Stop()
	}
	quota  int64
	close  sync.Once
	closed chan struct{}
	// admission holds one token: members are admitted and removed one at a time.
	admission chan struct{}
}

// StartServer is OpenServer and Ready in one.
func StartServer(ctx context.Context, cfg ServerConfig) (*Server, error) {
	s, err := OpenServer(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := s.Ready(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// OpenServer starts etcd on cfg.Dir and does not wait until it can serve: with other members that takes a majority, which
// takes that PeerHandler is served. A first start makes a new cluster of one member, or joins with cfg.InitialCluster, and
// if that fails, also because others joined meanwhile, has to ask for admission again; later ones go by what the directory
// says. A write that fails ends the process, as etcd cannot vouch for its data then. Errors: ErrNotAdmitted.
func OpenServer(ctx context.Context, cfg ServerConfig) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.QuotaBytes == 0 {
		cfg.QuotaBytes = DefaultQuotaBytes
	}
	holds, err := HoldsMember(cfg.Dir)
	if err == nil && !holds && cfg.InitialCluster != "" {
		cfg.InitialCluster, err = cfg.admitted(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("start etcd in %s: %w", cfg.Dir, err)
	}
	etcdConfig, err := cfg.embedded()
	if err != nil {
		return nil, err
	}
	if err := discardUnformed(cfg.Dir, cfg.Logger); err != nil {
		return nil, fmt.Errorf("start etcd in %s: %w", cfg.Dir, err)
	}
	shrinkSegments()
	etcd, err := embed.StartEtcd(etcdConfig)
	if err != nil {
		return nil, fmt.Errorf("start etcd in %s: %w", cfg.Dir, err)
	}
	s := newServer(cfg, etcd)
	if members := s.LocalMembers(); cfg.PeerURL == "" && len(members) > 1 {
		s.Close()
		return nil, fmt.Errorf("start etcd in %s: it is one of %d members, and was not told where the others reach it", cfg.Dir, len(members))
	}
	return s, nil
}

func newServer(cfg ServerConfig, etcd *embed.Etcd) *Server {
	return &Server{
		cfg: cfg, etcd: etcd, client: v3client.New(etcd.Server), api: v3rpc.Server(etcd.Server, nil, nil), quota: cfg.QuotaBytes,
		closed: make(chan struct{}), admission: make(chan struct{}, 1),
	}
}

// Ready waits until the server can serve, which takes a majority of the members. Errors: ErrRemoved, or that of ctx; a
// server that has no others to wait for has to be ready within half a minute.
func (s *Server) Ready(ctx context.Context) error {
	if err := s.awaitReady(ctx); err != nil {
		return fmt.Errorf("start etcd in %s: %w", s.cfg.Dir, err)
	}
	return nil
}

func (s *Server) awaitReady(ctx context.Context) error {
	if s.cfg.PeerURL == "" {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, readyTimeout)
		defer cancel()
	}
	elect := time.NewTicker(electEvery)
	defer elect.Stop()
	for {
		select {
		case <-s.etcd.Server.ReadyNotify():
			return nil
		case <-s.etcd.Server.StopNotify():
			return s.whyStopped(ctx)
		case <-ctx.Done():
			if s.cfg.PeerURL != "" {
				return fmt.Errorf("wait for a majority of its members: %w", ctx.Err())
			}
			return fmt.Errorf("wait until it leads; if it never does, its log is damaged and its directory has to be restored: %w", ctx.Err())
		case <-elect.C:
			if err := electSelf(ctx, s.etcd.Server); err != nil {
				return err
			}
		}
	}
}

// electSelf makes a lone member campaign now instead of after an election timeout, by the message with which a leader
// hands over. It needs all it knows of its cluster applied; until then, and with other members, it does nothing.
func electSelf(ctx context.Context, server *etcdserver.EtcdServer) error {
	applied := server.AppliedIndex()
	if server.Leader() != 0 || applied == 0 || applied < server.CommittedIndex() || len(server.Cluster().Members()) != 1 ||
		!raftCaughtUp(server) {
		return nil
	}
	self := uint64(server.MemberID())
	err := server.Process(ctx, &raftpb.Message{Type: raftpb.MsgTimeoutNow.Enum(), From: &self, To: &self})
	if err != nil {
		return fmt.Errorf("elect itself: %w", err)
	}
	return nil
}

// raftCaughtUp says whether the server's raft knows that what the server has applied is applied. It hears of that a sync
// later, and a campaign before that looks for configuration changes among entries that the server may have let go of
// already, which is a panic. etcd shows its raft's status in a process variable only; a status of another server in this
// process is none of ours, and the election timeout has to do.
func raftCaughtUp(server *etcdserver.EtcdServer) bool {
	published, ok := expvar.Get("raft.status").(expvar.Func)
	if !ok {
		return false
	}
	status, ok := published.Value().(raft.Status)
	commit := status.HardState.GetCommit()
	return ok && status.ID == uint64(server.MemberID()) && commit == server.CommittedIndex() && status.Applied == commit
}

// shrinkSegments sets etcd's package variable once, before its first server starts.
var shrinkSegments = sync.OnceFunc(func() { wal.SegmentSizeBytes = walSegmentBytes })

func (c ServerConfig) embedded() (*embed.Config, error) {
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("create etcd directory: %w", err)
	}
	peer, err := url.Parse(cmp.Or(c.PeerURL, loneURL))
	if err != nil {
		return nil, fmt.Errorf("parse PeerURL: %w", err)
	}
	e := embed.NewConfig()
	e.Dir, e.Name = c.Dir, c.Name
	// Nothing listens here for peers: what they want is served by PeerHandler.
	e.ListenPeerUrls, e.ListenClientUrls = nil, nil
	e.AdvertisePeerUrls, e.AdvertiseClientUrls = []url.URL{*peer}, []url.URL{*peer}
	e.InitialCluster = e.InitialClusterFromName(c.Name)
	e.InitialClusterToken = c.Token
	e.MaxLearners = maxLearners
	e.TickMs, e.ElectionMs = loneTickMS, loneElectionMS
	if c.PeerURL != "" {
		e.TickMs, e.ElectionMs = memberTickMS, memberElectionMS
		e.PeerTLSInfo = c.TLS.info()
	}
	if c.InitialCluster != "" {
		e.InitialCluster, e.ClusterState = c.InitialCluster, embed.ClusterStateFlagExisting
	}
	if c.ClientSocket != "" {
		path, err := filepath.Abs(c.ClientSocket)
		if err != nil {
			return nil, fmt.Errorf("resolve client socket: %w", err)
		}
		e.ListenClientUrls = []url.URL{{Scheme: "unix", Path: path}}
	}
	e.QuotaBackendBytes = c.QuotaBytes
	e.SnapshotCount, e.SnapshotCatchUpEntries = snapshotEntries, catchUpEntries
	e.AutoCompactionMode, e.AutoCompactionRetention = embed.CompactorModePeriodic, "1h"
	e.BackendBatchInterval = commitInterval
	e.BootstrapDefragThresholdMegabytes = 64
	e.WatchProgressNotifyInterval = progressInterval
	e.WarningApplyDuration, e.WarningUnaryRequestDuration = time.Second, 2*time.Second
	e.EnableGRPCGateway = false
	e.ZapLoggerBuilder = embed.NewZapLoggerBuilder(newZapLogger(c.Logger, fatalHook(c.OnFatal)...))
	return e, nil
}

// Client is an etcd client that calls the server directly; it is closed with the server.
func (s *Server) Client() *clientv3.Client { return s.client }

// Run returns nil when ctx ends, ErrRemoved if the member was removed from its cluster, or another error if etcd stops by
// itself. It does not close the server.
func (s *Server) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.etcd.Server.StopNotify():
		return fmt.Errorf("run etcd: %w", s.whyStopped(ctx))
	case err := <-s.etcd.Err():
		return fmt.Errorf("run etcd: %w", err)
	}
}

// Close stops the server and waits until its files are closed. Planes over its client must not be running any more. Safe
// to call twice.
func (s *Server) Close() {
	s.close.Do(func() {
		close(s.closed)
		// The client's only error is that it was cancelled, which is how it closes.
		_ = s.client.Close()
		s.api.Stop()
		s.etcd.Close()
	})
}
