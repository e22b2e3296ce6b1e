package route

import (
	"context"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/rpc"
)

// BenchmarkForward measures what it costs, both sides together, to take commands to another node: CPU per command.
func BenchmarkForward(b *testing.B) {
	for name, over := range map[string]func(*httptest.Server) *http.Client{
		"plain HTTP 1.1": func(s *httptest.Server) *http.Client {
			s.Start()
			return s.Client()
		},
		"TLS HTTP 1.1": func(s *httptest.Server) *http.Client {
			s.StartTLS()
			return s.Client()
		},
		"TLS HTTP 2": func(s *httptest.Server) *http.Client {
			s.EnableHTTP2 = true
			s.StartTLS()
			return s.Client()
		},
	} {
		for size, n := range map[string]int{"alone": 1, "100 a call": 100} {
			b.Run(name+"/"+size, func(b *testing.B) { forward(b, over, n) })
		}
	}
}

func forward(b *testing.B, over func(*httptest.Server) *http.Client, n int) {
	far := &node{store: "b", leads: map[uint32]bool{1: true}}
	far.propose = func(_ context.Context, cmds []rpc.ShardCommand) []rpc.Outcome {
		out := make([]rpc.Outcome, len(cmds))
		for i := range out {
			out[i].Result.ExecutionID = cmds[i].Command.RequestId
		}
		return out
	}
	_, handler := NewHandler(HandlerConfig{Self: "b", Local: func() Local { return far }, Member: member{far}})
	server := httptest.NewUnstartedServer(handler)
	client := over(server)
	defer server.Close()
	scheme := "http"
	if server.TLS != nil {
		scheme = "https"
	}
	router := New(Config{
		Self: "a", HTTP: client, Scheme: scheme, Leader: func(uint32) string { return "b" },
		Dial: func(string) (string, bool) { return server.Listener.Addr().String(), true },
	})
	cmds := commands(n, 1)
	before := cpu(b)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			for _, out := range router.DoAll(b.Context(), cmds) {
				if out.Err != nil {
					b.Fatal(out.Err)
				}
			}
		}
	})
	b.ReportMetric(float64((cpu(b)-before).Nanoseconds())/float64(b.N*n)/1000, "cpu-µs/cmd")
}

func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
