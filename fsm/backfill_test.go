package fsm

import "strings"

// instants reads a list of instants as scripts write them: 1m,2m.
func (a args) instants(k string) (list []int64) {
	for _, word := range strings.FieldsFunc(a.str(k, ""), func(r rune) bool { return r == ',' }) {
		list = append(list, epochMS+parseDuration(a.t, word))
	}
	return list
}
