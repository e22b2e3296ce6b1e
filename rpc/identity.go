package rpc

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"strconv"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// idEncoding spells 16 bytes as 26 characters that may stand in ids.
var idEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// newID makes an id of 128 random bits.
func newID() string {
	var b [16]byte
	// Read never fails: it crashes the process if the system has no randomness.
	_, _ = rand.Read(b[:])
	return idEncoding.EncodeToString(b[:])
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
	return idEncoding.EncodeToString(sum[:16])
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

// hashCreate hashes a create whose hash is not set yet.
func hashCreate(c *storagev1.CreateJob) []byte { return hashOf("create", c) }

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
