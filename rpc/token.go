package rpc

import (
	"encoding/base64"
	"encoding/binary"
	"errors"

	"github.com/cespare/xxhash/v2"
)

// Tokens are opaque to callers: base64url without padding, with a version first. They carry a checksum against damage
// and mix-ups, not against forgery: what they say is checked against the state before it counts.
const (
	leaseTokenVersion = 1
	pageTokenVersion  = 1
	checksumBytes     = 4
)

var errToken = errors.New("malformed token")

// leaseToken names a lease: the shard that granted it and its fencing number.
type leaseToken struct {
	shard   uint32
	fencing uint64
}

// String encodes the token: version, shard, fencing, checksum.
func (t leaseToken) String() string {
	var buf [1 + binary.MaxVarintLen32 + binary.MaxVarintLen64 + checksumBytes]byte
	b := append(buf[:0], leaseTokenVersion)
	b = binary.AppendUvarint(b, uint64(t.shard))
	b = binary.AppendUvarint(b, t.fencing)
	return seal(b)
}

// parseLeaseToken is the inverse of String. Only what String wrote is accepted.
func parseLeaseToken(s string) (leaseToken, error) {
	// The longest token has 20 bytes.
	if len(s) > 32 {
		return leaseToken{}, errToken
	}
	b, err := unseal(s, leaseTokenVersion)
	if err != nil {
		return leaseToken{}, err
	}
	shard, n := binary.Uvarint(b)
	if n <= 0 || shard > 1<<32-1 {
		return leaseToken{}, errToken
	}
	fencing, m := binary.Uvarint(b[n:])
	if m <= 0 || n+m != len(b) || fencing == 0 {
		return leaseToken{}, errToken
	}
	t := leaseToken{shard: uint32(shard), fencing: fencing}
	if t.String() != s {
		// A longer spelling of the same numbers.
		return leaseToken{}, errToken
	}
	return t, nil
}

// pageToken says where the next page of a list starts.
type pageToken struct {
	// list is the list it belongs to: a token of one list is no token of another, nor of other filters.
	list uint64
	// shard to go on with, and the cursor in it; empty: from its start.
	shard  uint32
	cursor []byte
}

// String encodes the token: version, list, shard, cursor, checksum.
func (t pageToken) String() string {
	b := make([]byte, 0, 32+len(t.cursor))
	b = append(b, pageTokenVersion)
	b = binary.BigEndian.AppendUint64(b, t.list)
	b = binary.BigEndian.AppendUint32(b, t.shard)
	b = append(b, t.cursor...)
	return seal(b)
}

// parsePageToken is the inverse of String, for the list that the caller asks for.
func parsePageToken(s string, list uint64) (pageToken, error) {
	if len(s) > maxPageTokenBytes {
		return pageToken{}, errToken
	}
	b, err := unseal(s, pageTokenVersion)
	if err != nil {
		return pageToken{}, err
	}
	if len(b) < 12 || binary.BigEndian.Uint64(b) != list {
		return pageToken{}, errToken
	}
	t := pageToken{list: list, shard: binary.BigEndian.Uint32(b[8:])}
	if len(b) > 12 {
		t.cursor = b[12:]
	}
	return t, nil
}

// listID identifies a list by its name and filters.
func listID(parts ...string) uint64 {
	var h xxhash.Digest
	h.Reset()
	var length [8]byte
	for _, part := range parts {
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		_, _ = h.Write(length[:])
		_, _ = h.WriteString(part)
	}
	return h.Sum64()
}

// seal appends the checksum and encodes.
func seal(b []byte) string {
	b = binary.BigEndian.AppendUint32(b, uint32(xxhash.Sum64(b)))
	return base64.RawURLEncoding.EncodeToString(b)
}

// unseal decodes, checks version and checksum, and returns what stands between them.
func unseal(s string, version byte) ([]byte, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(b) < 1+checksumBytes {
		return nil, errToken
	}
	body, sum := b[:len(b)-checksumBytes], b[len(b)-checksumBytes:]
	if binary.BigEndian.Uint32(sum) != uint32(xxhash.Sum64(body)) || body[0] != version {
		return nil, errToken
	}
	return body[1:], nil
}
