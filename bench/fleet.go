package bench

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
)

// fleet is the servers under test: one, or the nodes of a cluster on this machine.
type fleet struct {
	dir   string
	nodes []*server
}

// newFleet prepares n nodes, to be removed by close. binary empty: this executable; shards 0: the servers' default.
func newFleet(binary string, n, shards int) (*fleet, error) {
	if binary == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find own executable: %w", err)
		}
		binary = self
	}
	dir, err := os.MkdirTemp("", "carillon-bench-")
	if err != nil {
		return nil, fmt.Errorf("make data directory: %w", err)
	}
	f := &fleet{dir: dir}
	if n == 1 {
		f.nodes = []*server{{binary: binary, dir: filepath.Join(dir, "data"), addr: "127.0.0.1:0", output: &tail{}}}
	} else if err := f.cluster(binary, n); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if shards != 0 {
		for _, s := range f.nodes {
			s.args = append(s.args, "--shards", strconv.Itoa(shards))
		}
	}
	return f, nil
}

// cluster prepares the nodes of a cluster: a secret, and an address for each.
func (f *fleet) cluster(binary string, n int) error {
	secret := filepath.Join(f.dir, "secret")
	if err := os.WriteFile(secret, []byte(hex.EncodeToString(randomBytes(32))), 0o600); err != nil {
		return fmt.Errorf("write cluster secret: %w", err)
	}
	addrs, err := freeAddrs(n)
	if err != nil {
		return err
	}
	var peers []string
	for i, addr := range addrs {
		peers = append(peers, fmt.Sprintf("n%d=%s", i+1, addr))
	}
	for i, addr := range addrs {
		name := fmt.Sprintf("n%d", i+1)
		f.nodes = append(f.nodes, &server{
			binary: binary, dir: filepath.Join(f.dir, name), addr: addr, output: &tail{},
			args: []string{"--name", name, "--peers", strings.Join(peers, ","), "--cluster-secret-file", secret},
		})
	}
	return nil
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // it never fails, and fills b
	return b
}

// Ports for nodes, below those that the system gives to connections going out: one of these could have a node's port while
// that is down.
const lowestPort, ports = 20_000, 10_000

// freeAddrs are addresses of this machine that nobody listens at.
func freeAddrs(n int) (addrs []string, err error) {
	first := mathrand.IntN(ports)
	for i := 0; i < ports && len(addrs) < n; i++ {
		addr := fmt.Sprintf("127.0.0.1:%d", lowestPort+(first+i)%ports)
		l, listenErr := net.Listen("tcp", addr)
		if listenErr != nil {
			continue
		}
		if err := l.Close(); err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		addrs = append(addrs, addr)
	}
	if len(addrs) < n {
		return nil, fmt.Errorf("find a free port: none of %d from %d on", ports, lowestPort)
	}
	return addrs, nil
}

// start starts all nodes and returns once each of them says that it takes part.
func (f *fleet) start(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, s := range f.nodes {
		group.Go(func() error {
			if err := s.start(ctx); err != nil {
				return err
			}
			return s.ready(ctx)
		})
	}
	return group.Wait()
}

// kill ends all processes at once, restart starts them again on their data.
func (f *fleet) kill() error {
	var errs []error
	for _, s := range f.nodes {
		errs = append(errs, s.kill())
	}
	return errors.Join(errs...)
}

func (f *fleet) restart(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, s := range f.nodes {
		group.Go(func() error { return s.start(ctx) })
	}
	return group.Wait()
}

// close stops the servers in order and removes their data.
func (f *fleet) close() error {
	group := new(errgroup.Group)
	for _, s := range f.nodes {
		group.Go(s.stop)
	}
	return errors.Join(group.Wait(), os.RemoveAll(f.dir))
}

func (f *fleet) pids() (pids []int) {
	for _, s := range f.nodes {
		pids = append(pids, s.pid())
	}
	return pids
}

func (f *fleet) bases() (bases []string) {
	for _, s := range f.nodes {
		bases = append(bases, "http://"+s.addr)
	}
	return bases
}
