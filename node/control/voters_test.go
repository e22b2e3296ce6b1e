package control

import (
	"strings"
	"testing"
)

func TestVoterToRetire(t *testing.T) {
	for _, c := range []struct{ name, stores, members, retires string }{
		{"all is well", "a b c d", "a b c", ""},
		{"lost, with a spare", "a b c-- d", "a b c", "c"},
		{"silent for a moment", "a b c- d", "a b c", ""},
		{"gone, with a spare", "a b c! d", "a b c", "c"},
		{"no spare", "a b c--", "a b c", ""},
		{"the spare drains", "a b c-- d~", "a b c", ""},
		{"the spare is silent too", "a b c-- d-", "a b c", ""},
		{"removed already", "a b c! d", "a b", ""},
		{"no living majority without it", "a b- c-- d", "a b c", ""},
		{"one after the other", "a b c d-- e-- f", "a b c d e", "d"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := viewFrom(c.stores, "")
			var members []Member
			for i, name := range strings.Fields(c.members) {
				members = append(members, Member{ID: uint64(i) + 1, Name: MemberName("node-"+name, name)})
			}
			equal(t, VoterToRetire(v, members), c.retires)
		})
	}
}
