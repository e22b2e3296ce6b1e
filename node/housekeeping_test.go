package node

import (
	"testing"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

func TestTrimBelowKeepsTheShare(t *testing.T) {
	for _, tc := range []struct {
		offset, trimmed, size, share, want uint64
	}{
		{1000, 0, 100, 100, 0},
		{1000, 0, 400, 100, 750},
		{1000, 600, 400, 100, 900},
		{1000, 0, 50, 100, 0},
		{1000, 1000, 400, 100, 1000},
	} {
		meta := &storagev1.Meta{EventOffset: tc.offset, EventTrimmed: tc.trimmed}
		if got := trimBelow(meta, tc.size, tc.share); got != tc.want {
			t.Errorf("%+v: got %d", tc, got)
		}
	}
}
