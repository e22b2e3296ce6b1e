package integration

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// smallDisk is room for a node to start and not for much more.
const smallDisk = 192 << 20

// The disk of one node is full: it stops with the code that says so and a clear error, the others go on; with room again it
// is what it was.
func TestDrillDiskIsFull(t *testing.T) {
	t.Parallel()
	drillSeed(t)
	f := newFleet(t, 3, "--shards", "4", "--memtable-bytes", fmt.Sprint(4<<20))
	victim := f.nodes[1]
	victim.smallDisk = smallDisk
	for _, s := range f.nodes {
		s.launch()
	}
	f.awaitReady()
	d := f.drill(8)
	full := time.Now()
	victim.fillDisk()
	select {
	case <-victim.done:
	case <-time.After(60 * time.Second):
		t.Fatalf("it goes on with a full disk\n%s", victim.seen())
	}
	t.Logf("it stopped %v after its disk was full", time.Since(full).Round(time.Millisecond))
	if code := victim.cmd.ProcessState.ExitCode(); code != 70 || !strings.Contains(victim.log.String(), "no space left on device") {
		t.Errorf("exit code %d\n%s", code, victim.seen())
	}
	d.awaitLeaders(f.nodes[0], victim, 15*time.Second)
	pause(t, time.Second)
	d.gap("a disk is full", failoverLimit)
	victim.smallDisk = 0 // the disk goes with the process: it comes back as one that has lost its own
	victim.launch()
	if err := victim.waitReady(60 * time.Second); err != nil {
		t.Fatalf("with another disk: %v\n%s", err, victim.seen())
	}
	d.end()
}

// onSmallDisk has the process mount a disk of its own on its directory before it starts, which nobody else sees and which
// goes when it ends.
func (s *server) onSmallDisk() {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		s.t.Fatal(err)
	}
	mount := fmt.Sprintf(`mount -t tmpfs -o size=%d,mode=700 tmpfs "$0" && exec "$@"`, s.smallDisk)
	s.cmd.Args = append([]string{"sh", "-c", mount, s.dir, s.cmd.Path}, s.cmd.Args[1:]...)
	s.cmd.Path = "/bin/sh"
	s.cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS
	s.cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
	s.cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
}

// fillDisk leaves no byte on the disk of the process, not even when it removes files.
func (s *server) fillDisk() {
	s.t.Helper()
	name := filepath.Join("/proc", fmt.Sprint(s.pid.Load()), "root", s.dir, "filler")
	file, err := os.Create(name)
	if err != nil {
		s.t.Fatal(err)
	}
	defer file.Close()
	block := make([]byte, 64<<10)
	for size := len(block); size > 0; {
		if _, err := file.Write(block[:size]); errors.Is(err, syscall.ENOSPC) {
			size /= 2
		} else if err != nil && !errors.Is(err, io.ErrShortWrite) {
			s.t.Fatal(err)
		}
	}
}

// The clock of one node is stepped ahead and back: what it leads goes on elsewhere or waits, nothing is early and nothing
// comes twice.
func TestDrillClockIsStepped(t *testing.T) {
	t.Parallel()
	drillSeed(t)
	f := newFleet(t, 3, "--shards", "4")
	for _, s := range f.nodes {
		s.clockDir = t.TempDir()
		s.launch()
	}
	f.awaitReady()
	d := f.drill(8)
	for i, end := 0, time.Now().Add(drillLength(t, 0)); i < 1 || time.Now().Before(end); i++ {
		for _, by := range []time.Duration{2 * time.Hour, -2 * time.Hour} {
			victim := d.leader(uint32(i % 4))
			d.k.lateness()
			victim.step(by)
			await(t, 10*time.Second, "firing is held there", func() bool { return victim.metric("carillon_clock_held") > 0 })
			held := time.Now()
			pause(t, 4*time.Second)
			victim.step(0)
			await(t, 10*time.Second, "the clock is trusted again", func() bool { return victim.metric("carillon_clock_held") == 0 })
			d.awaitWhole(victim, 30*time.Second)
			pause(t, time.Second)
			d.gap(fmt.Sprintf("clock of %s off by %v for %v", d.name(victim), by, time.Since(held).Round(time.Second)), time.Since(held)+failoverLimit)
		}
	}
	d.end()
}
