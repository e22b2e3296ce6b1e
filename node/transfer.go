package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillon-scheduler/carillon/node/replica"
	"github.com/carillon-scheduler/carillon/store"
	"golang.org/x/time/rate"
)

// Snapshots of shards on their way between nodes: one out and one in at a time, at a bounded rate, so that what is fired and
// claimed meanwhile is not held up.
const (
	snapshotBytesPerSecond = 48 << 20
	snapshotBurst          = 1 << 20
	// snapshotSilence is how long a stream may stand still before it is given up. One that comes in must besides, after as
	// long, have come at snapshotSlowest on the average: it takes the only place there is.
	snapshotSilence = 30 * time.Second
	snapshotSlowest = 1 << 20
	// snapshotTaken is the receiver's word that the rows have arrived whole.
	snapshotTaken = 0x06
)

// snapshots sends those of shards that the replicas here want sent, one after the other.
type snapshots struct {
	stream func(ctx context.Context, job snapshotJob) error
	// done tells the replicas how it went.
	done   func(req replica.SnapshotRequest, err error)
	logger *slog.Logger
	// sent counts them.
	sent *atomic.Uint64

	// jobs has room for the one that the replicas ask for at a time. Put is under mu, so that none can come after the last.
	jobs   chan snapshotJob
	mu     sync.Mutex
	closed bool
}

// snapshotJob is a snapshot to be sent. It owns source.
type snapshotJob struct {
	req    replica.SnapshotRequest
	source store.Snapshot
}

func newSnapshots(n *Node) *snapshots {
	return &snapshots{
		stream: n.streamSnapshot, logger: n.logger, sent: &n.traffic.snapshotsSent, jobs: make(chan snapshotJob, 1),
		done: func(req replica.SnapshotRequest, err error) { n.host.SnapshotSent(req, err) },
	}
}

// send takes a snapshot over from the replicas' loop, and does not block.
func (s *snapshots) send(req replica.SnapshotRequest, source store.Snapshot) {
	if !s.accept(snapshotJob{req, source}) {
		s.done(req, errors.Join(errors.New("another snapshot is on its way, or the node stops"), source.Close()))
	}
}

func (s *snapshots) accept(job snapshotJob) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	select {
	case s.jobs <- job:
		return true
	default:
		return false
	}
}

// run sends until ctx ends.
func (s *snapshots) run(ctx context.Context) error {
	defer s.drop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case job := <-s.jobs:
			began := time.Now()
			err := errors.Join(s.stream(ctx, job), job.source.Close())
			if err != nil {
				s.logger.Warn("snapshot not sent", "shard", job.req.Shard, "store", job.req.Store, "error", err)
			} else {
				s.sent.Add(1)
				s.logger.Info("snapshot sent", "shard", job.req.Shard, "store", job.req.Store, "took", time.Since(began).String())
			}
			s.done(job.req, err)
		}
	}
}

// drop closes what nobody will send any more: the engine cannot close before.
func (s *snapshots) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	select {
	case job := <-s.jobs:
		s.done(job.req, errors.Join(errors.New("the node stops"), job.source.Close()))
	default:
	}
}

func (n *Node) streamSnapshot(ctx context.Context, job snapshotJob) error {
	addr, ok := n.inner.addr(job.req.Store)
	if !ok {
		return fmt.Errorf("send snapshot: store %s has no address", job.req.Store)
	}
	conn, err := n.inner.creds.DialBulk(ctx, addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	out := &throttled{
		ctx: ctx, conn: conn, limit: rate.NewLimiter(snapshotBytesPerSecond, snapshotBurst), sent: &n.traffic.snapshotBytesSent,
	}
	if err := replica.WriteSnapshot(out, job.source, job.req); err != nil {
		return err
	}
	if err := conn.SetReadDeadline(time.Now().Add(snapshotSilence)); err != nil {
		return fmt.Errorf("await receiver: %w", err)
	}
	var word [1]byte
	if _, err := io.ReadFull(conn, word[:]); err != nil || word[0] != snapshotTaken {
		return fmt.Errorf("await receiver: it has not taken the snapshot: %w", err)
	}
	return nil
}

// throttled writes at a bounded rate, and not into a connection that stands still.
type throttled struct {
	ctx   context.Context
	conn  net.Conn
	limit *rate.Limiter
	// sent counts what was written.
	sent *atomic.Uint64
}

func (t *throttled) Write(p []byte) (written int, err error) {
	for len(p) > 0 {
		part := p[:min(len(p), snapshotBurst)]
		if err := t.limit.WaitN(t.ctx, len(part)); err != nil {
			return written, err
		}
		if err := t.conn.SetWriteDeadline(time.Now().Add(snapshotSilence)); err != nil {
			return written, err
		}
		n, err := t.conn.Write(part)
		written += n
		t.sent.Add(uint64(n))
		if err != nil {
			return written, err
		}
		p = p[len(part):]
	}
	return written, nil
}

// patientReader gives up a connection that stands still or is slow.
type patientReader struct {
	conn  net.Conn
	began time.Time
	read  int64
	// received counts what was read, of all connections.
	received *atomic.Uint64
}

func (r *patientReader) Read(p []byte) (int, error) {
	due := r.began.Add(snapshotSilence + time.Duration(r.read/snapshotSlowest)*time.Second)
	if still := time.Now().Add(snapshotSilence); still.Before(due) {
		due = still
	}
	if err := r.conn.SetReadDeadline(due); err != nil {
		return 0, err
	}
	n, err := r.conn.Read(p)
	r.read += int64(n)
	r.received.Add(uint64(n))
	return n, err
}

// receiveBulk takes in a snapshot that another node sends, unless another one is just coming in.
func (n *Node) receiveBulk(conn net.Conn) {
	if !n.serving.Load() {
		return // the sender sees the connection close, and tries again
	}
	select {
	case n.receiving <- struct{}{}:
		defer func() { <-n.receiving }()
	default:
		return
	}
	in := &patientReader{conn: conn, began: time.Now(), received: &n.traffic.snapshotBytesReceived}
	got, err := replica.ReadSnapshot(in, n.engine, n.host.ReplicaID)
	if err != nil {
		n.logger.Warn("snapshot not received", "from", conn.RemoteAddr().String(), "error", err)
		return
	}
	n.traffic.snapshotsReceived.Add(1)
	n.logger.Info("snapshot received", "shard", got.Shard, "index", got.Applied())
	if err := n.host.ReceiveSnapshot(got); err != nil {
		n.logger.Warn("snapshot not taken over", "shard", got.Shard, "error", err)
		return
	}
	err = conn.SetWriteDeadline(time.Now().Add(snapshotSilence))
	if err == nil {
		_, err = conn.Write([]byte{snapshotTaken})
	}
	if err != nil {
		n.logger.Debug("snapshot's sender does not hear that it was taken", "error", err)
	}
}
