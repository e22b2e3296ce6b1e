package control

import (
	"encoding/json"
	"testing"
)

func TestLeaderRecordsSortByEpoch(t *testing.T) {
	low := LeaderRecord{Shard: 1, Epoch: 9, Store: "zzz", Addr: "z:1"}
	high := LeaderRecord{Shard: 1, Epoch: 16, Store: "a", Addr: "a:1"}
	equal(t, low.encode(), "0000000000000009,zzz,z:1")
	equal(t, high.encode(), "0000000000000010,a,a:1")
	equal(t, low.encode() < leaderPrefix(high.Epoch), true)
	equal(t, high.encode() < leaderPrefix(high.Epoch), false)
}

// What stands in etcd is a promise: these values are read by every later version.
func TestRecordsAsTheyStandInEtcd(t *testing.T) {
	m := Seed{ClusterID: "c", Shards: 2, Stores: []string{"s"}}.firstMap()
	for want, record := range map[string]any{
		`{"id":"c","shards":2,"store":"s"}`:                                                          Seed{ClusterID: "c", Shards: 2, Stores: []string{"s"}}.record(),
		`{"gen":1,"replicas":[{"rid":1,"store":"s"}],"next_rid":2}`:                                  m.Shards[0].record(),
		`{"node_id":1,"name":"n","addr":"a:1","boots":3,"boot_id":"b"}`:                              nodeRecord{1, "n", "a:1", 3, "b", "", 0},
		`{"id":"c","shards":2,"store":"s","stores":["s","t"]}`:                                       Seed{ClusterID: "c", Shards: 2, Stores: []string{"s", "t"}}.record(),
		`{"node_id":1,"name":"n","addr":"a:1","boots":3,"boot_id":"b","state":"draining","level":2}`: nodeRecord{1, "n", "a:1", 3, "b", StoreDraining, 2},
		`{"gen":2,"replicas":[{"rid":3,"store":"s"}],"next_rid":4,"dropped":[{"rid":1,"store":"t"}]}`: Shard{
			Gen: 2, Replicas: []Replica{{3, "s"}}, NextRID: 4, Dropped: []Replica{{1, "t"}}}.record(),
		`{"store":"s","boot_id":"b"}`:  termRecord{"s", "b"},
		`{"boot_id":"b","addr":"a:1"}`: liveRecord{"b", "a:1"},
		`{"version":1,"runs":[{"first":0,"last":2047,"shard":1},{"first":2048,"last":4095,"shard":2}]}`: m.record(),
	} {
		equal(t, encodeJSON(record), want)
	}
	actual := Actual{Shard: 10, Epoch: 16, Gen: 3, Voters: []Replica{{1, "s"}}, Learners: []Replica{{2, "t"}}}
	const stands = `0000000000000010,0000000000000003,{"voters":[{"rid":1,"store":"s"}],"learners":[{"rid":2,"store":"t"}]}`
	equal(t, actual.encode(), stands)
	decoded, err := decodeActual("/a/0000000a", stands)
	must(t, err)
	equal(t, decoded, actual)
	equal(t, shardKey(keyLeaders, 10), "/l/0000000a")
	equal(t, shardKey(keyShards, 10), "/s/0000000a")
	equal(t, settingPrefix(Queue)+"q", "/settings/queue/q")
	equal(t, settingPrefix(Tenant)+"t", "/settings/tenant/t")
}

func TestALaterVersionMayAddFieldsToALeaderRecord(t *testing.T) {
	r, err := decodeLeader("/l/0000000a", "0000000000000010,a,a:1,config-7,more")
	must(t, err)
	equal(t, r, LeaderRecord{Shard: 10, Epoch: 16, Store: "a", Addr: "a:1"})
}

func FuzzDecodeLeader(f *testing.F) {
	f.Add("/l/0000000a", "0000000000000010,a,a:1")
	f.Add("/l/0000000a", "0000000000000000,a,a:1")
	f.Add("/l/", ",,")
	f.Fuzz(func(t *testing.T, key, value string) {
		r, err := decodeLeader(key, value)
		if err != nil {
			return
		}
		again, err := decodeLeader(shardKey(keyLeaders, r.Shard), r.encode())
		must(t, err)
		equal(t, again, r)
	})
}

func FuzzDecodeActual(f *testing.F) {
	f.Add("/a/0000000a", `0000000000000010,0000000000000003,{"voters":[{"rid":1,"store":"s"}]}`)
	f.Add("/a/0000000a", `0000000000000010,0000000000000003,`)
	f.Add("/a/0000000a", `0000000000000010,000000000000000g,{}`)
	f.Fuzz(func(t *testing.T, key, value string) {
		a, err := decodeActual(key, value)
		if err != nil {
			return
		}
		again, err := decodeActual(shardKey(keyActual, a.Shard), a.encode())
		must(t, err)
		equal(t, again, a)
	})
}

func FuzzDecodeMap(f *testing.F) {
	f.Add([]byte(encodeJSON(Seed{ClusterID: "c", Shards: 3, Stores: []string{"s"}}.firstMap().record())))
	f.Add([]byte(`{"runs":[{"first":0,"last":-1,"shard":1}]}`))
	f.Add([]byte(`{"runs":[{"first":0,"last":9223372036854775807,"shard":1}]}`))
	f.Fuzz(func(t *testing.T, value []byte) {
		var record mapRecord
		if json.Unmarshal(value, &record) != nil {
			return
		}
		m := Seed{ClusterID: "c", Shards: 3, Stores: []string{"s"}}.firstMap()
		if m.fill(record) != nil {
			return
		}
		again := Seed{ClusterID: "c", Shards: 3, Stores: []string{"s"}}.firstMap()
		must(t, again.fill(m.record()))
		equal(t, again, m)
	})
}

func FuzzDecodeSetting(f *testing.F) {
	f.Add([]byte("\n\x01q"))
	f.Fuzz(func(t *testing.T, value []byte) {
		for _, kind := range []SettingKind{Queue, Tenant} {
			if s, err := unmarshalSetting(kind, "q", value); err == nil {
				equal(t, s.Name(), "q")
				equal(t, s.Kind(), kind)
			}
		}
	})
}

func TestRecordsOfOneGenerationLieBetweenItsBounds(t *testing.T) {
	all := []uint64{0, 1, 2, 9, 10, 11, 19, 20, 99, 100, 1 << 40, 1<<64 - 1}
	for _, bounds := range all {
		first, beyond := genBounds(bounds)
		for _, gen := range all {
			for _, s := range []Shard{{Gen: gen}, {Gen: gen, NextRID: 7, Replicas: []Replica{{1, "s"}}, Dropped: []Replica{{2, "t"}}}} {
				value := encodeJSON(s.record())
				equal(t, first < value && value < beyond, gen == bounds)
			}
		}
	}
}
