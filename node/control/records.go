package control

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Keys in etcd.
const (
	keyCluster   = "/cluster"
	keyMap       = "/map"
	keyShards    = "/s/"
	keyActual    = "/a/"
	keyLeaders   = "/l/"
	keyNodes     = "/n/"
	keyLive      = "/live/"
	keyNodeAlloc = "/alloc/node"
	keyTerm      = "/ctl"
	keySettings  = "/settings/"
	keyQueues    = keySettings + "queue/"
	keyTenants   = keySettings + "tenant/"
	keyRules     = keySettings + "pause/"
)

// Values but leader records and settings are JSON, for operators to read and for later versions to add fields to.

// clusterRecord is written by the first Bootstrap and never changes.
type clusterRecord struct {
	ID     string `json:"id"`
	Shards int    `json:"shards"`
	// Store is the first of the stores, Stores all of them if there are more.
	Store  string   `json:"store"`
	Stores []string `json:"stores,omitempty"`
}

func (s Seed) record() clusterRecord {
	r := clusterRecord{ID: s.ClusterID, Shards: s.Shards, Store: s.Stores[0]}
	if len(s.Stores) > 1 {
		r.Stores = s.Stores
	}
	return r
}

func (r clusterRecord) seed() Seed {
	if len(r.Stores) == 0 {
		return Seed{ClusterID: r.ID, Shards: r.Shards, Stores: []string{r.Store}}
	}
	return Seed{ClusterID: r.ID, Shards: r.Shards, Stores: r.Stores}
}

// mapRecord is the slot map: runs of slots in order, without gaps.
type mapRecord struct {
	Version uint64    `json:"version"`
	Runs    []slotRun `json:"runs"`
}

type slotRun struct {
	First int    `json:"first"`
	Last  int    `json:"last"`
	Shard uint32 `json:"shard"`
}

// shardRecord begins with its generation, for genBounds.
type shardRecord struct {
	Gen      uint64          `json:"gen"`
	Replicas []replicaRecord `json:"replicas"`
	NextRID  uint64          `json:"next_rid"`
	Dropped  []replicaRecord `json:"dropped,omitempty"`
}

type replicaRecord struct {
	RID   uint64 `json:"rid"`
	Store string `json:"store"`
}

type nodeRecord struct {
	NodeID uint64 `json:"node_id"`
	Name   string `json:"name"`
	Addr   string `json:"addr"`
	Boots  uint64 `json:"boots"`
	BootID string `json:"boot_id"`
	// State is empty for StoreUp.
	State StoreState `json:"state,omitempty"`
	// Level is missing in records that binaries without one have written.
	Level uint32 `json:"level,omitempty"`
}

func (r nodeRecord) store(uuid string, live bool) StoreRecord {
	return StoreRecord{
		UUID: uuid, Name: r.Name, NodeID: r.NodeID, Addr: r.Addr, Boots: r.Boots, BootID: r.BootID,
		State: cmp.Or(r.State, StoreUp), Level: r.Level, Live: live,
	}
}

// termRecord is who the controller is; bound to its store's lease.
type termRecord struct {
	Store  string `json:"store"`
	BootID string `json:"boot_id"`
}

// liveRecord is bound to the store's lease.
type liveRecord struct {
	BootID string `json:"boot_id"`
	Addr   string `json:"addr"`
}

func encodeJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		// Only types of this file get here, and none of them can fail.
		panic(fmt.Sprintf("control: encode %T: %v", v, err))
	}
	return string(b)
}

func decodeJSON(key string, value []byte, into any) error {
	if err := json.Unmarshal(value, into); err != nil {
		return fmt.Errorf("decode %s: %w", key, err)
	}
	return nil
}

func (m *Map) record() mapRecord {
	r := mapRecord{Version: m.Version}
	for slot, shard := range m.Slots {
		if n := len(r.Runs); n > 0 && r.Runs[n-1].Shard == shard {
			r.Runs[n-1].Last = slot
			continue
		}
		r.Runs = append(r.Runs, slotRun{First: slot, Last: slot, Shard: shard})
	}
	return r
}

// fill sets m's slots from r, which must give each slot to one of m's shards.
func (m *Map) fill(r mapRecord) error {
	shards := make(map[uint32]bool, len(m.Shards))
	for _, s := range m.Shards {
		shards[s.ID] = true
	}
	next := 0
	for _, run := range r.Runs {
		if run.First != next || run.Last < run.First || run.Last >= Slots {
			return fmt.Errorf("slots %d to %d follow on slot %d", run.First, run.Last, next-1)
		}
		if !shards[run.Shard] {
			return fmt.Errorf("slots %d to %d belong to shard %d, which does not exist", run.First, run.Last, run.Shard)
		}
		for slot := run.First; slot <= run.Last; slot++ {
			m.Slots[slot] = run.Shard
		}
		next = run.Last + 1
	}
	if next != Slots {
		return fmt.Errorf("slots from %d on belong to no shard", next)
	}
	m.Version = r.Version
	return nil
}

func (s Shard) record() shardRecord {
	return shardRecord{Gen: s.Gen, NextRID: s.NextRID, Replicas: replicaRecords(s.Replicas), Dropped: replicaRecords(s.Dropped)}
}

func (r shardRecord) shard(id uint32) Shard {
	return Shard{ID: id, Gen: r.Gen, NextRID: r.NextRID, Replicas: replicas(r.Replicas), Dropped: replicas(r.Dropped)}
}

// genBounds are such that of all records of shards those of a generation lie between them, compared as strings.
func genBounds(gen uint64) (first, beyond string) {
	begins := fmt.Sprintf(`{"gen":%d`, gen)
	return begins + ",", begins + "-"
}

func replicaRecords(from []Replica) (records []replicaRecord) {
	for _, r := range from {
		records = append(records, replicaRecord(r))
	}
	return records
}

func replicas(records []replicaRecord) (all []Replica) {
	for _, r := range records {
		all = append(all, Replica(r))
	}
	return all
}

// Shard ids are of fixed width in keys, so that they list in order.
func shardKey(prefix string, shard uint32) string { return fmt.Sprintf("%s%08x", prefix, shard) }

func parseShardKey(prefix, key string) (uint32, error) {
	hex, ok := strings.CutPrefix(key, prefix)
	id, err := strconv.ParseUint(hex, 16, 32)
	if !ok || len(hex) != 8 || err != nil {
		return 0, fmt.Errorf("decode key %q: not %s and 8 hexadecimal digits", key, prefix)
	}
	return uint32(id), nil
}

// A leader record starts with its epoch in fixed width, because etcd compares values as strings; later versions may add
// fields at the end.

func leaderPrefix(epoch uint64) string { return fmt.Sprintf("%016x", epoch) }

func (r LeaderRecord) encode() string { return leaderPrefix(r.Epoch) + "," + r.Store + "," + r.Addr }

func decodeLeader(key, value string) (LeaderRecord, error) {
	shard, err := parseShardKey(keyLeaders, key)
	if err != nil {
		return LeaderRecord{}, err
	}
	fields := strings.SplitN(value, ",", 4)
	if len(fields) < 3 || len(fields[0]) != 16 {
		return LeaderRecord{}, fmt.Errorf("decode %s: %q is not epoch, store and address", key, value)
	}
	epoch, err := strconv.ParseUint(fields[0], 16, 64)
	if err != nil || epoch == 0 {
		return LeaderRecord{}, fmt.Errorf("decode %s: %q is not an epoch", key, fields[0])
	}
	return LeaderRecord{Shard: shard, Epoch: epoch, Store: fields[1], Addr: fields[2]}, nil
}

// The record of a shard as it is starts with epoch and generation in fixed width, compared as a leader record's epoch is.

type actualRecord struct {
	Voters   []replicaRecord `json:"voters"`
	Learners []replicaRecord `json:"learners,omitempty"`
}

func actualPrefix(epoch, gen uint64) string { return fmt.Sprintf("%016x,%016x", epoch, gen) }

func (a Actual) encode() string {
	record := actualRecord{Voters: replicaRecords(a.Voters), Learners: replicaRecords(a.Learners)}
	return actualPrefix(a.Epoch, a.Gen) + "," + encodeJSON(record)
}

func decodeActual(key, value string) (Actual, error) {
	shard, err := parseShardKey(keyActual, key)
	if err != nil {
		return Actual{}, err
	}
	fields := strings.SplitN(value, ",", 3)
	if len(fields) != 3 || len(fields[0]) != 16 || len(fields[1]) != 16 {
		return Actual{}, fmt.Errorf("decode %s: %q is not epoch, generation and replicas", key, value)
	}
	epoch, err := strconv.ParseUint(fields[0], 16, 64)
	if err != nil {
		return Actual{}, fmt.Errorf("decode %s: %q is not an epoch", key, fields[0])
	}
	gen, err := strconv.ParseUint(fields[1], 16, 64)
	if err != nil {
		return Actual{}, fmt.Errorf("decode %s: %q is not a generation", key, fields[1])
	}
	var record actualRecord
	if err := decodeJSON(key, []byte(fields[2]), &record); err != nil {
		return Actual{}, err
	}
	return Actual{Shard: shard, Epoch: epoch, Gen: gen, Voters: replicas(record.Voters), Learners: replicas(record.Learners)}, nil
}

func settingPrefix(kind SettingKind) string {
	switch kind {
	case Queue:
		return keyQueues
	case Tenant:
		return keyTenants
	default:
		return keyRules
	}
}

// settingOfKey is settingPrefix and a name, taken apart; kind 0: it is no setting's key.
func settingOfKey(key string) (kind SettingKind, name string) {
	for _, kind := range SettingKinds {
		if name, ok := strings.CutPrefix(key, settingPrefix(kind)); ok {
			return kind, name
		}
	}
	return 0, key
}
