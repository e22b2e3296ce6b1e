package cli

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carillon-scheduler/carillon/client/clienttest"
)

// terminal is a pseudo-terminal and the side that a person types at.
func terminal(t *testing.T) (stdin, person *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	stdin, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if stdin.Close() != nil || person.Close() != nil {
			t.Error("the terminal does not close")
		}
	})
	return stdin, person
}

// At a terminal a prune asks; elsewhere, and with --yes, it does not.
func TestPruneAsksAtATerminal(t *testing.T) {
	for _, c := range []struct {
		typed, flag string
		want        string
		code        int
	}{
		{"yes\n", "--prune", "deleted job-001\n0 created, 0 updated, 1 unchanged, 1 deleted\n", 0},
		{"no\n", "--prune", "", 1},
		{"", "--yes", "deleted job-001\n0 created, 0 updated, 1 unchanged, 1 deleted\n", 0},
	} {
		server := clienttest.NewServer()
		applied(t, server, manyJobs(2, "a"))
		file := t.TempDir() + "/one.yaml"
		if err := os.WriteFile(file, []byte(manyJobs(1, "a")), 0o600); err != nil {
			t.Fatal(err)
		}
		stdin, person := terminal(t)
		if _, err := person.WriteString(c.typed); err != nil {
			t.Fatal(err)
		}
		var out, errs bytes.Buffer
		p := &program{stdin: stdin, stdout: &out, stderr: &errs, transport: server}
		code := p.run(t.Context(), []string{"carillon", "apply", "-f", file, "--prune", "-l", "team=data", c.flag})
		if code != c.code || out.String() != c.want {
			t.Errorf("typed %q with %s: exit %d\n%s%s", c.typed, c.flag, code, out.String(), errs.String())
		}
		asked := strings.Contains(errs.String(), "delete job-001\nTo delete what is listed, type yes: ")
		if asked != (c.flag == "--prune") {
			t.Errorf("typed %q with %s: it says %q", c.typed, c.flag, errs.String())
		}
	}
}

// At a terminal an apply shows on standard error how far it is; elsewhere it says nothing.
func TestApplyShowsHowFarItIs(t *testing.T) {
	server := clienttest.NewServer()
	file := t.TempDir() + "/jobs.yaml"
	if err := os.WriteFile(file, []byte(manyJobs(40, "a")), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--dry-run"}, {}} {
		stderr, person := terminal(t)
		var out bytes.Buffer
		p := &program{stdin: strings.NewReader(""), stdout: &out, stderr: stderr, transport: server}
		if code := p.run(t.Context(), append([]string{"carillon", "apply", "-f", file}, args...)); code != 0 {
			t.Fatalf("%q: exit %d\n%s", args, code, out.String())
		}
		shown := make([]byte, 64<<10)
		n, err := person.Read(shown)
		if err != nil || !strings.Contains(string(shown[:n]), "comparing") {
			t.Errorf("%q: it shows %q, %v", args, shown[:n], err)
		}
	}
	var out, errs bytes.Buffer
	p := &program{stdin: strings.NewReader(""), stdout: &out, stderr: &errs, transport: server}
	if code := p.run(t.Context(), []string{"carillon", "apply", "-f", file}); code != 0 || errs.Len() != 0 {
		t.Errorf("without a terminal: exit %d\n%s", code, errs.String())
	}
}
