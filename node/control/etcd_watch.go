package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// A watch that hears nothing for so long, not even that it is alive, is given up and begun anew.
	watchSilence = 3 * progressInterval
	// watchPause stands between two attempts, so that a control plane that is away is not hammered. It is well below the
	// second within which a higher epoch must reach its shard.
	watchPause = 200 * time.Millisecond
)

// follow calls put for every key below prefix and then for every change, and gone for keys that went, until ctx ends.
// Whatever ends a watch (compaction, a cancel, a closed channel, silence), everything is read again and compared with what
// was told before, so that no change is missed. An error of put or gone is about one record and is logged.
func (p *Etcd) follow(ctx context.Context, prefix string, put func(*mvccpb.KeyValue) error, gone func(string) error) error {
	f := follower{p: p, prefix: prefix, put: put, gone: gone, told: map[string]int64{}}
	for {
		err := f.once(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		p.log.Debug("control plane watch begun anew", "prefix", prefix, "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(watchPause):
		}
	}
}

type follower struct {
	p      *Etcd
	prefix string
	put    func(*mvccpb.KeyValue) error
	gone   func(string) error
	// told is the revision last told of each key that stands.
	told map[string]int64
}

// once reads everything and follows the changes until the watch ends, which it always does with an error.
func (f *follower) once(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	revision, err := f.list(ctx)
	if err != nil {
		return err
	}
	// A remote member that is cut off would let the watch live and say nothing.
	changes := f.p.client.Watch(clientv3.WithRequireLeader(ctx), f.prefix,
		clientv3.WithPrefix(), clientv3.WithRev(revision+1), clientv3.WithProgressNotify())
	silence := time.NewTimer(watchSilence)
	defer silence.Stop()
	for {
		select {
		case response, ok := <-changes:
			if !ok {
				return errors.New("watch closed")
			}
			// Compaction is an error too.
			if err := response.Err(); err != nil {
				return fmt.Errorf("watch: %w", err)
			}
			for _, event := range response.Events {
				f.tell(event)
			}
			silence.Reset(watchSilence)
		case <-silence.C:
			return errors.New("watch fell silent")
		}
	}
}

// list tells what changed since it was told last and returns the revision it read at.
func (f *follower) list(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	response, err := f.p.client.Get(ctx, f.prefix, clientv3.WithPrefix())
	if err != nil {
		return 0, fmt.Errorf("list: %w", err)
	}
	standing := make(map[string]bool, len(response.Kvs))
	for _, kv := range response.Kvs {
		standing[string(kv.Key)] = true
		f.tellPut(kv)
	}
	for _, key := range slices.Sorted(maps.Keys(f.told)) {
		if !standing[key] {
			f.tellGone(key)
		}
	}
	return response.Header.Revision, nil
}

func (f *follower) tell(event *clientv3.Event) {
	if event.Type == clientv3.EventTypeDelete {
		f.tellGone(string(event.Kv.Key))
		return
	}
	f.tellPut(event.Kv)
}

func (f *follower) tellPut(kv *mvccpb.KeyValue) {
	key := string(kv.Key)
	if f.told[key] == kv.ModRevision {
		return
	}
	f.told[key] = kv.ModRevision
	if err := f.put(kv); err != nil {
		f.p.log.Error("control plane record not understood", "key", key, "error", err)
	}
}

func (f *follower) tellGone(key string) {
	delete(f.told, key)
	if err := f.gone(key); err != nil {
		f.p.log.Error("control plane record not understood", "key", key, "error", err)
	}
}
