package rpc

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// violations collects what is wrong with a request, at most maxViolations of it. The zero value is ready to use.
type violations struct {
	list []*carillonv1.FieldViolation
}

// add records that field, a path in proto names, breaks a rule. Names that come from a query may be any bytes.
func (v *violations) add(field, format string, args ...any) {
	if len(v.list) < maxViolations {
		v.list = append(v.list, &carillonv1.FieldViolation{
			Field: cutText(field, maxViolationBytes), Description: cutText(fmt.Sprintf(format, args...), maxViolationBytes),
		})
	}
}

// err is nil, or an invalid_argument with a detail for each violation.
func (v *violations) err() error {
	if len(v.list) == 0 {
		return nil
	}
	return invalidArgument(v.list)
}

// isName reports whether c may stand in an id or a name. The execution id's separator and the keys' terminator may not.
func isName(c byte) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	}
	switch c {
	case '.', '_', ':', '@', '+', '{', '}', '-':
		return true
	}
	return false
}

// name checks an id or a name that must be there.
func (v *violations) name(field, s string) {
	if s == "" {
		v.add(field, "is required: 1 to %d characters of [A-Za-z0-9._:@+{}-]", maxIDBytes)
		return
	}
	if len(s) > maxIDBytes {
		v.add(field, "has %d characters; at most %d are allowed", len(s), maxIDBytes)
		return
	}
	for i := range len(s) {
		if !isName(s[i]) {
			v.add(field, "has %q at position %d; allowed are [A-Za-z0-9._:@+{}-]", s[i:i+1], i)
			return
		}
	}
}

// optionalName checks an id or a name that may be empty.
func (v *violations) optionalName(field, s string) {
	if s != "" {
		v.name(field, s)
	}
}

// key checks an idempotency key, request id or claim id, which may be empty.
func (v *violations) key(field, s string) { v.printable(field, s, maxKeyBytes) }

// printable checks a text of printable ASCII that may be empty.
func (v *violations) printable(field, s string, limit int) {
	if len(s) > limit {
		v.add(field, "has %d bytes; at most %d are allowed", len(s), limit)
		return
	}
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			v.add(field, "has %q at position %d; only printable ASCII is allowed", s[i:i+1], i)
			return
		}
	}
}

// text checks a text of at most limit bytes, valid UTF-8 without NUL, that may be empty.
func (v *violations) text(field, s string, limit int) {
	switch {
	case len(s) > limit:
		v.add(field, "has %d bytes; at most %d are allowed", len(s), limit)
	case !utf8.ValidString(s):
		v.add(field, "is not valid UTF-8")
	case strings.IndexByte(s, 0) >= 0:
		v.add(field, "contains a NUL character")
	}
}

// size checks the length of opaque bytes.
func (v *violations) size(field string, n, limit int) {
	if n > limit {
		v.add(field, "has %d bytes; at most %d are allowed", n, limit)
	}
}

// duration returns d in milliseconds, rounded up, or def when d is unset. It must be within [low, high].
func (v *violations) duration(field string, d *durationpb.Duration, def, low, high time.Duration) int64 {
	if d == nil {
		return def.Milliseconds()
	}
	ms, ok := durationMS(d)
	if !ok || ms < low.Milliseconds() || ms > high.Milliseconds() {
		v.add(field, "is %s; it must be %s to %s", showDuration(d), showSpan(low), showSpan(high))
		return 0
	}
	return ms
}

// instant returns t in milliseconds since 1970, rounded up so that nothing is early, and 0 when t is unset.
func (v *violations) instant(field string, t *timestamppb.Timestamp, nowMS int64) int64 {
	if t == nil {
		return 0
	}
	if t.CheckValid() != nil {
		v.add(field, "is not a valid instant")
		return 0
	}
	ms := t.Seconds*1000 + (int64(t.Nanos)+999_999)/1_000_000
	switch {
	case ms <= 0:
		v.add(field, "is %s; it must be after 1970-01-01T00:00:00Z", t.AsTime().Format(time.RFC3339))
		return 0
	case ms > nowMS+horizon.Milliseconds():
		v.add(field, "is %s; it must be at most 100 years ahead", t.AsTime().Format(time.RFC3339))
		return 0
	}
	return ms
}

// pageSize returns the size of a page.
func (v *violations) pageSize(n int32) int {
	switch {
	case n == 0:
		return defaultPageSize
	case n < 0 || n > maxPageSize:
		v.add("page_size", "is %d; it must be 1 to %d, or 0 for %d", n, maxPageSize, defaultPageSize)
	}
	return int(n)
}

// durationMS converts to milliseconds, rounding away from zero, so that nothing is early and a negative length stays one.
// It fails for what no Go duration can hold or is malformed.
func durationMS(d *durationpb.Duration) (int64, bool) {
	// An int64 of nanoseconds ends after 292 years; d.AsDuration would saturate silently.
	const most = 290 * 366 * 24 * 3600
	if d.CheckValid() != nil || d.Seconds > most || d.Seconds < -most {
		return 0, false
	}
	ns := int64(d.Nanos)
	switch {
	case ns > 0:
		ns += 999_999
	case ns < 0:
		ns -= 999_999
	}
	return d.Seconds*1000 + ns/1_000_000, true
}

func showDuration(d *durationpb.Duration) string {
	if _, ok := durationMS(d); !ok {
		return fmt.Sprintf("%d s", d.Seconds)
	}
	return d.AsDuration().String()
}

// showSpan prints a bound as a person would.
func showSpan(d time.Duration) string {
	switch {
	case d >= year && d%year == 0:
		return fmt.Sprintf("%d years", d/year)
	case d >= 48*time.Hour && d%(24*time.Hour) == 0:
		return fmt.Sprintf("%d days", d/(24*time.Hour))
	case d >= time.Hour && d%time.Hour == 0:
		return fmt.Sprintf("%d h", d/time.Hour)
	}
	return d.String()
}

// cutText returns s as valid UTF-8 of at most limit bytes, without NULs. It is for texts that come with a report that must
// not be refused for its wording.
func cutText(s string, limit int) string {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "�")
	}
	s = strings.ReplaceAll(s, "\x00", "�")
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}
