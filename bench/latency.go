package bench

import (
	"math"
	"slices"
)

// Quantiles sums up a distribution, in milliseconds.
type Quantiles struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// quantiles sorts samples, in microseconds, and sums them up exactly, by nearest rank. It is nil without samples.
func quantiles(samplesUS []int32) *Quantiles {
	if len(samplesUS) == 0 {
		return nil
	}
	slices.Sort(samplesUS)
	ms := func(q float64) float64 {
		rank := int(math.Ceil(q*float64(len(samplesUS)))) - 1
		return float64(samplesUS[max(0, rank)]) / 1000
	}
	return &Quantiles{P50: ms(0.5), P99: ms(0.99), Max: ms(1)}
}

// overtaking says how far from oldest-first the jobs were received: for each receipt, by how much the job was younger than
// the oldest one that was still to come. All zeros: perfect order.
func overtaking(receipts []receipt) *Quantiles {
	slices.SortFunc(receipts, func(a, b receipt) int {
		switch {
		case a.atUS() != b.atUS():
			return int(min(1, max(-1, a.atUS()-b.atUS())))
		default: // one answer carries many: their order in it is not the bench's to judge
			return int(min(1, max(-1, a.dueMS-b.dueMS)))
		}
	})
	by := make([]int32, len(receipts))
	oldest := int64(math.MaxInt64)
	for i := len(receipts) - 1; i >= 0; i-- {
		oldest = min(oldest, receipts[i].dueMS)
		by[i] = int32(min((receipts[i].dueMS-oldest)*1000, math.MaxInt32))
	}
	return quantiles(by)
}

// recovery is how many seconds after the instant endMS (milliseconds UTC) the last second lies in which the p99 lateness of
// what was received exceeded limitUS; 0 if there is none.
func recovery(receipts []receipt, endMS int64, limitUS int32) float64 {
	seconds := map[int64][]int32{}
	for _, r := range receipts {
		if since := r.atUS() - endMS*1000; since >= 0 {
			seconds[since/1e6] = append(seconds[since/1e6], r.latenessUS)
		}
	}
	last := 0.0
	for s, samples := range seconds {
		if q := quantiles(samples); q.P99*1000 > float64(limitUS) {
			last = max(last, float64(s+1))
		}
	}
	return last
}
