package cli

import (
	"fmt"
	"slices"
	"strings"
)

// maxSlips is how many letters a word may be away from another to be taken for it.
const maxSlips = 2

// synonyms are words that other programs use for commands and flags of this one. The first that is known where it was
// typed is meant.
var synonyms = map[string][]string{
	"add": {"create"}, "new": {"create"}, "submit": {"create"}, "schedule": {"create"}, "put": {"create"},
	"show": {"get"}, "describe": {"get"}, "inspect": {"get"}, "view": {"get"},
	"ls": {"list"}, "rm": {"delete"}, "remove": {"delete"}, "drop": {"delete"},
	"edit": {"update"}, "set": {"update"}, "change": {"update"},
	"run": {"trigger"}, "fire": {"trigger"}, "log": {"history"}, "logs": {"history"}, "load": {"import"},
	"start": {"resume", "serve"}, "unpause": {"resume"}, "stop": {"pause", "cancel"}, "suspend": {"pause"},
	"retry": {"requeue"}, "redrive": {"requeue"}, "status": {"cluster"}, "daemon": {"serve"},

	"server": {"--addr", "serve"}, "host": {"--addr"}, "url": {"--addr"}, "address": {"--addr"}, "endpoint": {"--addr"},
	"after": {"--in"}, "when": {"--at"}, "time": {"--at"}, "interval": {"--every"},
	"data": {"--payload"}, "body": {"--payload"}, "file": {"--payload-file"}, "name": {"--id"}, "job-id": {"--id"},
	"key": {"--idempotency-key"}, "format": {"--output"}, "dir": {"--data"}, "port": {"--listen"}, "bind": {"--listen"},
}

// didYouMean is a question to append to "unknown …" if a known word means, or is close to, what was typed, else "".
func didYouMean(typed string, known []string) string {
	for _, meant := range synonyms[strings.TrimLeft(typed, "-")] {
		if slices.Contains(known, meant) {
			return fmt.Sprintf("; did you mean %s?", meant)
		}
	}
	best, least := "", maxSlips+1
	for _, word := range known {
		if n := distance(typed, word); n < least && n < len(word)/2 {
			best, least = word, n
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", best)
}

// distance is how many bytes must be inserted, deleted or replaced to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}
