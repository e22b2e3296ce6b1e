package integration

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"
)

// network stands between the nodes of a fleet: what one sends to another goes through it, and it can lose any direction of
// any pair. What is lost stays in the connection, as with real ones, and arrives when the direction is healed. Callers of the
// nodes do not go through it.
type network struct {
	f         *fleet
	listeners []net.Listener
	group     errgroup.Group
	ctx       context.Context

	mu sync.Mutex
	// cut has the directions that lose everything: from, to. The channel is closed when it is healed.
	cut map[[2]int]chan struct{}
}

// proxyHost is where the nodes reach each other, at the ports they listen at on another address of this machine.
const proxyHost = "127.0.0.2"

// newNetwork prepares a fleet whose nodes reach each other through a network; nothing is started.
func newNetwork(t *testing.T, args ...string) *network {
	t.Helper()
	f := newFleet(t, 3)
	ctx, cancel := context.WithCancel(context.Background())
	n := &network{f: f, ctx: ctx, cut: map[[2]int]chan struct{}{}}
	var peers []string
	for i, s := range f.nodes {
		_, port, err := net.SplitHostPort(s.addr)
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", net.JoinHostPort(proxyHost, port))
		if err != nil {
			t.Fatal(err)
		}
		n.listeners = append(n.listeners, l)
		peers = append(peers, fmt.Sprintf("n%d=%s", i+1, l.Addr()))
	}
	f.peers = strings.Join(peers, ",")
	for i, s := range f.nodes {
		s.args = append([]string{"--name", fmt.Sprintf("n%d", i+1), "--peers", f.peers, "--cluster-secret-file", f.secret}, args...)
		n.group.Go(func() error { return n.accept(i) })
	}
	t.Cleanup(func() {
		cancel()
		for _, l := range n.listeners {
			_ = l.Close()
		}
		if err := n.group.Wait(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// accept takes the connections to node i until the listener is closed.
func (n *network) accept(i int) error {
	for {
		conn, err := n.listeners[i].Accept()
		if n.ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept for n%d: %w", i+1, err)
		}
		n.group.Go(func() error {
			n.join(conn, i)
			return nil
		})
	}
}

// join connects one end to node to, both ways, until one of them closes it.
func (n *network) join(conn net.Conn, to int) {
	defer conn.Close()
	from := n.sender(conn.RemoteAddr())
	if from < 0 {
		return // it has closed the connection, or ended
	}
	target, err := (&net.Dialer{}).DialContext(n.ctx, "tcp", n.f.nodes[to].addr)
	if err != nil {
		return // the other end sees it close
	}
	defer target.Close()
	end, cancel := context.WithCancel(n.ctx)
	defer cancel()
	stop := context.AfterFunc(end, func() {
		_ = conn.Close()
		_ = target.Close()
	})
	defer stop()
	var ways errgroup.Group
	ways.Go(func() error {
		defer cancel()
		n.carry(end, target, conn, from, to)
		return nil
	})
	ways.Go(func() error {
		defer cancel()
		n.carry(end, conn, target, to, from)
		return nil
	})
	_ = ways.Wait()
}

// carry copies what from sends to to, as long as that direction is whole.
func (n *network) carry(ctx context.Context, dst io.Writer, src io.Reader, from, to int) {
	buf := make([]byte, 32<<10)
	for {
		read, err := src.Read(buf)
		if !n.await(ctx, from, to) {
			return
		}
		if _, failed := dst.Write(buf[:read]); failed != nil || err != nil {
			return
		}
	}
}

// await returns when a direction is whole; false if ctx ended.
func (n *network) await(ctx context.Context, from, to int) bool {
	for {
		n.mu.Lock()
		healed, isCut := n.cut[[2]int{from, to}]
		n.mu.Unlock()
		if !isCut {
			return ctx.Err() == nil
		}
		select {
		case <-healed:
		case <-ctx.Done():
			return false
		}
	}
}

// lose cuts a direction.
func (n *network) lose(from, to *server) {
	n.mu.Lock()
	defer n.mu.Unlock()
	way := [2]int{slices.Index(n.f.nodes, from), slices.Index(n.f.nodes, to)}
	if n.cut[way] == nil {
		n.cut[way] = make(chan struct{})
	}
}

// heal ends all cuts.
func (n *network) heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for way, healed := range n.cut {
		close(healed)
		delete(n.cut, way)
	}
}

// sender is the node whose process has the connection from addr, -1 if none has.
func (n *network) sender(addr net.Addr) int {
	inode := socketAt(addr.(*net.TCPAddr))
	if inode == "" {
		return -1
	}
	return slices.IndexFunc(n.f.nodes, func(s *server) bool {
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", s.pid.Load()))
		return err == nil && slices.ContainsFunc(files, func(name string) bool {
			link, err := os.Readlink(name)
			return err == nil && link == "socket:["+inode+"]"
		})
	})
}

// socketAt is the inode of the established socket that is bound to an IPv4 address of this machine, "" if there is none.
func socketAt(addr *net.TCPAddr) string {
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return ""
	}
	ip := slices.Clone(addr.IP.To4())
	slices.Reverse(ip) // as this table has it on little-endian machines
	local := strings.ToUpper(hex.EncodeToString(ip)) + ":" + fmt.Sprintf("%04X", addr.Port)
	for _, line := range strings.Split(string(table), "\n") {
		fields := strings.Fields(line)
		if len(fields) < 10 || fields[1] != local {
			continue
		}
		if state, err := strconv.ParseUint(fields[3], 16, 8); err == nil && state == 1 {
			return fields[9]
		}
	}
	return ""
}
