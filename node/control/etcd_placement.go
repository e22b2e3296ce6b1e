package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
)

var errAlwaysChanging = errors.New("it changes all the time")

func (p *Etcd) Stores(ctx context.Context) ([]StoreRecord, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	response, err := p.client.Txn(ctx).Then(readStores()...).Commit()
	if err != nil {
		return nil, fmt.Errorf("list stores: %w", unavailable(err))
	}
	stores, err := decodeStores(response.Responses)
	if err != nil {
		return nil, fmt.Errorf("list stores: %w", err)
	}
	return stores, nil
}

func readStores(options ...clientv3.OpOption) []clientv3.Op {
	return []clientv3.Op{
		clientv3.OpGet(keyNodes, append(options, clientv3.WithPrefix())...),
		clientv3.OpGet(keyLive, append(options, clientv3.WithPrefix(), clientv3.WithKeysOnly())...),
	}
}

// decodeStores reads the answers to readStores.
func decodeStores(answers []*pb.ResponseOp) (stores []StoreRecord, err error) {
	live := map[string]bool{}
	for _, kv := range answers[1].GetResponseRange().Kvs {
		live[strings.TrimPrefix(string(kv.Key), keyLive)] = true
	}
	for _, kv := range answers[0].GetResponseRange().Kvs {
		uuid := strings.TrimPrefix(string(kv.Key), keyNodes)
		var record nodeRecord
		if err := decodeJSON(string(kv.Key), kv.Value, &record); err != nil {
			return nil, err
		}
		stores = append(stores, record.store(uuid, live[uuid]))
	}
	slices.SortFunc(stores, func(a, b StoreRecord) int { return cmp.Compare(a.NodeID, b.NodeID) })
	return stores, nil
}

func (p *Etcd) Placement(ctx context.Context) (View, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	v, err := readPlacement(ctx, p.client)
	if err != nil {
		return View{}, fmt.Errorf("read placement: %w", err)
	}
	return v, nil
}

func readPlacement(ctx context.Context, client *clientv3.Client, options ...clientv3.OpOption) (View, error) {
	ops := readStores(options...)
	for _, prefix := range []string{keyShards, keyActual, keyLeaders} {
		ops = append(ops, clientv3.OpGet(prefix, append(options, clientv3.WithPrefix())...))
	}
	response, err := client.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return View{}, unavailable(err)
	}
	return decodePlacement(response.Responses)
}

func decodePlacement(answers []*pb.ResponseOp) (View, error) {
	stores, err := decodeStores(answers)
	if err != nil {
		return View{}, err
	}
	v := View{Actual: map[uint32]Actual{}, Leaders: map[uint32]string{}}
	for _, s := range stores {
		v.Stores = append(v.Stores, StoreView{StoreRecord: s})
	}
	for _, kv := range answers[2].GetResponseRange().Kvs {
		s, err := decodeShard(kv)
		if err != nil {
			return View{}, err
		}
		v.Wanted = append(v.Wanted, s)
	}
	for _, kv := range answers[3].GetResponseRange().Kvs {
		a, err := decodeActual(string(kv.Key), string(kv.Value))
		if err != nil {
			return View{}, err
		}
		v.Actual[a.Shard] = a
	}
	for _, kv := range answers[4].GetResponseRange().Kvs {
		r, err := decodeLeader(string(kv.Key), string(kv.Value))
		if err != nil {
			return View{}, err
		}
		v.Leaders[r.Shard] = r.Store
	}
	return v, nil
}

func decodeShard(kv *mvccpb.KeyValue) (Shard, error) {
	id, err := parseShardKey(keyShards, string(kv.Key))
	if err != nil {
		return Shard{}, err
	}
	var record shardRecord
	if err := decodeJSON(string(kv.Key), kv.Value, &record); err != nil {
		return Shard{}, err
	}
	return record.shard(id), nil
}

func (p *Etcd) WatchStores(ctx context.Context, fn func()) error {
	var one sync.Mutex // two watches, and fn is called by one at a time
	tell := func() error {
		one.Lock()
		defer one.Unlock()
		fn()
		return nil
	}
	group, groupCtx := errgroup.WithContext(ctx)
	for _, prefix := range []string{keyNodes, keyLive} {
		group.Go(func() error {
			return p.follow(groupCtx, prefix,
				func(*mvccpb.KeyValue) error { return tell() },
				func(string) error { return tell() })
		})
	}
	return group.Wait()
}

func (p *Etcd) SetStoreState(ctx context.Context, term *Term, store string, state StoreState) error {
	if err := state.validate(); err != nil {
		return fmt.Errorf("set state of store %s: %w", store, err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := p.setStoreState(ctx, term, keyNodes+store, state); err != nil {
		return fmt.Errorf("set state of store %s: %w", store, err)
	}
	return nil
}

func (p *Etcd) setStoreState(ctx context.Context, term *Term, key string, state StoreState) error {
	for range casAttempts {
		var record nodeRecord
		revision, err := p.readRecord(ctx, key, &record)
		if err != nil {
			return err
		}
		if revision == 0 {
			return ErrNoStore
		}
		if record.State == StoreGone && state != StoreGone {
			return ErrStoreGone
		}
		record.State = state
		if done, err := p.guarded(ctx, term, clientv3.OpPut(key, encodeJSON(record)), standsAt(key, revision)); done || err != nil {
			return err
		}
	}
	return unavailable(errAlwaysChanging)
}

// readRecord decodes what stands at key and returns its revision; 0: nothing.
func (p *Etcd) readRecord(ctx context.Context, key string, into any) (int64, error) {
	response, err := p.client.Get(ctx, key)
	if err != nil {
		return 0, unavailable(err)
	}
	if len(response.Kvs) == 0 {
		return 0, nil
	}
	return response.Kvs[0].ModRevision, decodeJSON(key, response.Kvs[0].Value, into)
}

func (p *Etcd) WatchShards(ctx context.Context, fn func(Shard)) error {
	return p.follow(ctx, keyShards, func(kv *mvccpb.KeyValue) error {
		s, err := decodeShard(kv)
		if err == nil {
			fn(s)
		}
		return err
	}, removedByHand)
}

// removedByHand is about keys that we never remove: whoever was told of them keeps the last value.
func removedByHand(key string) error { return fmt.Errorf("%s was removed from etcd by hand", key) }

func (p *Etcd) ChangeShard(ctx context.Context, term *Term, next Shard, by Basis) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if term == nil {
		return fmt.Errorf("change shard %d: %w", next.ID, ErrDeposed)
	}
	if err := p.changeShard(ctx, term, next, by); err != nil {
		return fmt.Errorf("change shard %d: %w", next.ID, err)
	}
	return nil
}

func (p *Etcd) changeShard(ctx context.Context, term *Term, next Shard, by Basis) error {
	wanted, actual := shardKey(keyShards, next.ID), shardKey(keyActual, next.ID)
	for range casAttempts {
		response, err := p.client.Txn(ctx).Then(clientv3.OpGet(wanted), clientv3.OpGet(actual)).Commit()
		if err != nil {
			return unavailable(err)
		}
		standing, wantedAt, err := decodeFirst(response.Responses[0], decodeShard)
		if err != nil {
			return err
		}
		is, actualAt, err := decodeFirst(response.Responses[1], func(kv *mvccpb.KeyValue) (Actual, error) {
			return decodeActual(string(kv.Key), string(kv.Value))
		})
		if err != nil {
			return err
		}
		if wantedAt == 0 {
			return ErrNoShard
		}
		if done, err := successorShard(standing, is, next, by); done || err != nil {
			return err
		}
		put := clientv3.OpPut(wanted, encodeJSON(next.record()))
		done, err := p.guarded(ctx, term, put, standsAt(wanted, wantedAt), standsAt(actual, actualAt))
		if done || err != nil {
			return err
		}
	}
	return unavailable(errAlwaysChanging)
}

// decodeFirst reads the answer to a get of one key, and the revision at which that stands; 0: nothing does.
func decodeFirst[T any](answer *pb.ResponseOp, decode func(*mvccpb.KeyValue) (T, error)) (value T, revision int64, err error) {
	kvs := answer.GetResponseRange().Kvs
	if len(kvs) == 0 {
		return value, 0, nil
	}
	value, err = decode(kvs[0])
	return value, kvs[0].ModRevision, err
}

func (p *Etcd) PublishShards(ctx context.Context, actuals []Actual) ([]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	stand := make([]bool, 0, len(actuals))
	for chunk := range slices.Chunk(actuals, shardsPerTxn) {
		ops := make([]clientv3.Op, 0, len(chunk))
		for _, a := range chunk {
			ops = append(ops, publishOp(a))
		}
		response, err := p.client.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return nil, fmt.Errorf("publish shards: %w", unavailable(err))
		}
		for i := range chunk {
			txn := response.Responses[i].GetResponseTxn()
			stand = append(stand, txn.Succeeded || txn.Responses[0].GetResponseTxn().Succeeded)
		}
	}
	return stand, nil
}

// publishOp puts a's record while its generation is wanted, if there is none, or one that a is newer than or of the same
// epoch and generation.
func publishOp(a Actual) clientv3.Op {
	key, wanted := shardKey(keyActual, a.Shard), shardKey(keyShards, a.Shard)
	first, beyond := genBounds(a.Gen)
	put := []clientv3.Op{clientv3.OpPut(key, a.encode())}
	if1 := func(cmp clientv3.Cmp, otherwise ...clientv3.Op) clientv3.Op {
		return clientv3.OpTxn([]clientv3.Cmp{
			cmp, clientv3.Compare(clientv3.Value(wanted), ">", first), clientv3.Compare(clientv3.Value(wanted), "<", beyond),
		}, put, otherwise)
	}
	return if1(clientv3.Compare(clientv3.CreateRevision(key), "=", 0),
		if1(clientv3.Compare(clientv3.Value(key), "<", actualPrefix(a.Epoch, a.Gen+1))))
}

func (p *Etcd) WatchActual(ctx context.Context, fn func(Actual)) error {
	return p.follow(ctx, keyActual, func(kv *mvccpb.KeyValue) error {
		a, err := decodeActual(string(kv.Key), string(kv.Value))
		if err == nil {
			fn(a)
		}
		return err
	}, removedByHand)
}
