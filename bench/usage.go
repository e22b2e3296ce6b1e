package bench

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// usage is what server and bench have used up to an instant. Differences of two are what a phase cost.
type usage struct {
	at time.Time
	// serverCPU is user and system time of the server; nil if it cannot be seen.
	serverCPU *time.Duration
	ownCPU    time.Duration
	rssBytes  int64
	// metrics is empty if the server has none to read.
	metrics samples
}

// clockTick is the unit of CPU times in /proc: USER_HZ is 100 on every platform that Go runs on.
const clockTick = 10 * time.Millisecond

// takeUsage looks at the nodes at bases, of process ids pids if they are ours to see, and at this process. Nodes elsewhere are
// believed by their own metrics. CPU and metrics are sums over the nodes, memory is that of the largest.
func takeUsage(ctx context.Context, bases []string, pids []int) (usage, error) {
	u := usage{at: time.Now(), metrics: samples{}}
	var self syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &self); err != nil {
		return u, fmt.Errorf("read own CPU time: %w", err)
	}
	u.ownCPU = time.Duration(self.Utime.Nano() + self.Stime.Nano())
	var sum time.Duration
	seen := 0
	for i, base := range bases {
		m, err := scrape(ctx, base)
		if err != nil {
			return u, err
		}
		for name, value := range m {
			u.metrics[name] += value
		}
		pid := 0
		if i < len(pids) {
			pid = pids[i]
		}
		if cpu, rss, ok := nodeUsage(pid, m); ok {
			seen++
			sum += cpu
			u.rssBytes = max(u.rssBytes, rss)
		}
	}
	if seen == len(bases) {
		u.serverCPU = &sum
	}
	return u, nil
}

// nodeUsage is CPU and memory of a node, as /proc shows it or else as it says itself.
func nodeUsage(pid int, m samples) (cpu time.Duration, rss int64, ok bool) {
	if cpu, rss, err := processUsage(pid); err == nil {
		return cpu, rss, true
	}
	seconds, ok := m[metricCPU]
	return time.Duration(seconds * float64(time.Second)), int64(m[metricRSS]), ok
}

// processUsage reads CPU time and resident memory of a process from /proc.
func processUsage(pid int) (cpu time.Duration, rssBytes int64, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, fmt.Errorf("read process %d: %w", pid, err)
	}
	return parseStat(string(stat))
}

// parseStat reads /proc/PID/stat. The command's name, in parentheses, may hold anything; fields are counted after it.
func parseStat(stat string) (cpu time.Duration, rssBytes int64, err error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	const utime, stime, rss = 11, 12, 21
	if len(fields) <= rss {
		return 0, 0, fmt.Errorf("parse process status: %d fields", len(fields))
	}
	var n [3]int64
	for k, field := range []int{utime, stime, rss} {
		if n[k], err = strconv.ParseInt(fields[field], 10, 64); err != nil {
			return 0, 0, fmt.Errorf("parse process status: %w", err)
		}
	}
	return time.Duration(n[0]+n[1]) * clockTick, n[2] * int64(os.Getpagesize()), nil
}

// diskBytes is what the files under dir occupy on the disk. Files that vanish meanwhile are passed over: the server works.
func diskBytes(dir string) (int64, error) {
	var sum int64
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			var info fs.FileInfo
			if info, err = d.Info(); err == nil {
				sum += allocated(info)
			}
		}
		if os.IsNotExist(err) {
			return nil
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("measure disk use of %s: %w", dir, err)
	}
	return sum, nil
}

// allocated is the space of a file in blocks, where the system tells it, else its length.
func allocated(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return info.Size()
}
