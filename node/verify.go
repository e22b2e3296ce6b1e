package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/replica"
	"github.com/carillon-scheduler/carillon/store"

	clusterv1 "github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1"
)

const (
	// maxLooks bounds the snapshots that wait to be looked at, each of which holds back compaction: those beyond it fail.
	maxLooks = 8
	// maxFindings is how many results are kept for who asked for them.
	maxFindings = 256
	// maxViolations is how many violations of a replica are told; all are counted.
	maxViolations = 20
	// After every lookRows rows read, the reader pauses for lookPause times as long as they took, lookMost at most: what took
	// longer has waited for the machine or the disk meanwhile, and others had them.
	lookRows  = 1000
	lookPause = 2
	lookMost  = 20 * time.Millisecond
)

// verifier looks at the rows of replicas on this node when a Verify command asks for it, one after the other and at a third
// of a core at most, and keeps what it found.
type verifier struct {
	logger *slog.Logger
	looks  chan lookJob

	mu     sync.Mutex
	closed bool
	// findings by verification; order has their keys, oldest first. Guarded by mu.
	findings map[lookKey]*clusterv1.VerificationResponse
	order    []lookKey
}

type lookKey struct {
	shard uint32
	id    string
}

// lookJob is a look that was asked for. It owns rows.
type lookJob struct {
	asked replica.Verify
	rows  store.Snapshot
}

func newVerifier(logger *slog.Logger) *verifier {
	return &verifier{
		logger: logger, looks: make(chan lookJob, maxLooks), findings: map[lookKey]*clusterv1.VerificationResponse{},
	}
}

// ask takes a look over from the replicas' loop, and does not block.
func (v *verifier) ask(asked replica.Verify, rows store.Snapshot) {
	if !v.accept(lookJob{asked, rows}) {
		v.fail(asked, errors.Join(errors.New("too many verifications at once"), rows.Close()))
	}
}

// accept is false if too many wait, or nobody will look any more.
func (v *verifier) accept(job lookJob) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return false
	}
	select {
	case v.looks <- job:
		v.put(job.asked, &clusterv1.VerificationResponse{
			State: clusterv1.VerificationState_VERIFICATION_STATE_PENDING, Index: job.asked.Index,
		})
		return true
	default:
		return false
	}
}

// run looks until ctx ends.
func (v *verifier) run(ctx context.Context) error {
	defer v.drop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case job := <-v.looks:
			found, err := look(ctx, job)
			if err != nil {
				v.fail(job.asked, err)
				continue
			}
			v.keep(job.asked, found)
		}
	}
}

// drop closes what nobody will look at any more: the engine cannot close before.
func (v *verifier) drop() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closed = true
	for {
		select {
		case job := <-v.looks:
			if err := job.rows.Close(); err != nil {
				v.logger.Warn("close snapshot", "error", err)
			}
		default:
			return
		}
	}
}

func (v *verifier) fail(asked replica.Verify, err error) {
	v.logger.Debug("verification failed", "shard", asked.Shard, "error", err)
	v.keep(asked, &clusterv1.VerificationResponse{
		State: clusterv1.VerificationState_VERIFICATION_STATE_FAILED, Reason: err.Error(), Index: asked.Index,
	})
}

// keep keeps a result, and forgets the oldest if there are too many.
func (v *verifier) keep(asked replica.Verify, found *clusterv1.VerificationResponse) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.put(asked, found)
}

// put is keep with the lock held.
func (v *verifier) put(asked replica.Verify, found *clusterv1.VerificationResponse) {
	key := lookKey{asked.Shard, asked.ID}
	if _, again := v.findings[key]; !again {
		v.order = append(v.order, key)
	}
	v.findings[key] = found
	if len(v.order) > maxFindings {
		delete(v.findings, v.order[0])
		v.order = append(v.order[:0], v.order[1:]...)
	}
}

// result is what was found. One that is pending has an index once the replica has come to the entry.
func (v *verifier) result(shard uint32, id string) *clusterv1.VerificationResponse {
	v.mu.Lock()
	defer v.mu.Unlock()
	if found := v.findings[lookKey{shard, id}]; found != nil {
		return found
	}
	return &clusterv1.VerificationResponse{State: clusterv1.VerificationState_VERIFICATION_STATE_PENDING}
}

// look hashes and checks the rows, and closes them.
func look(ctx context.Context, job lookJob) (found *clusterv1.VerificationResponse, err error) {
	defer func() { err = errors.Join(err, job.rows.Close()) }()
	asked := job.asked
	index, chain, err := replica.AppliedAt(job.rows, asked.Shard)
	if err != nil {
		return nil, err
	}
	if index != asked.Index || chain != asked.Chain {
		return nil, fmt.Errorf("the rows are those of entry %d and not of %d", index, asked.Index)
	}
	found = &clusterv1.VerificationResponse{
		State: clusterv1.VerificationState_VERIFICATION_STATE_DONE, Index: index, Chain: chain,
	}
	r := &slowReader{Reader: store.NewReader(job.rows, asked.Shard), ctx: ctx, began: time.Now()}
	found.Digest, found.Rows = fsm.Digest(r)
	note := func(v fsm.Violation) {
		found.ViolationCount++
		if len(found.Violations) < maxViolations {
			found.Violations = append(found.Violations, &clusterv1.Violation{Rule: v.Rule, Key: v.Key, Detail: v.Detail})
		}
	}
	fsm.Check(r, note)
	if found.ViolationCount == 0 { // else rows may not be readable
		cronEvaluator.Check(r, asked.Index, note)
	}
	if err := errors.Join(r.Err(), ctx.Err()); err != nil {
		return nil, err
	}
	return found, nil
}

// slowReader reads a shard's rows at a pace that leaves the machine to others. When its context ends it finds nothing more.
type slowReader struct {
	*store.Reader
	ctx   context.Context
	began time.Time
	reads int
}

// Get returns the value of a row.
func (r *slowReader) Get(key []byte) (value []byte, ok bool) {
	if !r.step() {
		return nil, false
	}
	return r.Reader.Get(key)
}

// Scan calls fn for the rows in [start, end) in key order until it returns false.
func (r *slowReader) Scan(start, end []byte, fn func(key, value []byte) bool) {
	r.Reader.Scan(start, end, func(key, value []byte) bool { return r.step() && fn(key, value) })
}

func (r *slowReader) step() bool {
	if r.reads++; r.reads%lookRows != 0 {
		return r.ctx.Err() == nil
	}
	if pause(r.ctx, min(lookPause*time.Since(r.began), lookMost)) != nil {
		return false
	}
	r.began = time.Now()
	return true
}

// Verification says what this node's replica of a shard found.
func (n *Node) Verification(_ context.Context, req *clusterv1.VerificationRequest) (*clusterv1.VerificationResponse, error) {
	if !n.serving.Load() {
		return &clusterv1.VerificationResponse{State: clusterv1.VerificationState_VERIFICATION_STATE_PENDING}, nil
	}
	if _, ok := n.host.StatusOf(req.Shard); !ok {
		return &clusterv1.VerificationResponse{State: clusterv1.VerificationState_VERIFICATION_STATE_NO_REPLICA}, nil
	}
	return n.verifier.result(req.Shard, req.Id), nil
}
