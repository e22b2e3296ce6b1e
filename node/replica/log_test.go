package replica

import (
	"errors"
	"fmt"
	"testing"

	"github.com/carillon-scheduler/carillon/store"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"pgregory.net/rapid"
)

func newTestLog(engine store.Engine) *raftLog {
	return &raftLog{
		engine: engine, shard: 1, truncated: groupStart, last: groupStart.index, terms: []position{groupStart},
	}
}

func commitNow(t interface{ Fatal(...any) }, engine store.Engine, b store.Batch) {
	wait, err := engine.Commit(b, true)
	if err == nil {
		err = wait()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A log does what a slice does, through appends, overwrites, truncations, evictions and restarts.
func TestLogIsASliceWithAMemory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		engine := store.OpenMemory()
		log := newTestLog(engine)
		model := []*raftpb.Entry{} // model[i] has index groupStart.index+1+i
		truncated, term := groupStart.index, groupStart.term
		last := func() uint64 { return groupStart.index + uint64(len(model)) }
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			b := engine.NewBatch()
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0, 1, 2:
				first := rapid.Uint64Range(truncated+1, last()+1).Draw(t, "first")
				if first <= last() || rapid.Bool().Draw(t, "new term") {
					term++
				}
				model = model[:first-groupStart.index-1]
				var entries []*raftpb.Entry
				for i := range rapid.Uint64Range(1, 4).Draw(t, "count") {
					data := fmt.Appendf(nil, "%d at %d", term, first+i)
					entries = append(entries, newEntry(raftpb.EntryNormal, term, first+i, data))
				}
				model = append(model, entries...)
				log.append(b, entries)
			case 3:
				if last() > truncated {
					truncated = rapid.Uint64Range(truncated+1, last()).Draw(t, "truncate")
					log.truncate(b, truncated)
				}
			case 4:
				log.evict(rapid.Uint64Range(truncated, last()).Draw(t, "evict"), 0)
			case 5:
				reloaded, err := loadLog(engine, 1, log.truncated)
				if err != nil {
					t.Fatal(err)
				}
				if reloaded.bytes != log.bytes {
					t.Fatalf("log has %d bytes on disk, counted %d", reloaded.bytes, log.bytes)
				}
				log = reloaded
			}
			commitNow(t, engine, b)
			compareLog(t, log, model, truncated)
		}
	})
}

func compareLog(t *rapid.T, log *raftLog, model []*raftpb.Entry, truncated uint64) {
	first, last := truncated+1, groupStart.index+uint64(len(model))
	if f, _ := log.FirstIndex(); f != first {
		t.Fatalf("first index is %d, must be %d", f, first)
	}
	if l, _ := log.LastIndex(); l != last {
		t.Fatalf("last index is %d, must be %d", l, last)
	}
	for index := first; index <= last; index++ {
		want := model[index-groupStart.index-1]
		if term, err := log.Term(index); err != nil || term != want.GetTerm() {
			t.Fatalf("term of %d is %d, %v, must be %d", index, term, err, want.GetTerm())
		}
		got, err := log.Entries(index, last+1, 1<<20)
		if err != nil || len(got) == 0 || string(got[0].Data) != string(want.Data) || got[0].GetTerm() != want.GetTerm() {
			t.Fatalf("entries from %d are %v, %v, must begin with %v", index, got, err, want)
		}
		if want := int(last - index + 1); len(got) != want {
			t.Fatalf("%d entries from %d, must be %d", len(got), index, want)
		}
	}
	if _, err := log.Entries(truncated, last+1, 1); truncated > 0 && !errors.Is(err, raft.ErrCompacted) {
		t.Fatalf("truncated entry: %v", err)
	}
	if _, err := log.Term(last + 1); !errors.Is(err, raft.ErrUnavailable) {
		t.Fatalf("entry after the last: %v", err)
	}
}

func TestEntriesAreLimitedButNeverNone(t *testing.T) {
	engine := store.OpenMemory()
	log := newTestLog(engine)
	b := engine.NewBatch()
	var entries []*raftpb.Entry
	for index := uint64(11); index <= 20; index++ {
		entries = append(entries, newEntry(raftpb.EntryNormal, 5, index, make([]byte, 76)))
	}
	log.append(b, entries)
	commitNow(t, engine, b)
	for _, from := range []string{"memory", "disk"} {
		for limit, want := range map[uint64]int{0: 1, 100: 1, 199: 1, 200: 2, 350: 3, 1 << 20: 10} {
			if got, err := log.Entries(11, 21, limit); err != nil || len(got) != want {
				t.Errorf("from %s, limit %d: %d entries, %v, must be %d", from, limit, len(got), err, want)
			}
		}
		log.evict(20, 0)
	}
}
