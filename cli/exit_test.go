package cli

import (
	"bytes"
	"net"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

func TestAnErrorSaysWhatToDoNext(t *testing.T) {
	// A port that was free a moment ago.
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := closed.Addr().String()
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	server, err := startChild(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := server.stop(); err != nil {
			t.Error(err)
		}
	}()
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"jobs", "list", "--addr", address, "--timeout", "100ms"}, exitUnavailable, "'carillon serve' starts one"},
		{[]string{"bench", "accept", "--n", "10", "--target", address}, exitUnavailable, "'carillon serve' starts one"},
		{[]string{"serve", "--data", dir, "--listen", "127.0.0.1:0"}, exitFailed, "choose another directory with --data"},
		{[]string{"serve", "--data", t.TempDir(), "--listen", server.address}, exitFailed, "choose another port with --listen"},
	} {
		var out, errs bytes.Buffer
		code := Run(t.Context(), append([]string{"carillon"}, test.args...), nil, &out, &errs)
		if code != test.code || !strings.Contains(errs.String(), test.want) {
			t.Errorf("%q exits with %d and says %q", test.args, code, errs.String())
		}
	}
}

func TestNearWordsAreAskedFor(t *testing.T) {
	known := []string{"--queue", "--every", "--at", "list", "jobs"}
	for typed, want := range map[string]string{
		"--qeue": "--queue", "--queues": "--queue", "job": "jobs", "lst": "list", "ls": "list", "xy": "", "--zz": "", "--at2": "--at",
		"anything": "",
	} {
		if got := didYouMean(typed, known); got != "" && want == "" || !strings.Contains(got, want) {
			t.Errorf("%q is answered %q, want %q", typed, got, want)
		}
	}
}

func TestSynonymsAreOfWordsThatExist(t *testing.T) {
	known := map[string]bool{}
	var walk func(commands []*cli.Command)
	walk = func(commands []*cli.Command) {
		for _, c := range commands {
			known[c.Name] = true
			for _, flag := range c.Flags {
				known[dashed(flag.Names()[0])] = true
			}
			walk(c.Subcommands)
		}
	}
	walk((&program{}).app().Commands)
	for word, meanings := range synonyms {
		for _, meaning := range meanings {
			if !known[meaning] {
				t.Errorf("%q stands for %q, which is no command or flag", word, meaning)
			}
		}
	}
}
