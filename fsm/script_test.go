package fsm

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// epochMS is the scripts' instant 0: 2026-01-01T00:00:00Z. Instants in scripts are durations after it.
const epochMS = 1_767_225_600_000

// TestScripts runs testdata/scripts: the life cycle as text. `shard` begins with an empty one, `go-on` goes on where the case
// before stopped. Each line of input is one command of the log, or a read; now=… moves the clock of the proposer.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		var sc *script
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			switch d.Cmd {
			case "shard":
				sc = newScript(t)
			case "go-on":
			default:
				t.Fatalf("%s: unknown directive %q", d.Pos, d.Cmd)
			}
			sc.t = t
			for line := range strings.Lines(d.Input) {
				if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
					sc.line(&out, line)
				}
			}
			return out.String()
		})
	})
}

// script is a shard driven by text.
type script struct {
	t      *testing.T
	s      *memState
	m      *Machine
	log    []*storagev1.Entry
	now    int64
	term   uint64
	leases map[uint64]*storagev1.Execution
	fx     Effects
	replay *replay
	seen   uint64
}

func newScript(t *testing.T) *script {
	s := newMemState()
	sc := &script{t: t, s: s, m: Open(1, s), now: epochMS, term: 1, leases: map[uint64]*storagev1.Execution{}, replay: newReplay()}
	sc.apply(&storagev1.Command{LeaderStart: &storagev1.LeaderStart{Term: 1, Store: "s1"}})
	return sc
}

func (sc *script) apply(cmds ...*storagev1.Command) []Result {
	sc.t.Helper()
	for _, c := range cmds {
		c.RequestId = fmt.Sprintf("r%d", len(sc.log))
	}
	return sc.entry(&storagev1.Entry{Term: sc.term, StampMs: sc.now, Commands: cmds})
}

func (sc *script) entry(e *storagev1.Entry) []Result {
	sc.t.Helper()
	sc.log = append(sc.log, e)
	var results []Result
	plans := plansOf(sc.s, e)
	results, sc.fx = sc.m.Apply(sc.s, uint64(len(sc.log)), e)
	comparePlans(sc.t, e, plans, results)
	sc.s.spoil()
	checkInvariants(sc.t, sc.s)
	Events(sc.s, sc.seen, func(offset uint64, r *storagev1.EventRecord) bool {
		sc.replay.apply(sc.t, r)
		sc.seen = offset + 1
		return true
	})
	sc.replay.compare(sc.t, sc.s)
	for _, r := range results {
		for _, e := range r.Leases {
			sc.leases[e.Fencing] = e
		}
	}
	return results
}

// args are the name=value words of a line.
type args struct {
	t   *testing.T
	cmd string
	m   map[string]string
}

func parseArgs(t *testing.T, line string) args {
	words := strings.Fields(line)
	a := args{t: t, cmd: words[0], m: map[string]string{}}
	for _, w := range words[1:] {
		k, v, _ := strings.Cut(w, "=")
		a.m[k] = v
	}
	return a
}

func (a args) has(k string) bool { _, ok := a.m[k]; return ok }

func (a args) str(k, def string) string {
	if v, ok := a.m[k]; ok {
		return v
	}
	return def
}

func (a args) num(k string, def int64) int64 {
	v, ok := a.m[k]
	if !ok {
		return def
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		a.t.Fatalf("%s: %v", k, err)
	}
	return n
}

func (a args) dur(k string, def time.Duration) int64 {
	v, ok := a.m[k]
	if !ok {
		return def.Milliseconds()
	}
	return parseDuration(a.t, v)
}

func parseDuration(t *testing.T, v string) int64 {
	days := int64(0)
	if d, rest, ok := strings.Cut(v, "d"); ok {
		n, err := strconv.ParseInt(d, 10, 64)
		if err != nil {
			t.Fatalf("duration %q: %v", v, err)
		}
		days, v = n, rest
		if v == "" {
			return days * dayMS
		}
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		t.Fatalf("duration %q: %v", v, err)
	}
	return days*dayMS + d.Milliseconds()
}

func (a args) instant(k string) int64 {
	if !a.has(k) {
		return 0
	}
	return epochMS + a.dur(k, 0)
}

func show(ms int64) string {
	if ms == 0 {
		return "-"
	}
	ms -= epochMS
	if d := ms / dayMS; d != 0 && ms > 0 {
		if ms%dayMS == 0 {
			return fmt.Sprintf("%dd", d)
		}
		return fmt.Sprintf("%dd%v", d, time.Duration(ms%dayMS)*time.Millisecond)
	}
	return (time.Duration(ms) * time.Millisecond).String()
}

func showID(s string) string {
	id, err := ParseExecutionID(s)
	if err != nil {
		return s
	}
	return showIdent(id)
}

func showIdent(id Identity) string {
	out := fmt.Sprintf("%s/%d/%c@%s", id.JobID, id.Incarnation, kindChar(id.Kind), show(id.NominalMS))
	if id.Tenant != "t" {
		out = id.Tenant + ":" + out
	}
	if id.Discriminator != "" {
		out += "!" + id.Discriminator
	}
	return out
}

func state(s storagev1.ExecutionState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "EXECUTION_STATE_"))
}

func outcome(o storagev1.Outcome) string {
	return strings.ToLower(strings.TrimPrefix(o.String(), "OUTCOME_"))
}

func jobState(s storagev1.JobState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "JOB_STATE_"))
}

var codes = map[Code]string{
	InvalidArgument: "invalid_argument", NotFound: "not_found", AlreadyExists: "already_exists", Aborted: "aborted",
	FailedPrecondition: "failed_precondition", ResourceExhausted: "resource_exhausted", StaleTerm: "stale_term", Moved: "moved",
}

func showRefusal(r *Refusal) string {
	out := codes[r.Code]
	if r.Field != "" {
		out += " " + r.Field
	}
	out += ": " + r.Message
	if len(r.Fields) > 0 {
		out += " " + fmt.Sprint(r.Fields)
	}
	return out
}

func (sc *script) line(out *strings.Builder, line string) {
	a := parseArgs(sc.t, line)
	if a.has("now") {
		sc.now = a.instant("now")
	}
	if fn, ok := reads[a.cmd]; ok {
		fn(sc, out, a)
		return
	}
	build, ok := commands[a.cmd]
	if !ok {
		sc.t.Fatalf("unknown command %q", a.cmd)
	}
	cmd := build(sc, a)
	r := sc.apply(cmd)[0]
	// As package rpc does: a hint that is missing or out of date is looked up, and the command goes again.
	if c := cmd.Completions; c != nil && r.Refusal == nil && r.Items[0].Refusal != nil && r.Items[0].Refusal.Code == Moved {
		if _, key, ok := Find(sc.s, c.Items[0].ExecutionId); ok {
			c.Items[0].Hint = key
			r = sc.apply(cmd)[0]
		}
	}
	sc.showResult(out, a, &r)
}

func (sc *script) showResult(out *strings.Builder, a args, r *Result) {
	if r.Refusal != nil {
		fmt.Fprintf(out, "%s: %s\n", a.cmd, showRefusal(r.Refusal))
		return
	}
	n := out.Len()
	for _, item := range r.Items {
		if item.Refusal != nil {
			fmt.Fprintf(out, "%s: %s\n", a.cmd, showRefusal(item.Refusal))
			continue
		}
		fmt.Fprintf(out, "%s:", a.cmd)
		switch a.cmd {
		case "create":
			fmt.Fprintf(out, " incarnation %d, first %s", item.Incarnation, show(item.FirstMS))
		case "trigger":
			fmt.Fprintf(out, " %s", showID(r.ExecutionID))
		case "heartbeat":
			fmt.Fprintf(out, " until %s", show(item.DeadlineMS))
		case "expand":
			out.WriteString(" ok")
		default:
			fmt.Fprintf(out, " %s", state(item.State))
		}
		if item.Duplicate {
			out.WriteString(", duplicate")
		}
		if item.CancelRequested {
			out.WriteString(", stop")
		}
		out.WriteByte('\n')
	}
	if a.cmd == "advance" {
		fmt.Fprintf(out, "advance: %d fired", r.Fired)
		if r.MoreDue {
			out.WriteString(", more due")
		}
		out.WriteByte('\n')
	}
	for _, ref := range sc.fx.Expand {
		fmt.Fprintf(out, "wants a horizon: %s\n", ref.JobID)
	}
	for _, e := range r.Leases {
		fmt.Fprintf(out, "lease %d: %s to %s, attempt %d, until %s\n", e.Fencing, showID(ExecutionID(e)), e.Worker, e.Attempt, show(e.DeadlineMs))
	}
	if r.Job != nil {
		fmt.Fprintf(out, "%s: version %d, %s", a.cmd, r.Job.Version, jobState(r.Job.State))
		if r.Put != storagev1.PutOutcome_PUT_OUTCOME_UNSPECIFIED {
			fmt.Fprintf(out, ", %s", strings.ToLower(strings.TrimPrefix(r.Put.String(), "PUT_OUTCOME_")))
		}
		out.WriteByte('\n')
	}
	if r.Task != nil {
		fmt.Fprintf(out, "task %s: done %d, seen %d, finished %v\n", r.Task.Id, r.Task.DoneCount, r.Task.SeenCount, r.Task.Finished)
	}
	if a.cmd == "housekeep" {
		fmt.Fprintf(out, "housekeep: removed %d, more %v\n", r.Removed, r.More)
	}
	if out.Len() == n {
		fmt.Fprintf(out, "%s: ok\n", a.cmd)
	}
}

func keyValues(a args, prefix string) []*storagev1.KeyValue {
	var kvs []*storagev1.KeyValue
	for k, v := range a.m {
		if name, ok := strings.CutPrefix(k, prefix); ok {
			kvs = append(kvs, &storagev1.KeyValue{Key: name, Value: v})
		}
	}
	slices.SortFunc(kvs, func(a, b *storagev1.KeyValue) int { return strings.Compare(a.Key, b.Key) })
	return kvs
}
