package control

import (
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
)

// writeLog makes etcd's log as far as write takes it, in the place where a server in dir has it.
func writeLog(t *testing.T, dir string, write func(*wal.WAL) error) (segment string) {
	t.Helper()
	shrinkSegments()
	path := filepath.Join(dir, "member", "wal")
	must(t, os.MkdirAll(filepath.Dir(path), 0o700))
	log, err := wal.Create(zap.NewNop(), path, []byte("metadata"))
	must(t, err)
	must(t, write(log))
	must(t, log.Close())
	segments, err := filepath.Glob(filepath.Join(path, "*.wal"))
	must(t, err)
	equal(t, len(segments), 1)
	return segments[0]
}

// save writes an entry and how much is committed.
func save(commit uint64) func(*wal.WAL) error {
	return func(log *wal.WAL) error {
		one := uint64(1)
		return log.Save(&raftpb.HardState{Term: &one, Commit: &commit}, []*raftpb.Entry{{Term: &one, Index: &one}})
	}
}

func nothing(*wal.WAL) error { return nil }

func TestAFirstStartThatWasInterruptedIsRepeated(t *testing.T) {
	for name, write := range map[string]func(*wal.WAL) error{"empty log": nothing, "nothing committed": save(0)} {
		dir := t.TempDir()
		writeLog(t, dir, write)
		server := startServer(t, ServerConfig{Dir: dir})
		if err := openEtcd(t, server).Bootstrap(t.Context(), Seed{ClusterID: "c", Shards: 4, Stores: []string{"s"}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOnlyALogThatIsWholeAndCommitsNothingIsUnformed(t *testing.T) {
	cut := func(size int64) func(t *testing.T, path string) {
		return func(t *testing.T, path string) { must(t, os.Truncate(path, size)) }
	}
	flip := func(offset int) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			content, err := os.ReadFile(path)
			must(t, err)
			content[offset] ^= 0xff
			must(t, os.WriteFile(path, content, 0o600))
		}
	}
	for _, c := range []struct {
		name   string
		write  func(*wal.WAL) error
		damage func(t *testing.T, path string)
		want   bool
	}{
		{"empty", nothing, nil, true},
		{"nothing committed", save(0), nil, true},
		{"committed", save(1), nil, false},
		{"cut behind its head", save(1), cut(64), false},
		{"cut to nothing", save(1), cut(0), false},
		{"damaged head", save(1), flip(0), false},
		{"damaged record", save(1), flip(40), false},
		{"written far behind its end", nothing, flip(walSegmentBytes - 1), false},
	} {
		path := writeLog(t, t.TempDir(), c.write)
		if c.damage != nil {
			c.damage(t, path)
		}
		got, err := isUnformed(path)
		if err != nil || got != c.want {
			t.Errorf("%s: %v, %v", c.name, got, err)
		}
	}
}
