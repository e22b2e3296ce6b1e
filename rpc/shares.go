package rpc

import (
	"cmp"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// shares validates and translates how a queue's priorities share its workers.
func (v *violations) shares(field string, s *carillonv1.PriorityShares) *storagev1.PriorityShares {
	switch {
	case s == nil:
		return nil
	case s.Strict && len(s.Weights) > 0:
		v.add(field+".weights", "must not be given with strict")
		return nil
	case s.Strict:
		if s.FloorPercent > maxFloorPercent {
			v.add(field+".floor_percent", "must be 1 to %d, or 0 for %d; is %d", maxFloorPercent, defaultFloorPercent, s.FloorPercent)
			return nil
		}
		return &storagev1.PriorityShares{Strict: true, FloorPercent: cmp.Or(s.FloorPercent, defaultFloorPercent)}
	case s.FloorPercent != 0:
		v.add(field+".floor_percent", "is only for strict")
	case len(s.Weights) == 0:
		return nil
	case len(s.Weights) != maxPriority+1:
		v.add(field+".weights", "must be %d numbers, of priorities 0 to %d; are %d", maxPriority+1, maxPriority, len(s.Weights))
	}
	for i, w := range s.Weights {
		if w < 1 || w > maxShareWeight {
			v.add(field+".weights", "must be 1 to %d each; that of priority %d is %d", maxShareWeight, i, w)
			break
		}
	}
	return &storagev1.PriorityShares{Weights: s.Weights}
}

func sharesOf(s *storagev1.PriorityShares) *carillonv1.PriorityShares {
	if s == nil {
		return nil
	}
	return &carillonv1.PriorityShares{Weights: s.Weights, Strict: s.Strict, FloorPercent: s.FloorPercent}
}

// tenantWeight validates a tenant's part of the turns.
func (v *violations) tenantWeight(field string, w uint32) uint32 {
	if w > maxShareWeight {
		v.add(field, "must be 1 to %d, or 0 for 1; is %d", maxShareWeight, w)
	}
	return w
}
