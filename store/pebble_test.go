package store

import "testing"

func TestDiskBytesGrowsWithFlushedRows(t *testing.T) {
	p, err := OpenPebble(t.TempDir(), Options{MemTableBytes: minMemTableBytes})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for i := range 2000 {
		b := p.NewBatch()
		value := make([]byte, 512)
		for j := range value {
			value[j] = byte(i * j * 31)
		}
		b.Set(AppendKey(nil, 1, []byte{'e', byte(i >> 8), byte(i)}), value)
		if _, err := p.Commit(b, false); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.db.Flush(); err != nil {
		t.Fatal(err)
	}
	mine, err := p.DiskBytes(AppendKey(nil, 1, []byte{'e'}), AppendKey(nil, 1, []byte{'f'}))
	if err != nil {
		t.Fatal(err)
	}
	others, err := p.DiskBytes(AppendKey(nil, 2, nil), AppendKey(nil, 3, nil))
	if err != nil {
		t.Fatal(err)
	}
	if mine < 10_000 || others > mine/10 {
		t.Errorf("the rows take %d bytes, an empty span %d", mine, others)
	}
}

// New work is held back before the engine would stop all writes, and not while it keeps up.
func TestPressure(t *testing.T) {
	const table = 48 << 20
	for _, at := range []struct {
		sublevels int
		unflushed uint64
		want      int
	}{
		{0, table, 0}, {l0Start, 2 * table, 0}, {l0Held, 2 * table, 0}, {l0Held + 1, table, 12}, {(l0Held + l0Full) / 2, table, 50},
		{l0Full, table, 100}, {l0Stop, table, 100}, {0, memTablesWaiting * table, lastMemTablePressure},
		{l0Full, memTablesWaiting * table, 100},
	} {
		if got := pressure(at.sublevels, at.unflushed, table); got != at.want {
			t.Errorf("%d sublevels, %d bytes unflushed: %d, must be %d", at.sublevels, at.unflushed, got, at.want)
		}
	}
}
