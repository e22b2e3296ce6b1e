package manifest

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// encode is a job as a document's node. Reading it gives the same job.
func encode(job Job) *node {
	n := encodeMessage(job.Spec.ProtoReflect())
	for i, k := range n.keys {
		if k.name == fieldPayload {
			n.keys[i].name, n.items[i] = encodePayload(job.Spec)
		}
	}
	if job.Version != 0 {
		n.add(fieldVersion, &node{kind: number, text: fmt.Sprint(job.Version)})
	}
	return n
}

func encodeMessage(m protoreflect.Message) *node {
	n := &node{kind: mapping}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		if field := fields.Get(i); m.Has(field) {
			n.add(field.JSONName(), encodeField(field, m.Get(field)))
		}
	}
	return n
}

func encodeField(field protoreflect.FieldDescriptor, v protoreflect.Value) *node {
	switch {
	case field.IsList():
		n := &node{kind: list}
		for i := range v.List().Len() {
			n.items = append(n.items, encodeValue(field, v.List().Get(i)))
		}
		return n
	case field.IsMap():
		n := &node{kind: mapping}
		pairs := v.Map()
		for _, k := range sortedKeys(pairs) {
			n.add(k, encodeValue(field.MapValue(), pairs.Get(protoreflect.ValueOfString(k).MapKey())))
		}
		return n
	}
	return encodeValue(field, v)
}

func sortedKeys(pairs protoreflect.Map) []string {
	var keys []string
	pairs.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, k.String())
		return true
	})
	slices.Sort(keys)
	return keys
}

func encodeValue(field protoreflect.FieldDescriptor, v protoreflect.Value) *node {
	switch field.Kind() {
	case protoreflect.StringKind:
		return &node{kind: text, text: v.String()}
	case protoreflect.BytesKind:
		return &node{kind: text, text: base64.StdEncoding.EncodeToString(v.Bytes())}
	case protoreflect.BoolKind:
		return &node{kind: boolean, text: fmt.Sprint(v.Bool())}
	case protoreflect.EnumKind:
		return &node{kind: text, text: enumName(field.Enum(), v.Enum())}
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind:
		return &node{kind: number, text: fmt.Sprint(v.Uint())}
	case protoreflect.MessageKind:
		switch of := v.Message().Interface().(type) {
		case *durationpb.Duration:
			return &node{kind: text, text: FormatDuration(of.AsDuration())}
		case *timestamppb.Timestamp:
			return &node{kind: plain, text: of.AsTime().Format(time.RFC3339Nano)}
		}
		return encodeMessage(v.Message())
	default:
		panic(fmt.Sprintf("%s: fields of kind %s are not known here", field.FullName(), field.Kind()))
	}
}

// encodePayload writes a payload so that a person can read it, if that is possible and every byte comes back.
func encodePayload(spec *carillonv1.JobSpec) (name string, n *node) {
	body := spec.GetPayload()
	if kind := spec.GetContentType(); kind == "application/json" || strings.HasSuffix(kind, "+json") {
		docs, err := fromJSON(body)
		if err == nil && len(docs) == 1 {
			if again, fault := compactJSON(docs[0]); fault == nil && bytes.Equal(again, body) {
				return fieldPayloadJSON, docs[0]
			}
		}
	}
	if isText(body) {
		return fieldPayloadText, &node{kind: text, text: string(body)}
	}
	return fieldPayload, &node{kind: text, text: base64.StdEncoding.EncodeToString(body)}
}

// isText reports whether bytes are what a person may have written.
func isText(b []byte) bool {
	return utf8.Valid(b) && !bytes.ContainsFunc(b, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' && r != '\t' })
}
