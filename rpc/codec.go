package rpc

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/carillon-scheduler/carillon/proto/codec"
)

// binaryCodec is Connect's "proto" codec. Strings are not checked for UTF-8 here: the handlers do, and name the field.
type binaryCodec struct{ codec.Proto }

// Unmarshal copies what it keeps: data is one of Connect's pooled buffers.
func (c binaryCodec) Unmarshal(data []byte, message any) error {
	if err := boundFields(data); err != nil {
		return err
	}
	return c.Proto.Unmarshal(data, message)
}

// jsonCodec is Connect's "json" codec, which refuses unknown fields: a misspelt one must not be taken for an unset one.
type jsonCodec struct{ name string }

func (c jsonCodec) Name() string { return c.name }

func (jsonCodec) Marshal(message any) ([]byte, error) {
	m, ok := message.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("marshal %T: not a message", message)
	}
	return protojson.Marshal(m)
}

func (jsonCodec) Unmarshal(data []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return fmt.Errorf("unmarshal %T: not a message", message)
	}
	if len(data) == 0 {
		return errors.New("an empty body is not a JSON object; send {}")
	}
	if field, text := decodeJSON(data, m); text != "" {
		// Connect puts no details into this error: the text has to name the field.
		return errors.New(strings.TrimSpace(field + " " + text))
	}
	return nil
}

// decodeJSON decodes strictly. If it cannot, text says why and field names what it is about, as far as that is known.
func decodeJSON(data []byte, m proto.Message) (field, text string) {
	if err := boundObjects(data); err != nil {
		return "", err.Error()
	}
	if !utf8.Valid(data) {
		return invalidUTF8(data, m), "is not valid UTF-8"
	}
	err := protojson.Unmarshal(data, m)
	if err == nil {
		return "", ""
	}
	if at := codec.LoneSurrogate(data); at >= 0 {
		place := schemaPlaceOf(m.ProtoReflect().Descriptor(), placeAt(data, at).open)
		return place.path, fmt.Sprintf("has %s, half of a surrogate pair without the other half", data[at:at+6])
	}
	// The library's prefix has a random kind of space, so that nobody relies on the text.
	text = strings.ReplaceAll(err.Error(), "\u00a0", " ")
	text = strings.TrimSpace(strings.TrimPrefix(text, "proto:"))
	at := errorPlace(data, text)
	place := schemaPlaceOf(m.ProtoReflect().Descriptor(), at.open)
	if fault := faultOf(data, at, place); fault != "" {
		return place.path, fault
	}
	return place.path, "cannot be read: " + text
}

var errParts = fmt.Errorf("consists of more than %d messages", maxParts)

// boundFields refuses a binary message of more than maxParts fields; what they hold in turn is limited by field. What is
// malformed is left to the decoder.
func boundFields(data []byte) error {
	if len(data) <= 2*maxParts { // the least that so many fields take
		return nil
	}
	for n := 0; len(data) > 0; n++ {
		_, _, size := protowire.ConsumeField(data)
		if size < 0 {
			return nil
		}
		if n == maxParts {
			return errParts
		}
		data = data[size:]
	}
	return nil
}

// boundObjects refuses JSON of more than maxParts objects.
func boundObjects(data []byte) error {
	if len(data) <= 2*maxParts {
		return nil
	}
	for n := 0; len(data) > 0; {
		switch data[0] {
		case '{':
			if n++; n > maxParts {
				return errParts
			}
		case '"':
			data = skipString(data)
			continue
		}
		data = data[1:]
	}
	return nil
}

// skipString returns what comes after the JSON string at the start of data.
func skipString(data []byte) []byte {
	for data = data[1:]; ; {
		end := bytes.IndexAny(data, `"\`)
		switch {
		case end < 0:
			return nil
		case data[end] == '"':
			return data[end+1:]
		}
		data = data[min(end+2, len(data)):]
	}
}

// invalidUTF8 returns the path of the string that is not UTF-8: it decodes with a mark in place of the broken bytes and
// looks where the mark is. Empty if the JSON is broken besides.
func invalidUTF8(data []byte, m proto.Message) string {
	const mark = "\ufdd0\ufdd1" // two noncharacters, which mean nothing in any text
	if protojson.Unmarshal(bytes.ToValidUTF8(data, []byte(mark)), m) != nil {
		return ""
	}
	return pathOfText(m.ProtoReflect(), mark)
}

// pathOfText returns the path of the first string that contains text.
func pathOfText(m protoreflect.Message, text string) (path string) {
	m.Range(func(fd protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		name := string(fd.Name())
		visit := func(name string, value protoreflect.Value) bool {
			if fd.Kind() == protoreflect.StringKind && !fd.IsMap() && strings.Contains(value.String(), text) {
				path = name
			} else if fd.Message() != nil && !fd.IsMap() {
				if inner := pathOfText(value.Message(), text); inner != "" {
					path = name + "." + inner
				}
			}
			return path == ""
		}
		switch {
		case fd.IsMap():
			value.Map().Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
				if fd.MapValue().Kind() == protoreflect.StringKind && strings.Contains(key.String()+value.String(), text) {
					path = name
				}
				return path == ""
			})
		case fd.IsList():
			for i := 0; i < value.List().Len() && path == ""; i++ {
				visit(fmt.Sprintf("%s[%d]", name, i), value.List().Get(i))
			}
		default:
			visit(name, value)
		}
		return path == ""
	})
	return path
}
