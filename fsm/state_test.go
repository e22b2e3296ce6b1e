package fsm

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"slices"
)

// failer is a test: *testing.T or *rapid.T.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// memState is a shard's rows in a sorted slice. It counts what it is asked for. What a scan hands out it spoils at the
// next write: whoever keeps it is found out.
type memState struct {
	keys   []string
	values map[string][]byte
	lent   [][]byte

	puts, dels, rangeDels, hits, misses map[byte]int
}

func newMemState() *memState {
	s := &memState{values: map[string][]byte{}}
	s.resetCounts()
	return s
}

func (s *memState) resetCounts() {
	s.puts, s.dels, s.rangeDels = map[byte]int{}, map[byte]int{}, map[byte]int{}
	s.hits, s.misses = map[byte]int{}, map[byte]int{}
}

func (s *memState) clone() *memState {
	c := newMemState()
	c.keys = slices.Clone(s.keys)
	for k, v := range s.values {
		c.values[k] = bytes.Clone(v)
	}
	return c
}

func (s *memState) lend(b []byte) []byte {
	c := bytes.Clone(b)
	s.lent = append(s.lent, c)
	return c
}

func (s *memState) spoil() {
	for _, b := range s.lent {
		for i := range b {
			b[i] = 0xEE
		}
	}
	s.lent = s.lent[:0]
}

func (s *memState) Get(key []byte) ([]byte, bool) {
	v, ok := s.values[string(key)]
	if !ok {
		s.misses[key[0]]++
		return nil, false
	}
	s.hits[key[0]]++
	return v, true
}

func (s *memState) Scan(start, end []byte, fn func(key, value []byte) bool) {
	i, _ := slices.BinarySearch(s.keys, string(start))
	for _, k := range slices.Clone(s.keys[i:]) {
		if end != nil && k >= string(end) {
			return
		}
		key, value := []byte(k), s.lend(s.values[k])
		if !fn(key, value) {
			return
		}
		for i := range key {
			key[i] = 0xEE
		}
	}
}

func (s *memState) Set(key, value []byte) {
	s.spoil()
	s.puts[key[0]]++
	k := string(key)
	if _, ok := s.values[k]; !ok {
		i, _ := slices.BinarySearch(s.keys, k)
		s.keys = slices.Insert(s.keys, i, k)
	}
	s.values[k] = bytes.Clone(value)
}

func (s *memState) Delete(key []byte) {
	s.spoil()
	s.dels[key[0]]++
	k := string(key)
	if i, ok := slices.BinarySearch(s.keys, k); ok {
		s.keys = slices.Delete(s.keys, i, i+1)
		delete(s.values, k)
	}
}

func (s *memState) DeleteRange(start, end []byte) {
	s.spoil()
	s.rangeDels[start[0]]++
	i, _ := slices.BinarySearch(s.keys, string(start))
	j, _ := slices.BinarySearch(s.keys, string(end))
	for _, k := range s.keys[i:max(i, j)] {
		delete(s.values, k)
	}
	s.keys = slices.Delete(s.keys, i, max(i, j))
}

// hash is over all rows in order.
func (s *memState) hash() string {
	h := sha256.New()
	for _, k := range s.keys {
		h.Write(encodeU64(uint64(len(k))))
		h.Write([]byte(k))
		h.Write(encodeU64(uint64(len(s.values[k]))))
		h.Write(s.values[k])
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// uncounted reads without being counted.
type uncounted struct{ *memState }

func (u uncounted) Get(key []byte) ([]byte, bool) {
	value, ok := u.values[string(key)]
	return value, ok
}

// checkInvariants holds the rows against everything that must be so after every entry.
func checkInvariants(t failer, s *memState) {
	t.Helper()
	Check(uncounted{s}, func(v Violation) { t.Fatalf("%s", v) })
}
