package control

import (
	"cmp"
	"errors"
	"fmt"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// successor decides what follows on standing (ok: there is one) when s is put with an expected version. It is the one
// place that knows the version rule; both planes call it.
func successor(standing Setting, ok bool, s Setting, expected uint64) (Setting, error) {
	var last, current uint64
	if ok {
		last = standing.Version()
		if !standing.Deleted() {
			current = last
		}
	}
	if current != expected {
		return Setting{}, &VersionError{Kind: s.Kind(), Name: s.Name(), Expected: expected, Current: current}
	}
	if current == 0 && s.Deleted() {
		return Setting{}, fmt.Errorf("put %s %q: cannot delete what does not exist", s.Kind(), s.Name())
	}
	next := s.clone()
	next.setVersion(last + 1)
	return next, nil
}

func (s Setting) validate() error {
	switch {
	case s.Kind() == 0:
		return errors.New("put setting: neither a queue nor a tenant nor a pause rule")
	case s.Queue != nil && s.Tenant != nil || s.Rule != nil && s.Kind() != PauseRule:
		return errors.New("put setting: more than one of queue, tenant and pause rule")
	case s.Name() == "":
		return fmt.Errorf("put %s: name is empty", s.Kind())
	}
	return nil
}

func (s Setting) clone() Setting {
	return Setting{Queue: s.Queue.CloneVT(), Tenant: s.Tenant.CloneVT(), Rule: s.Rule.CloneVT()}
}

func (s Setting) setVersion(v uint64) {
	switch s.Kind() {
	case Queue:
		s.Queue.Version = v
	case Tenant:
		s.Tenant.Version = v
	case PauseRule:
		s.Rule.Version = v
	}
}

// Stamp sets when it was changed, and when it was created unless it says so already.
func (s Setting) Stamp(nowMS int64) {
	created := cmp.Or(s.value().GetCreatedMs(), nowMS)
	switch s.Kind() {
	case Queue:
		s.Queue.CreatedMs, s.Queue.UpdatedMs = created, nowMS
	case Tenant:
		s.Tenant.CreatedMs, s.Tenant.UpdatedMs = created, nowMS
	case PauseRule:
		s.Rule.CreatedMs, s.Rule.UpdatedMs = created, nowMS
	}
}

func (s Setting) marshal() ([]byte, error) { return s.value().MarshalVT() }

// unmarshalSetting decodes a stored value. The name in it must be the one it is stored under.
func unmarshalSetting(kind SettingKind, name string, value []byte) (Setting, error) {
	var s Setting
	switch kind {
	case Queue:
		s.Queue = &storagev1.QueueSettings{}
	case Tenant:
		s.Tenant = &storagev1.TenantSettings{}
	case PauseRule:
		s.Rule = &storagev1.PauseRule{}
	default:
		return Setting{}, fmt.Errorf("decode %s %q: unknown kind", kind, name)
	}
	if err := s.value().UnmarshalVT(value); err != nil {
		return Setting{}, fmt.Errorf("decode %s %q: %w", kind, name, err)
	}
	if s.Name() != name {
		return Setting{}, fmt.Errorf("decode %s %q: holds the name %q", kind, name, s.Name())
	}
	return s, nil
}
