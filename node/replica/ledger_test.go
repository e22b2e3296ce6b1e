package replica

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"log/slog"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/store"
	"go.etcd.io/raft/v3/raftpb"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// ledger is a small state machine that forgives nothing: it counts how often each request was applied and in which order.
// Only the current leadership's entries count, as in fsm. It asks for a look at its rows every few entries.
type ledger struct{ term, total uint64 }

const (
	ledgerMeta  = 'm' // leader term, number of requests applied
	ledgerCount = 'j' // request id → how often, and which number it got last

	ledgerVerifies = 5
)

func openLedger(_ uint32, rows fsm.Reader) Machine {
	m := &ledger{}
	if v, ok := rows.Get([]byte{ledgerMeta}); ok {
		m.term, m.total = binary.BigEndian.Uint64(v), binary.BigEndian.Uint64(v[8:])
	}
	return m
}

func (m *ledger) Apply(s fsm.State, index uint64, e *storagev1.Entry) ([]fsm.Result, fsm.Effects) {
	results := make([]fsm.Result, len(e.Commands))
	for i, cmd := range e.Commands {
		switch {
		case cmd.LeaderStart != nil:
			m.term = e.Term
		case e.Term != m.term:
			results[i].Refusal = &fsm.Refusal{Code: fsm.StaleTerm}
		default:
			m.total++
			results[i].Fired = int(m.total)
			key := append([]byte{ledgerCount}, cmd.RequestId...)
			s.Set(key, pair(ledgerTimes(s, cmd.RequestId)+1, m.total))
		}
	}
	s.Set([]byte{ledgerMeta}, pair(m.term, m.total))
	effects := fsm.Effects{LatenessMS: []int64{e.StampMs}}
	if index%ledgerVerifies == 0 {
		effects.Verifies = []string{fmt.Sprint(index)}
	}
	return results, effects
}

// ledgerTimes is how often a request was applied.
func ledgerTimes(rows fsm.Reader, request string) uint64 {
	if v, ok := rows.Get(append([]byte{ledgerCount}, request...)); ok {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

func pair(a, b uint64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, a), b)
}

func request(id string) *storagev1.Command { return &storagev1.Command{RequestId: id} }

func testConfig(name string) Config {
	return Config{Store: name, OpenMachine: openLedger, Logger: slog.New(slog.DiscardHandler)}
}

// loadAll loads the replicas of shards 1..n.
func loadAll(engine store.Engine, n int) ([]ReplicaState, error) {
	var states []ReplicaState
	for shard := uint32(1); shard <= uint32(n); shard++ {
		s, ok, err := Load(engine, shard)
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, fmt.Errorf("shard %d is not on the store", shard)
		}
		states = append(states, s)
	}
	return states, nil
}

// checkReplay replays a replica's whole log from its beginning, decoding every entry, and compares the rows and the hash
// chain with what stands on disk at the applied index.
func checkReplay(engine store.Engine, s ReplicaState, open func(uint32, fsm.Reader) Machine) error {
	if s.log.truncated != groupStart {
		return fmt.Errorf("shard %d: log is truncated at %d: nothing to replay from", s.Shard, s.log.truncated.index)
	}
	twin := store.OpenMemory()
	rows := store.NewShard(twin, s.Shard, store.NewCache(0))
	state := recorder{rows: rows}
	machine := open(s.Shard, rows)
	chain := uint64(0)
	for index := groupStart.index + 1; index <= s.applied.index; index++ {
		entries, err := s.log.Entries(index, index+1, 1)
		if err != nil {
			return err
		}
		state.begin(chain, entries[0])
		if entries[0].GetType() == raftpb.EntryNormal && len(entries[0].Data) > 0 {
			entry, err := decodeEntry(nil, entries[0])
			if err != nil {
				return err
			}
			machine.Apply(&state, index, entry)
		}
		chain = state.sum()
	}
	b := twin.NewBatch()
	if err := rows.Flush(b); err != nil {
		return err
	}
	if _, err := twin.Commit(b, false); err != nil {
		return err
	}
	if chain != s.applied.chain {
		return fmt.Errorf("shard %d: hash chain at %d is %x, replayed %x", s.Shard, s.applied.index, s.applied.chain, chain)
	}
	if got, want := dump(engine, s.Shard), dump(twin, s.Shard); got != want {
		return fmt.Errorf("shard %d: rows at %d are\n%sreplayed\n%s", s.Shard, s.applied.index, got, want)
	}
	return nil
}

// dump prints the rows of a shard's state machine.
func dump(engine store.Engine, shard uint32) string {
	var b bytes.Buffer
	store.NewReader(engine, shard).Scan([]byte{'a'}, []byte{'z' + 1}, func(key, value []byte) bool {
		fmt.Fprintf(&b, "%q %x\n", key, value)
		return true
	})
	return b.String()
}
