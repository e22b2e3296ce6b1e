package replica

import (
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/store"
	"go.etcd.io/raft/v3/raftpb"
)

func TestBootstrapWritesAGroupsFirstState(t *testing.T) {
	engine := store.OpenMemory()
	seed := Seed{Shard: 4, ID: 2, Voters: []uint64{1, 2, 3}}
	if err := Bootstrap(engine, []Seed{seed}); err != nil {
		t.Fatal(err)
	}
	s, ok, err := Load(engine.Crash(0), 4)
	if err != nil || !ok {
		t.Fatalf("load: %v, %v", ok, err)
	}
	if s.ID != 2 || s.Applied() != 10 || s.hard != (hardState{term: 5, commit: 10}) || len(s.conf.Voters) != 3 {
		t.Fatalf("got %+v", s)
	}
	if err := Bootstrap(engine, []Seed{{Shard: 5, ID: 1, Voters: []uint64{1}}, seed}); err == nil {
		t.Fatal("a shard was bootstrapped over")
	}
	if _, ok, err := Load(engine, 5); ok || err != nil {
		t.Fatalf("a refused bootstrap left shard 5 behind: %v, %v", ok, err)
	}
	if err := Bootstrap(engine, []Seed{{Shard: 6, ID: 4, Voters: []uint64{1}}}); err == nil {
		t.Fatal("a replica that is no voter was bootstrapped")
	}
}

// Each contradiction between a replica's rows is an error that says what is wrong.
func TestLoadRefusesContradictions(t *testing.T) {
	set := func(kind byte, value []byte) func(store.Batch) {
		return func(b store.Batch) { b.Set(rowKey(1, kind), value) }
	}
	logRow := func(index, term uint64) func(store.Batch) {
		return func(b store.Batch) {
			b.Set(logKey(1, index), encodeLogRow(newEntry(raftpb.EntryNormal, term, index, []byte("x"))))
		}
	}
	applied := func(index, term uint64) []byte {
		return encodeApplied(appliedState{position: position{index: index, term: term}})
	}
	for want, writes := range map[string][]func(store.Batch){
		"hard state: row is missing":          {func(b store.Batch) { b.Delete(rowKey(1, fsm.KindHardState)) }},
		"applied index: row is missing":       {func(b store.Batch) { b.Delete(rowKey(1, fsm.KindApplied)) }},
		"truncated index: row is cut short":   {set(fsm.KindTruncated, []byte{1})},
		"configuration: row has version 9":    {set(fsm.KindConfState, []byte{9})},
		"log: row 11 is missing":              {logRow(12, 5)},
		"row 12 has term 5, the one before 6": {logRow(11, 6), logRow(12, 5)},
		"log: row 11: row is cut short":       {func(b store.Batch) { b.Set(logKey(1, 11), []byte{1}) }},
		"applied index is 12, but the log":    {set(fsm.KindApplied, applied(12, 5))},
		"applied index 10 has term 7":         {set(fsm.KindApplied, applied(10, 7))},
		"hard state has term 5, the last log": {logRow(11, 6)},
		"hard state has commit index 11, but": {set(fsm.KindHardState, encodeHardState(hardState{term: 5, commit: 11}))},
		"log is truncated at 20, above":       {set(fsm.KindTruncated, encodePosition(position{20, 5}))},
	} {
		engine := store.OpenMemory()
		if err := Bootstrap(engine, []Seed{{Shard: 1, ID: 1, Voters: []uint64{1}}}); err != nil {
			t.Fatal(err)
		}
		b := engine.NewBatch()
		for _, write := range writes {
			write(b)
		}
		commitNow(t, engine, b)
		_, _, err := Load(engine, 1)
		if err == nil || !strings.HasPrefix(err.Error(), "load replica of shard 1: ") || !contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// contains ignores the little words between what is looked for.
func contains(s, want string) bool {
	for word := range strings.FieldsSeq(want) {
		i := strings.Index(s, word)
		if i < 0 {
			return false
		}
		s = s[i+len(word):]
	}
	return true
}

func TestLoadOfAnUnknownShard(t *testing.T) {
	if _, ok, err := Load(store.OpenMemory(), 1); ok || err != nil {
		t.Fatalf("got %v, %v", ok, err)
	}
}
