package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// DefaultLeaseTTL is how long a store's lease outlives its last beat. It is no failure detector.
	DefaultLeaseTTL = 10 * time.Second
	// requestTimeout bounds a request whose caller set no earlier deadline.
	requestTimeout = 5 * time.Second
	// bootstrapPerTxn keeps a bootstrap transaction below etcd's limit of 128 operations.
	bootstrapPerTxn = 100
	// casAttempts bounds how often a change is tried anew because another one came between its read and its write.
	casAttempts = 16
)

// EtcdConfig is what a plane over etcd needs.
type EtcdConfig struct {
	// Server is the etcd member in this process, or Remote what others have; it must outlive the plane. One is required.
	Server *Server
	Remote *Remote
	// Logger is required.
	Logger *slog.Logger
	// LeaseTTL of the store's lease, whole seconds; 0: DefaultLeaseTTL.
	LeaseTTL time.Duration
}

// Etcd is the control plane over etcd; it implements Plane.
type Etcd struct {
	client *clientv3.Client
	log    *slog.Logger
	quota  int64
	// remote: the client is not of a member in this process.
	remote  bool
	session session
	office  office
}

var _ Plane = (*Etcd)(nil)

// NewEtcd returns a plane. Nothing is asked of etcd yet.
func NewEtcd(cfg EtcdConfig) (*Etcd, error) {
	if cfg.LeaseTTL == 0 {
		cfg.LeaseTTL = DefaultLeaseTTL
	}
	switch {
	case (cfg.Server == nil) == (cfg.Remote == nil):
		return nil, errors.New("open control plane: one of Server and Remote is required")
	case cfg.Logger == nil:
		return nil, errors.New("open control plane: Logger is nil")
	case cfg.LeaseTTL < time.Second || cfg.LeaseTTL%time.Second != 0:
		return nil, fmt.Errorf("open control plane: LeaseTTL is %s, must be whole seconds", cfg.LeaseTTL)
	}
	p := &Etcd{log: cfg.Logger}
	if cfg.Server != nil {
		p.client, p.quota = cfg.Server.Client(), cfg.Server.quota
	} else {
		p.client, p.remote = cfg.Remote.client, true
	}
	p.session.ttl = cfg.LeaseTTL
	p.office = office{wake: make(chan struct{}, 1), changed: make(chan struct{})}
	return p, nil
}

// unavailable wraps an error of a request, whose outcome is unknown.
func unavailable(err error) error { return fmt.Errorf("%w: %w", ErrUnavailable, err) }

func (p *Etcd) Bootstrap(ctx context.Context, seed Seed) error {
	if err := seed.validate(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := p.bootstrap(ctx, seed); err != nil {
		return fmt.Errorf("bootstrap cluster %s: %w", seed.ClusterID, err)
	}
	return nil
}

func (p *Etcd) bootstrap(ctx context.Context, seed Seed) error {
	record, err := p.claimCluster(ctx, seed)
	if err != nil {
		return err
	}
	if record.ID != seed.ClusterID {
		return fmt.Errorf("%w: %s", ErrOtherCluster, record.ID)
	}
	// The first seed decides, also when somebody else finishes its work. The map comes last: once it stands, the shards
	// are what the controller makes of them.
	m := record.seed().firstMap()
	noMap := clientv3.Compare(clientv3.CreateRevision(keyMap), "=", 0)
	for start := 0; start < len(m.Shards); start += bootstrapPerTxn {
		var ops []clientv3.Op
		for _, s := range m.Shards[start:min(start+bootstrapPerTxn, len(m.Shards))] {
			ops = append(ops, createOp(shardKey(keyShards, s.ID), encodeJSON(s.record())))
		}
		response, err := p.client.Txn(ctx).If(noMap).Then(ops...).Commit()
		if err != nil {
			return unavailable(err)
		}
		if !response.Succeeded {
			return nil
		}
	}
	put := clientv3.OpPut(keyMap, encodeJSON(m.record()))
	if _, err := p.client.Txn(ctx).If(noMap).Then(put).Commit(); err != nil {
		return unavailable(err)
	}
	return nil
}

// claimCluster writes the cluster's record if there is none and returns the one that stands.
func (p *Etcd) claimCluster(ctx context.Context, seed Seed) (clusterRecord, error) {
	own := seed.record()
	response, err := p.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(keyCluster), "=", 0)).
		Then(clientv3.OpPut(keyCluster, encodeJSON(own))).
		Else(clientv3.OpGet(keyCluster)).Commit()
	if err != nil {
		return clusterRecord{}, unavailable(err)
	}
	if response.Succeeded {
		return own, nil
	}
	var standing clusterRecord
	if err := decodeJSON(keyCluster, response.Responses[0].GetResponseRange().Kvs[0].Value, &standing); err != nil {
		return clusterRecord{}, err
	}
	if err := standing.seed().validate(); err != nil {
		return clusterRecord{}, fmt.Errorf("read %s: %w", keyCluster, err)
	}
	return standing, nil
}

// createOp puts key unless it exists.
func createOp(key, value string) clientv3.Op {
	return clientv3.OpTxn(
		[]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", 0)},
		[]clientv3.Op{clientv3.OpPut(key, value)}, nil)
}

func (p *Etcd) Map(ctx context.Context) (*Map, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	m, err := p.readMap(ctx)
	if err != nil {
		return nil, fmt.Errorf("read slot map: %w", err)
	}
	return m, nil
}

func (p *Etcd) readMap(ctx context.Context) (*Map, error) {
	response, err := p.client.Txn(ctx).Then(
		clientv3.OpGet(keyCluster), clientv3.OpGet(keyMap), clientv3.OpGet(keyShards, clientv3.WithPrefix())).Commit()
	if err != nil {
		return nil, unavailable(err)
	}
	clusters := response.Responses[0].GetResponseRange().Kvs
	maps := response.Responses[1].GetResponseRange().Kvs
	shards := response.Responses[2].GetResponseRange().Kvs
	if len(clusters) == 0 || len(maps) == 0 {
		return nil, ErrNoMap
	}
	var cluster clusterRecord
	if err := decodeJSON(keyCluster, clusters[0].Value, &cluster); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoMap, err)
	}
	m := &Map{ClusterID: cluster.ID}
	for _, kv := range shards {
		s, err := decodeShard(kv)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNoMap, err)
		}
		m.Shards = append(m.Shards, s)
	}
	var record mapRecord
	if err := decodeJSON(keyMap, maps[0].Value, &record); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoMap, err)
	}
	if err := m.fill(record); err != nil {
		return nil, fmt.Errorf("%w: decode %s: %w", ErrNoMap, keyMap, err)
	}
	return m, nil
}

func (p *Etcd) Health(ctx context.Context) Health {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	h := Health{LeaseLive: p.session.current() != clientv3.NoLease, QuotaBytes: p.quota}
	// The status is the member's own opinion; a linearizable read takes a quorum.
	if _, err := p.client.Get(ctx, keyCluster, clientv3.WithCountOnly()); err != nil {
		h.Alarms = append(h.Alarms, err.Error())
		return h
	}
	h.Quorum = true
	if p.remote {
		h.Leader = "remote" // sizes and alarms are told by the members
		return h
	}
	status, err := p.client.Status(ctx, "")
	if err != nil {
		h.Alarms = append(h.Alarms, err.Error())
		return h
	}
	h.DBBytes, h.DBInUseBytes = status.DbSize, status.DbSizeInUse
	h.Alarms = append(h.Alarms, status.Errors...)
	if status.Leader != 0 {
		h.Leader = strconv.FormatUint(status.Leader, 16)
	}
	return h
}

// isLeaseNotFound says that the lease a request named has ended.
func isLeaseNotFound(err error) bool { return errors.Is(err, rpctypes.ErrLeaseNotFound) }
