package store

import (
	"encoding/binary"
	"math"
)

// prefixLen is the length of the shard's number in front of every key.
const prefixLen = 4

// AppendKey appends the engine's key of a shard's row to dst: the shard's number, big endian, and the row's own key.
func AppendKey(dst []byte, shard uint32, key []byte) []byte {
	return append(binary.BigEndian.AppendUint32(dst, shard), key...)
}

// SplitKey is the inverse of AppendKey; ok is false if key is too short to belong to a shard. The row's key shares memory.
func SplitKey(key []byte) (shard uint32, row []byte, ok bool) {
	if len(key) < prefixLen {
		return 0, nil, false
	}
	return binary.BigEndian.Uint32(key), key[prefixLen:], true
}

// MaxShard is the highest number a shard can have; the one above is reserved, so that every span has an end.
const MaxShard = math.MaxUint32 - 1

// Span returns the bounds of all of a shard's rows. It panics above MaxShard.
func Span(shard uint32) (start, end []byte) {
	if shard > MaxShard {
		panic("store: shard number out of range")
	}
	return binary.BigEndian.AppendUint32(nil, shard), binary.BigEndian.AppendUint32(nil, shard+1)
}
