package replica

import (
	"bytes"
	"encoding/binary"
	"slices"

	"go.etcd.io/raft/v3"
)

// reads are a shard's callers that wait until the applied state shows everything acknowledged before they asked.
type reads struct {
	// fresh have not been asked for yet.
	fresh []func(error)
	asked []readBatch
}

// readBatch is those who came for one question to raft.
type readBatch struct {
	id    uint64
	dones []func(error)
	// index is the answer, 0 while there is none.
	index uint64
	// ticks since it was asked: a question may be lost without notice.
	ticks int
	// age is the ticks since the first question.
	age int
}

func (q *reads) count() int {
	n := len(q.fresh)
	for _, b := range q.asked {
		n += len(b.dones)
	}
	return n
}

// overdue says that a question has had no answer for a tick, and counts anew.
func (q *reads) overdue() bool {
	if !slices.ContainsFunc(q.asked, func(b readBatch) bool { return b.index == 0 && b.ticks > 0 }) {
		return false
	}
	for i := range q.asked {
		q.asked[i].ticks = 0
	}
	return true
}

func (q *reads) tick() {
	for i := range q.asked {
		q.asked[i].ticks++
		q.asked[i].age++
	}
}

// learn notes raft's answer to a question. It is one for everybody who had come when it was asked.
func (q *reads) learn(rs raft.ReadState, nonce [8]byte) {
	if len(rs.RequestCtx) != readContextLen || !bytes.Equal(rs.RequestCtx[8:], nonce[:]) {
		return
	}
	id := binary.BigEndian.Uint64(rs.RequestCtx)
	for i := range q.asked {
		if b := &q.asked[i]; b.id <= id && b.index == 0 {
			b.index = rs.Index
		}
	}
}

// askReadIndex asks raft for those who came since the last turn, and again for those whose question got no answer. A
// leader asks nothing before it is established: raft may know less as committed than was acknowledged. A follower's
// question goes to its leader, if it has one, and is given up after readTicks.
func (c *Core) askReadIndex(r *replica) {
	if r.lead != nil && !r.lead.established || len(r.reads.fresh)+len(r.reads.asked) == 0 {
		return
	}
	if r.lead == nil {
		c.giveUpReads(r)
	}
	if r.reads.overdue() {
		c.ask(r)
	}
	if len(r.reads.fresh) > 0 {
		r.reads.asked = append(r.reads.asked, readBatch{id: c.ask(r), dones: r.reads.fresh})
		r.reads.fresh = nil
	}
}

// giveUpReads fails what a follower has waited too long for.
func (c *Core) giveUpReads(r *replica) {
	r.reads.asked = slices.DeleteFunc(r.reads.asked, func(b readBatch) bool {
		if b.age < readTicks || b.index != 0 && b.index <= r.applied.index {
			return false
		}
		for _, done := range b.dones {
			c.answerRead(done, r.notLeader())
		}
		return true
	})
}

// readContextLen is the length of a question's context: its number, and the nonce of the run that asks. Without the nonce
// the answer to a question of an earlier run could be taken for one of this run's, and show less than it must.
const readContextLen = 16

func (c *Core) ask(r *replica) uint64 {
	c.readSeq++
	context := binary.BigEndian.AppendUint64(make([]byte, 0, readContextLen), c.readSeq)
	r.node.ReadIndex(append(context, c.nonce[:]...))
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
