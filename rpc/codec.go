package rpc

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// vtMessage is a message with generated encoding, which takes about half the time of the reflective one.
type vtMessage interface {
	SizeVT() int
	MarshalToSizedBufferVT([]byte) (int, error)
	UnmarshalVT([]byte) error
}

// binaryCodec is Connect's "proto" codec. Strings are not checked for UTF-8 here: the handlers do, and name the field.
// Messages of others, such as health's, go through the ordinary encoding.
type binaryCodec struct{}

func (binaryCodec) Name() string { return "proto" }

func (c binaryCodec) Marshal(message any) ([]byte, error) { return c.MarshalAppend(nil, message) }

// MarshalAppend lets Connect use its pooled buffers.
func (binaryCodec) MarshalAppend(dst []byte, message any) ([]byte, error) {
	switch m := message.(type) {
	case vtMessage:
		size, start := m.SizeVT(), len(dst)
		dst = slices.Grow(dst, size)[:start+size]
		n, err := m.MarshalToSizedBufferVT(dst[start:])
		if err == nil && n != size {
			err = fmt.Errorf("marshal %T: wrote %d of %d bytes", message, n, size)
		}
		return dst, err
	case proto.Message:
		return proto.MarshalOptions{}.MarshalAppend(dst, m)
	}
	return nil, fmt.Errorf("marshal %T: not a message", message)
}

// Unmarshal copies what it keeps: data is one of Connect's pooled buffers.
func (binaryCodec) Unmarshal(data []byte, message any) error {
	switch m := message.(type) {
	case vtMessage:
		return m.UnmarshalVT(data)
	case proto.Message:
		return proto.Unmarshal(data, m)
	}
	return fmt.Errorf("unmarshal %T: not a message", message)
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
	if err := protojson.Unmarshal(data, m); err != nil {
		_, text := describeJSONError(err)
		return errors.New(text)
	}
	return nil
}

// protojson names the field in the error's text only.
var jsonErrorField = regexp.MustCompile(`(?:unknown field "|duplicate field "|for \w+ field )([\w.\[\]]+)`)

// describeJSONError returns the field that a JSON decoding error is about, if it says so, and its text without decoration.
func describeJSONError(err error) (field, text string) {
	// The library's prefix has a random kind of space, so that nobody relies on the text.
	text = strings.TrimLeft(strings.TrimPrefix(err.Error(), "proto:"), " \u00a0")
	text = strings.ReplaceAll(text, "\u00a0", " ")
	if match := jsonErrorField.FindStringSubmatch(text); match != nil {
		field = match[1]
	}
	return field, text
}
