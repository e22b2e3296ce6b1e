package cli

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"
)

const (
	// localStop is how long the nodes of a local cluster may take to stop.
	localStop = 30 * time.Second
	// localLine is how much of one line of a node's log is shown.
	localLine = 64 << 10
)

// clusterLocalCommand runs a whole cluster on this machine, to try it out.
func (p *program) clusterLocalCommand() *cli.Command {
	return &cli.Command{
		Name: "local", Usage: "run a cluster on this machine, to try it out, until Ctrl-C",
		Description: "It starts each node as a process of its own, as \"serve\" would on a machine of its own, and prints their logs\n" +
			"with their names before each line. Nodes that end by themselves or are killed can be started again by the command\n" +
			"that is printed. Started again on the same directory, it goes on with the same cluster.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "data", Value: "carillon-cluster", Usage: "`DIRECTORY` for the nodes' directories"},
			&cli.IntFlag{Name: "nodes", Value: 3, Usage: "`NUMBER` of nodes, 3 to 9"},
			&cli.IntFlag{Name: "port", Value: 7070, Usage: "`PORT` of the first node; the others take the next ones"},
			&cli.StringFlag{Name: "log-level", Value: "info", Usage: "`LEVEL`: debug, info, warn or error"},
		},
		Action: func(c *cli.Context) error {
			if err := checkArguments(c, ""); err != nil {
				return err
			}
			nodes, port := c.Int("nodes"), c.Int("port")
			if nodes < 3 || nodes > 9 {
				return usage(c, "--nodes must be 3 to 9, is %d", nodes)
			}
			if port < 1 || port+nodes > 65536 {
				return usage(c, "--port must be 1 to %d, is %d", 65536-nodes, port)
			}
			l := &local{dir: c.String("data"), out: p.stderr}
			return l.run(c.Context, nodes, port, c.String("log-level"))
		},
	}
}

// local is a cluster of processes on this machine.
type local struct {
	dir string

	mu  sync.Mutex
	out io.Writer
}

func (l *local) run(ctx context.Context, nodes, port int, level string) error {
	if err := os.MkdirAll(l.dir, 0o700); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	secret := filepath.Join(l.dir, "secret")
	if err := makeSecret(secret); err != nil {
		return err
	}
	binary, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own executable: %w", err)
	}
	var peers []string
	for i := range nodes {
		peers = append(peers, fmt.Sprintf("n%d=127.0.0.1:%d", i+1, port+i))
	}
	group := new(errgroup.Group)
	for i := range nodes {
		name := fmt.Sprintf("n%d", i+1)
		args := []string{
			"serve", "--name", name, "--data", filepath.Join(l.dir, name), "--listen", fmt.Sprintf("127.0.0.1:%d", port+i),
			"--peers", strings.Join(peers, ","), "--cluster-secret-file", secret, "--log-level", level,
		}
		l.print(name, binary+" "+strings.Join(args, " "))
		group.Go(func() error { return l.node(ctx, name, binary, args) })
	}
	return group.Wait()
}

// makeSecret writes a new cluster secret unless there is one.
func makeSecret(path string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("make cluster secret: %w", err)
	}
	var b [32]byte
	_, _ = rand.Read(b[:]) // it never fails, and fills b
	_, err = file.WriteString(hex.EncodeToString(b[:]) + "\n")
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("make cluster secret: %w", err)
	}
	return nil
}

// node runs one node until ctx ends or it ends by itself, which the others go on without.
func (l *local) node(ctx context.Context, name, binary string, args []string) error {
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = localStop
	cmd.SysProcAttr = ownGroup()
	read, write := io.Pipe()
	cmd.Stdout, cmd.Stderr = write, write
	if err := cmd.Start(); err != nil {
		err = fmt.Errorf("start %s: %w", name, err)
		l.print(name, err.Error()) // now: the others go on, and it is returned when they end
		return err
	}
	copied := new(errgroup.Group)
	copied.Go(func() error { return l.copyLines(name, read) })
	err := cmd.Wait()
	_ = write.Close() // never fails
	if err := copied.Wait(); err != nil {
		return fmt.Errorf("read log of %s: %w", name, err)
	}
	if ctx.Err() != nil {
		return nil
	}
	if err == nil {
		l.print(name, "it has stopped")
		return nil
	}
	l.print(name, "it has ended: "+err.Error())
	return nil
}

// copyLines prints a log. Of lines longer than localLine the rest is left out.
func (l *local) copyLines(name string, log io.Reader) error {
	lines := bufio.NewReaderSize(log, localLine)
	for isRest := false; ; {
		line, isCut, err := lines.ReadLine()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if !isRest {
			l.print(name, string(line))
		}
		isRest = isCut
	}
}

// print writes one line with the node's name before it.
func (l *local) print(name, line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// A terminal that is gone is no reason to end the cluster.
	_, _ = fmt.Fprintf(l.out, "%-3s| %s\n", name, line)
}
