package integration

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestApply plays testdata/apply.txt through the real binary, at a time that stands still: the evening before the clocks of
// New York jump.
//
//	file NAME   writes a file
//	run         runs a shell's lines in the files' directory, up to the first that fails. Standard error is marked
func TestApply(t *testing.T) {
	t.Parallel()
	s := startVirtual(t, time.Date(2026, 3, 6, 12, 0, 0, 0, time.UTC))
	dir := t.TempDir()
	datadriven.RunTest(t, "testdata/apply.txt", func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "file":
			name := filepath.Join(dir, d.CmdArgs[0].Key)
			if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, []byte(d.Input), 0o600); err != nil {
				t.Fatal(err)
			}
			return ""
		case "run":
			return s.shell(t, dir, d)
		}
		t.Fatalf("%s: unknown directive %q", d.Pos, d.Cmd)
		return ""
	})
}

// shell runs a script's command lines against the server.
func (s *server) shell(t *testing.T, dir string, d *datadriven.TestData) string {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.Command("sh", "-e", "-c", d.Input)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &errs
	cmd.Env = append(os.Environ(), "CARILLON_ADDR="+s.addr, "CARILLON_TENANT=", "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"))
	err := cmd.Run()
	text := out.String()
	for line := range strings.Lines(errs.String()) {
		text += "! " + line
	}
	if err != nil {
		text += err.Error() + "\n"
	}
	return text
}
