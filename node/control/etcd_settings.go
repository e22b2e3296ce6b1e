package control

import (
	"context"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func (p *Etcd) PutSetting(ctx context.Context, s Setting, expected uint64) (Setting, error) {
	if err := s.validate(); err != nil {
		return Setting{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	next, err := p.putSetting(ctx, s, expected)
	if err != nil {
		return Setting{}, fmt.Errorf("put %s %q: %w", s.Kind(), s.Name(), err)
	}
	return next, nil
}

func (p *Etcd) putSetting(ctx context.Context, s Setting, expected uint64) (Setting, error) {
	key := settingPrefix(s.Kind()) + s.Name()
	for range casAttempts {
		standing, revision, err := p.readSetting(ctx, s.Kind(), s.Name())
		if err != nil {
			return Setting{}, err
		}
		next, err := successor(standing, revision != 0, s, expected)
		if err != nil {
			return Setting{}, err
		}
		if revision == 0 {
			if err := p.checkRoom(ctx, s.Kind()); err != nil {
				return Setting{}, err
			}
		}
		value, err := next.marshal()
		if err != nil {
			return Setting{}, fmt.Errorf("encode: %w", err)
		}
		response, err := p.client.Txn(ctx).
			If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).
			Then(clientv3.OpPut(key, string(value))).Commit()
		if err != nil {
			return Setting{}, unavailable(err)
		}
		if response.Succeeded {
			return next, nil
		}
	}
	return Setting{}, unavailable(errAlwaysChanging)
}

// readSetting reads one and its revision in etcd; 0: it does not exist.
func (p *Etcd) readSetting(ctx context.Context, kind SettingKind, name string) (Setting, int64, error) {
	response, err := p.client.Get(ctx, settingPrefix(kind)+name)
	if err != nil {
		return Setting{}, 0, unavailable(err)
	}
	if len(response.Kvs) == 0 {
		return Setting{}, 0, nil
	}
	s, err := unmarshalSetting(kind, name, response.Kvs[0].Value)
	return s, response.Kvs[0].ModRevision, err
}

// checkRoom is not in one transaction with the put: concurrent creates may pass the limit by their number.
func (p *Etcd) checkRoom(ctx context.Context, kind SettingKind) error {
	response, err := p.client.Get(ctx, settingPrefix(kind), clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return unavailable(err)
	}
	if response.Count >= MaxSettings {
		return fmt.Errorf("%w: %d", ErrTooMany, response.Count)
	}
	return nil
}

func (p *Etcd) GetSetting(ctx context.Context, kind SettingKind, name string) (Setting, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	s, revision, err := p.readSetting(ctx, kind, name)
	if err != nil {
		return Setting{}, false, fmt.Errorf("get %s %q: %w", kind, name, err)
	}
	return s, revision != 0, nil
}

func (p *Etcd) ListSettings(ctx context.Context, kind SettingKind) ([]Setting, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	prefix := settingPrefix(kind)
	response, err := p.client.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("list settings of kind %s: %w", kind, unavailable(err))
	}
	list := make([]Setting, 0, len(response.Kvs))
	for _, kv := range response.Kvs {
		s, err := unmarshalSetting(kind, strings.TrimPrefix(string(kv.Key), prefix), kv.Value)
		if err != nil {
			return nil, fmt.Errorf("list settings of kind %s: %w", kind, err)
		}
		list = append(list, s)
	}
	return list, nil
}

func (p *Etcd) WatchSettings(ctx context.Context, fn func(Setting)) error {
	tell := func(kv *mvccpb.KeyValue) error {
		kind, name := settingOfKey(string(kv.Key))
		s, err := unmarshalSetting(kind, name, kv.Value)
		if err == nil {
			fn(s)
		}
		return err
	}
	return p.follow(ctx, keySettings, tell, removedByHand)
}
