package fsm

import (
	"encoding/binary"
	"strings"

	"github.com/cespare/xxhash/v2"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// Slots is the number of hash slots. It never changes; slots move between shards.
const Slots = 4096

// Hashes are xxHash64 with its seed 0 over bytes that start with what they are for. They are promises, pinned by golden
// vectors: replicas of different versions must agree.

// Slot is where a job lives: the hash of its tenant and the tagged part of its id, which is what stands in the first
// {…} of the id if that is not empty, else the whole id.
func Slot(tenant, jobID string) uint16 {
	tag := jobID
	if i := strings.IndexByte(jobID, '{'); i >= 0 {
		if j := strings.IndexByte(jobID[i:], '}'); j > 1 {
			tag = jobID[i+1 : i+j]
		}
	}
	var buf [128]byte
	b := append(append(append(buf[:0], tenant...), 0), tag...)
	return uint16(xxhash.Sum64(b) % Slots)
}

// jitterHash spreads the retry of an execution's attempt.
func jitterHash(id *Identity, attempt uint32) uint64 {
	var buf [256]byte
	b := appendIdent(append(buf[:0], "jitter\x00"...), id, kindChar(id.Kind))
	return xxhash.Sum64(binary.BigEndian.AppendUint32(b, attempt))
}

// completionDigest tells a retried completion from another one under the same token.
func completionDigest(c *storagev1.Completion) uint64 {
	var buf [256]byte
	b := append(append(buf[:0], "complete\x00"...), byte(c.Outcome))
	b = binary.BigEndian.AppendUint64(b, uint64(c.UntilMs))
	if c.HasRetryAfter {
		b = append(binary.BigEndian.AppendUint64(b, uint64(c.RetryAfterMs)), 1)
	}
	b = binary.BigEndian.AppendUint64(b, uint64(len(c.Error)))
	b = append(b, c.Error...)
	d := xxhash.New()
	// A digest's Write never fails.
	_, _ = d.Write(b)
	_, _ = d.Write(c.Result)
	return d.Sum64()
}
