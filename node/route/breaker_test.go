package route

import (
	"strings"
	"testing"
	"time"
)

// TestBreaker plays scripts: letters are events, each must be let go or not.
func TestBreaker(t *testing.T) {
	// c: a call is admitted and noted as under way; x: a call is refused. +: the oldest call is answered; -: it fails;
	// !: it could not connect; ?: its caller ended it; digits: that many tenths of a second pass.
	for name, script := range map[string]string{
		"three failures in a row open it":               "c-c-c-x",
		"an answer in between starts the count anew":    "c-c-c+c-c-c",
		"one that cannot connect is enough":             "c!x",
		"ended calls say nothing":                       "c-c-c?c?c",
		"after the cool-down one probe may go":          "c!1x1cxx",
		"an answered probe closes it":                   "c!2c+ccc",
		"a failed probe doubles the cool-down":          "c!2c-2x1x1cx",
		"and doubles it again":                          "c!2c-4c-7x1c",
		"up to two seconds":                             "c!2c-4c-8c-8888c-99x1x1c",
		"a probe that its caller ended frees the way":   "c!2c?cx",
		"failures of calls from before count no more":   "cccc---x2-c",
		"an answer to one from before closes nothing":   "cccc---x+x",
		"a closed one begins with a short pause again":  "c!2c-4c+c!1x1c",
		"failures before it opened are forgotten after": "c-c-c-2c+c-c-c",
	} {
		t.Run(name, func(t *testing.T) {
			var b breaker
			var probes []bool
			now := time.Unix(1000, 0)
			results := map[rune]callResult{'+': answered, '-': failed, '!': unreachable, '?': undecided}
			for at, event := range script {
				rest := script[:at+1]
				result, ends := results[event]
				switch {
				case event == 'c' || event == 'x':
					probe, wait, ok := b.admit(now)
					if ok != (event == 'c') {
						t.Fatalf("%s: let go is %v", rest, ok)
					}
					if !ok && (wait <= 0 || wait > maxCoolDown) {
						t.Fatalf("%s: told to wait %v", rest, wait)
					}
					if ok {
						probes = append(probes, probe)
					}
				case ends:
					b.done(now, probes[0], result)
					probes = probes[1:]
				case strings.ContainsRune("123456789", event):
					now = now.Add(time.Duration(event-'0') * 100 * time.Millisecond)
				default:
					t.Fatalf("unknown event %c", event)
				}
			}
		})
	}
}
