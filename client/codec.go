package client

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"
)

// codec is protobuf by generated code instead of reflection, where there is any: see BenchmarkCodec.
type codec struct{}

type vtMessage interface {
	SizeVT() int
	MarshalToSizedBufferVT([]byte) (int, error)
	UnmarshalVT([]byte) error
}

// Name is the standard one: on the wire nothing differs.
func (codec) Name() string { return "proto" }

func (c codec) Marshal(message any) ([]byte, error) { return c.MarshalAppend(nil, message) }

// MarshalAppend lets Connect encode into its pooled buffers.
func (codec) MarshalAppend(dst []byte, message any) ([]byte, error) {
	switch m := message.(type) {
	case vtMessage:
		size, at := m.SizeVT(), len(dst)
		dst = slices.Grow(dst, size)[:at+size]
		_, err := m.MarshalToSizedBufferVT(dst[at:])
		return dst, err
	case proto.Message:
		return proto.MarshalOptions{}.MarshalAppend(dst, m)
	}
	return nil, fmt.Errorf("marshal %T: not a protobuf message", message)
}

func (codec) Unmarshal(data []byte, message any) error {
	switch m := message.(type) {
	case vtMessage:
		return m.UnmarshalVT(data)
	case proto.Message:
		return proto.Unmarshal(data, m)
	}
	return fmt.Errorf("unmarshal %T: not a protobuf message", message)
}
