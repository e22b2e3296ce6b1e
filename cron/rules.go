package cron

import "fmt"

// ParseGap reads skip or shift; nothing is shift.
func ParseGap(text string) (Gap, error) {
	switch text {
	case "", "shift":
		return GapShift, nil
	case "skip":
		return GapSkip, nil
	default:
		return 0, fmt.Errorf("gap: %.32q is not allowed; allowed are skip and shift", text)
	}
}

func (g Gap) String() string { return [...]string{"shift", "skip"}[g] }

// ParseRepeat reads first, last or both; nothing is first.
func ParseRepeat(text string) (Repeat, error) {
	switch text {
	case "", "first":
		return RepeatFirst, nil
	case "last":
		return RepeatLast, nil
	case "both":
		return RepeatBoth, nil
	default:
		return 0, fmt.Errorf("repeat: %.32q is not allowed; allowed are first, last and both", text)
	}
}

func (r Repeat) String() string { return [...]string{"first", "last", "both"}[r] }
