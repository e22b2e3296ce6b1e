package replica

import (
	"encoding/binary"

	"go.etcd.io/raft/v3"
)

// reads are a shard's callers that wait until the applied state shows everything acknowledged before they asked.
type reads struct {
	// fresh have not been asked for yet.
	fresh []func(error)
	asked []readBatch
}

// readBatch is one question to raft.
type readBatch struct {
	id    uint64
	dones []func(error)
	// index is the answer, 0 while there is none.
	index uint64
	// ticks since it was asked: a question may be lost without notice.
	ticks int
}

func (q *reads) count() int {
	n := len(q.fresh)
	for _, b := range q.asked {
		n += len(b.dones)
	}
	return n
}

func (q *reads) tick() {
	for i := range q.asked {
		q.asked[i].ticks++
	}
}

// learn notes raft's answer to a question; one that was asked anew meanwhile has another id.
func (q *reads) learn(rs raft.ReadState) {
	id := binary.BigEndian.Uint64(rs.RequestCtx)
	for i := range q.asked {
		if q.asked[i].id == id {
			q.asked[i].index = rs.Index
		}
	}
}

// askReadIndex asks raft for those who came since the last turn, and again for those whose question got no answer. Before
// the leadership is established nothing is asked: raft may know less as committed than was acknowledged.
func (c *Core) askReadIndex(r *replica) {
	if !r.lead.established {
		return
	}
	for i := range r.reads.asked {
		if b := &r.reads.asked[i]; b.index == 0 && b.ticks > 0 {
			b.id, b.ticks = c.ask(r), 0
		}
	}
	if len(r.reads.fresh) > 0 {
		r.reads.asked = append(r.reads.asked, readBatch{id: c.ask(r), dones: r.reads.fresh})
		r.reads.fresh = nil
	}
}

func (c *Core) ask(r *replica) uint64 {
	c.readSeq++
	r.node.ReadIndex(binary.BigEndian.AppendUint64(nil, c.readSeq))
	return c.readSeq
}

// releaseReads answers those whose index is applied.
func (c *Core) releaseReads(r *replica) {
	kept := r.reads.asked[:0]
	for _, b := range r.reads.asked {
		if b.index == 0 || b.index > r.applied.index {
			kept = append(kept, b)
			continue
		}
		for _, done := range b.dones {
			c.answerRead(done, nil)
		}
	}
	clear(r.reads.asked[len(kept):])
	r.reads.asked = kept
}

func (c *Core) failReads(r *replica, err error) {
	for _, b := range r.reads.asked {
		for _, done := range b.dones {
			c.answerRead(done, err)
		}
	}
	for _, done := range r.reads.fresh {
		c.answerRead(done, err)
	}
	r.reads = reads{}
}
