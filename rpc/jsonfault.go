package rpc

import (
	"encoding/json"
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Examples stand in errors, so that a reader can write what is wanted without looking it up.
const (
	exampleInstant  = `"2030-01-01T08:00:00Z"`
	exampleDuration = `"300s"`
	exampleInterval = `"10s"`
	exampleBytes    = `"aGVsbG8="`
)

// maxShapeDepth bounds how many messages stand inside each other in an example.
const maxShapeDepth = 3

// maxShownBytes bounds how much of a value is repeated to who sent it.
const maxShownBytes = 60

var (
	durationName  = (&durationpb.Duration{}).ProtoReflect().Descriptor().FullName()
	timestampName = (&timestamppb.Timestamp{}).ProtoReflect().Descriptor().FullName()
)

// faultOf says what is wrong at a place of a JSON document and what belongs there; empty if the library says it better:
// the document is no JSON, or the fault is not in the kind of a value.
func faultOf(data []byte, at jsonPlace, place schemaPlace) string {
	switch {
	case !json.Valid(data), place.in == nil, len(at.open) > maxPathSteps:
		return ""
	case place.field == nil:
		if len(at.open) == 0 {
			return "" // the document itself is no object
		}
		return "is an unknown field; " + knownFields(place.in)
	case at.value == nil || isOfKind(at.value, place):
		return ""
	}
	wanted := wantedAt(place)
	if wanted == "" {
		return ""
	}
	return fmt.Sprintf("is %s; it must be %s", shown(at.value), wanted)
}

// knownFields lists a message's fields as JSON spells them.
func knownFields(md protoreflect.MessageDescriptor) string {
	fields := md.Fields()
	if fields.Len() == 0 {
		return "there are none here"
	}
	names := make([]string, fields.Len())
	for i := range names {
		names[i] = fields.Get(i).JSONName()
	}
	return "known here: " + strings.Join(names, ", ")
}

// shown is a value as the sender wrote it, cut.
func shown(value json.Token) string {
	switch v := value.(type) {
	case json.Delim:
		if v == '[' {
			return "a list"
		}
		return "an object"
	case string:
		if len(v) > maxShownBytes {
			v = cutText(v, maxShownBytes) + "…"
		}
		return fmt.Sprintf("%q", v)
	case json.Number:
		return cutText(v.String(), maxShownBytes)
	}
	return fmt.Sprint(value)
}

// isOfKind says whether the value is of JSON's kind for the place, so that the fault is another one: inside it, or one of
// its text.
func isOfKind(value json.Token, place schemaPlace) bool {
	delim, _ := value.(json.Delim)
	switch {
	case place.isWhole() && place.field.IsList():
		return delim == '['
	case place.isWhole() && place.field.IsMap():
		return delim == '{'
	}
	switch kind := place.elementField(); kind.Kind() {
	case protoreflect.StringKind:
		_, isText := value.(string)
		return isText
	case protoreflect.MessageKind:
		return delim == '{' && !isText(kind.Message())
	}
	return false
}

// isWhole says whether the place is a list or map as a whole.
func (p schemaPlace) isWhole() bool { return !p.element && (p.field.IsList() || p.field.IsMap()) }

// elementField describes the value at the place: the field, or a map's value.
func (p schemaPlace) elementField() protoreflect.FieldDescriptor {
	if p.field.IsMap() {
		return p.field.MapValue()
	}
	return p.field
}

// isText says whether JSON has a message's value as a string.
func isText(md protoreflect.MessageDescriptor) bool {
	switch md.FullName() {
	case durationName, timestampName, fieldMaskName:
		return true
	}
	return false
}

// wantedAt describes in words what belongs at a place, with an example; empty for kinds that the API does not use.
func wantedAt(place schemaPlace) string {
	field := place.elementField()
	switch {
	case place.isWhole() && place.field.IsList():
		return "a list such as [" + exampleOf(field, 0) + "]"
	case place.isWhole():
		return `an object such as {"key": ` + exampleOf(field, 0) + `}`
	}
	switch field.Kind() {
	case protoreflect.StringKind:
		return "a text in quotes"
	case protoreflect.BytesKind:
		return "base64, such as " + exampleBytes + ` for "hello"`
	case protoreflect.BoolKind:
		return "true or false"
	case protoreflect.EnumKind:
		return "one of " + strings.Join(enumNames(field.Enum()), ", ")
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		return "a whole number"
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind:
		return "a whole number that is not negative"
	case protoreflect.MessageKind:
		return wantedMessage(field.Message())
	}
	return ""
}

func wantedMessage(md protoreflect.MessageDescriptor) string {
	switch md.FullName() {
	case durationName:
		return "a duration in seconds, such as " + exampleDuration
	case timestampName:
		return "an instant as RFC 3339 has it, such as " + exampleInstant
	case fieldMaskName:
		return `names of fields with commas between them, such as "queue,priority"`
	}
	return "an object such as " + strings.Join(shapesOf(md, 0), " or ")
}

// enumNames are an enum's values that may be sent; the first says that there is none.
func enumNames(enum protoreflect.EnumDescriptor) []string {
	var names []string
	for i := 1; i < enum.Values().Len(); i++ {
		names = append(names, string(enum.Values().Get(i).Name()))
	}
	return names
}

// shapesOf are examples of a message: with its first field or, where that is one of several of which exactly one must be
// there, one with each.
func shapesOf(md protoreflect.MessageDescriptor, depth int) []string {
	fields := md.Fields()
	if fields.Len() == 0 || depth == maxShapeDepth {
		return []string{"{}"}
	}
	one := func(field protoreflect.FieldDescriptor) string {
		value := exampleOf(field, depth+1)
		switch {
		case field.IsMap():
			value = `{"key": ` + exampleOf(field.MapValue(), depth+1) + "}"
		case field.IsList():
			value = "[" + value + "]"
		}
		return fmt.Sprintf(`{"%s": %s}`, field.JSONName(), value)
	}
	first := fields.Get(0)
	choice := first.ContainingOneof()
	if choice == nil || choice.IsSynthetic() {
		return []string{one(first)}
	}
	shapes := make([]string, choice.Fields().Len())
	for i := range shapes {
		shapes[i] = one(choice.Fields().Get(i))
	}
	return shapes
}

// exampleOf is an example of a field's value, or of its elements'.
func exampleOf(field protoreflect.FieldDescriptor, depth int) string {
	switch field.Kind() {
	case protoreflect.BoolKind:
		return "true"
	case protoreflect.BytesKind:
		return exampleBytes
	case protoreflect.EnumKind:
		return fmt.Sprintf("%q", field.Enum().Values().Get(1).Name())
	case protoreflect.MessageKind:
		switch field.Message().FullName() {
		case durationName:
			return exampleInterval
		case timestampName:
			return exampleInstant
		}
		return shapesOf(field.Message(), depth)[0]
	case protoreflect.StringKind:
		return `"text"`
	}
	return "1"
}
