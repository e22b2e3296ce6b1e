package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/control"
	"github.com/carillon-scheduler/carillon/rpc"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// tenantScanRows bounds the search for a tenant's jobs in a shard.
const tenantScanRows = 1000

// deletionsInterval is how often deletions of tenants are looked for that nobody waits for any more.
const deletionsInterval = time.Minute

// PutTenant stores a tenant's settings; see rpc.Backend.
func (n *Node) PutTenant(ctx context.Context, t *storagev1.TenantSettings, expected uint64) (*storagev1.TenantSettings, error) {
	stored, err := n.settings.put(ctx, control.Setting{Tenant: t}, expected)
	return stored.Tenant, err
}

// Tenant returns a tenant's settings.
func (n *Node) Tenant(ctx context.Context, name string) (*storagev1.TenantSettings, error) {
	one, err := n.settings.get(ctx, control.Tenant, name)
	return one.Tenant, err
}

// Tenants returns the settings of all tenants that have some, by name.
func (n *Node) Tenants(ctx context.Context) ([]*storagev1.TenantSettings, error) {
	all, err := n.settings.list(ctx, control.Tenant)
	tenants := make([]*storagev1.TenantSettings, 0, len(all))
	for _, one := range all {
		tenants = append(tenants, one.Tenant)
	}
	return tenants, err
}

// DeleteTenant refuses the tenant's creates from now on, removes its jobs in every shard, and then its settings. Asked again
// while that goes on, it waits for the same. A tenant without settings can be deleted as long as it has jobs.
func (n *Node) DeleteTenant(ctx context.Context, name string, expected uint64) (rpc.TaskProgress, error) {
	standing, ok, err := n.plane.GetSetting(ctx, control.Tenant, name)
	if err != nil {
		return rpc.TaskProgress{}, settingsError(err)
	}
	if ok && standing.Tenant.GetDeleting() {
		return n.finishDeletion(ctx, name, standing.Version())
	}
	if !ok || standing.Deleted() {
		has, err := n.tenantHasJobs(ctx, name)
		if err != nil {
			return rpc.TaskProgress{}, err
		}
		if !has {
			return rpc.TaskProgress{}, settingsError(&control.VersionError{Kind: control.Tenant, Name: name, Expected: rpc.AnyVersion})
		}
	}
	// Every shard must refuse the tenant's creates before its jobs are removed, so that a shard that lags is an error here.
	deleting, err := n.settings.put(ctx, control.Setting{
		Tenant: &storagev1.TenantSettings{Name: name, Deleting: true},
	}, expected)
	if err != nil {
		return rpc.TaskProgress{}, lagIsUnavailable(err)
	}
	return n.finishDeletion(ctx, name, deleting.Version())
}

// tenantHasJobs looks for one job of the tenant.
func (n *Node) tenantHasJobs(ctx context.Context, name string) (has bool, err error) {
	for _, shard := range n.slots.shards {
		err := n.View(ctx, shard, false, func(r fsm.Reader) error {
			jobs, _ := fsm.ListJobs(r, fsm.JobFilter{Tenant: name}, nil, 1, tenantScanRows)
			has = has || len(jobs) > 0
			return nil
		})
		if has || err != nil {
			return has, err
		}
	}
	return false, nil
}

// finishDeletion removes the jobs of a tenant that is being deleted since version, and then its settings.
func (n *Node) finishDeletion(ctx context.Context, name string, version uint64) (rpc.TaskProgress, error) {
	id := fmt.Sprintf("delete-tenant/%s/%d", name, version)
	progress, err := n.RunTask(ctx, id, storagev1.TaskKind_TASK_KIND_DELETE_TENANT, &storagev1.Filter{Tenant: name})
	if err != nil || !progress.Finished {
		return progress, err
	}
	standing, ok, err := n.plane.GetSetting(ctx, control.Tenant, name)
	if err != nil {
		return progress, settingsError(err)
	}
	if !ok || !standing.Tenant.GetDeleting() {
		return progress, nil // somebody else has finished it
	}
	_, err = n.settings.put(ctx, control.Setting{Tenant: &storagev1.TenantSettings{Name: name, Deleted: true}}, standing.Version())
	var refused *rpc.Refused
	if errors.As(err, &refused) && (refused.Refusal.Code == fsm.Aborted || refused.Refusal.Code == fsm.NotFound) {
		return progress, nil // the same, a moment ago; what stands there now may be a new tenant
	}
	return progress, lagIsUnavailable(err)
}

// resumeDeletions finishes the deletions of tenants that a stop interrupted, or whose caller does not wait any more.
func (n *Node) resumeDeletions(ctx context.Context) error {
	for {
		pause := deletionsInterval
		tenants, err := n.Tenants(ctx)
		for _, t := range tenants {
			if t.GetDeleting() && err == nil {
				_, err = n.finishDeletion(ctx, t.GetName(), t.GetVersion())
			}
		}
		if err != nil {
			n.logger.Debug("deletions of tenants wait", "error", err)
			pause = settingsRetry
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// lagIsUnavailable makes shards that lag the caller's to retry, where going on without them would be wrong.
func lagIsUnavailable(err error) error {
	var lag *rpc.Lagging
	if errors.As(err, &lag) {
		return &rpc.Unavailable{Reason: err.Error(), RetryAfter: settingsRetry, Ambiguous: true}
	}
	return err
}
