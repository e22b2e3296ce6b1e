package replica

import "time"

// queue holds the commands of a shard that wait for an entry: what the work already accepted needs, and new work behind
// it. The order within each is kept.
type queue struct {
	accepted, fresh lane
}

// lane is a first-in, first-out part of a queue.
type lane struct {
	waiting []queued
	bytes   int
}

type queued struct {
	Proposal
	// sinceMS is the stamp of the first turn that found it here, 0 before that.
	sinceMS int64
}

// reservedPart of the store's queues, one in so many, is room that new work leaves to accepted work.
const reservedPart = 4

func (q *queue) len() int { return len(q.accepted.waiting) + len(q.fresh.waiting) }

// push lets a proposal in, or says that there is no room for it. See Config.Patience.
func (q *queue) push(p Proposal, patience time.Duration, cfg *Config, nowMS int64) bool {
	l := &q.accepted
	if patience > 0 {
		l = &q.fresh
		if l.ageMS(nowMS) > patience.Milliseconds() {
			return false
		}
	}
	if len(l.waiting) >= cfg.QueueCommands || l.bytes+len(p.Encoded) > cfg.QueueBytes {
		return false
	}
	l.waiting = append(l.waiting, queued{Proposal: p})
	l.bytes += len(p.Encoded)
	return true
}

// cut is what goes into an entry: so many commands from the head of each lane, with the size of their encodings.
type cut struct {
	accepted, fresh           int
	acceptedBytes, freshBytes int
}

func (c cut) commands() int { return c.accepted + c.fresh }

func (c cut) bytes() int { return c.acceptedBytes + c.freshBytes }

// next is what the next entry takes: accepted work as much as fits, new work of at most freshBytes, with a command or more
// whenever there is any, unless freshBytes is 0 or less.
func (q *queue) next(freshBytes int) (c cut) {
	commands := maxEntryCommands
	if len(q.fresh.waiting) > 0 && freshBytes > 0 {
		commands--
	}
	c.accepted, c.acceptedBytes = q.accepted.fit(commands, maxEntryBytes)
	if freshBytes <= 0 || c.accepted > 0 && c.acceptedBytes >= maxEntryBytes {
		return c // a large one goes alone
	}
	c.fresh, c.freshBytes = q.fresh.fit(maxEntryCommands-c.accepted, min(freshBytes, maxEntryBytes-c.acceptedBytes))
	return c
}

// proposals are those of a cut.
func (q *queue) proposals(c cut) []Proposal {
	batch := make([]Proposal, 0, c.commands())
	for _, w := range q.accepted.waiting[:c.accepted] {
		batch = append(batch, w.Proposal)
	}
	for _, w := range q.fresh.waiting[:c.fresh] {
		batch = append(batch, w.Proposal)
	}
	return batch
}

// drop removes a cut.
func (q *queue) drop(c cut) {
	q.accepted.drop(c.accepted, c.acceptedBytes)
	q.fresh.drop(c.fresh, c.freshBytes)
}

// fit is how many commands from the head of the lane there is room for; the first goes whatever its size.
func (l *lane) fit(commands, room int) (n, bytes int) {
	for n < len(l.waiting) && n < commands {
		size := len(l.waiting[n].Encoded)
		if n > 0 && bytes+size > room {
			break
		}
		bytes += size
		n++
	}
	return n, bytes
}

func (l *lane) drop(n, bytes int) {
	clear(l.waiting[:n])
	l.waiting = l.waiting[n:]
	l.bytes -= bytes
	if len(l.waiting) == 0 {
		l.waiting = nil
	}
}

// stamp notes when a turn first saw what has come since the last one.
func (l *lane) stamp(nowMS int64) {
	for i := len(l.waiting) - 1; i >= 0 && l.waiting[i].sinceMS == 0; i-- {
		l.waiting[i].sinceMS = nowMS
	}
}

// ageMS is how long the oldest command of the lane has waited.
func (l *lane) ageMS(nowMS int64) int64 {
	if len(l.waiting) == 0 || l.waiting[0].sinceMS == 0 {
		return 0
	}
	return nowMS - l.waiting[0].sinceMS
}
