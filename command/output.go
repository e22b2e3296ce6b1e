package command

import (
	"bufio"
	"bytes"
	"errors"
	"io"

	"github.com/carillon-scheduler/carillon/client"
)

const (
	// maxLine is how many bytes of standard error one log record has at most; a longer line is in several.
	maxLine = 4 << 10
	// maxLastWords is how much of the end of standard error an attempt's error has.
	maxLastWords = 2 << 10
)

// result keeps what may be a result and counts the rest, so that a program is not held up by it.
type result struct {
	kept  []byte
	total int
}

// Write implements io.Writer.
func (r *result) Write(b []byte) (int, error) {
	r.total += len(b)
	r.kept = append(r.kept, b[:min(len(b), client.MaxResult-len(r.kept))]...)
	return len(b), nil
}

// lastWords keeps the last lines that were added.
type lastWords struct{ text []byte }

func (l *lastWords) add(line []byte) {
	l.text = append(append(l.text, line...), '\n')
	if over := len(l.text) - maxLastWords; over > 0 {
		l.text = append(l.text[:0], l.text[over:]...)
	}
}

func (l *lastWords) String() string { return string(l.text) }

// readLines calls each with every line, without its end, until r has no more. It keeps the bytes to itself.
func readLines(r io.Reader, each func(line []byte)) error {
	b := bufio.NewReaderSize(r, maxLine)
	for {
		line, err := b.ReadSlice('\n')
		if len(line) > 0 {
			each(bytes.TrimRight(line, "\r\n"))
		}
		switch {
		case err == nil, errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			return nil
		default:
			return err
		}
	}
}
