package rpc

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// protojson says where it stopped, `(line 1:24)` in characters from 1, but not of every error in which field.
var jsonErrorPlace = regexp.MustCompile(`\(line (\d+):(\d+)\)`)

// maxPathSteps bounds the path of an error: nesting is bounded by nothing else.
const maxPathSteps = 16

// jsonStep is an object or a list that is open at some place of a document.
type jsonStep struct {
	list  bool
	index int    // of the list's element, from 0; -1 before the first
	name  string // of the object's member
	value bool   // a name was read and its value comes next
}

// errorPath returns the path, in proto names, of the field that a protojson error about data is about; empty if that is
// none.
func errorPath(data []byte, md protoreflect.MessageDescriptor, text string) string {
	offset := len(data) // it breaks off
	if match := jsonErrorPlace.FindStringSubmatch(text); match != nil {
		line, lineErr := strconv.Atoi(match[1])
		column, columnErr := strconv.Atoi(match[2])
		if lineErr != nil || columnErr != nil {
			return ""
		}
		offset = offsetOf(data, line, column)
	}
	return protoPath(md, openAt(data, offset))
}

// offsetOf is the byte at which a line and column stand; the end if there is no such place.
func offsetOf(data []byte, line, column int) int {
	offset := 0
	for ; line > 1; line-- {
		end := bytes.IndexByte(data[offset:], '\n')
		if end < 0 {
			return len(data)
		}
		offset += end + 1
	}
	for ; column > 1 && offset < len(data); column-- {
		_, n := utf8.DecodeRune(data[offset:])
		offset += n
	}
	return offset
}

// openAt is what is open around the token at offset, or around the place where the document breaks off before that.
func openAt(data []byte, offset int) []jsonStep {
	var open []jsonStep
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	for {
		token, err := d.Token()
		if err != nil {
			return open
		}
		delim, isDelim := token.(json.Delim)
		reached := d.InputOffset() > int64(offset)
		if closes := isDelim && (delim == '}' || delim == ']'); closes {
			if reached {
				return open
			}
			open = open[:len(open)-1]
			continue
		}
		if n := len(open); n > 0 {
			switch top := &open[n-1]; {
			case top.list:
				top.index++
			case !top.value:
				top.name, top.value = token.(string), true
				if reached {
					return open
				}
				continue
			default:
				top.value = false
			}
		}
		if reached {
			return open
		}
		if isDelim {
			open = append(open, jsonStep{list: delim == '[', index: -1})
		}
	}
}

// protoPath writes a path with the schema's names for what the schema knows.
func protoPath(md protoreflect.MessageDescriptor, path []jsonStep) string {
	var b strings.Builder
	for _, step := range path[:min(len(path), maxPathSteps)] {
		switch {
		case step.list && step.index >= 0:
			b.WriteString("[" + strconv.Itoa(step.index) + "]")
		case !step.list && step.name != "":
			name := step.name
			if md != nil {
				fd := md.Fields().ByJSONName(name)
				if fd == nil {
					fd = md.Fields().ByTextName(name)
				}
				md = nil
				if fd != nil {
					name, md = string(fd.Name()), fd.Message()
				}
			}
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(name)
		}
	}
	return b.String()
}
