package dispatch

import storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"

// Held returns the live leases of a claim in the shards led here, and takes none: a retried poll asks every leader for
// them before it takes new ones anywhere. From then on no call of the claim gives them back. The executions are shared and
// must not be changed.
func (d *Dispatcher) Held(claimID string) ([]*storagev1.Execution, error) {
	d.mu.Lock()
	held := d.leasesOf(claimID)
	d.share(claimID)
	d.mu.Unlock()
	return d.readLeases(claimID, held)
}
