package replica

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"go.etcd.io/raft/v3/raftpb"
)

// codecVersion is the first byte of every row of this package. A row of another version is refused: it was written by a
// newer binary.
const codecVersion = 1

// errShortRow says that a row ends before its fields do.
var errShortRow = errors.New("row is cut short")

// hardState is what raft must find again after a crash. The commit index on disk may be older than the applied one: a leader
// finds it again. But with each change of the configuration that is appended it is there: a replica that forgot that the
// change before that one is committed could be elected by those whom it removed.
type hardState struct {
	term, vote uint64
	commit     uint64
}

// position names an entry of the log.
type position struct {
	index, term uint64
}

// appliedState is how far a shard's state is, with the hash chain over the entries that made it and the rows they wrote.
// Equal indexes have equal chains on all replicas.
type appliedState struct {
	position
	chain uint64
}

// identity is the replica's own id and the configuration of its group as applied.
type identity struct {
	id   uint64
	conf *raftpb.ConfState
	// gen is the highest generation of the control plane's wishes that made the replica or changed its configuration; 0: the
	// first.
	gen uint64
	// stores are where the group's replicas are, as far as known.
	stores map[uint64]string
}

func encodeHardState(h hardState) []byte {
	b := append(make([]byte, 0, 1+2*binary.MaxVarintLen64), codecVersion)
	b = binary.AppendUvarint(b, h.term)
	b = binary.AppendUvarint(b, h.vote)
	if h.commit == 0 {
		return b
	}
	return binary.AppendUvarint(b, h.commit)
}

func decodeHardState(row []byte) (hardState, error) {
	r := openRow(row)
	h := hardState{term: r.uvarint(), vote: r.uvarint()}
	if r.err == nil && len(r.rest) > 0 {
		h.commit = r.uvarint()
	}
	return h, r.finish()
}

func encodePosition(p position) []byte {
	b := append(make([]byte, 0, 1+2*binary.MaxVarintLen64), codecVersion)
	b = binary.AppendUvarint(b, p.index)
	return binary.AppendUvarint(b, p.term)
}

func decodePosition(row []byte) (position, error) {
	r := openRow(row)
	p := position{index: r.uvarint(), term: r.uvarint()}
	return p, r.finish()
}

func encodeApplied(a appliedState) []byte {
	b := append(make([]byte, 0, 1+2*binary.MaxVarintLen64+8), codecVersion)
	b = binary.AppendUvarint(b, a.index)
	b = binary.AppendUvarint(b, a.term)
	return binary.BigEndian.AppendUint64(b, a.chain)
}

func decodeApplied(row []byte) (appliedState, error) {
	r := openRow(row)
	a := appliedState{position: position{index: r.uvarint(), term: r.uvarint()}, chain: r.uint64()}
	return a, r.finish()
}

func encodeIdentity(i identity) []byte {
	b := binary.AppendUvarint([]byte{codecVersion}, i.id)
	for _, ids := range [][]uint64{i.conf.Voters, i.conf.Learners, i.conf.VotersOutgoing, i.conf.LearnersNext} {
		b = binary.AppendUvarint(b, uint64(len(ids)))
		for _, id := range ids {
			b = binary.AppendUvarint(b, id)
		}
	}
	b = appendBool(b, i.conf.GetAutoLeave())
	if i.gen == 0 && len(i.stores) == 0 {
		return b
	}
	b = binary.AppendUvarint(b, i.gen)
	b = binary.AppendUvarint(b, uint64(len(i.stores)))
	for _, id := range slices.Sorted(maps.Keys(i.stores)) {
		b = appendBytes(binary.AppendUvarint(b, id), []byte(i.stores[id]))
	}
	return b
}

func decodeIdentity(row []byte) (identity, error) {
	r := openRow(row)
	i := identity{id: r.uvarint(), conf: &raftpb.ConfState{}}
	for _, ids := range []*[]uint64{&i.conf.Voters, &i.conf.Learners, &i.conf.VotersOutgoing, &i.conf.LearnersNext} {
		for n := r.count(); n > 0; n-- {
			*ids = append(*ids, r.uvarint())
		}
	}
	i.conf.AutoLeave = new(r.bool())
	if len(r.rest) == 0 {
		return i, r.finish()
	}
	i.gen = r.uvarint()
	i.stores = make(map[uint64]string)
	last := uint64(0)
	for n := r.count(); n > 0 && r.err == nil; n-- {
		id := r.uvarint()
		if id <= last {
			r.fail(fmt.Errorf("replica %d does not come after %d", id, last))
		}
		i.stores[id], last = string(r.bytes()), id
	}
	if i.gen == 0 && len(i.stores) == 0 {
		r.fail(errors.New("generation and stores are empty"))
	}
	return i, r.finish()
}

// encodeLogRow is the value of an entry's log row; the index stands in its key.
func encodeLogRow(e *raftpb.Entry) []byte {
	b := make([]byte, 0, 2+binary.MaxVarintLen64+len(e.Data))
	b = append(b, codecVersion, byte(e.GetType()))
	b = binary.AppendUvarint(b, e.GetTerm())
	return append(b, e.Data...)
}

// decodeLogRow returns the entry at index. Its data aliases row.
func decodeLogRow(index uint64, row []byte) (*raftpb.Entry, error) {
	r := openRow(row)
	kind := r.entryType()
	term := r.uvarint()
	if r.err != nil {
		return nil, r.err
	}
	return newEntry(kind, term, index, r.rest), nil
}

func newEntry(kind raftpb.EntryType, term, index uint64, data []byte) *raftpb.Entry {
	if len(data) == 0 {
		data = nil
	}
	return &raftpb.Entry{Type: kind.Enum(), Term: &term, Index: &index, Data: data}
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

// rowReader takes fields off a row. The first fault sticks and every later field is zero.
type rowReader struct {
	rest []byte
	err  error
}

// openRow checks the version byte.
func openRow(row []byte) rowReader {
	r := rowReader{rest: row}
	if v := r.byte(); r.err == nil && v != codecVersion {
		r.fail(fmt.Errorf("row has version %d, this binary knows %d", v, codecVersion))
	}
	return r
}

func (r *rowReader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.rest = nil
}

func (r *rowReader) byte() byte {
	if len(r.rest) == 0 {
		r.fail(errShortRow)
		return 0
	}
	v := r.rest[0]
	r.rest = r.rest[1:]
	return v
}

func (r *rowReader) bool() bool {
	v := r.byte()
	if v > 1 {
		r.fail(fmt.Errorf("boolean is %d", v))
	}
	return v == 1
}

func (r *rowReader) entryType() raftpb.EntryType {
	v := r.byte()
	if v > byte(raftpb.EntryConfChangeV2) {
		r.fail(fmt.Errorf("entry type %d is unknown", v))
	}
	return raftpb.EntryType(v)
}

func (r *rowReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 {
		r.fail(errShortRow)
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *rowReader) uint32() uint32 {
	v := r.uvarint()
	if v > math.MaxUint32 {
		r.fail(fmt.Errorf("%d does not fit 32 bits", v))
	}
	return uint32(v)
}

func (r *rowReader) uint64() uint64 {
	if len(r.rest) < 8 {
		r.fail(errShortRow)
		return 0
	}
	v := binary.BigEndian.Uint64(r.rest)
	r.rest = r.rest[8:]
	return v
}

// count is the length of a list whose elements take at least one byte each, so that a wrong one cannot make us allocate.
func (r *rowReader) count() int {
	v := r.uvarint()
	if v > uint64(len(r.rest)) {
		r.fail(errShortRow)
		return 0
	}
	return int(v)
}

// bytes aliases the row.
func (r *rowReader) bytes() []byte {
	n := r.count()
	v := r.rest[:n:n]
	r.rest = r.rest[n:]
	if n == 0 {
		return nil
	}
	return v
}

// finish reports the first fault; bytes left over are one.
func (r *rowReader) finish() error {
	if r.err == nil && len(r.rest) > 0 {
		return fmt.Errorf("%d bytes left over", len(r.rest))
	}
	return r.err
}
