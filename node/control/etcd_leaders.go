package control

import (
	"context"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func (p *Etcd) AcquireLeaders(ctx context.Context, claims []LeaderClaim) ([]LeaderGrant, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	store, lease := p.session.identity()
	if store.UUID == "" {
		return nil, fmt.Errorf("acquire leader leases: %w", ErrNotRegistered)
	}
	if lease == clientv3.NoLease {
		return nil, fmt.Errorf("acquire leader leases: %w", ErrLapsed)
	}
	grants := make([]LeaderGrant, 0, len(claims))
	for start := 0; start < len(claims); start += shardsPerTxn {
		chunk := claims[start:min(start+shardsPerTxn, len(claims))]
		ops := make([]clientv3.Op, 0, len(chunk))
		for _, c := range chunk {
			ops = append(ops, leaderOp(c, store, lease))
		}
		response, err := p.client.Txn(ctx).Then(ops...).Commit()
		if isLeaseNotFound(err) {
			p.session.lost(lease)
			return nil, fmt.Errorf("acquire leader leases: %w", ErrLapsed)
		}
		if err != nil {
			return nil, fmt.Errorf("acquire leader leases: %w", unavailable(err))
		}
		for i, c := range chunk {
			g, err := leaderGrant(c, response.Responses[i].GetResponseTxn())
			if err != nil {
				return nil, fmt.Errorf("acquire leader leases: %w", err)
			}
			grants = append(grants, g)
		}
	}
	return grants, nil
}

// leaderOp puts the claim's record if there is none, or else one of a lower epoch, or else the same one, which binds it to
// this lease; otherwise it reads what stands. A compare with a missing key's value fails, hence the nesting. A record is
// greater than its own bare epoch, so that of two records of one epoch the first one stays.
func leaderOp(c LeaderClaim, store Store, lease clientv3.LeaseID) clientv3.Op {
	key := shardKey(keyLeaders, c.Shard)
	record := LeaderRecord{Shard: c.Shard, Epoch: c.Epoch, Store: store.UUID, Addr: store.Addr}.encode()
	put := []clientv3.Op{clientv3.OpPut(key, record, clientv3.WithLease(lease))}
	if1 := func(cmp clientv3.Cmp, otherwise clientv3.Op) clientv3.Op {
		return clientv3.OpTxn([]clientv3.Cmp{cmp}, put, []clientv3.Op{otherwise})
	}
	return if1(clientv3.Compare(clientv3.CreateRevision(key), "=", 0),
		if1(clientv3.Compare(clientv3.Value(key), "<", leaderPrefix(c.Epoch)),
			if1(clientv3.Compare(clientv3.Value(key), "=", record),
				clientv3.OpGet(key))))
}

// leaderGrant reads the answer to leaderOp.
func leaderGrant(c LeaderClaim, txn *pb.TxnResponse) (LeaderGrant, error) {
	for txn != nil {
		if txn.Succeeded {
			return LeaderGrant{LeaderClaim: c, Held: true}, nil
		}
		otherwise := txn.Responses[0]
		if read := otherwise.GetResponseRange(); read != nil {
			standing, err := decodeLeader(string(read.Kvs[0].Key), string(read.Kvs[0].Value))
			return LeaderGrant{LeaderClaim: c, Standing: standing}, err
		}
		txn = otherwise.GetResponseTxn()
	}
	return LeaderGrant{}, fmt.Errorf("shard %d: answer without a result", c.Shard)
}

func (p *Etcd) WatchLeaders(ctx context.Context, fn func(LeaderRecord)) error {
	return p.follow(ctx, keyLeaders, func(kv *mvccpb.KeyValue) error {
		r, err := decodeLeader(string(kv.Key), string(kv.Value))
		if err == nil {
			fn(r)
		}
		return err
	}, func(key string) error {
		shard, err := parseShardKey(keyLeaders, key)
		if err == nil {
			fn(LeaderRecord{Shard: shard})
		}
		return err
	})
}
