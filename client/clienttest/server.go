// Package clienttest is a small Carillon in memory, for tests of the client library, of the command line and of programs
// that use them. It serves the public API over in-process calls or HTTP, and can be told to fail. It keeps nothing, checks
// little and is no judge of what a server may do.
//
// It reads the time package's clock, so that tests can run it under testing/synctest.
package clienttest

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
	"github.com/carillon-scheduler/carillon/proto/carillon/v1/carillonv1connect"
)

// Server is the fake. It is an http.Handler and, by Do, a transport of clients.
type Server struct {
	mux http.Handler

	mu         sync.Mutex
	calls      map[string]int
	before     func(ctx context.Context, call Call) error
	after      func(ctx context.Context, call Call) error
	jobs       map[name]*job
	executions []*execution
	queues     map[string]*carillonv1.Queue
	tenants    map[string]*carillonv1.Tenant
	rules      map[string]*carillonv1.PauseRule
	nodes      map[string]*fakeNode
	// zoneChanges are what ListZoneChanges lists.
	zoneChanges []*carillonv1.ZoneChange
	// virtual is where the virtual clock stands; zero: there is none.
	virtual time.Time
	fencing uint64
	// changed is closed and replaced when something became ready.
	changed chan struct{}
}

// Call is one call that the server got.
type Call struct {
	// Method is the rpc's name: "CreateJob".
	Method string
	// N counts the calls of the method from 1.
	N int
	// Request is the request's message.
	Request any
}

type name struct{ tenant, id string }

// NewServer makes an empty server.
func NewServer() *Server {
	s := &Server{
		calls: make(map[string]int), jobs: make(map[name]*job), queues: make(map[string]*carillonv1.Queue),
		tenants: make(map[string]*carillonv1.Tenant), rules: make(map[string]*carillonv1.PauseRule), nodes: make(map[string]*fakeNode), changed: make(chan struct{}),
	}
	mux := http.NewServeMux()
	opts := connect.WithInterceptors(connect.UnaryInterceptorFunc(s.intercept))
	mux.Handle(carillonv1connect.NewJobServiceHandler(jobService{s}, opts))
	mux.Handle(carillonv1connect.NewWorkerServiceHandler(workerService{s}, opts))
	mux.Handle(carillonv1connect.NewExecutionServiceHandler(executionService{s}, opts))
	mux.Handle(carillonv1connect.NewQueueServiceHandler(queueService{s}, opts))
	mux.Handle(carillonv1connect.NewTenantServiceHandler(tenantService{s}, opts))
	mux.Handle(carillonv1connect.NewPauseServiceHandler(pauseService{s}, opts))
	mux.Handle(carillonv1connect.NewClusterServiceHandler(clusterService{s}, opts))
	mux.Handle(carillonv1connect.NewScheduleServiceHandler(scheduleService{s}, opts))
	s.mux = mux
	return s
}

// Before has f called ahead of every call; an error is the call's answer and nothing is done.
func (s *Server) Before(f func(context.Context, Call) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = f
}

// After has f called behind every call that succeeded; an error takes the place of its answer, which is lost.
func (s *Server) After(f func(context.Context, Call) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.after = f
}

// Calls is how often method was called.
func (s *Server) Calls(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[method]
}

// ServeHTTP serves Connect, gRPC and gRPC-web.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// Do serves a client's request in the caller's goroutine.
func (s *Server) Do(req *http.Request) (*http.Response, error) {
	in := req.Clone(req.Context())
	in.RequestURI, in.RemoteAddr = req.URL.RequestURI(), "127.0.0.1:1"
	in.Proto, in.ProtoMajor, in.ProtoMinor = "HTTP/2.0", 2, 0
	if in.Body == nil {
		in.Body = http.NoBody
	}
	out := httptest.NewRecorder()
	s.mux.ServeHTTP(out, in)
	if err := in.Body.Close(); err != nil {
		return nil, fmt.Errorf("close request: %w", err)
	}
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	res := out.Result()
	res.Request = req
	return res, nil
}

func (s *Server) intercept(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		procedure := req.Spec().Procedure
		call := Call{Method: procedure[strings.LastIndexByte(procedure, '/')+1:], Request: req.Any()}
		s.mu.Lock()
		s.calls[call.Method]++
		call.N = s.calls[call.Method]
		before, after := s.before, s.after
		s.mu.Unlock()
		if before != nil {
			if err := before(ctx, call); err != nil {
				return nil, err
			}
		}
		res, err := next(ctx, req)
		if err == nil && after != nil {
			if lost := after(ctx, call); lost != nil {
				return nil, lost
			}
		}
		return res, err
	}
}

// Fail makes an error as the server would answer it.
func Fail(code connect.Code, message string, details ...proto.Message) error {
	err := connect.NewError(code, fmt.Errorf("%s", message))
	for _, d := range details {
		detail, derr := connect.NewErrorDetail(d)
		if derr != nil {
			panic(derr)
		}
		err.AddDetail(detail)
	}
	return err
}

// orDefault is the tenant or queue that an empty name stands for.
func orDefault(s string) string {
	if s == "" {
		return "default"
	}
	return s
}
