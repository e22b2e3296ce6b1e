package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
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
	// snapshotSilence is how long a stream may stand still before it is given up.
	snapshotSilence = 30 * time.Second
	// snapshotTaken is the receiver's word that the rows have arrived whole.
	snapshotTaken = 0x06
)

// snapshotJob is a snapshot to be sent.
type snapshotJob struct {
	req    replica.SnapshotRequest
	source store.Snapshot
}

// sendSnapshot hands a snapshot to sendSnapshots. The replicas ask for one at a time, so that there is always room.
func (n *Node) sendSnapshot(req replica.SnapshotRequest, source store.Snapshot) {
	select {
	case n.snapshots <- snapshotJob{req, source}:
	default:
		n.host.SnapshotSent(req, errors.Join(errors.New("another snapshot is on its way"), source.Close()))
	}
}

// sendSnapshots sends one snapshot after the other until ctx ends.
func (n *Node) sendSnapshots(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case job := <-n.snapshots:
			began := time.Now()
			err := errors.Join(n.streamSnapshot(ctx, job), job.source.Close())
			if err != nil {
				n.logger.Warn("snapshot not sent", "shard", job.req.Shard, "store", job.req.Store, "error", err)
			} else {
				n.traffic.snapshotsSent.Add(1)
				n.logger.Info("snapshot sent", "shard", job.req.Shard, "store", job.req.Store, "took", time.Since(began).String())
			}
			n.host.SnapshotSent(job.req, err)
		}
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

// patientReader gives up a connection that stands still.
type patientReader struct {
	conn net.Conn
	// received counts what was read.
	received *atomic.Uint64
}

func (r patientReader) Read(p []byte) (int, error) {
	if err := r.conn.SetReadDeadline(time.Now().Add(snapshotSilence)); err != nil {
		return 0, err
	}
	n, err := r.conn.Read(p)
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
	got, err := replica.ReadSnapshot(patientReader{conn, &n.traffic.snapshotBytesReceived}, n.engine, n.host.ReplicaID)
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
