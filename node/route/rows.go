package route

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"connectrpc.com/connect"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1/clusterv1connect"
	"github.com/carillon-scheduler/carillon/rpc"

	clusterv1 "github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1"
)

// View calls fn once with the rows of a shard, all of one moment, as one of the stores has them: the first one that answers.
// Everything acknowledged before the call is in them unless stale is set. It takes as long as one call to a peer may.
// Errors are those of rpc.Backend, or fn's.
func (r *Router) View(ctx context.Context, shard uint32, stale bool, stores []string, fn func(fsm.Reader) error) error {
	var err error = &rpc.Unavailable{Reason: fmt.Sprintf("no store with a replica of shard %d is known", shard), RetryAfter: retryAfter}
	for _, store := range stores {
		var p *peer
		if p, err = r.peer(store); err != nil {
			continue
		}
		opened := false
		var fnErr error
		err = p.call(ctx, func(ctx context.Context) error {
			rows, err := openRows(ctx, p.client, &clusterv1.RowsOpen{Store: store, From: r.cfg.Self, Shard: shard, Stale: stale})
			if err != nil {
				return err
			}
			opened = true
			fnErr = fn(rows)
			return rows.close()
		})
		if err == nil {
			return fnErr
		}
		if opened || ctx.Err() != nil {
			break
		}
	}
	var unavailable *rpc.Unavailable
	if errors.As(err, &unavailable) {
		return &rpc.Unavailable{Reason: unavailable.Reason, RetryAfter: unavailable.RetryAfter} // a read is never ambiguous
	}
	return err
}

// rows are the rows of a shard on another node: fsm.Reader. After an error reads find nothing, and close tells.
type rows struct {
	stream *connect.BidiStreamForClient[clusterv1.RowsRequest, clusterv1.RowsResponse]
	err    error
}

var _ fsm.Reader = (*rows)(nil)

func openRows(ctx context.Context, client clusterv1connect.NodeServiceClient, open *clusterv1.RowsOpen) (*rows, error) {
	r := &rows{stream: client.Rows(ctx)}
	r.ask(&clusterv1.RowsRequest{Question: &clusterv1.RowsRequest_Open{Open: open}})
	if r.err != nil {
		return nil, errors.Join(r.err, r.stream.CloseResponse())
	}
	return r, nil
}

// ask asks one question; nil after an error.
func (r *rows) ask(q *clusterv1.RowsRequest) *clusterv1.RowsResponse {
	if r.err != nil {
		return nil
	}
	// What ended the call is told by Receive.
	if err := r.stream.Send(q); err != nil && !errors.Is(err, io.EOF) {
		r.err = err
		return nil
	}
	res, err := r.stream.Receive()
	if err != nil {
		r.err = err
		return nil
	}
	return res
}

// Get returns the value of a row.
func (r *rows) Get(key []byte) (value []byte, ok bool) {
	res := r.ask(&clusterv1.RowsRequest{Question: &clusterv1.RowsRequest_Get{Get: key}})
	if len(res.GetRows()) == 0 {
		return nil, false
	}
	return res.Rows[0].Value, true
}

// Scan calls fn for the rows in [start, end) in key order until it returns false; a nil end is the end of the shard.
func (r *rows) Scan(start, end []byte, fn func(key, value []byte) bool) {
	if end != nil && bytes.Compare(start, end) >= 0 {
		return
	}
	for page := uint32(firstPage); ; page = min(2*page, maxPage) {
		res := r.ask(&clusterv1.RowsRequest{Question: &clusterv1.RowsRequest_Scan{
			Scan: &clusterv1.RowsScan{Start: start, End: end, Max: page},
		}})
		for _, row := range res.GetRows() {
			if !fn(row.Key, row.Value) {
				return
			}
		}
		if !res.GetMore() || len(res.Rows) == 0 {
			return
		}
		start = append(slices.Clone(res.Rows[len(res.Rows)-1].Key), 0)
	}
}

// close ends the call, and returns the first error of it.
func (r *rows) close() error {
	if r.err == nil {
		r.err = r.stream.CloseRequest()
	}
	if r.err == nil {
		if _, err := r.stream.Receive(); !errors.Is(err, io.EOF) {
			r.err = err
		}
	}
	if err := r.stream.CloseResponse(); r.err == nil {
		r.err = err
	}
	return r.err
}

// serveRows serves a call of Rows, which ends at rowsTimeout whatever its caller does.
func serveRows(inner http.Handler, w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), rowsTimeout)
	defer cancel()
	if err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(rowsTimeout)); err != nil {
		http.Error(w, "this connection cannot be bounded in time", http.StatusInternalServerError)
		return
	}
	inner.ServeHTTP(w, r.WithContext(ctx))
}

// Rows implements the service.
func (s *server) Rows(ctx context.Context, stream *connect.BidiStream[clusterv1.RowsRequest, clusterv1.RowsResponse]) error {
	first, err := stream.Receive()
	if err != nil {
		return err
	}
	open := first.GetOpen()
	if open == nil {
		return connect.NewError(connect.CodeInvalidArgument, errors.New("the first question does not say which rows"))
	}
	local, err := s.local(open.Store)
	if err != nil {
		return err
	}
	var callErr error
	err = local.View(ctx, open.Shard, open.Stale, func(r fsm.Reader) error {
		callErr = answerQuestions(r, stream)
		return nil
	})
	if err != nil {
		return connect.NewError(rowsCode(err), err)
	}
	return callErr
}

// rowsCode: whatever keeps this node from reading, another one may be able to.
func rowsCode(err error) connect.Code {
	switch {
	case errors.Is(err, context.Canceled):
		return connect.CodeCanceled
	case errors.Is(err, context.DeadlineExceeded):
		return connect.CodeDeadlineExceeded
	}
	return connect.CodeUnavailable
}

// answerQuestions answers until the caller has no more of them.
func answerQuestions(r fsm.Reader, stream *connect.BidiStream[clusterv1.RowsRequest, clusterv1.RowsResponse]) error {
	res := &clusterv1.RowsResponse{} // that the rows are open
	for {
		if err := stream.Send(res); err != nil {
			return err
		}
		q, err := stream.Receive()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		switch ask := q.GetQuestion().(type) {
		case *clusterv1.RowsRequest_Get:
			res = rowOf(r, ask.Get)
		case *clusterv1.RowsRequest_Scan:
			res = pageOf(r, ask.Scan)
		default:
			return connect.NewError(connect.CodeInvalidArgument, errors.New("question is missing"))
		}
	}
}

func rowOf(r fsm.Reader, key []byte) *clusterv1.RowsResponse {
	res := &clusterv1.RowsResponse{}
	if value, ok := r.Get(key); ok {
		res.Rows = []*clusterv1.Row{{Key: key, Value: value}}
	}
	return res
}

func pageOf(r fsm.Reader, scan *clusterv1.RowsScan) *clusterv1.RowsResponse {
	res := &clusterv1.RowsResponse{}
	end := scan.GetEnd()
	if len(end) == 0 {
		end = nil
	}
	most, size := int(min(max(scan.GetMax(), 1), maxPage)), 0
	r.Scan(scan.GetStart(), end, func(key, value []byte) bool {
		if len(res.Rows) == most || size > maxPageBytes {
			res.More = true
			return false
		}
		size += len(key) + len(value)
		res.Rows = append(res.Rows, &clusterv1.Row{Key: slices.Clone(key), Value: slices.Clone(value)})
		return true
	})
	return res
}
