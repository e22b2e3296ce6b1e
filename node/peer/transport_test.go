package peer

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/node/replica"
)

func TestFramesAndMessagesGetAcross(t *testing.T) {
	fabricTest(t, func(t *testing.T, _ *fabric, a, b *station) {
		var want []string
		for n := range 100 {
			f := frameOf("b", fmt.Sprint(n), "+", strings.Repeat("x", n*100))
			f.From, f.Boot = "", 0 // the transport's to fill in
			want = append(want, "a:"+dataOf(f))
			a.Send(f)
		}
		a.SendMessage("b", 'k', []byte("hello"))
		a.SendMessage("b", 'l', nil)
		b.SendMessage("a", 'm', []byte("hi"))
		elapse(time.Millisecond)
		frames, messages, said := b.heard()
		if !slices.Equal(frames, want) {
			t.Errorf("%d frames came, %d are right", len(frames), len(want))
		}
		if !slices.Equal(messages, []string{"a:k:hello", "a:l:"}) || len(said) > 0 {
			t.Errorf("messages %q, said %q", messages, said)
		}
		if _, messages, _ := a.heard(); !slices.Equal(messages, []string{"b:m:hi"}) {
			t.Errorf("messages %q", messages)
		}
		if sent, got := a.Counters(), b.Counters(); sent.FramesSent != 100 || got.FramesReceived != 100 || sent.Dropped != 0 {
			t.Errorf("counted %+v and %+v", sent, got)
		}
	})
}

// A frame larger than others may be goes as several, and beats go on between them.
func TestLargeFrameGoesInParts(t *testing.T) {
	fabricTest(t, func(t *testing.T, _ *fabric, a, b *station) {
		var data []string
		for range 40 {
			data = append(data, strings.Repeat("x", frameSplit/4))
		}
		f := frameOf("b", data...)
		a.Send(f)
		elapse(time.Millisecond)
		frames, _, _ := b.heard()
		if got := strings.Join(frames, ""); len(frames) < 10 || strings.ReplaceAll(got, "a:", "") != dataOf(f) {
			t.Errorf("%d frames came of %d bytes", len(frames), len(got))
		}
	})
}

func TestSilentPeerIsSuspect(t *testing.T) {
	fabricTest(t, func(t *testing.T, f *fabric, a, b *station) {
		elapse(10 * time.Second)
		a.saying()
		if p := a.peer("b"); !p.Connected || p.Suspect || p.SilentFor > beatInterval || p.Boot != 1 || p.LastHeard.IsZero() {
			t.Errorf("before: %+v", p)
		}
		b.stop()
		elapse(silentLimit - beatInterval)
		a.saying()
		elapse(beatInterval + 2*checkInterval)
		a.saying("b suspect")
		if p := a.peer("b"); p.Connected || !p.Suspect || p.Problem == "" || !strings.Contains(p.Reason, "silent") {
			t.Errorf("meanwhile: %+v", p)
		}
		b = f.run("b", 2, "addr-b")
		b.SetPeers(map[string]string{"a": "addr-a"})
		elapse(redialMax + 2*beatInterval)
		a.saying("b alive")
		if p := a.peer("b"); !p.Connected || p.Suspect || p.Problem != "" || p.Boot != 2 || p.Flaps != 0 {
			t.Errorf("after: %+v", p)
		}
		b.saying()
	})
}

// Who begins to listen late is told of those that are suspect still, once.
func TestSuspicionsAreToldAgain(t *testing.T) {
	fabricTest(t, func(t *testing.T, _ *fabric, a, b *station) {
		b.stop()
		elapse(silentLimit + 2*checkInterval)
		a.saying("b suspect")
		a.SuspectAgain()
		elapse(5 * checkInterval)
		a.saying("b suspect")
	})
}

func TestFastRestartIsSuspectOnce(t *testing.T) {
	fabricTest(t, func(t *testing.T, f *fabric, a, b *station) {
		b.stop()
		b = f.run("b", 2, "addr-b")
		b.SetPeers(map[string]string{"a": "addr-a"})
		elapse(5 * time.Second)
		a.saying("b suspect", "b alive")
	})
}

func TestStandstillIsSuspect(t *testing.T) {
	fabricTest(t, func(t *testing.T, _ *fabric, a, b *station) {
		for _, h := range []Health{{TurnAge: 1600 * time.Millisecond}, {SyncAge: 1600 * time.Millisecond}} {
			b.setHealth(h)
			elapse(beatInterval + checkInterval)
			a.saying("b suspect")
			if p := a.peer("b"); p.TurnAge != h.TurnAge || p.SyncAge != h.SyncAge {
				t.Errorf("ages of %+v", p)
			}
			b.setHealth(Health{})
			elapse(beatInterval + checkInterval)
			a.saying("b alive")
		}
		if p := a.peer("b"); p.Flaps != 2 || p.Patient {
			t.Errorf("after two: %+v", p)
		}
	})
}

// A connection that takes everything and delivers nothing is replaced.
func TestDeadConnectionIsReplaced(t *testing.T) {
	fabricTest(t, func(t *testing.T, f *fabric, a, b *station) {
		f.loseAll()
		elapse(silentLimit + 2*checkInterval)
		a.saying("b suspect")
		// Each is heard again over its own new connection, at about the same time.
		elapse(proofTimeout - silentLimit + redialMax + 2*beatInterval)
		a.saying("b alive")
		a.Send(frameOf("b", "over the new connection"))
		elapse(time.Millisecond)
		if frames, _, _ := b.heard(); !slices.Equal(frames, []string{"a:over the new connection"}) {
			t.Errorf("got %q", frames)
		}
	})
}

// A peer that hangs (a frozen process takes connections and says nothing) is tried again and again, within limits.
func TestHangingPeerIsTriedAgain(t *testing.T) {
	fabricTest(t, func(t *testing.T, f *fabric, a, b *station) {
		f.mu.Lock()
		f.silent["addr-b"] = true
		before := f.dials
		f.mu.Unlock()
		b.stop()
		elapse(time.Minute)
		f.mu.Lock()
		f.silent["addr-b"] = false
		// Each takes dialTimeout and half to all of redialMax.
		if n := f.dials - before; n < 30 || n > 45 {
			t.Errorf("%d tries in a minute", n)
		}
		f.mu.Unlock()
		b = f.run("b", 2, "addr-b")
		b.SetPeers(map[string]string{"a": "addr-a"})
		elapse(dialTimeout + redialMax + beatInterval)
		a.saying("b suspect", "b alive")
	})
}

func TestQueueIsBounded(t *testing.T) {
	fabricTest(t, func(t *testing.T, f *fabric, a, b *station) {
		f.mu.Lock()
		f.silent["addr-b"] = true
		f.mu.Unlock()
		b.stop()
		elapse(2 * time.Second) // a now hangs in a dial or waits for the next
		l := a.links["b"]
		dropped := a.peer("b").Dropped
		const tooMany = 3 * maxQueuedItems
		for range tooMany {
			a.Send(frameOf("b", "small"))
		}
		if n := len(l.box.items); n != maxQueuedItems {
			t.Errorf("%d small frames are queued", n)
		}
		if d := a.peer("b").Dropped - dropped; d != tooMany-maxQueuedItems {
			t.Errorf("%d small frames were dropped", d)
		}
		elapse(3 * time.Second) // what could not be sent is not kept
		if n := len(l.box.items); n != 0 || l.box.bytes != 0 || a.Counters().Dropped < tooMany {
			t.Errorf("%d frames are kept, counted %+v", n, a.Counters())
		}
		large := strings.Repeat("x", maxQueuedBytes/10)
		for range 30 {
			a.SendMessage("b", 1, []byte(large[:MaxMessage]))
			a.Send(frameOf("b", large))
		}
		if l.box.bytes > maxQueuedBytes || l.box.bytes < maxQueuedBytes/2 {
			t.Errorf("%d bytes are queued", l.box.bytes)
		}
	})
}

// What is larger than the bound would otherwise never go.
func TestEmptyQueueTakesAnything(t *testing.T) {
	o := newOutbox()
	o.put(item{size: 2 * maxQueuedBytes})
	o.put(item{size: 1})
	if taken := o.take(nil); len(taken) != 1 || o.drops() != 1 {
		t.Errorf("took %d, dropped %d", len(taken), o.drops())
	}
}

func TestWhatCannotBeSentIsCounted(t *testing.T) {
	fabricTest(t, func(t *testing.T, _ *fabric, a, b *station) {
		a.Send(frameOf("nobody", "x"))
		a.Send(frameOf("a", "x"))
		a.SendMessage("b", 1, bytes.Repeat([]byte("x"), MaxMessage+1))
		a.Send(frameOf("b", strings.Repeat("x", maxFrame)))
		elapse(time.Millisecond)
		a.SendMessage("b", 'z', bytes.Repeat([]byte("x"), MaxMessage))
		elapse(time.Millisecond)
		if n := a.Counters().Dropped; n != 4 {
			t.Errorf("%d were dropped", n)
		}
		if frames, messages, _ := b.heard(); len(frames) != 0 || len(messages) != 1 {
			t.Errorf("%d frames and %d messages came", len(frames), len(messages))
		}
	})
}

func TestPeersMoveAndGo(t *testing.T) {
	fabricTest(t, func(t *testing.T, f *fabric, a, b *station) {
		// b's process moves to another address; a store that a does not know answers at the old one.
		f.mu.Lock()
		f.at["elsewhere"] = b
		delete(f.at, "addr-b")
		f.mu.Unlock()
		c := f.run("c", 1, "addr-b")
		a.SetPeers(map[string]string{"b": "elsewhere"})
		elapse(beatInterval)
		if p := a.peer("b"); !p.Connected || p.Addr != "elsewhere" || p.Suspect {
			t.Errorf("moved: %+v", p)
		}
		// And back, where c is: it is not the store it should be.
		a.SetPeers(map[string]string{"b": "addr-b"})
		a.Send(frameOf("b", "not for c"))
		elapse(beatInterval)
		if p := a.peer("b"); p.Connected || !strings.Contains(p.Problem, "another store is there: c") {
			t.Errorf("another store: %+v", p)
		}
		a.SetPeers(map[string]string{"c": "addr-b", "a": "addr-a"})
		a.Send(frameOf("c", "for c"))
		elapse(beatInterval)
		if peers := a.Peers(); len(peers) != 1 || peers[0].Store != "c" || !peers[0].Connected {
			t.Errorf("peers are %+v", peers)
		}
		if frames, _, _ := c.heard(); !slices.Equal(frames, []string{"a:for c"}) {
			t.Errorf("c got %q", frames)
		}
	})
}

// An address that changes while the one before is dialled is not missed.
func TestPeerMovesDuringDial(t *testing.T) {
	fabricTest(t, func(t *testing.T, f *fabric, a, b *station) {
		var dialed []string
		f.mu.Lock()
		f.at["elsewhere"], f.at["there"] = b, b
		f.dialed = func(addr string) {
			dialed = append(dialed, addr)
			a.SetPeers(map[string]string{"b": "there"})
		}
		f.mu.Unlock()
		a.SetPeers(map[string]string{"b": "elsewhere"})
		elapse(beatInterval)
		if !slices.Equal(dialed, []string{"elsewhere", "there"}) || !a.peer("b").Connected {
			t.Errorf("dialled %q, %+v", dialed, a.peer("b"))
		}
		f.mu.Lock()
		delete(f.at, "elsewhere") // it is to be stopped once
		delete(f.at, "there")
		f.mu.Unlock()
	})
}

// stranger speaks the protocol with a by hand.
type stranger struct {
	t    *testing.T
	conn net.Conn
}

func (f *fabric) stranger(to *station, h hello) (*stranger, hello) {
	f.t.Helper()
	near, far := net.Pipe()
	f.serves.Go(func() {
		defer far.Close()
		to.Serve(far)
	})
	s := &stranger{f.t, near}
	s.send(appendHello(nil, h))
	answer, err := readHello(near)
	if err != nil {
		f.t.Fatal(err)
	}
	return s, answer
}

func (s *stranger) send(b []byte) {
	s.t.Helper()
	if _, err := s.conn.Write(b); err != nil {
		s.t.Error(err)
	}
}

// closed says whether the other side has closed the connection.
func (s *stranger) closed() bool {
	_ = s.conn.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := s.conn.Read(make([]byte, 1))
	return isEnd(err)
}

func stamped(from string, boot uint64, to, data string) []byte {
	f := frameOf(to, data)
	f.From, f.Boot = from, boot
	b, _ := appendFrame(nil, f)
	return b
}

func TestFramesOfEarlierBootsAreDropped(t *testing.T) {
	fabricTest(t, func(t *testing.T, f *fabric, a, b *station) {
		b.stop()
		elapse(beatInterval)
		fifth, answer := f.stranger(a, hello{store: "b", to: "a", boot: 5})
		defer fifth.conn.Close()
		if answer != (hello{store: "a", to: "b", boot: 1}) {
			t.Errorf("answered %+v", answer)
		}
		fifth.send(stamped("b", 5, "a", "now"))
		fifth.send(stamped("b", 4, "a", "stale"))
		fifth.send(stamped("b", 6, "a", "of the future"))
		fifth.send(stamped("c", 5, "a", "of another"))
		fifth.send(stamped("b", 5, "c", "for another"))
		fifth.send(appendBeat(nil, beat{boot: 4, turnAge: time.Hour}))
		elapse(beatInterval)
		if frames, _, _ := a.heard(); !slices.Equal(frames, []string{"b:now"}) {
			t.Errorf("got %q", frames)
		}
		if c := a.Counters(); c.Stale != 1 || c.Misdirected != 3 {
			t.Errorf("counted %+v", c)
		}
		// A connection of an earlier start is refused; one of a later start ends those before.
		fourth, _ := f.stranger(a, hello{store: "b", to: "a", boot: 4})
		defer fourth.conn.Close()
		elapse(time.Millisecond)
		if !fourth.closed() || fifth.closed() {
			t.Error("the wrong one was closed")
		}
		sixth, _ := f.stranger(a, hello{store: "b", to: "a", boot: 6})
		defer sixth.conn.Close()
		elapse(time.Millisecond)
		if !fifth.closed() || sixth.closed() {
			t.Error("the wrong one was closed")
		}
		sixth.conn.Close()
		elapse(time.Millisecond)
		again, _ := f.stranger(a, hello{store: "b", to: "a", boot: 5})
		defer again.conn.Close()
		elapse(time.Millisecond)
		if !again.closed() {
			t.Error("an earlier start is let in after the later one has gone")
		}
		if p := a.peer("b"); p.Boot != 6 {
			t.Errorf("boot %d", p.Boot)
		}
	})
}

func TestWhoDoesNotBelongHereIsRefused(t *testing.T) {
	fabricTest(t, func(t *testing.T, f *fabric, a, _ *station) {
		for name, h := range map[string]hello{
			"for another": {store: "x", to: "c", boot: 1}, "itself": {store: "a", to: "a", boot: 9},
		} {
			s, answer := f.stranger(a, h)
			elapse(time.Millisecond)
			if answer.store != "a" || !s.closed() {
				t.Errorf("%s: answered %+v", name, answer)
			}
			s.conn.Close()
		}
		for name, record := range map[string][]byte{
			"broken beat":    appendBeat(nil, beat{boot: 1})[:recordHeader],
			"unknown record": {9, 0, 0, 0, 0},
			"huge record":    {recordFrame, 255, 255, 255, 255},
			"broken frame":   {recordFrame, 0, 0, 0, 5, 1, 2, 3, 4, 5},
		} {
			if name == "broken beat" {
				record = append(record, make([]byte, beatSize)...)
				record[recordHeader] = 1
			}
			s, _ := f.stranger(a, hello{store: "x", to: "a", boot: 1})
			_, _ = s.conn.Write(record) // it may be cut off in the middle of it
			elapse(time.Millisecond)
			if !s.closed() {
				t.Errorf("%s: the connection goes on", name)
			}
			s.conn.Close()
		}
	})
}

// Stores that are no peers yet may send, but only so many of them.
func TestStrangersAreBounded(t *testing.T) {
	fabricTest(t, func(t *testing.T, f *fabric, a, _ *station) {
		for n := range maxStrangers + 2 {
			s, _ := f.stranger(a, hello{store: fmt.Sprint("stranger ", n), to: "a", boot: 1})
			defer s.conn.Close()
			elapse(time.Millisecond)
			if s.closed() != (n >= maxStrangers) {
				t.Errorf("stranger %d: closed is %t", n, s.closed())
			}
		}
	})
}

func TestSilentIncomingConnectionEnds(t *testing.T) {
	fabricTest(t, func(t *testing.T, f *fabric, a, _ *station) {
		s, _ := f.stranger(a, hello{store: "x", to: "a", boot: 1})
		defer s.conn.Close()
		elapse(incomingTimeout - time.Second)
		if s.closed() {
			t.Error("closed too early")
		}
		elapse(2 * time.Second)
		if !s.closed() {
			t.Error("it is kept")
		}
	})
}

func TestClocksAreCompared(t *testing.T) {
	fabricTest(t, func(t *testing.T, _ *fabric, a, b *station) {
		b.setHealth(Health{WallMS: 700, ClockMS: -30})
		elapse(5 * time.Second)
		for _, c := range []struct {
			of   ClockStatus
			want ClockStatus
		}{
			{a.peer("b").Clock, ClockStatus{Known: true, WallOffset: 700 * time.Millisecond, ClockOffset: -30 * time.Millisecond}},
			{b.peer("a").Clock, ClockStatus{Known: true, OK: true, WallOffset: -700 * time.Millisecond, ClockOffset: 30 * time.Millisecond}},
		} {
			if c.of != c.want {
				t.Errorf("got %+v, want %+v", c.of, c.want)
			}
		}
	})
}

func TestConfigIsValidated(t *testing.T) {
	valid := func() Config {
		return Config{
			Store: "a", Boot: 1, TLS: testCredentials(t, "one", "a"), Logger: slog.New(slog.DiscardHandler), Health: func() Health { return Health{} },
		}
	}
	if _, err := New(valid()); err != nil {
		t.Error(err)
	}
	for field, change := range map[string]func(*Config){
		"Store":  func(c *Config) { c.Store = "" },
		"Boot":   func(c *Config) { c.Boot = 0 },
		"TLS":    func(c *Config) { c.TLS = nil },
		"Logger": func(c *Config) { c.Logger = nil },
		"Health": func(c *Config) { c.Health = nil },
	} {
		c := valid()
		change(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := NewMux(MuxConfig{Logger: slog.New(slog.DiscardHandler)}); err == nil {
		t.Error("a mux without a port")
	}
	var _ func(replica.Frame) = (*Transport)(nil).Send
}
