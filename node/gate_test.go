package node

import (
	"errors"
	"strings"
	"testing"
)

func TestParsePeers(t *testing.T) {
	peers, err := ParsePeers("n1=10.0.0.1:7070, n2=node-2.example:7070,n3=[::1]:7071")
	if err != nil || len(peers) != 3 || peers[1] != (Peer{"n2", "node-2.example:7070"}) || peers[2].Addr != "[::1]:7071" {
		t.Errorf("%v, %v", peers, err)
	}
	many := strings.TrimSuffix(strings.Repeat("x=1:1,", 16), ",")
	for text, says := range map[string]string{
		"":                "is not NAME=HOST:PORT",
		"n1":              "is not NAME=HOST:PORT",
		"=h:1":            "is not NAME=HOST:PORT",
		"n1=h":            "is not host:port",
		"n1=h:0":          "must be a number from 1 to 65535",
		"n1=h:70000":      "must be a number from 1 to 65535",
		"n1=:7070":        "no host that the other nodes could reach",
		"n1=0.0.0.0:7070": "no host that the other nodes could reach",
		"n1=h:1,n1=h:2":   "twice",
		"n1=h:1,n2=h:1":   "twice",
		many:              "twice",
	} {
		if _, err := ParsePeers(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, must say %q", text, err, says)
		}
	}
}

func TestGate(t *testing.T) {
	peers := []Peer{{"n1", "a:1"}, {"n2", "b:1"}, {"n3", "c:1"}}
	hash := peersHash(peers)
	silent := func(p Peer) answer { return answer{Peer: p, Err: errors.New("refused")} }
	fresh := func(p Peer) answer { return answer{Peer: p, Probe: probe{Name: p.Name, PeersHash: hash}} }
	member := func(p Peer, cluster string) answer {
		return answer{Peer: p, Probe: probe{Name: p.Name, ClusterID: cluster, PeersHash: "old"}}
	}
	for _, tc := range []struct {
		name    string
		self    string
		answers []answer
		form    bool
		join    int
		wait    []string
		refuse  string
	}{
		{name: "all fresh, the first forms", self: "n1", answers: []answer{fresh(peers[1]), fresh(peers[2])}, form: true},
		{name: "all fresh, the others wait for it", self: "n2", answers: []answer{fresh(peers[0]), fresh(peers[2])},
			wait: []string{"n1, the first of --peers"}},
		{name: "one is silent", self: "n1", answers: []answer{fresh(peers[1]), silent(peers[2])}, wait: []string{"n3 at c:1 does not answer"}},
		{name: "both are silent", self: "n1", answers: []answer{silent(peers[1]), silent(peers[2])},
			wait: []string{"n2 at b:1", "n3 at c:1"}},
		{name: "a wiped first node while another one is slow", self: "n1", answers: []answer{silent(peers[1]), member(peers[2], "x")}, join: 1},
		{name: "both know the cluster", self: "n2", answers: []answer{member(peers[0], "x"), member(peers[2], "x")}, join: 2},
		{name: "one knows it, one is fresh", self: "n3", answers: []answer{member(peers[0], "x"), fresh(peers[1])}, join: 1},
		{name: "two clusters", self: "n2", answers: []answer{member(peers[0], "x"), member(peers[2], "y")}, refuse: "different clusters"},
		{name: "another list of peers", self: "n1",
			answers: []answer{fresh(peers[1]), {Peer: peers[2], Probe: probe{Name: "n3", PeersHash: "z"}}}, wait: []string{"other --peers"}},
		{name: "another node at an address", self: "n1",
			answers: []answer{fresh(peers[1]), {Peer: peers[2], Probe: probe{Name: "n9", PeersHash: hash}}}, refuse: `"n9", not "n3"`},
	} {
		v := decide(tc.self, peers, tc.answers)
		if v.Form != tc.form || len(v.Join) != tc.join || len(v.Wait) != len(tc.wait) || (v.Refuse != nil) != (tc.refuse != "") {
			t.Errorf("%s: %+v", tc.name, v)
			continue
		}
		for i, says := range tc.wait {
			if !strings.Contains(v.Wait[i], says) {
				t.Errorf("%s: waits for %q, must be %q", tc.name, v.Wait[i], says)
			}
		}
		if tc.refuse != "" && !strings.Contains(v.Refuse.Error(), tc.refuse) {
			t.Errorf("%s: %v", tc.name, v.Refuse)
		}
	}
}
