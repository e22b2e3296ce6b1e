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

// jsonPlace is where reading stopped: what was open there and, if it is a member's or an element's value, that.
type jsonPlace struct {
	open []jsonStep
	// value is the token it begins with; nil: it stopped at a name, at a bracket that closes, or broke off.
	value json.Token
}

// errorPlace is where a protojson error about data stopped.
func errorPlace(data []byte, text string) jsonPlace {
	match := jsonErrorPlace.FindStringSubmatch(text)
	if match == nil {
		return placeAt(data, len(data)) // it breaks off
	}
	line, lineErr := strconv.Atoi(match[1])
	column, columnErr := strconv.Atoi(match[2])
	if lineErr != nil || columnErr != nil {
		return jsonPlace{}
	}
	return placeAt(data, offsetOf(data, line, column))
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

// placeAt is what is open around the token at offset, or around the place where the document breaks off before that.
func placeAt(data []byte, offset int) jsonPlace {
	var open []jsonStep
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	for {
		token, err := d.Token()
		if err != nil {
			return jsonPlace{open: open}
		}
		delim, isDelim := token.(json.Delim)
		reached := d.InputOffset() > int64(offset)
		if closes := isDelim && (delim == '}' || delim == ']'); closes {
			if reached {
				return jsonPlace{open: open}
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
					return jsonPlace{open: open}
				}
				continue
			default:
				top.value = false
			}
		}
		if reached {
			return jsonPlace{open: open, value: token}
		}
		if isDelim {
			open = append(open, jsonStep{list: delim == '[', index: -1})
		}
	}
}

// schemaPlace is a place as the schema knows it.
type schemaPlace struct {
	// path of the field, with the schema's names for what the schema knows.
	path string
	// in is the message that the last name of path stands in; nil if the schema does not know it.
	in protoreflect.MessageDescriptor
	// field is what that name stands for; nil if in has no such field.
	field protoreflect.FieldDescriptor
	// element: the place is an element of field, a list or map, and not field as a whole.
	element bool
}

// schemaPlaceOf follows what is open through the schema.
func schemaPlaceOf(md protoreflect.MessageDescriptor, open []jsonStep) schemaPlace {
	place := schemaPlace{in: md}
	var b strings.Builder
	for _, step := range open[:min(len(open), maxPathSteps)] {
		switch {
		case step.list && step.index >= 0:
			b.WriteString("[" + strconv.Itoa(step.index) + "]")
			place.element = true
		case !step.list && step.name != "":
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			if place.field != nil && place.field.IsMap() && !place.element {
				place.element = true
				md = place.field.MapValue().Message()
				b.WriteString(step.name)
				continue
			}
			place.in, place.field, place.element = md, fieldNamed(md, step.name), false
			md = nil
			if place.field == nil {
				b.WriteString(step.name)
				continue
			}
			if !place.field.IsMap() {
				md = place.field.Message()
			}
			b.WriteString(string(place.field.Name()))
		}
	}
	place.path = b.String()
	return place
}

// fieldNamed finds a field by either spelling; nil if there is none, or no schema.
func fieldNamed(md protoreflect.MessageDescriptor, name string) protoreflect.FieldDescriptor {
	if md == nil {
		return nil
	}
	if field := md.Fields().ByJSONName(name); field != nil {
		return field
	}
	return md.Fields().ByTextName(name)
}
