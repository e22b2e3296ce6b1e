package route

import (
	"net/http"

	"connectrpc.com/connect"

	"github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1/clusterv1connect"
	"github.com/carillon-scheduler/carillon/proto/codec"
)

// NewClient returns a client of the node at addr, host:port, for calls before there is a Router: Probe and Join. scheme is
// "https" between nodes. It has no breaker and no deadline of its own.
func NewClient(client *http.Client, scheme, addr string) clusterv1connect.NodeServiceClient {
	return clusterv1connect.NewNodeServiceClient(client, scheme+"://"+addr,
		connect.WithCodec(codec.Proto{}),
		// Between machines of one network compressing costs more than it saves.
		connect.WithAcceptCompression("gzip", nil, nil),
		connect.WithReadMaxBytes(maxMessageBytes),
	)
}
