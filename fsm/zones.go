package fsm

import (
	"slices"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// Versions of zone data, like 2025c, are ordered as text is: the later is the newer.

// setZoneVersion begins or ends the leader's walk over the horizons that are older than a version of the zone data. The
// shard never promises more than holds, and noteZone takes a promise back that no longer does.
func (a *apply) setZoneVersion(c *storagev1.SetZoneVersion) Result {
	m := a.meta
	switch {
	case c.Version == "" || !isName(c.Version):
		return Result{Refusal: refuseField("version", "malformed")}
	case c.Version <= m.ZoneVersion:
	case !c.Done:
		m.ZoneTarget = c.Version
	case m.ZoneTarget != c.Version:
		return Result{Refusal: refuse(Aborted, "an older horizon has come in since")}
	default:
		m.ZoneVersion, m.ZoneTarget = c.Version, ""
	}
	return Result{}
}

// noteZone takes note of a horizon that has come in: nodes of an older version send older ones.
func (a *apply) noteZone(h *storagev1.Horizon) {
	if !says(h) {
		return
	}
	a.meta.ZoneVersion = min(a.meta.ZoneVersion, h.ZoneVersion)
	if h.ZoneVersion < a.meta.ZoneTarget {
		a.meta.ZoneTarget = ""
	}
}

// noteZoneChange keeps with j what newer zone data has changed of the instants that were known.
func (a *apply) noteZoneChange(j *storagev1.Job, old *storagev1.Horizon) {
	h := j.Horizon
	if !says(old) || old.ZoneVersion == "" || h.ZoneVersion <= old.ZoneVersion {
		return
	}
	was, is, differ := firstDifference(old, h, j.WatermarkMs)
	if !differ {
		return
	}
	j.ZoneChange = &storagev1.ZoneChange{
		FromVersion: old.ZoneVersion, ToVersion: h.ZoneVersion, ChangedMs: a.meta.ClockMs, OldNextMs: was, NewNextMs: is,
	}
}

// firstDifference compares two horizons as far as both know what comes after an instant.
func firstDifference(a, b *storagev1.Horizon, afterMS int64) (inA, inB int64, differ bool) {
	to := int64(maxInstantMS)
	for _, h := range [...]*storagev1.Horizon{a, b} {
		if !h.Ended {
			to = min(to, h.ToMs)
		}
	}
	for i, k := indexAfter(a, afterMS), indexAfter(b, afterMS); ; i, k = i+1, k+1 {
		inA, inB = instantAt(a, i), instantAt(b, k)
		known := inA != 0 && inA <= to || inB != 0 && inB <= to
		if !known || inA != inB {
			return inA, inB, known
		}
	}
}

func indexAfter(h *storagev1.Horizon, afterMS int64) int {
	i, _ := slices.BinarySearch(h.NextMs, afterMS+1)
	return i
}

// instantAt is a horizon's instant i; 0 when there is none.
func instantAt(h *storagev1.Horizon, i int) int64 {
	if i < len(h.NextMs) {
		return h.NextMs[i]
	}
	return 0
}
