package control

import (
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
	case s.Queue != nil && s.Tenant != nil:
		return errors.New("put setting: both a queue and a tenant")
	case s.Kind() == 0:
		return errors.New("put setting: neither a queue nor a tenant")
	case s.Name() == "":
		return fmt.Errorf("put %s: name is empty", s.Kind())
	}
	return nil
}

func (s Setting) clone() Setting {
	return Setting{Queue: s.Queue.CloneVT(), Tenant: s.Tenant.CloneVT()}
}

func (s Setting) setVersion(v uint64) {
	if s.Queue != nil {
		s.Queue.Version = v
	} else {
		s.Tenant.Version = v
	}
}

// Stamp sets when it was changed, and when it was created unless it says so already.
func (s Setting) Stamp(nowMS int64) {
	switch {
	case s.Queue != nil:
		s.Queue.UpdatedMs = nowMS
		if s.Queue.CreatedMs == 0 {
			s.Queue.CreatedMs = nowMS
		}
	case s.Tenant != nil:
		s.Tenant.UpdatedMs = nowMS
		if s.Tenant.CreatedMs == 0 {
			s.Tenant.CreatedMs = nowMS
		}
	}
}

func (s Setting) marshal() ([]byte, error) {
	if s.Queue != nil {
		return s.Queue.MarshalVT()
	}
	return s.Tenant.MarshalVT()
}

// unmarshalSetting decodes a stored value. The name in it must be the one it is stored under.
func unmarshalSetting(kind SettingKind, name string, value []byte) (Setting, error) {
	var s Setting
	var err error
	switch kind {
	case Queue:
		s.Queue = &storagev1.QueueSettings{}
		err = s.Queue.UnmarshalVT(value)
	case Tenant:
		s.Tenant = &storagev1.TenantSettings{}
		err = s.Tenant.UnmarshalVT(value)
	default:
		err = errors.New("unknown kind")
	}
	if err != nil {
		return Setting{}, fmt.Errorf("decode %s %q: %w", kind, name, err)
	}
	if s.Name() != name {
		return Setting{}, fmt.Errorf("decode %s %q: holds the name %q", kind, name, s.Name())
	}
	return s, nil
}
