package node

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/node/replica"
)

// Whatever becomes of a snapshot, it is closed and its replica hears of it: sent, not sent, refused beside another one, left
// over at the end, or come after it.
func TestEverySnapshotIsClosed(t *testing.T) {
	var sent atomic.Uint64
	heard := map[uint32]error{}
	broken := errors.New("broken")
	ctx, stop := context.WithCancel(t.Context())
	s := &snapshots{
		logger: slog.New(slog.DiscardHandler), sent: &sent, jobs: make(chan snapshotJob, 1),
		done: func(req replica.SnapshotRequest, err error) { heard[req.Shard] = err },
	}
	var all []*countedSnapshot
	send := func(shard uint32) {
		_, source := snapshotOf(t, 1)
		all = append(all, source)
		s.send(replica.SnapshotRequest{Shard: shard}, source)
	}
	send(1)
	send(2) // there is no room
	s.stream = func(_ context.Context, job snapshotJob) error {
		switch job.req.Shard {
		case 1:
			send(3)
			return nil
		case 3:
			send(4) // is left over
			stop()
		}
		return broken
	}
	if err := s.run(ctx); err != nil {
		t.Fatal(err)
	}
	send(5)
	for i, source := range all {
		if source.closed != 1 {
			t.Errorf("snapshot %d is closed %d times", i+1, source.closed)
		}
	}
	if len(heard) != 5 || heard[1] != nil || heard[2] == nil || !errors.Is(heard[3], broken) || heard[4] == nil || heard[5] == nil {
		t.Errorf("heard %v", heard)
	}
	if sent.Load() != 1 {
		t.Errorf("%d count as sent", sent.Load())
	}
}

// A stream that comes in slowly is given up, though it never stands still; one that is fast enough goes on for as long as it
// takes.
func TestSlowSnapshotsAreGivenUp(t *testing.T) {
	for name, c := range map[string]struct {
		part  int
		every time.Duration
		taken time.Duration // 0: all of it comes
	}{
		"trickle":     {1, 29 * time.Second, 30 * time.Second},
		"standstill":  {1, time.Hour, 30 * time.Second},
		"fast enough": {2 << 20, time.Second, 0},
		"too slow":    {1 << 20, 2 * time.Second, 60 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				defer near.Close()
				ended := make(chan struct{})
				go func() { // ends with the pipe
					defer close(ended)
					defer far.Close()
					for range 100 {
						if _, err := far.Write(make([]byte, c.part)); err != nil {
							return
						}
						time.Sleep(c.every)
					}
				}()
				var received atomic.Uint64
				began := time.Now()
				n, err := io.Copy(io.Discard, &patientReader{conn: near, began: began, received: &received})
				took := time.Since(began)
				if uint64(n) != received.Load() {
					t.Errorf("%d bytes came, %d are counted", n, received.Load())
				}
				if c.taken == 0 && (err != nil || n != int64(100*c.part)) {
					t.Errorf("%d bytes, %v", n, err)
				}
				if c.taken != 0 && (!errors.Is(err, os.ErrDeadlineExceeded) || took > c.taken+snapshotSilence) {
					t.Errorf("given up after %v: %v", took, err)
				}
				near.Close()
				<-ended
			})
		})
	}
}
