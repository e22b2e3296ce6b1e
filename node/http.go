package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
)

const (
	// maxStreams bounds the calls one connection may have under way.
	maxStreams        = 4096
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 5 * time.Minute
)

// web is the node's one port: the API, health and metrics. It answers from the start: until the node can serve it says what
// is waited for.
type web struct {
	listener net.Listener
	logger   *slog.Logger
	// handler is nil until the node can serve; waiting says why it cannot.
	handler atomic.Pointer[http.Handler]
	waiting atomic.Pointer[string]
}

// listen binds addr, so that a port in use is an error before anything else is started.
func listen(addr string, logger *slog.Logger) (*web, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w (is another server running? choose another port with --listen)", addr, err)
	}
	return &web{listener: l, logger: logger}, nil
}

// bound makes callers come by l, at most so many at once.
func (w *web) bound(l net.Listener, most int) { w.listener = newBoundListener(l, most) }

// publish writes the bound address to the data directory, for scripts that let the node choose its port.
func (w *web) publish(dir string) error {
	path := filepath.Join(dir, "address")
	if err := os.WriteFile(path+".tmp", []byte(w.listener.Addr().String()+"\n"), 0o644); err != nil {
		return fmt.Errorf("write address file: %w", err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return fmt.Errorf("write address file: %w", err)
	}
	return nil
}

// unpublish removes the address of an earlier start.
func unpublish(dir string) error {
	if err := os.Remove(filepath.Join(dir, "address")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove address file: %w", err)
	}
	return nil
}

// open lets calls through to handler from now on.
func (w *web) open(handler http.Handler) { w.handler.Store(&handler) }

// waitFor says what the start waits for.
func (w *web) waitFor(reason string) { w.waiting.Store(&reason) }

// ServeHTTP lets nothing through before the node can serve.
func (w *web) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	if handler := w.handler.Load(); handler != nil {
		(*handler).ServeHTTP(rw, r)
		return
	}
	reason := "starting"
	if waiting := w.waiting.Load(); waiting != nil {
		reason += ": " + *waiting
	}
	switch r.URL.Path {
	case "/healthz":
		writeHealth(rw, nil, "")
	case "/readyz":
		writeHealth(rw, []string{reason}, "")
	default:
		// In the form of Connect's and REST's errors; gRPC goes by the status.
		rw.Header().Set("Content-Type", "application/json")
		rw.Header().Set("Retry-After", "1")
		rw.WriteHeader(http.StatusServiceUnavailable)
		// An error here is the caller's connection, which is gone.
		_ = json.NewEncoder(rw).Encode(map[string]string{"code": "unavailable", "message": "the node is " + reason})
	}
}

// serve answers until ctx ends, then lets calls under way finish for at most grace.
func (w *web) serve(ctx context.Context, grace time.Duration) error {
	server := newServer(w, w.logger)
	server.Protocols = new(http.Protocols)
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	return serveHTTP(ctx, server, w.listener, grace)
}

// newServer is a server within the node's limits.
func newServer(handler http.Handler, logger *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams, MaxReadFrameSize: 256 << 10},
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
}

// serveHTTP has server answer on l until ctx ends, with which others may close l too. It returns when the calls under way have
// ended; those that last longer than grace are cut off.
func serveHTTP(ctx context.Context, server *http.Server, l net.Listener, grace time.Duration) error {
	group, ended := errgroup.WithContext(ctx)
	group.Go(func() error {
		err := server.Serve(l)
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("serve on %s: %w", l.Addr(), err)
	})
	group.Go(func() error {
		<-ended.Done()
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		err := server.Shutdown(end)
		if errors.Is(err, context.DeadlineExceeded) {
			err = server.Close()
		}
		return err
	})
	return group.Wait()
}

// routes puts health and metrics beside the API. It looks at whole paths, unlike http.ServeMux, which redirects those with
// "." and ".." in them: the ids of jobs may be just that. note is what health is to tell besides.
func routes(api http.Handler, registry *prometheus.Registry, ready func() []string, note string) http.Handler {
	exposition := promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reads := r.Method == http.MethodGet || r.Method == http.MethodHead
		switch {
		case reads && r.URL.Path == "/healthz":
			writeHealth(w, nil, note)
		case reads && r.URL.Path == "/readyz":
			writeHealth(w, ready(), note)
		case reads && r.URL.Path == "/metrics":
			exposition.ServeHTTP(w, r)
		default:
			api.ServeHTTP(w, r)
		}
	})
}

// writeHealth answers 200, or 503 with the reasons.
func writeHealth(w http.ResponseWriter, reasons []string, note string) {
	w.Header().Set("Content-Type", "application/json")
	status := "ok"
	if len(reasons) > 0 {
		status = "unavailable"
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	// An error here is the caller's connection, which is gone.
	_ = json.NewEncoder(w).Encode(struct {
		Status  string   `json:"status"`
		Reasons []string `json:"reasons,omitempty"`
		Note    string   `json:"note,omitempty"`
	}{status, reasons, note})
}
