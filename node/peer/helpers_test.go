package peer

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/node/replica"
	"go.etcd.io/raft/v3/raftpb"
)

// frameOf makes a frame for a store, of one message with one entry for each of the data.
func frameOf(to string, data ...string) replica.Frame {
	f := replica.Frame{To: to, From: "a", Boot: 1}
	for n, d := range data {
		f.Messages = append(f.Messages, replica.PeerMessage{Shard: uint32(n), Message: &raftpb.Message{
			Type: raftpb.MsgApp.Enum(), To: new(uint64(2)), From: new(uint64(1)), Term: new(uint64(9)), Index: new(uint64(n)),
			Entries: []*raftpb.Entry{{Term: new(uint64(9)), Index: new(uint64(n + 1)), Data: []byte(d)}},
		}})
	}
	return f
}

// dataOf is what frameOf's data were, one after the other.
func dataOf(f replica.Frame) string {
	var all strings.Builder
	for _, m := range f.Messages {
		for _, e := range m.Message.GetEntries() {
			all.Write(e.GetData())
		}
	}
	return all.String()
}

// appendHelloSum is the checksum of a hello's bytes.
func appendHelloSum(b []byte) []byte {
	return binary.BigEndian.AppendUint32(nil, crc32.Checksum(b, castagnoli))
}

// loadTLSFiles reads what WriteTLSFiles wrote.
func loadTLSFiles(t testing.TB, dir string) (*tls.Config, *x509.CertPool) {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, CertFile), filepath.Join(dir, KeyFile))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(filepath.Join(dir, CAFile))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		t.Fatal("the CA's file holds no certificate")
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}}, pool
}
