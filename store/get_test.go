package store

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// lowest puts n rows under random keys into the lowest level.
func lowest(tb testing.TB, n int) *Pebble {
	tb.Helper()
	p, err := OpenPebble(tb.TempDir(), Options{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := p.Close(); err != nil {
			tb.Error(err)
		}
	})
	for done := 0; done < n; {
		b := p.NewBatch()
		for range min(5000, n-done) {
			value := make([]byte, 150)
			binary.BigEndian.PutUint64(value, rand.Uint64())
			b.Set(randomKey(), value)
			done++
		}
		if _, err := p.Commit(b, false); err != nil {
			tb.Fatal(err)
		}
	}
	if err := p.db.Flush(); err != nil {
		tb.Fatal(err)
	}
	if err := p.db.Compact(tb.Context(), []byte{0}, []byte{0xff, 0xff}, false); err != nil {
		tb.Fatal(err)
	}
	return p
}

func randomKey() []byte { return binary.BigEndian.AppendUint64([]byte("row"), rand.Uint64()) }

// Whether an id is free is answered by the bloom filters of every level, the lowest too.
func TestAbsentRowsAreFiltered(t *testing.T) {
	p := lowest(t, 10_000)
	before := p.db.Metrics().Filter.Hits
	const asked = 1000
	for range asked {
		if _, ok, err := p.Get(randomKey()); ok || err != nil {
			t.Fatalf("a random key: %v, %v", ok, err)
		}
	}
	// 10 bits a key let one in a hundred through.
	if filtered := p.db.Metrics().Filter.Hits - before; filtered < asked*9/10 {
		t.Errorf("%d of %d absent rows were filtered", filtered, asked)
	}
}

func BenchmarkGetAbsent(b *testing.B) {
	p := lowest(b, 1_000_000)
	for b.Loop() {
		if _, _, err := p.Get(randomKey()); err != nil {
			b.Fatal(err)
		}
	}
}

// Tables of imports have filters as well, and are of the lowest level.
func TestAbsentRowsAreFilteredInInstalledTables(t *testing.T) {
	p, err := OpenPebble(t.TempDir(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	im, err := p.NewImport([]byte("row"), []byte("rox"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(10_000) {
		if err := im.Set(binary.BigEndian.AppendUint64([]byte("row"), i<<50), make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Install(im); err != nil {
		t.Fatal(err)
	}
	m := p.db.Metrics()
	if n := m.Levels[len(m.Levels)-1].TablesCount; n != 1 {
		t.Errorf("%d tables in the lowest level", n)
	}
	const asked = 1000
	for i := range uint64(asked) {
		if _, ok, err := p.Get(binary.BigEndian.AppendUint64([]byte("row"), i<<50+1)); ok || err != nil {
			t.Fatalf("a row that is not there: %v, %v", ok, err)
		}
	}
	if filtered := p.db.Metrics().Filter.Hits - m.Filter.Hits; filtered < asked*9/10 {
		t.Errorf("%d of %d absent rows were filtered", filtered, asked)
	}
}
