package clock

import (
	"os"
	"strconv"
	"strings"
)

// stepFile is empty. Tests with real processes link a binary with the name of a file here (go build -ldflags -X): the
// milliseconds in it are added to the wall clock, so that they can step a clock that is not theirs to set.
var stepFile string

// stepped is a machine whose wall clock is off by what stepFile says.
type stepped struct{ Sources }

func (s stepped) Wall() int64 {
	text, err := os.ReadFile(stepFile)
	if err != nil {
		return s.Sources.Wall()
	}
	ms, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		panic("clock: " + stepFile + ": " + err.Error())
	}
	return s.Sources.Wall() + ms*1e6
}
