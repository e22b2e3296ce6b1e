package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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

// settingsBatch is how many settings are proposed to a shard at once.
const settingsBatch = 200

// settings brings the settings of queues and tenants, and pause rules, which stand in the control plane, into the shards' logs. A shard
// that takes over, and a change somebody else made, are brought up to date by run.
type settings struct {
	plane  control.Plane
	shards []uint32
	doAll  func(ctx context.Context, cmds []rpc.ShardCommand) []rpc.Outcome
	view   func(shard uint32, fn func(fsm.Reader) error) error
	now    func() int64
	logger *slog.Logger

	wake wake
	mu   sync.Mutex
	// Guarded by mu: the shards led here, and those of them that may lack settings. All others are their leaders' business.
	led, behind map[uint32]bool
}

func newSettings(n *Node) *settings {
	return &settings{
		plane: n.plane, shards: n.slots.shards, doAll: n.DoAll, view: n.snapshot, now: n.NowMS, logger: n.logger,
		wake: newWake(), led: map[uint32]bool{}, behind: map[uint32]bool{},
	}
}

// established says that this node serves shard from now on.
func (s *settings) established(shard uint32) {
	s.mu.Lock()
	s.led[shard] = true
	s.mu.Unlock()
	s.mayLack([]uint32{shard})
}

// mayLack makes run look at those shards that are led here.
func (s *settings) mayLack(shards []uint32) {
	s.mu.Lock()
	for _, shard := range shards {
		if s.led[shard] {
			s.behind[shard] = true
		}
	}
	s.mu.Unlock()
	s.wake.poke()
}

func (s *settings) steppedDown(shard uint32) {
	s.mu.Lock()
	delete(s.led, shard)
	delete(s.behind, shard)
	s.mu.Unlock()
}

// run keeps the shards up to date until ctx ends.
func (s *settings) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return s.plane.WatchSettings(ctx, func(control.Setting) { s.mayLack(s.shards) })
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
					s.wake.poke()
				}
			}
		}
	})
	if err := group.Wait(); ctx.Err() == nil {
		return fmt.Errorf("keep settings: %w", err)
	}
	return nil
}

// catchUp brings to the shards that may lack settings what they lack. What changes while it runs marks them again.
func (s *settings) catchUp(ctx context.Context) error {
	s.mu.Lock()
	shards := slices.Sorted(maps.Keys(s.behind))
	clear(s.behind)
	s.mu.Unlock()
	if len(shards) == 0 {
		return nil
	}
	var all []control.Setting
	for _, kind := range control.SettingKinds {
		list, err := s.plane.ListSettings(ctx, kind)
		if err != nil {
			s.mayLack(shards)
			return err
		}
		all = append(all, list...)
	}
	var errs []error
	for _, shard := range shards {
		if err := s.bring(ctx, shard, all); err != nil {
			s.mayLack([]uint32{shard})
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// bring proposes to a shard those settings that are newer than the shard's own.
func (s *settings) bring(ctx context.Context, shard uint32, all []control.Setting) error {
	var cmds []rpc.ShardCommand
	err := s.view(shard, func(r fsm.Reader) error {
		for _, one := range all {
			if one.Version() > versionIn(r, one) {
				cmds = append(cmds, rpc.ShardCommand{Shard: shard, Command: putCommand(one)})
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read settings of shard %d: %w", shard, err)
	}
	for len(cmds) > 0 {
		part := cmds[:min(len(cmds), settingsBatch)]
		for _, o := range s.doAll(ctx, part) {
			if o.Err == nil && o.Result.Refusal != nil {
				o.Err = &rpc.Refused{Refusal: o.Result.Refusal}
			}
			if o.Err != nil {
				return fmt.Errorf("put settings into shard %d: %w", shard, o.Err)
			}
		}
		cmds = cmds[len(part):]
	}
	return nil
}

// versionIn is the version of a setting that a shard has applied.
func versionIn(r fsm.Reader, one control.Setting) uint64 {
	switch one.Kind() {
	case control.Queue:
		return fsm.ReadQueue(r, one.Name()).GetVersion()
	case control.Tenant:
		return fsm.ReadTenant(r, one.Name()).GetVersion()
	default:
		return fsm.ReadPauseRule(r, one.Name()).GetVersion()
	}
}

func putCommand(one control.Setting) *storagev1.Command {
	return &storagev1.Command{
		PutQueue: one.Queue.CloneVT(), PutTenant: one.Tenant.CloneVT(), PutPauseRule: one.Rule.CloneVT(),
	}
}

// put stores one and returns when every shard has applied it. Shards that have not are named in a *rpc.Lagging beside what
// was stored; they get it later all the same.
func (s *settings) put(ctx context.Context, one control.Setting, expected uint64) (control.Setting, error) {
	one.Stamp(s.now())
	stored, err := s.store(ctx, one, expected)
	if err != nil {
		return control.Setting{}, settingsError(err)
	}
	cmds := make([]rpc.ShardCommand, len(s.shards))
	for i, shard := range s.shards {
		cmds[i] = rpc.ShardCommand{Shard: shard, Command: putCommand(stored)}
	}
	var pending []uint32
	for i, o := range s.doAll(ctx, cmds) {
		if o.Err != nil || o.Result.Refusal != nil {
			pending = append(pending, s.shards[i])
		}
	}
	if len(pending) > 0 {
		s.mayLack(pending)
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
			Code: fsm.NotFound, Field: "name", Message: missing(kind, name),
		}}
	}
	return one, nil
}

func missing(kind control.SettingKind, name string) string {
	if kind == control.PauseRule {
		return fmt.Sprintf("no pause rule %q", name)
	}
	return fmt.Sprintf("%s %q has no settings of its own", kind, name)
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
