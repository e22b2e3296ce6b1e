package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/carillon-scheduler/carillon/proto/carillon/v1/carillonv1connect"
	"github.com/carillon-scheduler/carillon/proto/codec"
)

// DefaultAddress is where a node listens unless told otherwise.
const DefaultAddress = "http://127.0.0.1:7070"

// Client calls a Carillon server or cluster. Make it with New.
type Client struct {
	options   options
	endpoints *endpoints
	budget    *budget
	creates   *merger[*pendingCreate]

	jobs       carillonv1connect.JobServiceClient
	workers    carillonv1connect.WorkerServiceClient
	executions carillonv1connect.ExecutionServiceClient
	queues     carillonv1connect.QueueServiceClient
	tenants    carillonv1connect.TenantServiceClient
	pauses     carillonv1connect.PauseServiceClient
	cluster    carillonv1connect.ClusterServiceClient
	schedules  carillonv1connect.ScheduleServiceClient

	// closed ends what the merger sends after Close.
	closed context.Context
	close  context.CancelFunc
	// idle drops the connections that New opened; nil for a transport of the caller's.
	idle func()
}

type options struct {
	transport connect.HTTPClient
	timeout   time.Duration
	logger    *slog.Logger
	merge     bool
	// workerLogger is of workers that are given none: a program should hear of what they meet without asking for it.
	workerLogger *slog.Logger
}

// Option changes how New sets a client up.
type Option func(*options)

// WithTransport sends requests with t instead of an HTTP/2 client of the library's own: for TLS, proxies and tests.
func WithTransport(t connect.HTTPClient) Option { return func(o *options) { o.transport = t } }

// WithTimeout bounds calls whose context has no deadline; the default is DefaultTimeout.
func WithTimeout(d time.Duration) Option { return func(o *options) { o.timeout = d } }

// WithLogger is told of retries and of what a worker meets. The default says nothing of retries; a worker's is
// slog.Default().
func WithLogger(l *slog.Logger) Option { return func(o *options) { o.logger = l } }

// WithoutMerging sends every CreateJob in a request of its own.
func WithoutMerging() Option { return func(o *options) { o.merge = false } }

// New makes a client of the nodes at address: a comma-separated list of "host:port" or URLs, which are tried in turn when
// one is unavailable. Empty: DefaultAddress. It does not connect. It fails if an address is malformed.
func New(address string, opts ...Option) (*Client, error) {
	o := options{timeout: DefaultTimeout, merge: true}
	for _, opt := range opts {
		opt(&o)
	}
	if o.workerLogger = o.logger; o.logger == nil {
		o.logger, o.workerLogger = slog.New(slog.DiscardHandler), slog.Default()
	}
	if o.timeout <= 0 {
		return nil, fmt.Errorf("make client: timeout must be positive, is %s", o.timeout)
	}
	eps, err := parseEndpoints(address)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	c := &Client{options: o, endpoints: eps, budget: newBudget()}
	transport := o.transport
	if transport == nil {
		own := newTransport()
		transport, c.idle = &http.Client{Transport: own}, own.CloseIdleConnections
	}
	c.connect(&endpointDoer{next: transport})
	c.closed, c.close = context.WithCancel(context.Background())
	c.creates = newMerger(c.sendCreates, createLimits)
	return c, nil
}

func (c *Client) connect(doer connect.HTTPClient) {
	// The host is put in by endpointDoer, per try.
	const base = "http://carillon"
	opts := connect.WithClientOptions(
		connect.WithCodec(codec.Proto{}),
		// Payloads are small or opaque, and the network is near: gzip costs more than it saves.
		connect.WithAcceptCompression("gzip", nil, nil),
		connect.WithReadMaxBytes(maxResponseBytes),
	)
	c.jobs = carillonv1connect.NewJobServiceClient(doer, base, opts)
	c.workers = carillonv1connect.NewWorkerServiceClient(doer, base, opts)
	c.executions = carillonv1connect.NewExecutionServiceClient(doer, base, opts)
	c.queues = carillonv1connect.NewQueueServiceClient(doer, base, opts)
	c.tenants = carillonv1connect.NewTenantServiceClient(doer, base, opts)
	c.pauses = carillonv1connect.NewPauseServiceClient(doer, base, opts)
	c.cluster = carillonv1connect.NewClusterServiceClient(doer, base, opts)
	c.schedules = carillonv1connect.NewScheduleServiceClient(doer, base, opts)
}

// Close ends merged creates that are being sent, waits for them and drops idle connections. Creates after it fail with
// ErrClosed. It may be called more than once.
func (c *Client) Close() error {
	c.close()
	c.creates.close()
	if c.idle != nil {
		c.idle()
	}
	return nil
}

var _ io.Closer = (*Client)(nil)

// ErrClosed says that the client was closed.
var ErrClosed = errors.New("client is closed")

// newKey makes the identity of a call: 130 random bits, 26 lower-case letters and digits.
func newKey() string { return strings.ToLower(rand.Text()) }

// keyOr returns key, or a new one if it is empty.
func keyOr(key string) string {
	if key == "" {
		return newKey()
	}
	return key
}
