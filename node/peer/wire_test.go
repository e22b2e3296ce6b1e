package peer

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/node/replica"
)

var someBeat = beat{
	boot: 7, turnAge: time.Millisecond, syncAge: 2 * time.Millisecond, wallMS: 1_700_000_000_000, clockMS: 1_700_000_000_001,
	clockOK: true, sent: 3 * time.Second, echoBoot: 4, echoSent: time.Second, echoHeld: 5 * time.Millisecond,
}

// The format is a promise: these bytes may not change.
func TestGoldenBytes(t *testing.T) {
	frame, ok := appendFrame(nil, replica.Frame{To: "b", From: "a", Boot: 3})
	if !ok {
		t.Fatal("a small frame is too large")
	}
	for name, c := range map[string]struct {
		got  []byte
		want string
	}{
		"hello":   {appendHello(nil, hello{store: "a", to: "bc", boot: 258}), "43524c5001000d01610262630000000000000102897a05ce"},
		"beat":    {appendBeat(nil, someBeat), "010000005441d58fcb0000000000000007000000000000000100000000000f424000000000001e84800000018bcfe568000000018bcfe5680100000000b2d05e000000000000000004000000003b9aca0000000000004c4b40"},
		"message": {appendMessage(nil, 9, []byte("hi")), "0300000007f988a1d1096869"},
		"frame":   {frame, "020000000b0a14c68f01016201610300"},
	} {
		if got := hex.EncodeToString(c.got); got != c.want {
			t.Errorf("%s is %s", name, got)
		}
	}
}

func TestHelloRoundTrip(t *testing.T) {
	want := hello{store: strings.Repeat("s", maxStoreName), to: "t", boot: 1 << 63}
	encoded := appendHello(nil, want)
	r := bytes.NewReader(append(encoded, "behind"...))
	if got, err := readHello(r); err != nil || got != want || r.Len() != len("behind") {
		t.Errorf("got %v, %v, %d bytes left", got, err, r.Len())
	}
	for i := range encoded {
		if _, err := readHello(bytes.NewReader(encoded[:i])); err == nil {
			t.Errorf("%d bytes are enough", i)
		}
		broken := bytes.Clone(encoded)
		broken[i] ^= 4
		if got, err := readHello(bytes.NewReader(broken)); err == nil {
			t.Errorf("byte %d does not matter: %v", i, got)
		}
	}
}

// A later version appends to what there is, and this one reads what it knows.
func TestHelloOfLaterVersion(t *testing.T) {
	b := appendHello(nil, hello{store: "a", to: "b", boot: 5})
	b = append(b[:len(b)-sumSize], "more"...)
	b[len(helloMagic)] = wireVersion + 1
	b[helloHeader-1] += 4
	b = append(b, 0, 0, 0, 0)
	resign(b)
	if got, err := readHello(bytes.NewReader(b)); err != nil || got != (hello{store: "a", to: "b", boot: 5}) {
		t.Errorf("got %v, %v", got, err)
	}
}

// resign puts the right checksum at the end of a hello.
func resign(b []byte) {
	sum := appendHelloSum(b[:len(b)-sumSize])
	copy(b[len(b)-sumSize:], sum)
}

func TestHelloRefused(t *testing.T) {
	valid := appendHello(nil, hello{store: "a", to: "b", boot: 5})
	for name, c := range map[string]struct {
		change func(b []byte) []byte
		want   string
	}{
		"other magic": {func(b []byte) []byte { b[0] = 'X'; return b }, "it is none"},
		"version 0":   {func(b []byte) []byte { b[4] = 0; return b }, "version 0"},
		"too long":    {func(b []byte) []byte { b[5] = 5; return b }, "may have 1024"},
		"no name":     {func(b []byte) []byte { b[helloHeader] = 0; resign(b); return b }, "a store's name"},
		"long name":   {func(b []byte) []byte { b[helloHeader] = 200; resign(b); return b }, "too short"},
		"checksum":    {func(b []byte) []byte { b[len(b)-1]++; return b }, "checksum"},
		"short": {func([]byte) []byte {
			return append([]byte(helloMagic), wireVersion, 0, 0, 0, 0, 0, 0)
		}, "checksum"},
	} {
		_, err := readHello(bytes.NewReader(c.change(bytes.Clone(valid))))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestRecordsRoundTrip(t *testing.T) {
	b := appendBeat(nil, someBeat)
	b = appendMessage(b, 200, []byte("payload"))
	b = appendMessage(b, 0, nil)
	b, _ = appendFrame(b, frameOf("b", "some data"))
	r := bufio.NewReader(bytes.NewReader(b))
	next := func(want byte) []byte {
		t.Helper()
		kind, payload, err := readRecord(r)
		if err != nil || kind != want {
			t.Fatalf("record of kind %d, %v", kind, err)
		}
		return payload
	}
	if got, err := decodeBeat(next(recordBeat)); err != nil || got != someBeat {
		t.Errorf("beat %+v, %v", got, err)
	}
	if kind, got, err := decodeMessage(next(recordMessage)); err != nil || kind != 200 || string(got) != "payload" {
		t.Errorf("message %d %q, %v", kind, got, err)
	}
	if kind, got, err := decodeMessage(next(recordMessage)); err != nil || kind != 0 || len(got) != 0 {
		t.Errorf("message %d %q, %v", kind, got, err)
	}
	f, err := replica.DecodeFrame(next(recordFrame))
	if err != nil || dataOf(f) != "some data" {
		t.Errorf("frame %v, %v", f, err)
	}
	if _, _, err := readRecord(r); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

func TestBrokenRecordsAreRefused(t *testing.T) {
	for name, encoded := range map[string][]byte{"beat": appendBeat(nil, someBeat), "message": appendMessage(nil, 3, []byte("hello"))} {
		for i := recordHeader; i < len(encoded); i++ {
			broken := bytes.Clone(encoded)[recordHeader:]
			broken[i-recordHeader] ^= 1
			if _, err := decodeBeat(broken); name == "beat" && !errors.Is(err, errChecksum) {
				t.Errorf("%s, byte %d: %v", name, i, err)
			}
			if _, _, err := decodeMessage(broken); name == "message" && !errors.Is(err, errChecksum) {
				t.Errorf("%s, byte %d: %v", name, i, err)
			}
		}
	}
	if _, err := decodeBeat(make([]byte, beatSize-1)); !errors.Is(err, errShort) {
		t.Error(err)
	}
	if _, _, err := decodeMessage(make([]byte, sumSize)); !errors.Is(err, errShort) {
		t.Error(err)
	}
}

// What a record may have is looked at before anything is made for it.
func TestRecordLimits(t *testing.T) {
	for kind, most := range map[byte]uint32{
		recordBeat: maxBeat, recordMessage: sumSize + 1 + MaxMessage, recordFrame: maxFrame,
	} {
		head := binary.BigEndian.AppendUint32([]byte{kind}, most+1)
		if _, _, err := readRecord(bufio.NewReader(bytes.NewReader(head))); err == nil || !strings.Contains(err.Error(), "may have") {
			t.Errorf("kind %d: %v", kind, err)
		}
		head = binary.BigEndian.AppendUint32([]byte{kind}, 1)
		if _, _, err := readRecord(bufio.NewReader(bytes.NewReader(head))); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("kind %d, cut off: %v", kind, err)
		}
	}
	for _, kind := range []byte{0, recordMessage + 1, 255} {
		if _, _, err := readRecord(bufio.NewReader(bytes.NewReader([]byte{kind, 0, 0, 0, 0}))); err == nil {
			t.Errorf("kind %d is read", kind)
		}
	}
}

func TestFramesAreSplit(t *testing.T) {
	f := frameOf("b", "one", strings.Repeat("x", 1000), "two", "three")
	var got []int
	var data []string
	for rest := f; len(rest.Messages) > 0; {
		var head replica.Frame
		head, rest = splitFrame(rest, 400)
		if head.To != f.To || head.From != f.From || head.Boot != f.Boot {
			t.Errorf("the head is %+v", head)
		}
		got = append(got, len(head.Messages))
		data = append(data, dataOf(head))
	}
	if !reflect.DeepEqual(got, []int{1, 1, 2}) || strings.Join(data, "") != dataOf(f) {
		t.Errorf("split into %v", got)
	}
	if head, rest := splitFrame(replica.Frame{To: "b"}, 400); head.To != "b" || len(rest.Messages) != 0 {
		t.Error("an empty frame is not itself")
	}
}

// The estimate that the queues go by is never much less than what is sent.
func TestFrameSizeIsAnUpperEstimate(t *testing.T) {
	for _, f := range []replica.Frame{frameOf("b"), frameOf("b", ""), frameOf("b", "one", strings.Repeat("x", 5000))} {
		encoded, _ := appendFrame(nil, f)
		if estimate := frameSize(f); estimate < len(encoded) || estimate > len(encoded)+400 {
			t.Errorf("%d bytes are estimated as %d", len(encoded), estimate)
		}
	}
}

func FuzzHello(f *testing.F) {
	f.Add(appendHello(nil, hello{store: "a", to: "bc", boot: 258}))
	f.Add([]byte(helloMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := readHello(bytes.NewReader(b))
		if err != nil {
			return
		}
		if again, err := readHello(bytes.NewReader(appendHello(nil, h))); err != nil || again != h {
			t.Errorf("%+v became %+v, %v", h, again, err)
		}
	})
}

// FuzzHelloBody gets behind the checksum, which FuzzHello hardly does.
func FuzzHelloBody(f *testing.F) {
	f.Add([]byte("\x01a\x02bc\x00\x00\x00\x00\x00\x00\x00\x01"))
	f.Fuzz(func(t *testing.T, body []byte) {
		h, err := decodeHello(body)
		if err != nil {
			return
		}
		if again, err := readHello(bytes.NewReader(appendHello(nil, h))); err != nil || again != h {
			t.Errorf("%+v became %+v, %v", h, again, err)
		}
	})
}

func FuzzRecord(f *testing.F) {
	f.Add(appendBeat(nil, someBeat))
	f.Add(appendMessage(nil, 3, []byte("hello")))
	frame, _ := appendFrame(nil, frameOf("b", "data"))
	f.Add(frame)
	f.Fuzz(func(t *testing.T, b []byte) {
		kind, payload, err := readRecord(bufio.NewReader(bytes.NewReader(b)))
		if err != nil {
			return
		}
		switch kind {
		case recordBeat, recordMessage:
			if len(payload) >= sumSize {
				sign(payload) // let it through to the fields
			}
			if got, err := decodeBeat(payload); err == nil {
				if again, err := decodeBeat(appendBeat(nil, got)[recordHeader:]); err != nil || again != got {
					t.Errorf("%+v became %+v, %v", got, again, err)
				}
			}
			if kind, rest, err := decodeMessage(payload); err == nil {
				again := appendMessage(nil, kind, rest)[recordHeader:]
				if !bytes.Equal(again, payload) {
					t.Errorf("%x became %x", payload, again)
				}
			}
		case recordFrame:
			_, _ = replica.DecodeFrame(payload)
		default:
			t.Errorf("kind %d is read", kind)
		}
	})
}
