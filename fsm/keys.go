package fsm

import (
	"encoding/binary"
	"strings"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// A row's first byte is its kind. docs/architecture.md has the table of what stands behind each.
const (
	KindMeta        = 'm'
	KindJob         = 'j'
	KindBlob        = 'b'
	KindTimer       = 't'
	KindReady       = 'r'
	KindLeased      = 'l'
	KindHeld        = 'h'
	KindRetrying    = 'a'
	KindDead        = 'd'
	KindEnded       = 'x'
	KindStop        = 'k'
	KindIdempotency = 'q'
	KindEvent       = 'e'
	KindExpiry      = 'g'
	KindSettings    = 's'
	KindTask        = 'w'
	KindParked      = 'p'

	// Not fsm's: package node/replica keeps its log, HardState, ConfState, applied index and truncated state there.
	KindLog       = 'L'
	KindHardState = 'A'
	KindConfState = 'C'
	KindApplied   = 'P'
	KindTruncated = 'T'
)

// In place of an execution's kind, in the keys of ended rows.
const (
	charSchedule = 's'
	charTrigger  = 't'
	charBackfill = 'b'
	charRange    = 'v'
	charLate     = 'z'
)

// Methods of idempotency records.
const (
	methodUpdate  = 'u'
	methodDelete  = 'd'
	methodTrigger = 't'
	methodPut     = 'p'
)

// What an expiry row removes.
const (
	expireJob     = 'j'
	expireOneShot = 'o'
	expireRecord  = 'q'
	expireDead    = 'd'
	expireTask    = 'w'
	expireBlob    = 'b'
)

// Identity is what an execution is.
type Identity struct {
	Tenant        string
	JobID         string
	Incarnation   uint64
	Kind          storagev1.ExecutionKind
	NominalMS     int64
	Discriminator string
}

// IdentityOf returns e's identity.
func IdentityOf(e *storagev1.Execution) Identity {
	return Identity{e.Tenant, e.JobId, e.Incarnation, e.Kind, e.NominalMs, e.Discriminator}
}

func appendName(b []byte, name string) []byte { return append(append(b, name...), 0) }

// appendTime writes ms so that earlier instants sort first, those before 1970 too.
func appendTime(b []byte, ms int64) []byte { return binary.BigEndian.AppendUint64(b, uint64(ms)^1<<63) }

func appendIdent(b []byte, id *Identity, char byte) []byte {
	b = appendName(appendName(b, id.Tenant), id.JobID)
	b = append(binary.BigEndian.AppendUint64(b, id.Incarnation), char)
	return appendName(appendTime(b, id.NominalMS), id.Discriminator)
}

func (id *Identity) size() int {
	return len(id.Tenant) + len(id.JobID) + len(id.Discriminator) + 3 + 8 + 1 + 8
}

// MetaKey is the shard's own row.
func MetaKey() []byte { return []byte{KindMeta} }

// JobKey is a job's row.
func JobKey(tenant, jobID string) []byte { return namedKey(KindJob, tenant, jobID) }

// StopKey is a job's stop marker.
func StopKey(tenant, jobID string) []byte { return namedKey(KindStop, tenant, jobID) }

func namedKey(kind byte, tenant, jobID string) []byte {
	b := make([]byte, 0, 1+len(tenant)+1+len(jobID)+1)
	return appendName(appendName(append(b, kind), tenant), jobID)
}

// tenantPrefix starts all rows of kind that begin with a tenant: terminated, so that `test` does not match `test-1`.
func tenantPrefix(kind byte, tenant string) []byte {
	return appendName(append(make([]byte, 0, 2+len(tenant)), kind), tenant)
}

// BlobKey is where the payload of a job's version stands.
func BlobKey(tenant, jobID string, incarnation, version uint64) []byte {
	return binary.BigEndian.AppendUint64(blobPrefix(tenant, jobID, incarnation), version)
}

func blobPrefix(tenant, jobID string, incarnation uint64) []byte {
	b := make([]byte, 0, 1+len(tenant)+1+len(jobID)+1+16)
	b = appendName(appendName(append(b, KindBlob), tenant), jobID)
	return binary.BigEndian.AppendUint64(b, incarnation)
}

// timerStart is where the timers of an instant begin.
func timerStart(ms int64) []byte { return appendTime(append(make([]byte, 0, 9), KindTimer), ms) }

func timerJobKey(ms int64, kind TimerKind, tenant, jobID string) []byte {
	b := make([]byte, 0, 1+8+1+len(tenant)+1+len(jobID)+1)
	b = append(appendTime(append(b, KindTimer), ms), byte(kind))
	return appendName(appendName(b, tenant), jobID)
}

func timerIdentKey(ms int64, kind TimerKind, id *Identity) []byte {
	b := make([]byte, 0, 1+8+1+id.size())
	b = append(appendTime(append(b, KindTimer), ms), byte(kind))
	return appendIdent(b, id, kindChar(id.Kind))
}

func timerLeaseKey(ms int64, first uint64) []byte {
	b := make([]byte, 0, 1+8+1+8)
	b = append(appendTime(append(b, KindTimer), ms), byte(TimerLeaseEnd))
	return binary.BigEndian.AppendUint64(b, first)
}

// ReadyKey is where e stands while it is ready.
func ReadyKey(e *storagev1.Execution) []byte {
	t := e.Template
	n := 1 + len(t.GetQueue()) + 2 + len(e.Tenant) + 1 + len(t.GetFairnessKey()) + 1 + 8 + len(e.JobId) + 1 + 9 + len(e.Discriminator) + 1
	b := appendReadyStream(make([]byte, 0, n), t.GetQueue(), t.GetPriority(), e.Tenant, t.GetFairnessKey())
	b = appendName(appendTime(b, e.NominalMs), e.JobId)
	b = append(binary.BigEndian.AppendUint64(b, e.Incarnation), kindChar(e.Kind))
	return appendName(b, e.Discriminator)
}

func appendReadyStream(b []byte, queue string, priority uint32, tenant, fairness string) []byte {
	b = append(appendName(append(b, KindReady), queue), byte(maxPriority-min(priority, maxPriority)))
	return appendName(appendName(b, tenant), fairness)
}

// ReadyQueuePrefix starts the keys of all ready executions of a queue.
func ReadyQueuePrefix(queue string) []byte {
	return appendName(append(make([]byte, 0, 2+len(queue)), KindReady), queue)
}

// ReadyPriorityPrefix starts the keys of a queue's ready executions of one priority.
func ReadyPriorityPrefix(queue string, priority uint32) []byte {
	return append(ReadyQueuePrefix(queue), byte(maxPriority-min(priority, maxPriority)))
}

// ReadyStreamPrefix starts the keys of one stream: a queue's ready executions of one priority, tenant and fairness key,
// which sort by nominal time.
func ReadyStreamPrefix(queue string, priority uint32, tenant, fairness string) []byte {
	b := make([]byte, 0, 1+len(queue)+2+len(tenant)+1+len(fairness)+1)
	return appendReadyStream(b, queue, priority, tenant, fairness)
}

// PrefixEnd is the first key behind all keys that start with prefix; nil when there is none.
func PrefixEnd(prefix []byte) []byte {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] != 0xff {
			end := append([]byte(nil), prefix[:i+1]...)
			end[i]++
			return end
		}
	}
	return nil
}

// LeasedKey is where the execution leased under a fencing number stands.
func LeasedKey(fencing uint64) []byte {
	return binary.BigEndian.AppendUint64(append(make([]byte, 0, 9), KindLeased), fencing)
}

func identKey(kind byte, id *Identity) []byte {
	return appendIdent(append(make([]byte, 0, 1+id.size()), kind), id, kindChar(id.Kind))
}

func endedBucket(bucket uint32) []byte {
	return binary.BigEndian.AppendUint32(append(make([]byte, 0, 5), KindEnded), bucket)
}

func endedKey(bucket uint32, id *Identity, char byte) []byte {
	b := append(make([]byte, 0, 1+4+id.size()+8), KindEnded)
	return appendIdent(binary.BigEndian.AppendUint32(b, bucket), id, char)
}

// lateKey is a late attempt's row: its token's number stands behind the identity, so that several are told apart.
func lateKey(bucket uint32, id *Identity, fencing uint64) []byte {
	return binary.BigEndian.AppendUint64(endedKey(bucket, id, charLate), fencing)
}

func recordKey(method byte, tenant, jobID, key string) []byte {
	b := make([]byte, 0, 2+len(tenant)+1+len(jobID)+1+len(key)+1)
	return appendName(appendName(appendName(append(b, KindIdempotency, method), tenant), jobID), key)
}

// EventKey is the event record at offset.
func EventKey(offset uint64) []byte {
	return binary.BigEndian.AppendUint64(append(make([]byte, 0, 9), KindEvent), offset)
}

// expiryKey is the housekeeping row that removes ref, a key without its kind byte, at an instant.
func expiryKey(ms int64, what byte, ref []byte) []byte {
	b := make([]byte, 0, 1+8+1+len(ref))
	return append(append(appendTime(append(b, KindExpiry), ms), what), ref...)
}

// timerPauseKey is where the timer of a pause's end stands.
func timerPauseKey(ms int64, of byte, name string) []byte {
	b := make([]byte, 0, 1+8+1+1+len(name)+1)
	b = append(appendTime(append(b, KindTimer), ms), byte(TimerPauseEnd), of)
	return appendName(b, name)
}

// ParkedKey is where a recurring job stands that is due and stopped by a pause.
func ParkedKey(tenant, jobID string) []byte { return namedKey(KindParked, tenant, jobID) }

// QueueKey is where a queue's settings stand.
func QueueKey(name string) []byte { return settingsKey(ofQueue, name) }

// TenantKey is where a tenant's settings stand.
func TenantKey(name string) []byte { return settingsKey(ofTenant, name) }

// PauseRuleKey is where a pause rule stands.
func PauseRuleKey(id string) []byte { return settingsKey(ofRule, id) }

func settingsKey(what byte, name string) []byte {
	return appendName(append(make([]byte, 0, 3+len(name)), KindSettings, what), name)
}

// TaskKey is a bulk operation's row.
func TaskKey(id string) []byte {
	return appendName(append(make([]byte, 0, 2+len(id)), KindTask), id)
}

func kindChar(k storagev1.ExecutionKind) byte {
	switch k {
	case storagev1.ExecutionKind_EXECUTION_KIND_TRIGGER:
		return charTrigger
	case storagev1.ExecutionKind_EXECUTION_KIND_BACKFILL:
		return charBackfill
	default:
		return charSchedule
	}
}

func charKind(c byte) (storagev1.ExecutionKind, bool) {
	switch c {
	case charSchedule:
		return storagev1.ExecutionKind_EXECUTION_KIND_SCHEDULE, true
	case charTrigger:
		return storagev1.ExecutionKind_EXECUTION_KIND_TRIGGER, true
	case charBackfill:
		return storagev1.ExecutionKind_EXECUTION_KIND_BACKFILL, true
	default:
		return storagev1.ExecutionKind_EXECUTION_KIND_UNSPECIFIED, false
	}
}

// isName says whether s may stand in a key between terminators.
func isName(s string) bool { return len(s) <= maxNameBytes && strings.IndexByte(s, 0) < 0 }

// isID says whether s may name a tenant or a job: it stands in execution ids, between tildes.
func isID(s string) bool { return s != "" && isName(s) && strings.IndexByte(s, '~') < 0 }
