package rpc

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"strconv"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// idDigits may stand in ids and are safe wherever a person may have to put one.
const idDigits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// spell writes 16 random bytes as an id: 16 digits, 95 bits. Ids stand in the keys of every row, so that their length is
// what a job costs on disk; the chance that two of a billion jobs get the same one is below 10^-10, and then the second
// is refused.
func spell(b [16]byte) string {
	var id [16]byte
	for half := range 2 {
		n := binary.BigEndian.Uint64(b[8*half:])
		for i := range 8 {
			id[8*half+i] = idDigits[n%62]
			n /= 62
		}
	}
	return string(id[:])
}

// newID makes an id of 128 random bits.
func newID() string {
	var b [16]byte
	// Read never fails: it crashes the process if the system has no randomness.
	_, _ = rand.Read(b[:])
	return spell(b)
}

// deriveID computes an id from a domain and the parts that identify it. Parts are length-prefixed, so that no two lists
// of parts encode alike. The result is a promise: retries meet the same job only as long as it does not change.
func deriveID(domain string, parts ...string) string {
	var buf [512]byte
	b := appendPart(buf[:0], "carillon/"+domain+"/1")
	for _, part := range parts {
		b = appendPart(b, part)
	}
	sum := sha256.Sum256(b)
	return spell([16]byte(sum[:16]))
}

func appendPart(b []byte, part string) []byte {
	return append(binary.BigEndian.AppendUint64(b, uint64(len(part))), part...)
}

// jobIDFromKey is the id of a job that was created with a key and without an id.
func jobIDFromKey(tenant, key string) string { return deriveID("job-key", tenant, key) }

// jobIDFromBatch is the id of a job that was created in a batch with a request id, without an id and a key of its own.
func jobIDFromBatch(tenant, requestID string, index int) string {
	return deriveID("job-batch", tenant, requestID, strconv.Itoa(index))
}

// discriminatorFromKey tells one trigger of a job from the others. It becomes part of the execution id, so that a key
// with characters that may not stand there is replaced by its hash.
func discriminatorFromKey(key string) string {
	for i := range len(key) {
		if !isName(key[i]) {
			return deriveID("trigger-key", key)
		}
	}
	return key
}

// marshaler is a storage message: its encoding has sorted lists in place of maps and a stable field order.
type marshaler interface {
	SizeVT() int
	MarshalToSizedBufferVT([]byte) (int, error)
}

// hashOf is what tells a retry from another request under the same identity: 16 bytes over the request as it was
// validated, with defaults filled in, so that an explicit default equals an omitted one.
func hashOf(domain string, m marshaler) []byte {
	prefix, size := "carillon/"+domain+"/1\x00", m.SizeVT()
	b := append(make([]byte, 0, len(prefix)+size), prefix...)[:len(prefix)+size]
	if _, err := m.MarshalToSizedBufferVT(b[len(prefix):]); err != nil {
		panic("marshal own message: " + err.Error())
	}
	sum := sha256.Sum256(b)
	return sum[:16]
}

// createHashBytes is short because every job's row carries it, and enough because it is only compared with that of a
// request under the same id.
const createHashBytes = 8

// hashCreate hashes a create whose hash is not set yet.
func hashCreate(c *storagev1.CreateJob) []byte { return hashOf("create", c)[:createHashBytes] }

// keyInID stands for the hash of a key that the job's id is derived from.
const keyInID = 1

// hashKey is the hash of an idempotency key that came with an id: never 0, never keyInID.
func hashKey(key string) uint64 {
	sum := sha256.Sum256(appendPart([]byte("carillon/create-key/1"), key))
	return binary.BigEndian.Uint64(sum[:8]) | 2
}

// hashUpdate hashes what an update changes. The key is its identity and expected_version its precondition: neither is
// part of what it asks for.
func hashUpdate(u *storagev1.UpdateJob) []byte {
	body := u.CloneVT()
	body.IdempotencyKey, body.ExpectedVersion, body.Hash = "", 0, nil
	return hashOf("update", body)
}
