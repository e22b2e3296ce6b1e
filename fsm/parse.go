package fsm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// ErrKey is what parsing a key that is none of ours wraps.
var ErrKey = errors.New("malformed key")

// ErrExecutionID is what parsing a malformed execution id wraps.
var ErrExecutionID = errors.New("malformed execution id")

// String is the execution id: tenant~job~incarnation~kind~nominal, and ~discriminator if there is one.
func (id Identity) String() string {
	b := make([]byte, 0, id.size()+32)
	b = append(append(append(append(b, id.Tenant...), '~'), id.JobID...), '~')
	b = append(strconv.AppendUint(b, id.Incarnation, 10), '~', kindChar(id.Kind), '~')
	b = strconv.AppendInt(b, id.NominalMS, 10)
	if id.Discriminator != "" {
		b = append(append(b, '~'), id.Discriminator...)
	}
	return string(b)
}

// ExecutionID returns e's id.
func ExecutionID(e *storagev1.Execution) string { return IdentityOf(e).String() }

// ParseExecutionID is String's inverse: it accepts nothing that String does not make.
func ParseExecutionID(s string) (Identity, error) {
	var id Identity
	var parts [5]string
	rest, more := s, true
	for i := range parts {
		if !more {
			return Identity{}, fmt.Errorf("parse %q: %w", s, ErrExecutionID)
		}
		parts[i], rest, more = strings.Cut(rest, "~")
	}
	id.Tenant, id.JobID, id.Discriminator = parts[0], parts[1], rest
	if more && rest == "" || !isID(id.Tenant) || !isID(id.JobID) || !isName(rest) || len(parts[3]) != 1 {
		return Identity{}, fmt.Errorf("parse %q: %w", s, ErrExecutionID)
	}
	var ok, okInc, okNominal bool
	id.Kind, ok = charKind(parts[3][0])
	id.Incarnation, okInc = parseDecimal(parts[2])
	id.NominalMS, okNominal = parseSigned(parts[4])
	if !ok || !okInc || !okNominal {
		return Identity{}, fmt.Errorf("parse %q: %w", s, ErrExecutionID)
	}
	return id, nil
}

// parseDecimal accepts a number only as it is printed: one spelling for each.
func parseDecimal(s string) (uint64, bool) {
	n, err := strconv.ParseUint(s, 10, 64)
	return n, err == nil && (s[0] != '0' || s == "0") && s[0] != '+'
}

func parseSigned(s string) (int64, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || s[0] == '+' || s == "-0" {
		return 0, false
	}
	digits := strings.TrimPrefix(s, "-")
	return n, digits[0] != '0' || digits == "0"
}

// keyReader takes a key apart. After anything that is not there it stays bad and answers zero values.
type keyReader struct {
	s   string
	bad bool
}

// readKey makes one copy of key: the names read from it share it.
func readKey(key []byte, kind byte) keyReader {
	if len(key) == 0 || key[0] != kind {
		return keyReader{bad: true}
	}
	return keyReader{s: string(key[1:])}
}

func (k *keyReader) take(n int) string {
	if k.bad || len(k.s) < n {
		k.bad = true
		return ""
	}
	head := k.s[:n]
	k.s = k.s[n:]
	return head
}

func (k *keyReader) byte() byte {
	if b := k.take(1); b != "" {
		return b[0]
	}
	return 0
}

func (k *keyReader) u32() uint32 {
	if b := k.take(4); b != "" {
		return binary.BigEndian.Uint32([]byte(b))
	}
	return 0
}

func (k *keyReader) u64() uint64 {
	if b := k.take(8); b != "" {
		return binary.BigEndian.Uint64([]byte(b))
	}
	return 0
}

func (k *keyReader) time() int64 {
	if b := k.take(8); b != "" {
		return int64(binary.BigEndian.Uint64([]byte(b)) ^ 1<<63)
	}
	return 0
}

func (k *keyReader) name() string {
	i := strings.IndexByte(k.s, 0)
	if k.bad || i < 0 {
		k.bad = true
		return ""
	}
	name := k.s[:i]
	k.s = k.s[i+1:]
	return name
}

// ident reads an identity; char is what stands in place of its kind.
func (k *keyReader) ident() (id Identity, char byte) {
	id.Tenant, id.JobID = k.name(), k.name()
	id.Incarnation = k.u64()
	char = k.byte()
	id.NominalMS = k.time()
	id.Discriminator = k.name()
	id.Kind, _ = charKind(char)
	return id, char
}

// end says whether the key was as expected, with nothing left over.
func (k *keyReader) end() bool { return !k.bad && k.s == "" }

func parseIdentKey(key []byte, kind byte) (Identity, bool) {
	k := readKey(key, kind)
	id, char := k.ident()
	_, ok := charKind(char)
	return id, ok && k.end()
}

func parseJobKey(key []byte, kind byte) (tenant, jobID string, ok bool) {
	k := readKey(key, kind)
	tenant, jobID = k.name(), k.name()
	return tenant, jobID, k.end()
}

func parseReadyKey(key []byte) (id Identity, queue, fairness string, priority uint32, ok bool) {
	k := readKey(key, KindReady)
	queue = k.name()
	inverse := k.byte()
	id.Tenant, fairness = k.name(), k.name()
	id.NominalMS = k.time()
	id.JobID, id.Incarnation = k.name(), k.u64()
	id.Kind, ok = charKind(k.byte())
	id.Discriminator = k.name()
	if !ok || !k.end() || inverse > maxPriority {
		return Identity{}, "", "", 0, false
	}
	return id, queue, fairness, maxPriority - uint32(inverse), true
}

// endedRef is the key of an ended row, taken apart.
type endedRef struct {
	bucket  uint32
	id      Identity
	char    byte
	fencing uint64
}

func parseEndedKey(key []byte) (ref endedRef, ok bool) {
	k := readKey(key, KindEnded)
	ref.bucket = k.u32()
	ref.id, ref.char = k.ident()
	switch ref.char {
	case charLate:
		ref.fencing = k.u64()
	case charSchedule, charTrigger, charBackfill, charRange:
	default:
		return endedRef{}, false
	}
	return ref, k.end()
}

// DecodeReady reads a ready row's key. ReadyMS stands in the value and is left 0.
func DecodeReady(key []byte) (ReadyRef, error) {
	id, queue, fairness, priority, ok := parseReadyKey(key)
	if !ok {
		return ReadyRef{}, fmt.Errorf("decode ready row %q: %w", key, ErrKey)
	}
	return ReadyRef{
		Key: key, Queue: queue, Priority: priority, Tenant: id.Tenant, FairnessKey: fairness, NominalMS: id.NominalMS,
	}, nil
}
