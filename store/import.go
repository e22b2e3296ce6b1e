package store

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// ErrReplaced is what a snapshot answers about rows of a span that was installed after the snapshot was made: what stood
// there is gone, and a half of it would be worse than nothing. A new snapshot has the new rows.
var ErrReplaced = errors.New("rows were replaced since the snapshot was made")

// errImportOver is what an import answers that was installed or aborted.
var errImportOver = errors.New("import is over")

// Import collects the rows that Engine.Install puts in the place of all rows of its span. It needs little memory, however
// many rows there are, and nobody sees them before Install. It belongs to one goroutine at a time.
type Import interface {
	// Set adds a row. Keys lie in the span and ascend; key and value are copied. After an error only Abort is of use. An
	// error leaves the engine as it is.
	Set(key, value []byte) error
	// Abort throws the import away. After Install or Abort it does nothing.
	Abort() error
}

// importOrder checks that an import's keys lie in its span and ascend.
type importOrder struct {
	start, end, last []byte
	// any: last is a key.
	any bool
}

func newImportOrder(start, end []byte) (importOrder, error) {
	if len(start) == 0 || bytes.Compare(start, end) >= 0 {
		return importOrder{}, fmt.Errorf("span from %x to %x is empty or has no start", start, end)
	}
	return importOrder{start: bytes.Clone(start), end: bytes.Clone(end)}, nil
}

// next takes the next key.
func (o *importOrder) next(key []byte) error {
	if bytes.Compare(key, o.start) < 0 || bytes.Compare(key, o.end) >= 0 {
		return fmt.Errorf("key %x is not within %x and %x", key, o.start, o.end)
	}
	if o.any && bytes.Compare(key, o.last) <= 0 {
		return fmt.Errorf("key %x does not come after %x", key, o.last)
	}
	o.last, o.any = append(o.last[:0], key...), true
	return nil
}

// replaced knows which spans were installed when, so that no snapshot mixes what stood there with nothing: an install takes
// the old rows away from snapshots too. A snapshot is good for a span if no install of it was under way when it was made,
// or since.
type replaced struct {
	// number counts installs that ended, running those under way.
	number  atomic.Uint64
	running atomic.Int64

	mu sync.Mutex
	// spans by start: as many as there are different spans.
	spans map[string]*replacedSpan
}

type replacedSpan struct {
	start, end []byte
	running    int
	// number is the number of the last install that ended.
	number uint64
}

// begin notes that the span's rows are about to be replaced.
func (r *replaced) begin(start, end []byte) *replacedSpan {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.spans[string(start)]
	if s == nil {
		if r.spans == nil {
			r.spans = make(map[string]*replacedSpan)
		}
		s = &replacedSpan{start: start, end: end}
		r.spans[string(start)] = s
	}
	if bytes.Compare(end, s.end) > 0 {
		s.end = end
	}
	s.running++
	r.running.Add(1)
	return s
}

// ended notes that they are.
func (r *replaced) ended(s *replacedSpan) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.number = r.number.Add(1)
	s.running--
	r.running.Add(-1)
}

// check is called after rows in [start, end) were read, or an iterator was opened over them, from a snapshot that was
// made after number was read; a nil end is the end of all rows. It returns ErrReplaced if those may not be the rows that
// the snapshot was made of.
func (r *replaced) check(number uint64, start, end []byte) error {
	if r.running.Load() == 0 && r.number.Load() == number {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.spans {
		overlaps := bytes.Compare(start, s.end) < 0 && (end == nil || bytes.Compare(s.start, end) < 0)
		if overlaps && (s.running > 0 || s.number > number) {
			return ErrReplaced
		}
	}
	return nil
}
