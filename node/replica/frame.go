package replica

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"go.etcd.io/raft/v3/raftpb"
)

// Frame is what one turn sends to one store: the messages of all its shards. From and Boot let the receiver tell frames of
// an earlier run of the sender.
type Frame struct {
	To, From string
	// Boot numbers the sender's starts; the sender's transport fills it in.
	Boot     uint64
	Messages []PeerMessage
}

// PeerMessage is a raft message of one shard.
type PeerMessage struct {
	Shard   uint32
	Message *raftpb.Message
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// AppendFrame appends f's encoding to b: CRC32C of the rest, version, header, messages.
func AppendFrame(b []byte, f Frame) []byte {
	start := len(b)
	b = append(b, 0, 0, 0, 0, codecVersion)
	b = appendBytes(b, []byte(f.To))
	b = appendBytes(b, []byte(f.From))
	b = binary.AppendUvarint(b, f.Boot)
	b = binary.AppendUvarint(b, uint64(len(f.Messages)))
	for _, m := range f.Messages {
		b = binary.AppendUvarint(b, uint64(m.Shard))
		b = appendMessage(b, m.Message)
	}
	binary.BigEndian.PutUint32(b[start:], crc32.Checksum(b[start+4:], castagnoli))
	return b
}

// DecodeFrame is AppendFrame's inverse. The messages alias b, which must not be changed afterwards.
func DecodeFrame(b []byte) (Frame, error) {
	if len(b) < 4 {
		return Frame{}, fmt.Errorf("decode frame: %w", errShortRow)
	}
	if sum := crc32.Checksum(b[4:], castagnoli); sum != binary.BigEndian.Uint32(b) {
		return Frame{}, errors.New("decode frame: checksum does not match")
	}
	r := openRow(b[4:])
	f := Frame{To: string(r.bytes()), From: string(r.bytes()), Boot: r.uvarint()}
	for n := r.count(); n > 0 && r.err == nil; n-- {
		f.Messages = append(f.Messages, PeerMessage{Shard: r.uint32(), Message: readMessage(&r)})
	}
	if err := r.finish(); err != nil {
		return Frame{}, fmt.Errorf("decode frame: %w", err)
	}
	return f, nil
}

// appendMessage writes every field of a message but those that stay on its node (vote, responses) and the snapshot, which
// travels on a connection of its own.
func appendMessage(b []byte, m *raftpb.Message) []byte {
	b = append(b, byte(m.GetType()))
	for _, v := range []uint64{
		m.GetTo(), m.GetFrom(), m.GetTerm(), m.GetLogTerm(), m.GetIndex(), m.GetCommit(), m.GetRejectHint(),
	} {
		b = binary.AppendUvarint(b, v)
	}
	b = appendBool(b, m.GetReject())
	b = appendBytes(b, m.GetContext())
	b = binary.AppendUvarint(b, uint64(len(m.GetEntries())))
	for _, e := range m.GetEntries() {
		b = append(b, byte(e.GetType()))
		b = binary.AppendUvarint(b, e.GetTerm())
		b = binary.AppendUvarint(b, e.GetIndex())
		b = appendBytes(b, e.GetData())
	}
	return b
}

func readMessage(r *rowReader) *raftpb.Message {
	m := &raftpb.Message{Type: readMessageType(r).Enum()}
	for _, field := range []**uint64{&m.To, &m.From, &m.Term, &m.LogTerm, &m.Index, &m.Commit, &m.RejectHint} {
		*field = new(r.uvarint())
	}
	m.Reject = new(r.bool())
	m.Context = r.bytes()
	for n := r.count(); n > 0 && r.err == nil; n-- {
		kind, term, index := r.entryType(), r.uvarint(), r.uvarint()
		m.Entries = append(m.Entries, newEntry(kind, term, index, r.bytes()))
	}
	return m
}

// readMessageType refuses what no peer sends: messages between raft and its own node.
func readMessageType(r *rowReader) raftpb.MessageType {
	t := raftpb.MessageType(r.byte())
	switch t {
	case raftpb.MsgApp, raftpb.MsgAppResp, raftpb.MsgVote, raftpb.MsgVoteResp, raftpb.MsgPreVote, raftpb.MsgPreVoteResp,
		raftpb.MsgHeartbeat, raftpb.MsgHeartbeatResp, raftpb.MsgTimeoutNow, raftpb.MsgReadIndex, raftpb.MsgReadIndexResp,
		raftpb.MsgTransferLeader:
	default:
		r.fail(fmt.Errorf("message type %d is not sent between stores", t))
	}
	return t
}

func appendBytes(b, v []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(v)))
	return append(b, v...)
}
