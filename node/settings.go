package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/control"
	"github.com/carillon-scheduler/carillon/rpc"
	"golang.org/x/sync/errgroup"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// settingsRetry is how long a shard rests that did not take the settings.
const settingsRetry = time.Second

// settings brings the settings of queues and tenants, which stand in the control plane, into the shards' logs. A shard
// that takes over, and a change somebody else made, are brought up to date by run.
type settings struct {
	plane  control.Plane
	shards []uint32
	do     func(ctx context.Context, shard uint32, cmd *storagev1.Command) (fsm.Result, error)
	now    func() int64
	logger *slog.Logger

	wake chan struct{}
	mu   sync.Mutex
	// behind are the shards that may lack settings, all those that the last known list has. Guarded by mu.
	behind map[uint32]bool
}

func newSettings(n *Node) *settings {
	return &settings{
		plane: n.plane, shards: n.slots.shards, do: n.Do, now: n.NowMS, logger: n.logger,
		wake: make(chan struct{}, 1), behind: map[uint32]bool{},
	}
}

// established says that this node serves shard from now on.
func (s *settings) established(shard uint32) {
	s.mu.Lock()
	s.behind[shard] = true
	s.mu.Unlock()
	s.poke()
}

func (s *settings) steppedDown(shard uint32) {
	s.mu.Lock()
	delete(s.behind, shard)
	s.mu.Unlock()
}

func (s *settings) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// run keeps the shards up to date until ctx ends.
func (s *settings) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		first := true
		return s.plane.WatchSettings(ctx, func(control.Setting) {
			if first { // what stood at the start is covered by established
				first = false
				return
			}
			s.mu.Lock()
			for _, shard := range s.shards {
				s.behind[shard] = true
			}
			s.mu.Unlock()
			s.poke()
		})
	})
	group.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-s.wake:
			}
			if err := s.catchUp(ctx); err != nil {
				s.logger.Debug("settings not in every shard yet", "error", err)
				select {
				case <-ctx.Done():
					return nil
				case <-time.After(settingsRetry):
					s.poke()
				}
			}
		}
	})
	if err := group.Wait(); ctx.Err() == nil {
		return fmt.Errorf("keep settings: %w", err)
	}
	return nil
}

// catchUp proposes all settings to the shards that may lack some. The state machine passes over what it has.
func (s *settings) catchUp(ctx context.Context) error {
	s.mu.Lock()
	var shards []uint32
	for shard := range s.behind {
		shards = append(shards, shard)
	}
	s.mu.Unlock()
	if len(shards) == 0 {
		return nil
	}
	slices.Sort(shards)
	var all []control.Setting
	for _, kind := range []control.SettingKind{control.Queue, control.Tenant} {
		list, err := s.plane.ListSettings(ctx, kind)
		if err != nil {
			return err
		}
		all = append(all, list...)
	}
	var errs []error
	for _, shard := range shards {
		if err := s.bring(ctx, shard, all); err != nil {
			errs = append(errs, err)
			continue
		}
		s.mu.Lock()
		delete(s.behind, shard)
		s.mu.Unlock()
	}
	return errors.Join(errs...)
}

func (s *settings) bring(ctx context.Context, shard uint32, all []control.Setting) error {
	for _, one := range all {
		res, err := s.do(ctx, shard, &storagev1.Command{PutQueue: one.Queue.CloneVT(), PutTenant: one.Tenant.CloneVT()})
		if err != nil {
			return fmt.Errorf("shard %d: %w", shard, err)
		}
		if res.Refusal != nil {
			return fmt.Errorf("shard %d refused %s %q: %s", shard, one.Kind(), one.Name(), res.Refusal.Message)
		}
	}
	return nil
}

// put stores one and returns when every shard has applied it. Shards that have not are named in a *rpc.Lagging beside what
// was stored; they get it later all the same.
func (s *settings) put(ctx context.Context, one control.Setting, expected uint64) (control.Setting, error) {
	one.Stamp(s.now())
	stored, err := s.store(ctx, one, expected)
	if err != nil {
		return control.Setting{}, settingsError(err)
	}
	group := new(errgroup.Group)
	group.SetLimit(16)
	var mu sync.Mutex
	var pending []uint32
	for _, shard := range s.shards {
		group.Go(func() error {
			if err := s.bring(ctx, shard, []control.Setting{stored}); err != nil {
				mu.Lock()
				pending = append(pending, shard)
				mu.Unlock()
			}
			return nil
		})
	}
	_ = group.Wait() // failures are collected in pending
	if len(pending) > 0 {
		slices.Sort(pending)
		s.mu.Lock()
		for _, shard := range pending {
			s.behind[shard] = true
		}
		s.mu.Unlock()
		s.poke()
		return stored, &rpc.Lagging{Shards: pending}
	}
	return stored, nil
}

// store puts one into the control plane; AnyVersion replaces whatever stands there.
func (s *settings) store(ctx context.Context, one control.Setting, expected uint64) (control.Setting, error) {
	for attempt := 0; ; attempt++ {
		want := expected
		if expected == rpc.AnyVersion {
			standing, ok, err := s.plane.GetSetting(ctx, one.Kind(), one.Name())
			if err != nil {
				return control.Setting{}, err
			}
			want = 0
			if ok && !standing.Deleted() {
				want = standing.Version()
			}
			if want == 0 && one.Deleted() {
				return control.Setting{}, &control.VersionError{Kind: one.Kind(), Name: one.Name(), Expected: expected}
			}
		}
		stored, err := s.plane.PutSetting(ctx, one, want)
		var version *control.VersionError
		if errors.As(err, &version) && expected == rpc.AnyVersion && attempt < 10 {
			continue // somebody else was faster
		}
		return stored, err
	}
}

// get returns the settings of a name; a deleted one does not exist.
func (s *settings) get(ctx context.Context, kind control.SettingKind, name string) (control.Setting, error) {
	one, ok, err := s.plane.GetSetting(ctx, kind, name)
	if err != nil {
		return control.Setting{}, settingsError(err)
	}
	if !ok || one.Deleted() {
		return control.Setting{}, &rpc.Refused{Refusal: &fsm.Refusal{
			Code: fsm.NotFound, Field: "name", Message: fmt.Sprintf("%s %q has no settings of its own", kind, name),
		}}
	}
	return one, nil
}

func (s *settings) list(ctx context.Context, kind control.SettingKind) ([]control.Setting, error) {
	all, err := s.plane.ListSettings(ctx, kind)
	if err != nil {
		return nil, settingsError(err)
	}
	return slices.DeleteFunc(all, control.Setting.Deleted), nil
}

// settingsError says in the API's terms what the control plane answered.
func settingsError(err error) error {
	var version *control.VersionError
	switch {
	case errors.As(err, &version) && version.Expected == 0:
		return &rpc.Refused{Refusal: &fsm.Refusal{
			Code: fsm.AlreadyExists, Field: "name", Version: version.Current,
			Message: fmt.Sprintf("%s %q exists at version %d", version.Kind, version.Name, version.Current),
		}}
	case errors.As(err, &version) && version.Current == 0:
		return &rpc.Refused{Refusal: &fsm.Refusal{
			Code: fsm.NotFound, Field: "name", Message: fmt.Sprintf("%s %q does not exist", version.Kind, version.Name),
		}}
	case errors.As(err, &version):
		return &rpc.Refused{Refusal: &fsm.Refusal{Code: fsm.Aborted, Version: version.Current, Message: err.Error()}}
	case errors.Is(err, control.ErrTooMany):
		return &rpc.Overloaded{Reason: err.Error(), RetryAfter: time.Minute}
	case errors.Is(err, control.ErrUnavailable):
		return &rpc.Unavailable{Reason: err.Error(), RetryAfter: time.Second, Ambiguous: true}
	default:
		return err
	}
}

// PutQueue stores a queue's settings; see rpc.Backend.
func (n *Node) PutQueue(ctx context.Context, q *storagev1.QueueSettings, expected uint64) (*storagev1.QueueSettings, error) {
	stored, err := n.settings.put(ctx, control.Setting{Queue: q}, expected)
	return stored.Queue, err
}

// Queue returns a queue's settings.
func (n *Node) Queue(ctx context.Context, name string) (*storagev1.QueueSettings, error) {
	one, err := n.settings.get(ctx, control.Queue, name)
	return one.Queue, err
}

// Queues returns the settings of all queues that have some, by name.
func (n *Node) Queues(ctx context.Context) ([]*storagev1.QueueSettings, error) {
	all, err := n.settings.list(ctx, control.Queue)
	queues := make([]*storagev1.QueueSettings, 0, len(all))
	for _, one := range all {
		queues = append(queues, one.Queue)
	}
	return queues, err
}

// DeleteQueue removes a queue's settings: it goes on with the defaults.
func (n *Node) DeleteQueue(ctx context.Context, name string, expected uint64) error {
	_, err := n.settings.put(ctx, control.Setting{Queue: &storagev1.QueueSettings{Name: name, Deleted: true}}, expected)
	return err
}

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

// DeleteTenant refuses the tenant's creates from now on, removes its jobs in every shard, and then its settings.
func (n *Node) DeleteTenant(ctx context.Context, name string, expected uint64) (rpc.TaskProgress, error) {
	// Every shard must refuse the tenant's creates before its jobs are removed, so that a shard that lags is an error here.
	deleting, err := n.settings.put(ctx, control.Setting{
		Tenant: &storagev1.TenantSettings{Name: name, Deleting: true},
	}, expected)
	if err != nil {
		return rpc.TaskProgress{}, lagIsUnavailable(err)
	}
	return n.finishDeletion(ctx, name, deleting.Version())
}

// finishDeletion removes the jobs of a tenant that is being deleted since version, and then its settings.
func (n *Node) finishDeletion(ctx context.Context, name string, version uint64) (rpc.TaskProgress, error) {
	id := fmt.Sprintf("delete-tenant/%s/%d", name, version)
	progress, err := n.RunTask(ctx, id, storagev1.TaskKind_TASK_KIND_DELETE_TENANT, &storagev1.Filter{Tenant: name})
	if err != nil || !progress.Finished {
		return progress, err
	}
	_, err = n.settings.put(ctx, control.Setting{Tenant: &storagev1.TenantSettings{Name: name, Deleted: true}}, version)
	return progress, lagIsUnavailable(err)
}

// resumeDeletions finishes the deletions of tenants that a stop interrupted.
func (n *Node) resumeDeletions(ctx context.Context) error {
	for {
		tenants, err := n.Tenants(ctx)
		for _, t := range tenants {
			if t.GetDeleting() && err == nil {
				_, err = n.finishDeletion(ctx, t.GetName(), t.GetVersion())
			}
		}
		if err == nil || ctx.Err() != nil {
			return nil
		}
		n.logger.Debug("deletions of tenants wait", "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(settingsRetry):
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
