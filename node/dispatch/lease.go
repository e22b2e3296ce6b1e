package dispatch

import (
	"fmt"
	"slices"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// releaseLimit bounds the leases that wait to be given back, per shard. What is beyond ends by its deadline.
const releaseLimit = 10_000

// held are live leases of one claim in one shard.
type held struct {
	shard    uint32
	fencings []uint64
}

// leasesOf returns the live leases of a claim. Locked.
func (d *Dispatcher) leasesOf(claimID string) (list []held) {
	for _, sh := range d.led {
		if fencings := sh.claims[claimID]; len(fencings) > 0 {
			list = append(list, held{sh.id, slices.Clone(fencings)})
		}
	}
	return list
}

// share notes that another call of the claim is handed its leases: none of them can give back what the others have. Locked.
func (d *Dispatcher) share(claimID string) {
	for _, sh := range d.led {
		if len(sh.claims[claimID]) > 0 {
			sh.shared[claimID] = struct{}{}
		}
	}
}

// readLeases reads the executions of a claim's leases as they stand now; those that ended meanwhile are left out.
func (d *Dispatcher) readLeases(claimID string, list []held) (leases []*storagev1.Execution, err error) {
	for _, h := range list {
		rows := d.host.Rows(h.shard)
		for _, fencing := range h.fencings {
			value, ok := rows.Get(fsm.LeasedKey(fencing))
			if !ok {
				continue
			}
			e := new(storagev1.Execution)
			if err := e.UnmarshalVT(value); err != nil {
				return nil, fmt.Errorf("read lease %d of shard %d: %w", fencing, h.shard, err)
			}
			if e.ClaimId == claimID {
				leases = append(leases, e)
			}
		}
		if err := rows.Err(); err != nil {
			return nil, fmt.Errorf("read leases of shard %d: %w", h.shard, err)
		}
	}
	return leases, nil
}

// adopt gives polls that wait the leases that a takeover found under their claim ids: their first call was answered by an
// earlier leadership, or the answer was lost with it.
func (d *Dispatcher) adopt(sh *shard) error {
	d.mu.Lock()
	found := map[string][]uint64{}
	for claimID := range d.polls {
		if fencings := sh.claims[claimID]; len(fencings) > 0 {
			found[claimID] = slices.Clone(fencings)
		}
	}
	d.mu.Unlock()
	for claimID, fencings := range found {
		leases, err := d.readLeases(claimID, []held{{shard: sh.id, fencings: fencings}})
		if err != nil {
			return err
		}
		d.mu.Lock()
		if p := d.polls[claimID]; p != nil && !sh.dropped {
			leases = d.without(leases, sh, p)
			n := max(0, min(len(leases), p.lacks()))
			d.credit(p, 0, leases[:n])
			d.release(leases[n:])
		}
		d.mu.Unlock()
	}
	return nil
}

// without leaves out the leases of a shard that a poll has already: it waits on for another shard's round and delivers
// them then. Locked.
func (d *Dispatcher) without(leases []*storagev1.Execution, sh *shard, p *poll) []*storagev1.Execution {
	has := map[uint64]bool{}
	for _, e := range p.got {
		if d.host.ShardOf(e.Tenant, e.JobId) == sh.id {
			has[e.Fencing] = true
		}
	}
	return slices.DeleteFunc(leases, func(e *storagev1.Execution) bool { return has[e.Fencing] })
}

// Release gives leases back that could not be delivered: the attempts do not count and the executions are ready again. It
// returns at once; what cannot be given back ends by its deadline, as do leases that a retry of their claim has been handed.
func (d *Dispatcher) Release(leases []*storagev1.Execution) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.release(leases)
}

// release queues leases to be given back, if their shards are still led here. A retry of the claim no longer finds them.
// Locked.
func (d *Dispatcher) release(leases []*storagev1.Execution) {
	for _, e := range leases {
		sh := d.shards[d.host.ShardOf(e.Tenant, e.JobId)]
		if sh == nil || len(sh.releases) >= releaseLimit {
			d.counts.ReleasesDropped++
			continue
		}
		if _, shared := sh.shared[e.ClaimId]; shared {
			continue
		}
		sh.endLease(e.ClaimId, e.Fencing)
		sh.releases = append(sh.releases, &storagev1.Completion{
			ExecutionId: fsm.ExecutionID(e), Fencing: e.Fencing, Worker: e.Worker,
			Outcome: storagev1.Outcome_OUTCOME_RELEASED,
		})
	}
	if len(leases) > 0 {
		signal(d.wakePlanner)
	}
}
