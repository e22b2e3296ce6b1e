package fsm

import (
	"encoding/binary"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// TimerKind says what a timer does. At one instant lower kinds fire first.
type TimerKind byte

const (
	// TimerLeaseEnd looks at the leases of one entry: ref = first fencing number, value = last.
	TimerLeaseEnd TimerKind = 1
	// TimerRetry makes a retrying execution ready: ref = identity, value = the execution.
	TimerRetry TimerKind = 2
	// TimerStartDeadline expires an execution that has not started: ref = identity, value = its ready key.
	TimerStartDeadline TimerKind = 3
	// TimerOneShot fires a one-shot: ref = tenant and job, value = its execution.
	TimerOneShot TimerKind = 4
	// TimerRecurring fires a recurring job: ref = tenant and job, value = its queue.
	TimerRecurring TimerKind = 5
	// TimerExpand asks for a cron job's next instants: ref = tenant and job, no value.
	TimerExpand TimerKind = 6
	// TimerPauseEnd ends a pause of a queue, a tenant or a rule: ref = which of them, and its name; no value.
	TimerPauseEnd TimerKind = 7
	// TimerResume resumes a paused job: ref = tenant and job, no value.
	TimerResume TimerKind = 8
)

// timerKey is a timer row's key, taken apart.
type timerKey struct {
	atMS  int64
	kind  TimerKind
	first uint64
	// id has only tenant and job for one-shots, recurring and paused jobs.
	id Identity
	// of and name are what a pause is of.
	of   byte
	name string
}

func parseTimerKey(key []byte) (t timerKey, ok bool) {
	k := readKey(key, KindTimer)
	t.atMS = k.time()
	t.kind = TimerKind(k.byte())
	switch t.kind {
	case TimerLeaseEnd:
		t.first = k.u64()
	case TimerRetry, TimerStartDeadline:
		var char byte
		t.id, char = k.ident()
		if _, known := charKind(char); !known {
			return timerKey{}, false
		}
	case TimerPauseEnd:
		t.of, t.name = k.byte(), k.name()
		if t.of != ofQueue && t.of != ofTenant && t.of != ofRule {
			return timerKey{}, false
		}
	case TimerOneShot, TimerRecurring, TimerExpand, TimerResume:
		t.id.Tenant, t.id.JobID, t.id.NominalMS = k.name(), k.name(), t.atMS
	default:
		return timerKey{}, false
	}
	return t, k.end()
}

// DecodeTimer reads a timer row. It reads no more of the value than the queue needs.
func DecodeTimer(key, value []byte) (TimerRef, error) {
	t, ok := parseTimerKey(key)
	if !ok {
		return TimerRef{}, fmt.Errorf("decode timer %q: %w", key, ErrKey)
	}
	ref := TimerRef{AtMS: t.atMS, Kind: t.kind}
	switch t.kind {
	case TimerRetry, TimerOneShot:
		queue, ok := fieldBytes(value, executionTemplate, templateQueue)
		if !ok {
			return TimerRef{}, fmt.Errorf("decode timer %q: %w", key, errValue)
		}
		ref.Queue = string(queue)
	case TimerRecurring:
		ref.Queue = string(value)
	case TimerLeaseEnd, TimerStartDeadline, TimerExpand, TimerPauseEnd, TimerResume:
	}
	return ref, nil
}

// Field numbers of records.proto that are read without decoding the whole message.
const (
	executionTenant   protowire.Number = 1
	executionJobID    protowire.Number = 2
	executionTemplate protowire.Number = 8
	executionReadyMS  protowire.Number = 12
	templateQueue     protowire.Number = 1
	jobSchedule       protowire.Number = 7
	jobZoneChange     protowire.Number = 32
	scheduleCron      protowire.Number = 3
	eventRecordAtMS   protowire.Number = 3
)

var errValue = errors.New("malformed value")

// fieldBytes descends into a message along length-delimited fields. An absent field is empty; ok is false only for what
// is no message at all.
func fieldBytes(message []byte, path ...protowire.Number) (found []byte, ok bool) {
	for _, want := range path {
		found = nil
		for len(message) > 0 {
			number, wireType, n := protowire.ConsumeTag(message)
			if n < 0 {
				return nil, false
			}
			message = message[n:]
			if number == want && wireType == protowire.BytesType {
				v, n := protowire.ConsumeBytes(message)
				if n < 0 {
					return nil, false
				}
				found = v
				break
			}
			if n = protowire.ConsumeFieldValue(number, wireType, message); n < 0 {
				return nil, false
			}
			message = message[n:]
		}
		message = found
	}
	return found, true
}

// fieldVarint reads a top-level number; 0 when it is absent.
func fieldVarint(message []byte, want protowire.Number) (value uint64, ok bool) {
	for len(message) > 0 {
		number, wireType, n := protowire.ConsumeTag(message)
		if n < 0 {
			return 0, false
		}
		message = message[n:]
		if number == want && wireType == protowire.VarintType {
			v, n := protowire.ConsumeVarint(message)
			return v, n >= 0
		}
		if n = protowire.ConsumeFieldValue(number, wireType, message); n < 0 {
			return 0, false
		}
		message = message[n:]
	}
	return 0, true
}

func encodeU64(v uint64) []byte { return binary.BigEndian.AppendUint64(make([]byte, 0, 8), v) }

func decodeU64(b []byte) (uint64, bool) {
	if len(b) != 8 {
		return 0, false
	}
	return binary.BigEndian.Uint64(b), true
}
