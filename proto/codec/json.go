package codec

import (
	"strconv"
	"unicode/utf16"
)

// escapeBytes is the length of an escape like \u00e9.
const escapeBytes = 6

// LoneSurrogate is the offset in a JSON text of the first escape like \ud800 that is half of a pair without the other half, so
// no character; -1 if there is none. Decoders put something else in its place, or stop without saying why.
func LoneSurrogate(data []byte) int {
	for i := 0; i < len(data); i++ {
		if data[i] != '\\' {
			continue
		}
		r := escaped(data[i:])
		switch {
		case !utf16.IsSurrogate(r):
			i++ // whatever is escaped begins no escape
		case utf16.DecodeRune(r, escaped(data[min(i+escapeBytes, len(data)):])) == '\uFFFD':
			return i
		default:
			i += 2*escapeBytes - 1
		}
	}
	return -1
}

// escaped is the code of the escape at the start of data; -1 if there is none.
func escaped(data []byte) rune {
	if len(data) < escapeBytes || data[0] != '\\' || data[1] != 'u' {
		return -1
	}
	code, err := strconv.ParseUint(string(data[2:escapeBytes]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(code)
}
