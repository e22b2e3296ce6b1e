package replica

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/store"
	"go.etcd.io/raft/v3/raftpb"
)

// A snapshot on the wire is a sequence of blocks, each {length u32, CRC32C of the payload u32, payload}: a header, rows,
// and an empty block followed by the number of rows.
const (
	// snapshotBlockBytes is about how much a block of rows holds; maxSnapshotBlock how much one may hold at most, which
	// leaves room for the largest row.
	snapshotBlockBytes = 256 << 10
	maxSnapshotBlock   = 16 << 20
)

// Received is a snapshot that ReadSnapshot has taken in: its rows stand beside the engine's until it is installed.
type Received struct {
	Shard uint32

	to, from, term uint64
	applied        appliedState
	conf           *raftpb.ConfState
	gen            uint64
	stores         map[uint64]string
	rows           store.Import
}

// Applied is the index at which the snapshot was taken.
func (r *Received) Applied() uint64 { return r.applied.index }

// Abort drops it: for a receiver that does not hand it to a Host.
func (r *Received) Abort() error { return r.rows.Abort() }

// snapshotStart is the first key of what a snapshot replaces: all of a shard's rows behind its hard state.
func snapshotStart(shard uint32) []byte { return rowKey(shard, fsm.KindHardState+1) }

// isOwn says that rows of a kind are a store's own and not part of a snapshot.
func isOwn(kind byte) bool {
	switch kind {
	case fsm.KindHardState, fsm.KindConfState, fsm.KindLog, fsm.KindApplied, fsm.KindTruncated:
		return true
	}
	return false
}

// WriteSnapshot streams a shard's rows as they stand in source. The position it writes is that of source, which may be
// newer than what raft asked for.
func WriteSnapshot(w io.Writer, source store.Source, req SnapshotRequest) error {
	if err := writeSnapshot(w, source, req); err != nil {
		return fmt.Errorf("write snapshot of shard %d: %w", req.Shard, err)
	}
	return nil
}

func writeSnapshot(w io.Writer, source store.Source, req SnapshotRequest) error {
	applied, err := loadRow(source, req.Shard, fsm.KindApplied, decodeApplied)
	if err != nil {
		return fmt.Errorf("applied index: %w", err)
	}
	self, err := loadRow(source, req.Shard, fsm.KindConfState, decodeIdentity)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	if err := writeBlock(w, encodeSnapshotHeader(req, applied, self)); err != nil {
		return err
	}
	_, end := store.Span(req.Shard)
	iter, err := source.NewIter(snapshotStart(req.Shard), end)
	if err != nil {
		return err
	}
	rows, err := writeRows(w, iter)
	if err = closeAfter(iter, err); err != nil {
		return err
	}
	if err := writeBlock(w, nil); err != nil {
		return err
	}
	return writeBlock(w, binary.AppendUvarint(nil, rows))
}

func writeRows(w io.Writer, iter store.Iterator) (rows uint64, err error) {
	block := make([]byte, 0, snapshotBlockBytes+snapshotBlockBytes/8)
	for ok := iter.First(); ok; ok = iter.Next() {
		_, key, valid := store.SplitKey(iter.Key())
		if !valid || len(key) == 0 {
			return rows, fmt.Errorf("key %x belongs to no shard", iter.Key())
		}
		if isOwn(key[0]) {
			continue
		}
		block = appendBytes(appendBytes(block, key), iter.Value())
		rows++
		if len(block) >= snapshotBlockBytes {
			if err := writeBlock(w, block); err != nil {
				return rows, err
			}
			block = block[:0]
		}
	}
	if err := iter.Error(); err != nil || len(block) == 0 {
		return rows, err
	}
	return rows, writeBlock(w, block)
}

func writeBlock(w io.Writer, payload []byte) error {
	head := binary.BigEndian.AppendUint32(make([]byte, 0, 8), uint32(len(payload)))
	head = binary.BigEndian.AppendUint32(head, crc32.Checksum(payload, castagnoli))
	if _, err := w.Write(head); err != nil {
		return err
	}
	_, err := w.Write(payload)
	return err
}

func encodeSnapshotHeader(req SnapshotRequest, applied appliedState, self identity) []byte {
	b := []byte{codecVersion}
	for _, v := range []uint64{uint64(req.Shard), req.To, req.from, req.term} {
		b = binary.AppendUvarint(b, v)
	}
	b = appendBytes(b, encodeApplied(applied))
	return appendBytes(b, encodeIdentity(self))
}

func decodeSnapshotHeader(b []byte) (got Received, err error) {
	r := openRow(b)
	got = Received{Shard: r.uint32(), to: r.uvarint(), from: r.uvarint(), term: r.uvarint()}
	applied, self := r.bytes(), r.bytes()
	if err := r.finish(); err != nil {
		return got, err
	}
	if got.applied, err = decodeApplied(applied); err != nil {
		return got, fmt.Errorf("applied index: %w", err)
	}
	sender, err := decodeIdentity(self)
	if err != nil {
		return got, fmt.Errorf("configuration: %w", err)
	}
	got.conf, got.gen, got.stores = sender.conf, sender.gen, sender.stores
	switch {
	case got.applied.index == 0:
		return got, errors.New("it was taken of an empty replica")
	case got.Shard == 0 || got.Shard > store.MaxShard:
		return got, fmt.Errorf("shard number %d is out of range", got.Shard)
	case len(got.conf.Voters) == 0:
		return got, errors.New("its configuration has no voters")
	}
	return got, nil
}

// ReadSnapshot takes in what WriteSnapshot wrote and puts the rows beside the engine's. self names the replica of a shard on
// this store; a snapshot for another one is refused. After an error nothing is left behind.
func ReadSnapshot(r io.Reader, engine store.Engine, self func(shard uint32) (id uint64, ok bool)) (Received, error) {
	in := blockReader{from: bufio.NewReaderSize(r, 64<<10)}
	head, err := in.next()
	if err != nil {
		return Received{}, fmt.Errorf("read snapshot's header: %w", err)
	}
	got, err := decodeSnapshotHeader(head)
	if err != nil {
		return Received{}, fmt.Errorf("decode snapshot's header: %w", err)
	}
	if id, ok := self(got.Shard); !ok || id != got.to {
		return Received{}, fmt.Errorf("read snapshot of shard %d for replica %d: %w", got.Shard, got.to, ErrNoReplica)
	}
	_, end := store.Span(got.Shard)
	if got.rows, err = engine.NewImport(snapshotStart(got.Shard), end); err != nil {
		return Received{}, fmt.Errorf("read snapshot of shard %d: %w", got.Shard, err)
	}
	if err := got.fill(&in); err != nil {
		return Received{}, fmt.Errorf("read snapshot of shard %d: %w", got.Shard, errors.Join(err, got.rows.Abort()))
	}
	return got, nil
}

// fill writes the receiver's own rows, which sort before those of the state, and then the state's.
func (r *Received) fill(in *blockReader) error {
	own := identity{id: r.to, conf: r.conf, gen: r.gen, stores: r.stores}
	for _, row := range []struct {
		kind  byte
		value []byte
	}{
		{fsm.KindConfState, encodeIdentity(own)},
		{fsm.KindApplied, encodeApplied(r.applied)},
		{fsm.KindTruncated, encodePosition(r.applied.position)},
	} {
		if err := r.rows.Set(rowKey(r.Shard, row.kind), row.value); err != nil {
			return err
		}
	}
	rows := uint64(0)
	for {
		block, err := in.next()
		if err != nil {
			return err
		}
		if len(block) == 0 {
			break
		}
		n, err := r.fillBlock(block)
		if err != nil {
			return err
		}
		rows += n
	}
	trailer, err := in.next()
	if err != nil {
		return err
	}
	if !bytes.Equal(trailer, binary.AppendUvarint(nil, rows)) {
		return fmt.Errorf("%d rows came, not as many as were sent", rows)
	}
	return nil
}

func (r *Received) fillBlock(block []byte) (rows uint64, err error) {
	b := rowReader{rest: block}
	var key []byte
	for len(b.rest) > 0 {
		row, value := b.bytes(), b.bytes()
		switch {
		case b.err != nil:
			return rows, b.err
		case len(row) == 0:
			return rows, errors.New("a row has no key")
		case isOwn(row[0]):
			return rows, fmt.Errorf("row of kind %q is the sender's own", row[0])
		}
		key = store.AppendKey(key[:0], r.Shard, row)
		if err := r.rows.Set(key, value); err != nil {
			return rows, err
		}
		rows++
	}
	return rows, b.err
}

// blockReader reads blocks; the payload is valid until the next one.
type blockReader struct {
	from io.Reader
	buf  []byte
}

func (r *blockReader) next() ([]byte, error) {
	var head [8]byte
	if _, err := io.ReadFull(r.from, head[:]); err != nil {
		return nil, unexpected(err)
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > maxSnapshotBlock {
		return nil, fmt.Errorf("block has %d bytes, at most %d are allowed", size, maxSnapshotBlock)
	}
	if cap(r.buf) < int(size) {
		r.buf = make([]byte, size)
	}
	r.buf = r.buf[:size]
	if _, err := io.ReadFull(r.from, r.buf); err != nil {
		return nil, unexpected(err)
	}
	if crc32.Checksum(r.buf, castagnoli) != binary.BigEndian.Uint32(head[4:]) {
		return nil, errors.New("checksum of a block does not match")
	}
	return r.buf, nil
}

// unexpected: a stream that ends between blocks has been cut too.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
