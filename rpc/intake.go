package rpc

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

const (
	// quietBytes is the room that a message may take without being watched while it arrives.
	quietBytes = 64 << 10
	// maxSilence bounds the pauses within a larger message: a caller that has stopped must not keep room from others.
	maxSilence = 20 * time.Second
	// maxDelivery bounds how long one write of a larger answer takes: 32 MiB need half a megabyte a second.
	maxDelivery = time.Minute
	// maxDrainBytes and maxDrain bound what is read of a message after its answer: see drain.
	maxDrainBytes = 64 << 20
	maxDrain      = 10 * time.Second
	// bufferedBytes of an answer stay in net/http's buffer until its handler returns.
	bufferedBytes = 2 << 10
)

var errNoRoom = &Overloaded{Reason: "the node works on as much as it can hold", RetryAfter: time.Second}

// intake is a request's body on its way in. The room it takes in the node's bound on messages under way is what it
// announced; or what has arrived, if that is more; and while it may have to be decompressed, as much as it may become.
// The zero value takes no room. Not safe for concurrent use, as a body is not.
type intake struct {
	io.ReadCloser
	s       *server
	control *http.ResponseController
	arrived int64
	room    int64
	// surplus is the room for what may come of decompression.
	surplus int64
	watched bool
	// ended: nothing more is to be read, or came in time.
	ended bool
}

// admit makes room for a request's message of at most maxBytes and watches over its arrival; it is false if there is none.
func (s *server) admit(c *call, r *http.Request, maxBytes int64) bool {
	// Who announces more than is allowed is refused later, and takes no room from the others.
	room, surplus := max(0, r.ContentLength), int64(0)
	if room > maxBytes {
		room = 0
	}
	if isCompressed(r.Header) {
		surplus = maxBytes
	}
	if !s.take(room + surplus) {
		return false
	}
	c.body = intake{
		ReadCloser: r.Body, s: s, control: http.NewResponseController(c.ResponseWriter), room: room, surplus: surplus,
	}
	r.Body = &c.body
	return true
}

// take takes room for n more bytes, or none. A message always has room if there is no other.
func (s *server) take(n int64) bool {
	if total := s.inflight.Add(n); n == 0 || total <= maxInflightBytes || total == n {
		return true
	}
	s.inflight.Add(-n)
	return false
}

// isCompressed looks where the protocols say so.
func isCompressed(h http.Header) bool {
	for _, name := range []string{"Content-Encoding", "Grpc-Encoding"} {
		if encoding := h.Get(name); encoding != "" && encoding != "identity" {
			return true
		}
	}
	return false
}

// Read reads the body, and sees to it that a large one keeps coming.
func (in *intake) Read(p []byte) (int, error) {
	if in.room > quietBytes {
		in.watched = true
		if err := in.limitSilence(time.Now().Add(in.s.maxSilence)); err != nil {
			return 0, err
		}
	}
	n, err := in.ReadCloser.Read(p)
	in.arrived += int64(n)
	in.ended = err != nil
	if more := in.arrived - in.room; more > 0 {
		if !in.s.take(more) {
			answer, _ := callError(errNoRoom)
			return n, answer
		}
		in.room += more
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		answer, _ := callError(&Unavailable{
			Reason: fmt.Sprintf("nothing of the message arrived for %s", in.s.maxSilence), RetryAfter: time.Second,
		})
		return n, answer
	}
	return n, err
}

// complete is called when the message is decoded: what its call does now may take as long as it likes.
func (in *intake) complete() {
	if in.surplus != 0 {
		in.s.inflight.Add(-in.surplus)
		in.surplus = 0
	}
	if in.watched {
		in.watched = false
		// A connection that refuses is broken, and says so when it is used next.
		_ = in.limitSilence(time.Time{})
	}
}

// drain reads and forgets the rest of a message that was answered before it was read. Over HTTP/1 a caller may send all of it
// before he looks for the answer, and would find that the connection was reset.
func (in *intake) drain(r *http.Request) {
	if r.ProtoMajor != 1 || in.ended || in.arrived == r.ContentLength || r.ContentLength > maxDrainBytes {
		return
	}
	if r.Header.Get("Expect") != "" {
		return // the caller waits to be asked for the message, and will not be
	}
	// Whoever looks for the answer first finds it. Errors here are the connection's, which tells them when it is used next.
	if in.control.Flush() != nil || in.limitSilence(time.Now().Add(maxDrain)) != nil {
		return
	}
	if n, err := io.CopyN(io.Discard, in.ReadCloser, maxDrainBytes); n == maxDrainBytes || !errors.Is(err, io.EOF) {
		return
	}
	_ = in.limitSilence(time.Time{})
}

// release gives all room back.
func (in *intake) release() {
	in.s.inflight.Add(-in.room - in.surplus)
	in.room, in.surplus = 0, 0
}

// limitSilence sets when a read gives up; the zero time is never.
func (in *intake) limitSilence(until time.Time) error {
	if err := in.control.SetReadDeadline(until); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil // not supported: a request that is in memory
}
