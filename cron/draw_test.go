package cron

import (
	"fmt"
	"strconv"
	"strings"

	"pgregory.net/rapid"
)

// drawPattern draws the text of a pattern that may be impossible but is well formed.
func drawPattern(t *rapid.T) string {
	all := &fields
	parts := []string{
		drawField(t, &all[1], 0.3),
		drawField(t, &all[2], 0.5),
		drawDays(t),
		drawField(t, &all[4], 0.6),
		drawWeekdays(t),
	}
	if rapid.IntRange(0, 9).Draw(t, "seconds") == 0 {
		parts = append([]string{drawField(t, &all[0], 0.1)}, parts...)
		if rapid.Bool().Draw(t, "years") {
			parts = append(parts, drawField(t, &all[6], 0.5))
		}
	}
	return strings.Join(parts, " ")
}

func drawValue(t *rapid.T, f *field) string {
	low, high := f.min, f.top()
	if f.name == "year" {
		// Years in which tests look.
		low, high = 1990, 2030
	}
	n := rapid.IntRange(low, high).Draw(t, f.name)
	if len(f.names) > 0 && rapid.Bool().Draw(t, "named") {
		return f.names[n-f.min]
	}
	return strconv.Itoa(n)
}

// drawField draws a wildcard with a probability, else a list of values, ranges and steps.
func drawField(t *rapid.T, f *field, wildcard float64) string {
	if rapid.Float64Range(0, 1).Draw(t, "wildcard") < wildcard {
		return "*"
	}
	items := make([]string, rapid.IntRange(1, 3).Draw(t, "items"))
	for i := range items {
		step := strconv.Itoa(rapid.IntRange(1, f.top()-f.min+1).Draw(t, "step"))
		a, b := drawValue(t, f), drawValue(t, f)
		if f.cycle == 0 && slowNumber(a) > slowNumber(b) {
			a, b = b, a
		}
		items[i] = rapid.SampledFrom([]string{a, a, a, a + "-" + b, a + "-" + b + "/" + step, "*/" + step, a + "/" + step}).Draw(t, "item")
	}
	return strings.Join(items, ",")
}

func drawDays(t *rapid.T) string {
	if rapid.IntRange(0, 2).Draw(t, "special day") != 0 {
		return drawField(t, dayField, 0.6)
	}
	n := rapid.IntRange(1, 31).Draw(t, "n")
	special := rapid.SampledFrom([]string{"L", "LW", fmt.Sprintf("L-%d", min(n, 30)), fmt.Sprintf("%dW", n), "?"}).Draw(t, "special")
	if rapid.Bool().Draw(t, "more") {
		return special + "," + drawField(t, dayField, 0)
	}
	return special
}

func drawWeekdays(t *rapid.T) string {
	if rapid.IntRange(0, 2).Draw(t, "special weekday") != 0 {
		return drawField(t, weekdayField, 0.6)
	}
	d := drawValue(t, weekdayField)
	special := rapid.SampledFrom([]string{d + "L", fmt.Sprintf("%s#%d", d, rapid.IntRange(1, 5).Draw(t, "nth")), "?", "7"}).Draw(t, "special")
	if rapid.Bool().Draw(t, "more") {
		return special + "," + drawField(t, weekdayField, 0)
	}
	return special
}
