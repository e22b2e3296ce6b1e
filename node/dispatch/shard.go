package dispatch

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	"github.com/carillon-scheduler/carillon/wheel"
)

// shard is one leadership of one shard. Guarded by Dispatcher.mu.
type shard struct {
	id   uint32
	term uint64
	// dropped: the leadership ended; callbacks of its rounds find it so.
	dropped bool
	// ready: loaded, so that rounds may be made.
	ready bool

	timers timers

	queues map[string]*shardQueue
	// discovered: all bands that have rows are known. Before that, what becomes ready is remembered in missed.
	discovered bool
	missed     missed[fsm.ReadyRef]
	settings   settings

	// claims are the fencing numbers of live leases by claim id, ascending.
	claims map[string][]uint64
	// shared are those of them whose leases more than one call has been handed.
	shared map[string]struct{}
	leases int
	// loadingLeases holds the leases that end while takeover reads them; nil afterwards.
	loadingLeases map[uint64]struct{}

	// round is what is under way, nil if nothing.
	round *round
	// restUntil: nothing is proposed before, because the last round was refused.
	restUntil time.Time
	// releases are leases to give back.
	releases []*storagev1.Completion
}

// settings are what the shard's settings rows say of queues and tenants: which are paused, and who shares turns otherwise than
// by default.
type settings struct {
	queues, tenants map[string]bool
	shares          map[string]Shares
	weights         map[string]uint32
}

func newShard(id uint32, term uint64, nowMS, horizonMS int64) *shard {
	return &shard{
		id: id, term: term,
		timers: timers{
			wheel: wheel.New[*queue](nowMS), next: math.MaxInt64, dueAt: map[*queue]int{},
			loadedUntil: nowMS + horizonMS, reloadAt: math.MaxInt64, loading: true,
		},
		queues: map[string]*shardQueue{}, claims: map[string][]uint64{}, shared: map[string]struct{}{},
		loadingLeases: map[uint64]struct{}{},
	}
}

func compareShard(sh *shard, id uint32) int { return cmp.Compare(sh.id, id) }

// addLease remembers a live lease. Locked.
func (sh *shard) addLease(claimID string, fencing uint64) {
	list := sh.claims[claimID]
	at, found := slices.BinarySearch(list, fencing)
	if found {
		return
	}
	sh.claims[claimID] = slices.Insert(list, at, fencing)
	sh.leases++
}

// endLease forgets a lease. Locked.
func (sh *shard) endLease(claimID string, fencing uint64) {
	if sh.loadingLeases != nil {
		sh.loadingLeases[fencing] = struct{}{}
	}
	list := sh.claims[claimID]
	at, found := slices.BinarySearch(list, fencing)
	if !found {
		return
	}
	sh.leases--
	if len(list) == 1 {
		delete(sh.claims, claimID)
		delete(sh.shared, claimID)
		return
	}
	sh.claims[claimID] = slices.Delete(list, at, at+1)
}
