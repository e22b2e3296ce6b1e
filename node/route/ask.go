package route

import (
	"context"
	"net/http"

	"connectrpc.com/connect"

	"github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1/clusterv1connect"

	clusterv1 "github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1"
)

// Asker calls nodes by their addresses, before it is known who they are.
type Asker struct {
	HTTP *http.Client
	// Scheme is "https" unless it is set.
	Scheme string
}

// Probe asks the node at addr, host:port, who it is.
func (a Asker) Probe(ctx context.Context, addr string, req *clusterv1.ProbeRequest) (*clusterv1.ProbeResponse, error) {
	return message(a.client(addr).Probe(ctx, connect.NewRequest(req)))
}

// Join asks the node at addr to admit this one.
func (a Asker) Join(ctx context.Context, addr string, req *clusterv1.JoinRequest) (*clusterv1.JoinResponse, error) {
	return message(a.client(addr).Join(ctx, connect.NewRequest(req)))
}

func (a Asker) client(addr string) clusterv1connect.NodeServiceClient {
	scheme := a.Scheme
	if scheme == "" {
		scheme = "https"
	}
	return NewClient(a.HTTP, scheme, addr)
}

// message takes the envelope off an answer.
func message[T any](res *connect.Response[T], err error) (*T, error) {
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}
