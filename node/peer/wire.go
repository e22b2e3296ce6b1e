package peer

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"

	"github.com/carillon-scheduler/carillon/node/replica"
)

// A connection for frames begins with a hello of either side, the dialer's first. Then records go from the dialer to the
// other side, and nothing comes back.
//
//	hello   "CRLP" · version u8 · length u16 · body · CRC32C u32 of all before
//	body    length u8, store · length u8, store it is meant for · boot u64 · (later versions append)
//	record  kind u8 · length u32 · payload
//	beat    CRC32C u32 of the rest · fields of 8 bytes, see appendBeat · (later versions append)
//	message CRC32C u32 of the rest · kind u8 · payload
//	frame   replica.AppendFrame's
//
// Integers are big endian. The greater version is obliged to speak the lower one's.
const (
	helloMagic   = "CRLP"
	wireVersion  = 1
	helloHeader  = len(helloMagic) + 1 + 2
	recordHeader = 1 + 4
	sumSize      = 4
)

const (
	recordBeat    = 1
	recordFrame   = 2
	recordMessage = 3
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var (
	errShort    = errors.New("it is too short")
	errChecksum = errors.New("checksum does not match")
)

// hello says who speaks and whom it takes the other side for.
type hello struct {
	store, to string
	boot      uint64
}

func appendHello(b []byte, h hello) []byte {
	start := len(b)
	b = append(b, helloMagic...)
	b = append(b, wireVersion, 0, 0)
	b = append(append(b, byte(len(h.store))), h.store...)
	b = append(append(b, byte(len(h.to))), h.to...)
	b = binary.BigEndian.AppendUint64(b, h.boot)
	binary.BigEndian.PutUint16(b[start+helloHeader-2:], uint16(len(b)-start-helloHeader))
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
}

// readHello reads a hello and nothing behind it.
func readHello(r io.Reader) (hello, error) {
	h, err := readHelloFrom(r)
	if err != nil {
		return hello{}, fmt.Errorf("read hello: %w", err)
	}
	return h, nil
}

func readHelloFrom(r io.Reader) (hello, error) {
	b := make([]byte, helloHeader, helloHeader+128)
	if _, err := io.ReadFull(r, b); err != nil {
		return hello{}, err
	}
	if string(b[:len(helloMagic)]) != helloMagic {
		return hello{}, errors.New("it is none")
	}
	if b[len(helloMagic)] < wireVersion {
		return hello{}, fmt.Errorf("version %d is not known", b[len(helloMagic)])
	}
	n := int(binary.BigEndian.Uint16(b[helloHeader-2:]))
	if n > maxHello {
		return hello{}, fmt.Errorf("it has %d bytes, may have %d", n, maxHello)
	}
	b = append(b, make([]byte, n+sumSize)...)
	if _, err := io.ReadFull(r, b[helloHeader:]); err != nil {
		return hello{}, err
	}
	signed := b[:helloHeader+n]
	if crc32.Checksum(signed, castagnoli) != binary.BigEndian.Uint32(b[helloHeader+n:]) {
		return hello{}, errChecksum
	}
	return decodeHello(signed[helloHeader:])
}

func decodeHello(body []byte) (h hello, err error) {
	if h.store, body, err = cutName(body); err != nil {
		return hello{}, err
	}
	if h.to, body, err = cutName(body); err != nil {
		return hello{}, err
	}
	if len(body) < 8 {
		return hello{}, errShort
	}
	h.boot = binary.BigEndian.Uint64(body)
	return h, nil
}

func cutName(b []byte) (name string, rest []byte, err error) {
	if len(b) == 0 || len(b) < 1+int(b[0]) {
		return "", nil, errShort
	}
	n := int(b[0])
	if n == 0 || n > maxStoreName {
		return "", nil, fmt.Errorf("a store's name has 1 to %d bytes, not %d", maxStoreName, n)
	}
	return string(b[1 : 1+n]), b[1+n:], nil
}

// beat is what a node tells of itself, and what makes a round trip of two beats.
type beat struct {
	boot             uint64
	turnAge, syncAge time.Duration
	// wallMS and clockMS are milliseconds since 1970 by its wall clock and its disciplined clock.
	wallMS, clockMS int64
	clockOK         bool
	// sent is when it was sent, since the sender's start.
	sent time.Duration
	// echoSent is the sent of the last beat that has come from the receiver's start echoBoot (0: none has), echoHeld how
	// long ago that was.
	echoBoot           uint64
	echoSent, echoHeld time.Duration
}

const (
	beatFields  = 10
	beatSize    = sumSize + 8*beatFields
	flagClockOK = 1
)

func appendBeat(b []byte, v beat) []byte {
	start := len(b)
	b = append(b, recordBeat)
	b = binary.BigEndian.AppendUint32(b, beatSize)
	b = append(b, 0, 0, 0, 0)
	var flags uint64
	if v.clockOK {
		flags |= flagClockOK
	}
	for _, field := range [beatFields]uint64{
		v.boot, flags, uint64(v.turnAge), uint64(v.syncAge), uint64(v.wallMS), uint64(v.clockMS), uint64(v.sent),
		v.echoBoot, uint64(v.echoSent), uint64(v.echoHeld),
	} {
		b = binary.BigEndian.AppendUint64(b, field)
	}
	sign(b[start+recordHeader:])
	return b
}

func decodeBeat(payload []byte) (beat, error) {
	if len(payload) < beatSize {
		return beat{}, fmt.Errorf("decode beat: %w", errShort)
	}
	if !signed(payload) {
		return beat{}, fmt.Errorf("decode beat: %w", errChecksum)
	}
	var f [beatFields]uint64
	for i := range f {
		f[i] = binary.BigEndian.Uint64(payload[sumSize+8*i:])
	}
	return beat{
		boot: f[0], clockOK: f[1]&flagClockOK != 0, turnAge: time.Duration(f[2]), syncAge: time.Duration(f[3]),
		wallMS: int64(f[4]), clockMS: int64(f[5]), sent: time.Duration(f[6]),
		echoBoot: f[7], echoSent: time.Duration(f[8]), echoHeld: time.Duration(f[9]),
	}, nil
}

func appendMessage(b []byte, kind byte, payload []byte) []byte {
	start := len(b)
	b = append(b, recordMessage)
	b = binary.BigEndian.AppendUint32(b, uint32(sumSize+1+len(payload)))
	b = append(b, 0, 0, 0, 0, kind)
	b = append(b, payload...)
	sign(b[start+recordHeader:])
	return b
}

func decodeMessage(payload []byte) (kind byte, rest []byte, err error) {
	if len(payload) < sumSize+1 {
		return 0, nil, fmt.Errorf("decode message: %w", errShort)
	}
	if !signed(payload) {
		return 0, nil, fmt.Errorf("decode message: %w", errChecksum)
	}
	return payload[sumSize], payload[sumSize+1:], nil
}

// appendFrame appends f as one record; if it is too large it appends nothing and returns false.
func appendFrame(b []byte, f replica.Frame) ([]byte, bool) {
	start := len(b)
	b = append(b, recordFrame, 0, 0, 0, 0)
	b = replica.AppendFrame(b, f)
	n := len(b) - start - recordHeader
	if n > maxFrame {
		return b[:start], false
	}
	binary.BigEndian.PutUint32(b[start+1:], uint32(n))
	return b, true
}

// sign puts the checksum of the rest of a payload at its begin.
func sign(payload []byte) {
	binary.BigEndian.PutUint32(payload, crc32.Checksum(payload[sumSize:], castagnoli))
}

func signed(payload []byte) bool {
	return crc32.Checksum(payload[sumSize:], castagnoli) == binary.BigEndian.Uint32(payload)
}

// readRecord reads the next record, which is of a known kind. The payload is the caller's.
func readRecord(r *bufio.Reader) (kind byte, payload []byte, err error) {
	var head [recordHeader]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, fmt.Errorf("read record: %w", err)
	}
	kind, n := head[0], binary.BigEndian.Uint32(head[1:])
	switch most := recordLimit(kind); {
	case most == 0:
		return 0, nil, fmt.Errorf("read record: kind %d is not known", kind)
	case n > most:
		return 0, nil, fmt.Errorf("read record: kind %d has %d bytes, may have %d", kind, n, most)
	}
	payload = make([]byte, n)
	if _, err := io.ReadFull(r, payload); err != nil {
		return 0, nil, fmt.Errorf("read record of kind %d: %w", kind, noEOF(err))
	}
	return kind, payload, nil
}

// recordLimit is how many bytes a record of kind may have; 0: the kind is not known.
func recordLimit(kind byte) uint32 {
	switch kind {
	case recordBeat:
		return maxBeat
	case recordFrame:
		return maxFrame
	case recordMessage:
		return sumSize + 1 + MaxMessage
	default:
		return 0
	}
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// messageSize is about how many bytes a message has on the wire, never much less.
func messageSize(m replica.PeerMessage) int {
	const fixed, ofEntry = 64, 24
	size := fixed + len(m.Message.GetContext())
	for _, e := range m.Message.GetEntries() {
		size += ofEntry + len(e.GetData())
	}
	return size
}

// frameSize is messageSize for all of a frame.
func frameSize(f replica.Frame) int {
	size := 2*maxStoreName + recordHeader
	for _, m := range f.Messages {
		size += messageSize(m)
	}
	return size
}

// splitFrame takes off f's first messages up to about limit bytes, at least one if there is any.
func splitFrame(f replica.Frame, limit int) (head, rest replica.Frame) {
	size, n := 0, 0
	for n < len(f.Messages) {
		size += messageSize(f.Messages[n])
		if n > 0 && size > limit {
			break
		}
		n++
	}
	head, rest = f, f
	head.Messages, rest.Messages = f.Messages[:n], f.Messages[n:]
	return head, rest
}
