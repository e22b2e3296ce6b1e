package fsm

import (
	"bytes"
	"encoding/binary"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// TenantJobs is how many jobs a tenant has that are not deleted.
type TenantJobs struct {
	Tenant string
	Jobs   uint64
}

// CountTenants counts jobs by tenant, from cursor on, in order of the tenants' names. It reads budget rows at most and
// returns the cursor of what is left; nil: nothing is. A tenant within which the budget ends comes again in the next counts.
func CountTenants(r Reader, cursor []byte, budget int) (counts []TenantJobs, next []byte) {
	span := prefixSpan([]byte{KindJob})
	if bytes.HasPrefix(cursor, span.start) {
		span.start = cursor
	}
	rows := 0
	r.Scan(span.start, span.end, func(key, value []byte) bool {
		if rows == max(budget, 1) {
			next = bytes.Clone(key)
			return false
		}
		rows++
		tenant, _, ok := bytes.Cut(key[1:], []byte{0})
		state, known := stateOfRow(value)
		if !ok || !known {
			panic(corrupt(key))
		}
		if state == storagev1.JobState_JOB_STATE_DELETED {
			return true
		}
		if n := len(counts); n == 0 || counts[n-1].Tenant != string(tenant) {
			counts = append(counts, TenantJobs{Tenant: string(tenant)})
		}
		counts[len(counts)-1].Jobs++
		return true
	})
	return counts, next
}

// stateOfRow reads the state out of a job's row and nothing else: to decode the whole row would double the time that
// counting takes. Rows have their fields in order of the numbers, and those up to the state are varints.
func stateOfRow(row []byte) (storagev1.JobState, bool) {
	const varint, stateField = 0, 3
	for len(row) > 0 {
		tag, n := binary.Uvarint(row)
		if n <= 0 {
			return 0, false
		}
		if tag>>3 > stateField {
			break
		}
		value, m := binary.Uvarint(row[n:])
		if tag&7 != varint || m <= 0 {
			return 0, false
		}
		if tag>>3 == stateField {
			return storagev1.JobState(value), true
		}
		row = row[n+m:]
	}
	return storagev1.JobState_JOB_STATE_UNSPECIFIED, true
}
