package rpc

import (
	"slices"
	"testing"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

func TestSharesAreBounded(t *testing.T) {
	ten := func(w uint32) []uint32 { return slices.Repeat([]uint32{w}, 10) }
	for _, c := range []struct {
		name  string
		in    *carillonv1.PriorityShares
		field string
	}{
		{"none", nil, ""},
		{"default", &carillonv1.PriorityShares{}, ""},
		{"least", &carillonv1.PriorityShares{Weights: ten(1)}, ""},
		{"most", &carillonv1.PriorityShares{Weights: ten(1000)}, ""},
		{"too little", &carillonv1.PriorityShares{Weights: ten(0)}, "f.weights"},
		{"too much", &carillonv1.PriorityShares{Weights: ten(1001)}, "f.weights"},
		{"nine", &carillonv1.PriorityShares{Weights: ten(1)[:9]}, "f.weights"},
		{"eleven", &carillonv1.PriorityShares{Weights: append(ten(1), 1)}, "f.weights"},
		{"strict", &carillonv1.PriorityShares{Strict: true}, ""},
		{"strict with weights", &carillonv1.PriorityShares{Strict: true, Weights: ten(1)}, "f.weights"},
		{"floor", &carillonv1.PriorityShares{Strict: true, FloorPercent: 10}, ""},
		{"floor too high", &carillonv1.PriorityShares{Strict: true, FloorPercent: 11}, "f.floor_percent"},
		{"floor without strict", &carillonv1.PriorityShares{FloorPercent: 1}, "f.floor_percent"},
	} {
		var v violations
		got := v.shares("f", c.in)
		switch {
		case c.field == "" && len(v.list) > 0 || c.field != "" && (len(v.list) != 1 || v.list[0].Field != c.field):
			t.Errorf("%s: %v", c.name, v.list)
		case c.name == "strict" && got.FloorPercent != 1:
			t.Errorf("the floor of strict is %d", got.FloorPercent)
		}
	}
	var v violations
	v.tenantWeight("w", 1000)
	if len(v.list) > 0 {
		t.Errorf("%v", v.list)
	}
	if v.tenantWeight("w", 1001); len(v.list) != 1 {
		t.Errorf("a weight of 1001: %v", v.list)
	}
}
