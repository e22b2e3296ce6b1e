package cli

import "fmt"

// maxSlips is how many letters a word may be away from another to be taken for it.
const maxSlips = 2

// didYouMean is a question to append to "unknown …" if a known word is close to what was typed, else "".
func didYouMean(typed string, known []string) string {
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
