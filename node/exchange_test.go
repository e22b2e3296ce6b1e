package node

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/node/dispatch"
	"github.com/carillon-scheduler/carillon/node/peer"
)

// A list of queues comes as it was sent, or as much of it as one message holds.
func TestQueuesFitAMessage(t *testing.T) {
	few := []string{"a", "b.c", strings.Repeat("x", 128)}
	if got := decodeQueues(encodeQueues(few)); !slices.Equal(got, few) {
		t.Errorf("%q came as %q", few, got)
	}
	if got := decodeQueues(encodeQueues(nil)); len(got) > 0 {
		t.Errorf("nothing came as %q", got)
	}
	var many []string
	for i := range dispatch.MaxInterest {
		many = append(many, fmt.Sprintf("%0128d", i))
	}
	payload := encodeQueues(many)
	got := decodeQueues(payload)
	if len(payload) > peer.MaxMessage || len(payload) < peer.MaxMessage-129 || !slices.Equal(got, many[:len(got)]) {
		t.Errorf("%d queues came in %d bytes", len(got), len(payload))
	}
}

// A node that does not serve yet has no voice about the time.
func TestAStartingNodeVouchesForNoClock(t *testing.T) {
	if h := new(Node).health(); h.ClockOK || h.WallMS == 0 {
		t.Errorf("%+v", h)
	}
}
