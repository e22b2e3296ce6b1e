package manifest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/protobuf/encoding/protojson"
)

// TestRead reads files as they stand in testdata and shows the jobs in YAML, or what is wrong. Run "go test ./cli/manifest
// -rewrite" to write the answers anew, and read the difference.
//
//	file NAME   puts a file next to the others
//	read [NAME]   reads the input, or the named file or directory; with "json" shows the jobs as REST has them
func TestRead(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		dir := t.TempDir()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "file":
				name := filepath.Join(dir, d.CmdArgs[0].Key)
				if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte(d.Input), 0o600)); err != nil {
					t.Fatal(err)
				}
				return ""
			case "read":
				path := Stdin
				if len(d.CmdArgs) > 0 && d.CmdArgs[0].Key != "json" {
					path = filepath.Join(dir, d.CmdArgs[0].Key)
				}
				return strings.ReplaceAll(show(t, path, d.Input, d.HasArg("json")), dir+string(filepath.Separator), "")
			}
			t.Fatalf("%s: unknown directive %q", d.Pos, d.Cmd)
			return ""
		})
	})
}

func show(t *testing.T, path, input string, json bool) string {
	jobs, err := Read([]string{path}, strings.NewReader(input), "default")
	if err != nil {
		return err.Error() + "\n"
	}
	var b strings.Builder
	for _, job := range jobs {
		if !json {
			text := write(t, job)["yaml"]
			fmt.Fprintf(&b, "# %s:%d\n%s", job.File, job.Line, text)
			continue
		}
		body, err := protojson.Marshal(job.Spec)
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString(strings.ReplaceAll(string(body), " ", "") + "\n")
	}
	return b.String()
}

// JSON that is no valid UTF-8 is refused where it is not: the decoder would put something else in its place.
func TestJSONIsText(t *testing.T) {
	body := "{\"id\": \"n\",\n \"labels\": {\"a\": \"\xe9\"}, \"schedule\": {\"every\": {\"interval\": \"90s\"}}}"
	if got := show(t, Stdin, body, false); !strings.Contains(got, "-:2: is not valid UTF-8") {
		t.Errorf("it says %q", got)
	}
}

// Half of a surrogate pair is no character, so that it is refused where it stands, in JSON and in YAML; whole pairs are text.
func TestSurrogates(t *testing.T) {
	const rest = `"schedule": {"every": {"interval": "90s"}}}`
	body := "{\"id\": \"n\",\n \"labels\": {\"a\": \"x\\ud800\"}, " + rest
	if got := show(t, Stdin, body, false); !strings.Contains(got, `-:2: has \ud800, half of a surrogate pair`) {
		t.Errorf("it says %q", got)
	}
	if got := show(t, Stdin, strings.Replace(body, "x\\ud800", "\\ud83d\\ude00", 1), false); !strings.Contains(got, `\U0001F600`) {
		t.Errorf("a pair is %q", got)
	}
	yaml := "id: n\nlabels: {a: \"\\ud800\"}\nschedule: {every: {interval: 90s}}\n"
	if got := show(t, Stdin, yaml, false); !strings.Contains(got, "-:2: is no YAML") {
		t.Errorf("YAML: %q", got)
	}
}

// A file that is too long is refused by its length, before it is read.
func TestFilesAreBounded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "jobs.yaml")
	if err := os.WriteFile(file, []byte("0123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	if body, err := readAll(file, nil, 10); err != nil || len(body) != 10 {
		t.Errorf("at the limit: %q, %v", body, err)
	}
	_, err := readAll(file, nil, 9)
	_, stdinErr := readAll(Stdin, strings.NewReader("0123456789"), 9)
	for _, err := range []error{err, stdinErr} {
		if err == nil || !strings.Contains(err.Error(), "longer than 9 bytes") {
			t.Errorf("beyond it: %v", err)
		}
	}
	if err := os.Truncate(file, maxFileBytes+1); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(1, func() { _, err = Read([]string{file}, nil, "default") }); err == nil || n > 100 {
		t.Errorf("a file of one byte too many: %v, %v allocations", err, n)
	}
}
