package route

import (
	"fmt"
	"net/http"
	"slices"

	"connectrpc.com/connect"

	"github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1/clusterv1connect"
)

// codec is protobuf by generated code: every message of this service has it.
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
	m, ok := message.(vtMessage)
	if !ok {
		return nil, fmt.Errorf("marshal %T: not a message of the cluster", message)
	}
	size, at := m.SizeVT(), len(dst)
	dst = slices.Grow(dst, size)[:at+size]
	_, err := m.MarshalToSizedBufferVT(dst[at:])
	return dst, err
}

// Unmarshal copies what it keeps: data is one of Connect's pooled buffers.
func (codec) Unmarshal(data []byte, message any) error {
	m, ok := message.(vtMessage)
	if !ok {
		return fmt.Errorf("unmarshal %T: not a message of the cluster", message)
	}
	return m.UnmarshalVT(data)
}

// NewClient returns a client of the node at addr, host:port, for calls before there is a Router: Probe and Join. scheme is
// "https" between nodes. It has no breaker and no deadline of its own.
func NewClient(client *http.Client, scheme, addr string) clusterv1connect.NodeServiceClient {
	return clusterv1connect.NewNodeServiceClient(client, scheme+"://"+addr,
		connect.WithCodec(codec{}),
		// Between machines of one network compressing costs more than it saves.
		connect.WithAcceptCompression("gzip", nil, nil),
		connect.WithReadMaxBytes(maxMessageBytes),
	)
}
