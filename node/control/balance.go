package control

import (
	"cmp"
	"slices"
	"time"
)

const (
	// MaxTransfers bounds the leaderships that one call of BalanceLeaders moves.
	MaxTransfers = 5
	// maxSkew is by how many leaderships the busiest store may exceed the idlest.
	maxSkew = 2
	// settleTime is for how long a store has to be live before leaderships are sent to it.
	settleTime = time.Minute
)

// Transfer is a leadership to be handed over.
type Transfer struct {
	Shard    uint32
	From, To string
}

// BalanceLeaders decides which leaderships to move: all of those on draining stores, then from the store with the most
// towards the one with the fewest, by way of others where the two share no shard, until they differ by two at most. None
// goes to a store that has not been live for a minute, or of a shard that is on its way to other replicas. At most
// MaxTransfers a call; the same view gives the same answer.
func BalanceLeaders(v View) []Transfer {
	b := newBalancer(v)
	b.drain()
	for len(b.transfers) < MaxTransfers && b.level() {
	}
	return b.transfers
}

type balancer struct {
	v View
	// targets are the stores that may lead more, in order of their node ids; leads is how many each of them has.
	targets []string
	leads   map[string]int
	// leader is the store that leads each shard that may be moved, as planned so far; moved ones are not there.
	leader    map[uint32]string
	shards    []uint32
	transfers []Transfer
}

func newBalancer(v View) *balancer {
	b := &balancer{v: v, leads: map[string]int{}, leader: map[uint32]string{}}
	for _, s := range v.Stores {
		if s.Live && s.State == StoreUp && s.For >= settleTime {
			b.targets = append(b.targets, s.UUID)
		}
	}
	for _, s := range v.Wanted {
		leader, led := v.Leaders[s.ID]
		if !led {
			continue
		}
		b.leads[leader]++
		if a, published := v.Actual[s.ID]; published && a.Gen == s.Gen {
			b.leader[s.ID] = leader
			b.shards = append(b.shards, s.ID)
		}
	}
	return b
}

// drain empties stores that are to lead nothing.
func (b *balancer) drain() {
	for _, s := range b.v.Stores {
		if s.State != StoreDraining {
			continue
		}
		for _, shard := range b.shards {
			if b.leader[shard] != s.UUID || len(b.transfers) == MaxTransfers {
				continue
			}
			if to, ok := b.idlest(shard); ok {
				b.transfer(shard, to)
			}
		}
	}
}

// idlest is the target with the fewest leaderships of those that vote in a shard.
func (b *balancer) idlest(shard uint32) (string, bool) {
	best, ok := "", false
	for _, store := range b.targets {
		if b.votes(shard, store) && (!ok || b.leads[store] < b.leads[best]) {
			best, ok = store, true
		}
	}
	return best, ok
}

func (b *balancer) votes(shard uint32, store string) bool {
	return slices.ContainsFunc(b.v.Actual[shard].Voters, func(r Replica) bool { return r.Store == store })
}

func (b *balancer) transfer(shard uint32, to string) {
	from := b.leader[shard]
	b.transfers = append(b.transfers, Transfer{Shard: shard, From: from, To: to})
	b.leads[from]--
	b.leads[to]++
	delete(b.leader, shard)
}

// level takes one leadership from a store with the most that it can, and says whether there was any. A store with too
// few that no path leads to does not keep the others from being leveled.
func (b *balancer) level() bool {
	from := slices.Clone(b.targets)
	slices.SortStableFunc(from, func(x, y string) int { return cmp.Compare(b.leads[y], b.leads[x]) })
	for _, most := range from {
		path := b.pathDown(most)
		if len(path) == 0 || len(b.transfers)+len(path) > MaxTransfers {
			continue
		}
		for _, hop := range path {
			b.transfer(hop.Shard, hop.To)
		}
		return true
	}
	return false
}

// pathDown finds the shortest way from a store to the one with the fewest leaderships, if that has too few beside it, breadth
// first: each hop is a shard that the one leads and the next votes in. What lies between has afterwards what it had before.
func (b *balancer) pathDown(from string) []Transfer {
	cameBy := map[string]Transfer{from: {}}
	fewest := from
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		if b.leads[at] < b.leads[fewest] {
			fewest = at
		}
		for _, shard := range b.shards {
			if b.leader[shard] != at {
				continue
			}
			for _, to := range b.targets {
				if _, seen := cameBy[to]; !seen && b.votes(shard, to) {
					cameBy[to] = Transfer{Shard: shard, From: at, To: to}
					queue = append(queue, to)
				}
			}
		}
	}
	if b.leads[from]-b.leads[fewest] <= maxSkew {
		return nil
	}
	var path []Transfer
	for at := fewest; at != from; at = cameBy[at].From {
		path = append(path, cameBy[at])
	}
	slices.Reverse(path)
	return path
}
