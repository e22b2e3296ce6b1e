package bench

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Names of the server's counters that the bench reads.
const (
	metricKeyWrites  = "carillon_store_key_writes_total"
	metricGets       = "carillon_store_gets_total"
	metricEntries    = "carillon_raft_entries_total"
	metricCommands   = "carillon_raft_commands_total"
	metricExpansions = "carillon_expansions_total"
	metricReady      = "carillon_executions_ready"
	metricCPU        = "process_cpu_seconds_total"
	metricRSS        = "process_resident_memory_bytes"
)

// maxMetricsBytes bounds a page of metrics.
const maxMetricsBytes = 16 << 20

// samples holds, by metric name, the sum over all label sets.
type samples map[string]float64

// scrape reads /metrics of the server at base.
func scrape(ctx context.Context, base string) (samples, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/metrics", nil)
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("read metrics: %s", resp.Status)
	}
	return parseMetrics(io.LimitReader(resp.Body, maxMetricsBytes))
}

// parseMetrics reads the Prometheus text format.
func parseMetrics(r io.Reader) (samples, error) {
	out := samples{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, err := parseSample(line)
		if err != nil {
			return nil, fmt.Errorf("parse metrics: line %q: %w", line, err)
		}
		out[name] += value
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("parse metrics: %w", err)
	}
	return out, nil
}

// parseSample splits `name{labels} value [timestamp]`.
func parseSample(line string) (name string, value float64, err error) {
	end := strings.IndexAny(line, "{ \t")
	if end <= 0 {
		return "", 0, fmt.Errorf("no name and value")
	}
	name, rest := line[:end], line[end:]
	if rest[0] == '{' {
		if rest, err = afterLabels(rest); err != nil {
			return "", 0, err
		}
	}
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return "", 0, fmt.Errorf("no value")
	}
	value, err = strconv.ParseFloat(fields[0], 64)
	return name, value, err
}

// afterLabels skips `{...}`; a brace inside a quoted label value does not end it.
func afterLabels(s string) (string, error) {
	quoted := false
	for i := 0; i < len(s); i++ {
		switch {
		case quoted && s[i] == '\\':
			i++
		case s[i] == '"':
			quoted = !quoted
		case !quoted && s[i] == '}':
			return s[i+1:], nil
		}
	}
	return "", fmt.Errorf("labels do not end")
}
