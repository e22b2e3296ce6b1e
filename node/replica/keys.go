package replica

import (
	"encoding/binary"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/store"
)

// rowKey is the key of a shard's single row of kind.
func rowKey(shard uint32, kind byte) []byte {
	return store.AppendKey(make([]byte, 0, 5), shard, []byte{kind})
}

// kindAt is where a row's kind stands in its key, behind the shard.
const kindAt = 4

// logKeyLen is the length of a log row's key: shard, kind, index.
const logKeyLen = 13

// logKey is the key of the log row at index.
func logKey(shard uint32, index uint64) []byte {
	key := append(binary.BigEndian.AppendUint32(make([]byte, 0, logKeyLen), shard), fsm.KindLog)
	return binary.BigEndian.AppendUint64(key, index)
}

// logKeyEnd is the end of the span of log rows, exclusive.
func logKeyEnd(shard uint32) []byte {
	return rowKey(shard, fsm.KindLog+1)
}
