package node

import (
	"bytes"
	"context"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/node/peer"
	"github.com/carillon-scheduler/carillon/node/replica"
)

// What nodes tell each other beside frames and beats. Messages may be lost; what matters is told again.
const (
	// messageInterest is the list of queues in which polls wait at the sender, the whole list each time.
	messageInterest = 1
	// messageHint is a list of queues in which the sender has something to give.
	messageHint = 2
	// messageLeads is the list of shards that the sender leads, the whole list each time.
	messageLeads = 3
)

const (
	// interestEvery is how often a node tells what its polls wait for even if nothing new has come up.
	interestEvery = 200 * time.Millisecond
	// aliveEvery is how often the loop's age is taken.
	aliveEvery = 250 * time.Millisecond
)

// encodeQueues lists as many queues as a message holds; polls for the others find work by asking. Queue names hold no zero
// byte.
func encodeQueues(queues []string) []byte {
	size := 0
	for i, name := range queues {
		if size += len(name) + 1; size > peer.MaxMessage+1 {
			queues = queues[:i]
			break
		}
	}
	return []byte(strings.Join(queues, "\x00"))
}

func decodeQueues(payload []byte) (queues []string) {
	for name := range bytes.SplitSeq(payload, []byte{0}) {
		if len(name) > 0 {
			queues = append(queues, string(name))
		}
	}
	return queues
}

// receiveFrame takes in raft messages; before the replicas run they are lost, and sent again.
func (n *Node) receiveFrame(f replica.Frame) {
	if n.serving.Load() {
		n.host.Receive(f)
	}
}

func (n *Node) receiveMessage(from string, kind byte, payload []byte) {
	if !n.serving.Load() {
		return
	}
	switch kind {
	case messageInterest:
		n.dispatcher.SetInterest(from, decodeQueues(payload))
	case messageHint:
		n.poller.Hinted(from, decodeQueues(payload))
	case messageLeads:
		told, err := decodeLeads(payload)
		if err != nil {
			n.logger.Warn("message of another node is not understood", "store", from, "error", err)
			return
		}
		n.leads.learn(from, told)
	}
}

// hint tells another node that there is something here for its polls.
func (n *Node) hint(store string, queues []string) {
	n.traffic.hintsSent.Add(uint64(len(queues)))
	n.inner.transport.SendMessage(store, messageHint, encodeQueues(queues))
}

// interested is called when polls wait for something new.
func (n *Node) interested() { n.interestGrown.poke() }

// tellInterest keeps the other nodes informed of what polls wait for here.
func (n *Node) tellInterest(ctx context.Context) error {
	again := time.NewTimer(interestEvery) // it stands still while there is nothing to tell
	defer again.Stop()
	told := true // that there is nothing
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.interestGrown:
		case <-again.C:
		}
		queues := n.poller.Interest()
		if len(queues) == 0 && told {
			continue
		}
		told = len(queues) == 0
		payload := encodeQueues(queues)
		for _, store := range n.inner.others() {
			n.inner.transport.SendMessage(store, messageInterest, payload)
		}
		again.Reset(interestEvery)
	}
}

// suspect is told by the beats that a peer is silent or stuck, or well again.
func (n *Node) suspect(store string, is bool) {
	if !n.serving.Load() {
		return
	}
	n.router.Suspect(store, is)
	n.poller.Disturbed()
	n.host.Suspect(store, is)
	if is {
		n.dispatcher.SetInterest(store, nil)
	}
}

// health is what beats tell of this node. Before it serves nobody has judged its clock, which has no voice then.
func (n *Node) health() peer.Health {
	h := peer.Health{WallMS: time.Now().UnixMilli(), ClockMS: time.Now().UnixMilli()}
	if !n.serving.Load() {
		return h
	}
	h.ClockMS, h.ClockOK = n.guard.Now(), n.guard.MayFire()
	h.SyncAge = n.host.SyncAge()
	if asked := n.aliveAsked.Load(); asked != 0 {
		h.TurnAge = time.Since(n.started) - time.Duration(asked)
	}
	return h
}

// watchLoop asks the replicas' loop again and again whether it comes round; health tells how long the answer has been out.
func (n *Node) watchLoop(ctx context.Context) error {
	tick := time.NewTicker(aliveEvery)
	defer tick.Stop()
	for {
		n.aliveAsked.Store(int64(time.Since(n.started)))
		if err := n.host.Alive(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		n.aliveAsked.Store(0)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
