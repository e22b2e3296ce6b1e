package replica

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"reflect"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// The bytes on disk are a promise.
func TestRowsHaveGoldenBytes(t *testing.T) {
	conf := &raftpb.ConfState{Voters: []uint64{1, 2, 3}, Learners: []uint64{4}, AutoLeave: new(true)}
	applied := appliedState{position: position{index: 300, term: 6}, chain: 0x0102030405060708}
	for name, c := range map[string]struct {
		row  []byte
		want string
	}{
		"hard state":                        {encodeHardState(hardState{term: 300, vote: 2, commit: 9}), "01ac020209"},
		"hard state without a commit index": {encodeHardState(hardState{term: 300, vote: 2}), "01ac0202"},
		"position":                          {encodePosition(position{index: 10, term: 5}), "010a05"},
		"applied":                           {encodeApplied(applied), "01ac02060102030405060708"},
		"identity":                          {encodeIdentity(identity{id: 3, conf: conf}), "0103030102030104000001"},
		"placed identity": {encodeIdentity(identity{
			id: 3, conf: conf, gen: 300, stores: map[uint64]string{2: "b", 1: "a"},
		}), "0103030102030104000001ac02020101610201" + "62"},
		"log row":       {encodeLogRow(newEntry(raftpb.EntryNormal, 6, 11, []byte("x"))), "01000678"},
		"empty log row": {encodeLogRow(newEntry(raftpb.EntryConfChangeV2, 6, 11, nil)), "010206"},
		"log key":       {logKey(2, 258), "000000024c0000000000000102"},
	} {
		if got := hex.EncodeToString(c.row); got != c.want {
			t.Errorf("%s is %s, must be %s", name, got, c.want)
		}
	}
}

func TestRowsComeBackAsTheyWere(t *testing.T) {
	h, err := decodeHardState(encodeHardState(hardState{term: 1 << 63, vote: 7}))
	if err != nil || h != (hardState{term: 1 << 63, vote: 7}) {
		t.Errorf("hard state came back as %+v, %v", h, err)
	}
	a := appliedState{position: position{index: 1, term: 2}, chain: 3}
	if got, err := decodeApplied(encodeApplied(a)); err != nil || got != a {
		t.Errorf("applied state came back as %+v, %v", got, err)
	}
	conf := &raftpb.ConfState{
		Voters: []uint64{1}, Learners: []uint64{2}, VotersOutgoing: []uint64{3}, LearnersNext: []uint64{4}, AutoLeave: new(false),
	}
	i, err := decodeIdentity(encodeIdentity(identity{id: 9, conf: conf}))
	if err != nil || i.id != 9 || !proto.Equal(i.conf, conf) {
		t.Errorf("identity came back as %+v, %v", i, err)
	}
	e := newEntry(raftpb.EntryConfChange, 4, 5, []byte("data"))
	if got, err := decodeLogRow(5, encodeLogRow(e)); err != nil || !proto.Equal(got, e) {
		t.Errorf("log row came back as %v, %v", got, err)
	}
}

func TestRowsOfANewerBinaryAreRefused(t *testing.T) {
	row := encodePosition(position{index: 1, term: 1})
	row[0] = codecVersion + 1
	if _, err := decodePosition(row); err == nil || err.Error() != "row has version 2, this binary knows 1" {
		t.Fatalf("got %v", err)
	}
}

// An entry put together from commands that are encoded already is what encoding the whole would give.
func TestEntryBytesAreThoseOfItsMessage(t *testing.T) {
	for i, stamp := range []int64{0, 1, -1, 1_900_000_000_000} {
		e := &storagev1.Entry{Term: 300, StampMs: stamp, Everywhere: uint64(i) * 200, Commands: []*storagev1.Command{
			request("a"), {}, {RequestId: string(make([]byte, 200)), LeaderStart: &storagev1.LeaderStart{Term: 1}},
		}}
		got := appendEntryHead(nil, e.Term, e.StampMs)
		for _, cmd := range e.Commands {
			encoded, err := cmd.MarshalVT()
			if err != nil {
				t.Fatal(err)
			}
			got = appendEntryCommand(got, encoded)
		}
		got = appendEntryTail(got, e.Everywhere)
		want, err := e.MarshalVT()
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("stamp %d: entry is %x, must be %x", stamp, got, want)
		}
	}
}

func sampleFrame() Frame {
	return Frame{To: "b", From: "a", Boot: 3, Messages: []PeerMessage{
		{Shard: 1, Message: &raftpb.Message{
			Type: raftpb.MsgApp.Enum(), To: new(uint64(2)), From: new(uint64(1)), Term: new(uint64(6)), LogTerm: new(uint64(5)),
			Index: new(uint64(10)), Commit: new(uint64(11)), RejectHint: new(uint64(0)), Reject: new(false),
			Entries: []*raftpb.Entry{
				newEntry(raftpb.EntryNormal, 6, 11, nil), newEntry(raftpb.EntryNormal, 6, 12, []byte("commands")),
			},
		}},
		{Shard: 1 << 31, Message: &raftpb.Message{
			Type: raftpb.MsgAppResp.Enum(), To: new(uint64(1)), From: new(uint64(2)), Term: new(uint64(6)), LogTerm: new(uint64(5)),
			Index: new(uint64(9)), Commit: new(uint64(0)), RejectHint: new(uint64(8)), Reject: new(true), Context: []byte("ctx"),
		}},
	}}
}

func TestFramesComeBackAsTheyWere(t *testing.T) {
	want := sampleFrame()
	got, err := DecodeFrame(AppendFrame(nil, want))
	if err != nil {
		t.Fatal(err)
	}
	if got.To != want.To || got.From != want.From || got.Boot != want.Boot || len(got.Messages) != len(want.Messages) {
		t.Fatalf("frame came back as %+v", got)
	}
	for i, m := range got.Messages {
		if m.Shard != want.Messages[i].Shard || !proto.Equal(m.Message, want.Messages[i].Message) {
			t.Errorf("message %d came back as %v, was %v", i, m.Message, want.Messages[i].Message)
		}
	}
}

func TestDamagedFramesAreRefused(t *testing.T) {
	whole := AppendFrame(nil, sampleFrame())
	for i := range whole {
		if _, err := DecodeFrame(whole[:i]); err == nil {
			t.Errorf("a frame cut at %d was taken", i)
		}
		flipped := bytes.Clone(whole)
		flipped[i] ^= 0x10
		if _, err := DecodeFrame(flipped); err == nil {
			t.Errorf("a frame with a flipped bit at %d was taken", i)
		}
	}
}

// What a decoder takes it writes the same again; what it does not take it refuses without harm.
func FuzzRows(f *testing.F) {
	f.Add(encodeHardState(hardState{term: 5}))
	f.Add(encodePosition(groupStart))
	f.Add(encodeApplied(appliedState{position: groupStart, chain: 1}))
	f.Add(encodeIdentity(identity{id: 1, conf: &raftpb.ConfState{Voters: []uint64{1, 2}}}))
	f.Add(encodeLogRow(newEntry(raftpb.EntryNormal, 5, 11, []byte("x"))))
	f.Fuzz(func(t *testing.T, row []byte) {
		again(t, row, decodeHardState, encodeHardState)
		again(t, row, decodePosition, encodePosition)
		again(t, row, decodeApplied, encodeApplied)
		again(t, row, decodeIdentity, encodeIdentity)
		decodeLog := func(row []byte) (*raftpb.Entry, error) { return decodeLogRow(1, row) }
		again(t, row, decodeLog, encodeLogRow)
	})
}

func again[T any](t *testing.T, row []byte, decode func([]byte) (T, error), encode func(T) []byte) {
	first, err := decode(row)
	if err != nil {
		return
	}
	second, err := decode(encode(first))
	if err != nil {
		t.Fatalf("own row is refused: %v", err)
	}
	if !reflect.DeepEqual(encode(first), encode(second)) {
		t.Fatalf("%+v came back as %+v", first, second)
	}
}

func FuzzFrames(f *testing.F) {
	f.Add(AppendFrame(nil, sampleFrame())[4:])
	f.Add(AppendFrame(nil, Frame{To: "b"})[4:])
	f.Fuzz(func(t *testing.T, body []byte) {
		frame, err := DecodeFrame(withChecksum(body))
		if err != nil {
			return
		}
		encoded := AppendFrame(nil, frame)
		second, err := DecodeFrame(encoded)
		if err != nil {
			t.Fatalf("own frame is refused: %v", err)
		}
		if !bytes.Equal(encoded, AppendFrame(nil, second)) {
			t.Fatal("frame changed on its second way")
		}
	})
}

// withChecksum lets the fuzzer past the checksum.
func withChecksum(body []byte) []byte {
	b := append(make([]byte, 4), body...)
	binary.BigEndian.PutUint32(b, crc32.Checksum(body, castagnoli))
	return b
}
