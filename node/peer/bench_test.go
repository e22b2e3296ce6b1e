//go:build unix

package peer

import (
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/node/replica"
)

// BenchmarkFrames sends frames of 2 KB from one node to another over loopback, with at most so many under way; CPU is both
// nodes' and the kernel's.
//
//	go test ./node/peer -run '^$' -bench Frames
func BenchmarkFrames(b *testing.B) {
	for name, window := range map[string]int{"one at a time": 1, "16 under way": 16, "256 under way": 256} {
		b.Run(name, func(b *testing.B) {
			from, to := startNode(b, "one", "a", 1), startNode(b, "one", "b", 1)
			from.SetPeers(map[string]string{"b": to.mux.addr})
			f := frameOf("b", strings.Repeat("x", 480), strings.Repeat("x", 480), strings.Repeat("x", 480), strings.Repeat("x", 480))
			from.Send(f)
			await(b, to.frames, "first frame")
			cpu := processCPU(b)
			b.ResetTimer()
			for sent, got := 0, 0; got < b.N; got++ {
				for ; sent < b.N && sent-got < window; sent++ {
					from.Send(f)
				}
				<-to.frames
			}
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "frames/s")
			b.ReportMetric(float64((processCPU(b)-cpu).Nanoseconds())/float64(b.N)/1e3, "µs-cpu/frame")
			if c := from.Counters(); c.Dropped > 0 {
				b.Errorf("%d frames were dropped", c.Dropped)
			}
		})
	}
}

// processCPU is the time this process has had, its kernel's included.
func processCPU(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkCodec is the share of encoding and decoding.
func BenchmarkCodec(b *testing.B) {
	f := frameOf("b", strings.Repeat("x", 480), strings.Repeat("x", 480), strings.Repeat("x", 480), strings.Repeat("x", 480))
	var buf []byte
	for b.Loop() {
		buf, _ = appendFrame(buf[:0], f)
		if _, err := replica.DecodeFrame(buf[recordHeader:]); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPublic is the round trip of small messages on a connection that came through the mux, and on one that did not:
// the difference is what the mux costs a call.
func BenchmarkPublic(b *testing.B) {
	echo := func(l net.Listener) {
		var serving sync.WaitGroup
		serving.Go(func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			buf := make([]byte, 4096)
			for {
				n, err := conn.Read(buf)
				if err != nil {
					return
				}
				if _, err := conn.Write(buf[:n]); err != nil {
					return
				}
			}
		})
		b.Cleanup(serving.Wait)
	}
	trips := func(b *testing.B, addr string) {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			b.Fatal(err)
		}
		defer conn.Close()
		buf := make([]byte, 1)
		for b.Loop() {
			if _, err := conn.Write(buf); err != nil {
				b.Fatal(err)
			}
			if _, err := conn.Read(buf); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("direct", func(b *testing.B) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		defer l.Close()
		echo(l)
		trips(b, l.Addr().String())
	})
	b.Run("mux", func(b *testing.B) {
		m := runMux(b, MuxConfig{}, nil)
		echo(m.Public())
		trips(b, m.addr)
	})
}
