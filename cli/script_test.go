package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/cockroachdb/datadriven"
	"github.com/urfave/cli/v2"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/carillon-scheduler/carillon/client"
	"github.com/carillon-scheduler/carillon/client/clienttest"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// TestMain lets the test binary be the server that the demo starts of its own binary.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		code := Run(ctx, os.Args, os.Stdin, os.Stdout, os.Stderr)
		stop()
		os.Exit(code)
	}
	goleak.VerifyTestMain(m)
}

// TestScripts runs the sessions in testdata against a server in memory, in a bubble of time that begins at 2000-01-01.
//
//	run        the first line of the input is the command line, the others are its standard input
//	wait D     lets time pass
//	work fail  a worker takes what is ready and fails it, or with "work" completes it
//	virtual T  the server's clock is virtual and stands at an instant
//	down CODE  the server answers everything with CODE; with "but=N" the first N calls are served; "up" ends that
//
// Run "go test ./cli -rewrite" to write the answers anew, and read the difference.
func TestScripts(t *testing.T) {
	t.Setenv("CARILLON_ADDR", "")
	t.Setenv("CARILLON_TENANT", "")
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := clienttest.NewServer()
				datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
					return direct(t, server, d)
				})
			})
		})
	}
}

func direct(t *testing.T, server *clienttest.Server, d *datadriven.TestData) string {
	switch d.Cmd {
	case "run":
		line, stdin, _ := strings.Cut(d.Input, "\n")
		return session(t.Context(), server, words(line), strings.NewReader(stdin))
	case "wait":
		pass, err := time.ParseDuration(d.CmdArgs[0].Key)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(pass)
	case "work":
		return runWorker(t, server, len(d.CmdArgs) > 0)
	case "down":
		var code connect.Code
		if err := code.UnmarshalText([]byte(d.CmdArgs[0].Key)); err != nil {
			t.Fatal(err)
		}
		served := 0
		if d.HasArg("but") {
			d.ScanArgs(t, "but", &served)
		}
		server.Before(func(context.Context, clienttest.Call) error {
			if served--; served >= 0 {
				return nil
			}
			return clienttest.Fail(code, "the server is down", hint(time.Second))
		})
	case "virtual":
		at, err := time.Parse(time.RFC3339, d.CmdArgs[0].Key)
		if err != nil {
			t.Fatal(err)
		}
		server.VirtualClock(at)
	case "zones":
		at := func(day, hour int) *timestamppb.Timestamp {
			return timestamppb.New(time.Date(2026, time.March, day, hour, 0, 0, 0, time.UTC))
		}
		server.ZonesChanged(&carillonv1.ZoneChange{
			JobId: "nightly", Tenant: "default", Zone: "Europe/Berlin", FromVersion: "2025c", ToVersion: "2026a",
			ChangeTime: at(1, 0), OldNext: &carillonv1.FireTime{Time: at(2, 1)}, NewNext: &carillonv1.FireTime{Time: at(2, 2)},
		}, &carillonv1.ZoneChange{
			JobId: "last", Tenant: "other", Zone: "Asia/Gaza", FromVersion: "2025c", ToVersion: "2026a",
			ChangeTime: at(1, 0), OldNext: &carillonv1.FireTime{Time: at(3, 1)},
		})
	case "up":
		server.Before(nil)
	default:
		t.Fatalf("%s: unknown directive %q", d.Pos, d.Cmd)
	}
	return ""
}

func hint(d time.Duration) *carillonv1.RetryHint {
	return &carillonv1.RetryHint{RetryAfter: durationpb.New(d)}
}

// session is what a command prints, and its exit code if that is not 0. Standard error is marked.
func session(ctx context.Context, server *clienttest.Server, args []string, stdin io.Reader) string {
	var out, err bytes.Buffer
	p := &program{stdin: stdin, stdout: &out, stderr: &err, transport: server}
	code := p.run(ctx, append([]string{"carillon"}, args...))
	text := out.String()
	for line := range strings.Lines(err.String()) {
		text += "! " + line
	}
	if code != 0 {
		text += fmt.Sprintf("exit %d\n", code)
	}
	return text
}

// words splits a command line at spaces, but not inside single quotes.
func words(line string) (args []string) {
	var word strings.Builder
	quoted, any := false, false
	for _, r := range line {
		switch {
		case r == '\'':
			quoted, any = !quoted, true
		case r == ' ' && !quoted:
			if any {
				args = append(args, word.String())
			}
			word.Reset()
			any = false
		default:
			word.WriteRune(r)
			any = true
		}
	}
	if any {
		args = append(args, word.String())
	}
	return args
}

// runWorker takes what is ready, and returns what it was.
func runWorker(t *testing.T, server *clienttest.Server, fail bool) string {
	c, err := client.New("", client.WithTransport(server))
	if err != nil {
		t.Fatal(err)
	}
	var taken strings.Builder
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	w := client.NewWorker(c, client.WorkerConfig{Queues: []string{"default", "mail"}, Name: "w1", Concurrency: 1},
		func(_ context.Context, e *client.Execution) ([]byte, error) {
			fmt.Fprintf(&taken, "%s attempt %d\n", e.JobID, e.Attempt)
			if fail {
				return nil, fmt.Errorf("no luck\nat line 2")
			}
			return []byte("done"), nil
		})
	if err := w.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	return taken.String()
}

// TestHelp keeps the help of every command.
func TestHelp(t *testing.T) {
	t.Setenv("CARILLON_ADDR", "")
	t.Setenv("CARILLON_TENANT", "")
	datadriven.RunTest(t, "testdata/help", func(t *testing.T, _ *datadriven.TestData) string {
		var all strings.Builder
		var walk func(path []string, commands []*cli.Command)
		walk = func(path []string, commands []*cli.Command) {
			help := session(t.Context(), nil, append(path[:len(path):len(path)], "--help"), nil)
			fmt.Fprintf(&all, "%s\n", strings.TrimSpace(help)+"\n")
			for _, c := range commands {
				// The bench's is the bench's own.
				if c.Name != "bench" {
					walk(append(path[:len(path):len(path)], c.Name), c.Subcommands)
				}
			}
		}
		walk(nil, (&program{}).app().Commands)
		// Lines that say nothing would end the expected text.
		lines := strings.Split(strings.ReplaceAll(all.String(), "\n\n\n", "\n\n"), "\n")
		kept := lines[:0]
		for _, line := range lines {
			if strings.TrimSpace(line) != "" {
				kept = append(kept, strings.TrimRight(line, " "))
			}
		}
		return strings.Join(kept, "\n") + "\n"
	})
}
