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
