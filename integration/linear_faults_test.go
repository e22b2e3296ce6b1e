package integration

import (
	"math"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// The model lets pass what may be, and finds what must not be.
func TestLinearModelFindsFaults(t *testing.T) {
	t.Parallel()
	type did struct {
		in  linearInput
		out linearOutput
	}
	create := did{linearInput{op: opCreate, text: "a"}, linearOutput{answer: ok}}
	update := func(expected uint64, text string) did {
		return did{linearInput{op: opUpdate, version: expected, text: text}, linearOutput{answer: ok, version: expected + 1}}
	}
	claim := func(fencing uint64) did {
		return did{linearInput{op: opClaim}, linearOutput{answer: ok, fencing: fencing}}
	}
	complete := func(fencing uint64, answer linearAnswer) did {
		return did{linearInput{op: opComplete, fencing: fencing, text: "r"}, linearOutput{answer: answer, state: succeededState}}
	}
	release := func(fencing uint64) did {
		return did{linearInput{op: opRelease, fencing: fencing}, linearOutput{answer: ok, state: readyState}}
	}
	heartbeat := func(fencing uint64) did {
		return did{linearInput{op: opHeartbeat, fencing: fencing}, linearOutput{answer: ok}}
	}
	read := func(version uint64, text string) did {
		return did{linearInput{op: opGetJob}, linearOutput{answer: ok, version: version, text: text}}
	}
	for _, c := range []struct {
		name string
		may  bool
		did  []did
	}{
		{"a life", true, []did{create, update(1, "b"), claim(1), heartbeat(1), release(1), claim(2), complete(2, ok), read(2, "b")}},
		{"an answer that was lost, applied later", true, []did{create, {update(1, "b").in, linearOutput{answer: unknown}}, read(1, "a"), read(2, "b")}},
		{"a late word is refused", true, []did{create, claim(1), release(1), claim(2), complete(1, refusal), complete(2, ok)}},
		{"an update is lost", false, []did{create, update(1, "b"), read(1, "a")}},
		{"two updates of one version", false, []did{create, update(1, "b"), update(1, "c")}},
		{"two leases at once", false, []did{create, claim(1), claim(2)}},
		{"a stale token is accepted", false, []did{create, claim(1), release(1), claim(2), complete(1, ok)}},
		{"two completions are accepted", false, []did{create, claim(1), complete(1, ok), complete(1, ok)}},
		{"a stale heartbeat is accepted", false, []did{create, claim(1), release(1), claim(2), heartbeat(1)}},
		{"a living lease is refused", false, []did{create, claim(1), complete(1, refusal)}},
		{"a fencing number comes again", false, []did{create, claim(2), release(2), claim(2)}},
		{"what was ended is claimed", false, []did{create, claim(1), complete(1, ok), claim(2)}},
		{"an accepted job is not there", false, []did{create, {linearInput{op: opGetJob}, linearOutput{answer: absent}}}},
	} {
		var history []porcupine.Operation
		for i, d := range c.did {
			op := porcupine.Operation{ClientId: i, Input: d.in, Output: d.out, Call: int64(2 * i), Return: int64(2*i + 1)}
			if d.out.answer == unknown {
				op.Return = math.MaxInt64
			}
			history = append(history, op)
		}
		want := porcupine.Illegal
		if c.may {
			want = porcupine.Ok
		}
		if got := porcupine.CheckOperationsTimeout(linearModel(), history, 10*time.Second); got != want {
			t.Errorf("%s: %v, want %v", c.name, got, want)
		}
	}
}
