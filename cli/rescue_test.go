package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/node"
)

// What a rescue has found is a table for people and a document for programs.
func TestWhatARescueHasFound(t *testing.T) {
	found := node.RescueFindings{
		Cluster: "c", Node: "n3", Store: "s3", Begun: true,
		Others: []node.RescueStore{
			{Node: "n1", Store: "s1", Address: "127.0.0.1:1", Control: true}, {Node: "n4", Store: "s4", Address: "127.0.0.1:4"},
		},
		Shards: []node.RescueShard{
			{Shard: 1, Replica: 3, Voters: []string{"n1", "n2", "n3"}, LogEnd: 90, Commit: 80, Applied: 70},
			{Shard: 2, Lost: "it has no replica here"},
		},
	}
	var out bytes.Buffer
	if err := (&printer{w: &out}).rescueFindings(found); err != nil {
		t.Fatal(err)
	}
	want := `cluster       c
node          n3
store         s3
rescue begun  yes, and not ended

GIVEN UP  STORE  ADDRESS      CONTROL
n1        s1     127.0.0.1:1  member
n4        s4     127.0.0.1:4  -

SHARD  REPLICA  VOTERS    LOG END  COMMIT  APPLIED  RESCUE
1      3        n1,n2,n3  90       80      70       possible
2      0        -         0        0       0        none: it has no replica here
`
	if out.String() != want {
		t.Errorf("prints\n%s\nmust print\n%s", out.String(), want)
	}
	out.Reset()
	if err := (&printer{w: &out, json: true}).rescueFindings(found); err != nil {
		t.Fatal(err)
	}
	var back node.RescueFindings
	if err := json.Unmarshal(out.Bytes(), &back); err != nil || !reflect.DeepEqual(back, found) {
		t.Errorf("%v: %s", err, &out)
	}
	if text := rescueWarning(found); !strings.Contains(text, "the disks of n1 and n4 are given up") {
		t.Error(text)
	}
}

// Only the node's name is a yes.
func TestTheNodesNameConfirmsARescue(t *testing.T) {
	for typed, want := range map[string]bool{"n3\n": true, " n3 ": true, "": false, "\n": false, "yes\n": false, "n1\nn3\n": false} {
		var asked bytes.Buffer
		p := &program{stdin: strings.NewReader(typed), stderr: &asked}
		if err := p.confirmRescue(t.Context(), "n3"); (err == nil) != want {
			t.Errorf("%q: %v", typed, err)
		}
		if !strings.Contains(asked.String(), "(n3)") {
			t.Errorf("it asks %q", asked.String())
		}
	}
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	typing, typed := io.Pipe()
	p := &program{stdin: typing, stderr: io.Discard}
	if err := p.confirmRescue(interrupted, "n3"); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	if err := typed.Close(); err != nil {
		t.Error(err)
	}
}

// A node that runs, and one that has lost nothing, are not rescued.
func TestARescueThatIsNone(t *testing.T) {
	dir := t.TempDir()
	rescue := func(code int, says string, args ...string) {
		t.Helper()
		var out, errs bytes.Buffer
		got := Run(t.Context(), append([]string{"carillon", "cluster", "rescue"}, args...), strings.NewReader("n1\n"), &out, &errs)
		if got != code || !strings.Contains(errs.String(), says) {
			t.Errorf("%q exits with %d and says %q", args, got, errs.String())
		}
	}
	rescue(exitUsage, "data")
	rescue(exitUsage, "--output must be", "--data", dir, "-o", "xml")
	rescue(exitFailed, "no node has run on it", "--data", dir, "--yes")
	server, err := startChild(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	rescue(exitFailed, "in use", "--data", dir, "--yes")
	if err := server.stop(); err != nil {
		t.Fatal(err)
	}
	rescue(exitPrecondition, "it is a cluster of its own; start it", "--data", dir, "--yes")
}
