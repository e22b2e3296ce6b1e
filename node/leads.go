package node

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"time"
)

const (
	// leadsEvery is how often a node tells what it leads even if that has not changed: a message may be lost.
	leadsEvery = time.Second
	// maxTold bounds the shards that are taken from one message.
	maxTold = 1 << 16
)

// leads is which shards the other nodes say they lead. A node that has a replica of a shard knows its leader from the
// shard's group; of all other shards, from here.
type leads struct {
	// changed wakes tellLeads.
	changed wake

	mu sync.RWMutex
	// at is by shard. Guarded by mu.
	at map[uint32]lead
}

type lead struct {
	store string
	term  uint64
}

func newLeads() *leads { return &leads{changed: newWake(), at: map[uint32]lead{}} }

// of is the latest leadership of a shard that was heard of; its store is empty if there is none.
func (l *leads) of(shard uint32) lead {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.at[shard]
}

// learn takes in all that a store says it leads now, by shard.
func (l *leads) learn(store string, told map[uint32]uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for shard, known := range l.at {
		if _, still := told[shard]; known.store == store && !still {
			delete(l.at, shard)
		}
	}
	for shard, term := range told {
		if term >= l.at[shard].term {
			l.at[shard] = lead{store: store, term: term}
		}
	}
}

// encodeLeads is a list of shards, each with its leadership's term.
func encodeLeads(terms map[uint32]uint64) (payload []byte) {
	for shard, term := range terms {
		payload = binary.AppendUvarint(binary.AppendUvarint(payload, uint64(shard)), term)
	}
	return payload
}

func decodeLeads(payload []byte) (map[uint32]uint64, error) {
	terms := map[uint32]uint64{}
	for len(payload) > 0 {
		shard, n := binary.Uvarint(payload)
		if n <= 0 || shard > 1<<32-1 {
			return nil, errors.New("decode leaderships: not a shard")
		}
		term, m := binary.Uvarint(payload[n:])
		if m <= 0 || len(terms) == maxTold {
			return nil, errors.New("decode leaderships: not a term, or too many")
		}
		terms[uint32(shard)], payload = term, payload[n+m:]
	}
	return terms, nil
}

// tellLeads keeps the other nodes informed of what is led here.
func (n *Node) tellLeads(ctx context.Context) error {
	tick := time.NewTicker(leadsEvery)
	defer tick.Stop()
	for {
		terms := map[uint32]uint64{}
		for _, s := range n.host.Status() {
			if s.Established {
				terms[s.Shard] = s.Term
			}
		}
		payload := encodeLeads(terms)
		for _, store := range n.inner.others() {
			n.inner.transport.SendMessage(store, messageLeads, payload)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-n.leads.changed:
		case <-tick.C:
		}
	}
}

// leaderOf is the store that leads a shard as far as this node knows, else empty.
func (n *Node) leaderOf(shard uint32) string {
	s, _ := n.host.StatusOf(shard)
	if heard := n.leads.of(shard); heard.store != "" && (s.LeaderStore == "" || heard.term > s.Term) {
		return heard.store
	}
	return s.LeaderStore
}

// led says whether a shard has a leader that serves, as far as this node knows.
func (n *Node) led(shard uint32) bool {
	leader := n.leaderOf(shard)
	if leader != n.dir.Ident().StoreUUID {
		return leader != ""
	}
	s, _ := n.host.StatusOf(shard)
	return s.Established
}

// leaderStores are the stores that lead a shard as far as this node knows. The slice must not be changed.
func (n *Node) leaderStores() []string {
	c := &n.leaders
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.at) > leadersFor {
		c.at = now
		var stores []string
		for _, shard := range n.slots.shards {
			if store := n.leaderOf(shard); store != "" && !slices.Contains(stores, store) {
				stores = append(stores, store)
			}
		}
		c.stores = stores
	}
	return c.stores
}

// leaderCache is the stores that lead a shard, as far as this one knows.
type leaderCache struct {
	mu     sync.Mutex
	at     time.Time
	stores []string
}

// leadersFor is for how long what is known of the leaders is taken for true without looking again.
const leadersFor = 50 * time.Millisecond
