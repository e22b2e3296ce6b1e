package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/carillon-scheduler/carillon/client/clienttest"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// manyJobs is a file of n jobs of a queue.
func manyJobs(n int, queue string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "---\nid: job-%03d\nqueue: %s\nlabels: {team: data}\nschedule: {every: {interval: 1h}}\n", i, queue)
	}
	return b.String()
}

func applied(t *testing.T, server *clienttest.Server, file string, args ...string) string {
	t.Helper()
	return session(t.Context(), server, append([]string{"apply", "-f", "-", "--timeout", "2s"}, args...), strings.NewReader(file))
}

// isChange says whether a call changes a job.
func isChange(call clienttest.Call) bool {
	put, ok := call.Request.(*carillonv1.PutJobRequest)
	return ok && !put.GetValidateOnly()
}

// What somebody changes, creates or deletes between the read and the change is left as it is; the other jobs are changed, and
// nothing is pruned.
func TestApplyOverwritesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := clienttest.NewServer()
		applied(t, server, manyJobs(3, "a")+"---\nid: stale\nlabels: {team: data}\nschedule: {every: {interval: 1h}}\n")
		race := sync.OnceFunc(func() {
			for _, args := range [][]string{
				{"jobs", "update", "job-001", "--priority", "9"}, {"jobs", "delete", "job-002"},
				{"jobs", "create", "--id", "job-003", "--every", "1m"},
			} {
				if got := session(t.Context(), server, args, nil); strings.Contains(got, "exit") {
					t.Errorf("%v says %s", args, got)
				}
			}
		})
		server.Before(func(_ context.Context, call clienttest.Call) error {
			if isChange(call) {
				race()
			}
			return nil
		})
		got := applied(t, server, manyJobs(4, "b"), "--prune", "-l", "team=data")
		const want = `updated job-000: queue
0 created, 1 updated, 0 unchanged, 0 deleted, 3 failed, 1 not tried
! -:7: job-001: was changed by somebody else since it was read: it was version 1 and is 2; nothing was overwritten
! -:12: job-002: was deleted by somebody else since it was read; run it again to create it
! -:17: job-003: was created by somebody else since it was looked for; nothing was overwritten
! carillon: 3 of the jobs could not be changed; the others were, but nothing was deleted
exit 4
`
		if got != want {
			t.Errorf("the apply says\n%s\nwant\n%s", got, want)
		}
		server.Before(nil)
		got = applied(t, server, manyJobs(4, "b"), "--prune", "-l", "team=data", "--yes")
		if !strings.HasSuffix(got, "1 created, 2 updated, 1 unchanged, 1 deleted\n") {
			t.Errorf("run again it says\n%s", got)
		}
	})
}

// An apply that was cut off, and whose last answers were lost, goes on when it is run again, and then has nothing to do.
func TestApplyThatWasInterruptedGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := clienttest.NewServer()
		var changes atomic.Int32
		server.After(func(_ context.Context, call clienttest.Call) error {
			if !isChange(call) {
				return nil
			}
			if changes.Add(1) > 100 {
				return clienttest.Fail(connect.CodeUnavailable, "gone")
			}
			return nil
		})
		got := applied(t, server, manyJobs(200, "a"))
		if !strings.Contains(got, "apply stopped, run it again to go on: create job") || !strings.HasSuffix(got, "exit 5\n") {
			t.Errorf("cut off it says\n%s", got)
		}
		server.After(nil)
		got = applied(t, server, manyJobs(200, "a"))
		if !strings.Contains(got, " unchanged, 0 deleted\n") || strings.Contains(got, "exit") || strings.HasPrefix(got, "0 created") {
			t.Errorf("run again it says\n%s", got)
		}
		if got = applied(t, server, manyJobs(200, "a")); got != "0 created, 0 updated, 200 unchanged, 0 deleted\n" {
			t.Errorf("once more it says\n%s", got)
		}
		if n := jobsOf(t, server); n != 200 {
			t.Errorf("200 jobs in a file are %d", n)
		}
	})
}

// A server that is down while the jobs are compared leaves everything as it is.
func TestApplyDoesNothingBeforeAllIsCompared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := clienttest.NewServer()
		server.Before(func(_ context.Context, call clienttest.Call) error {
			if put, ok := call.Request.(*carillonv1.PutJobRequest); ok && put.GetId() == "job-009" {
				return clienttest.Fail(connect.CodeUnavailable, "gone")
			}
			return nil
		})
		if got := applied(t, server, manyJobs(10, "a")); !strings.HasSuffix(got, "exit 5\n") {
			t.Errorf("it says\n%s", got)
		}
		if n := jobsOf(t, server); n != 0 {
			t.Errorf("there are %d jobs", n)
		}
	})
}

// specIn goes by numbers: each field of JobSpec is one of Job.
func TestJobHasTheFieldsOfItsSpec(t *testing.T) {
	spec, job := (&carillonv1.JobSpec{}).ProtoReflect().Descriptor().Fields(), (&carillonv1.Job{}).ProtoReflect().Descriptor().Fields()
	for i := range spec.Len() {
		field := spec.Get(i)
		same := job.ByNumber(field.Number())
		if same == nil || same.Name() != field.Name() || same.Kind() != field.Kind() || same.Cardinality() != field.Cardinality() {
			t.Errorf("%s is %v in a job", field.Name(), same)
		}
	}
	if specIn(nil) == nil || !proto.Equal(specIn(nil), &carillonv1.JobSpec{}) {
		t.Error("no job has a spec")
	}
}

func TestCompareFires(t *testing.T) {
	list := func(all bool, hours ...int) fires {
		f := fires{all: all}
		for _, h := range hours {
			f.times = append(f.times, fire{Time: time.Unix(0, 0).Add(time.Duration(h) * time.Hour), Local: strconv.Itoa(h)})
		}
		return f
	}
	many := make([]int, 25)
	for i := range many {
		many[i] = i + 1
	}
	for _, c := range []struct {
		name          string
		before, after fires
		want          string
	}{
		{"created", list(true), list(false, 1, 2), "+1 +2"},
		{"deleted", list(false, 1, 2), list(true), "-1 -2 or more"},
		{"the same", list(false, 1, 2, 3), list(false, 1, 2), " 1  2"},
		{"moved", list(false, 1, 3, 5), list(false, 2, 3, 4), "-1 +2  3 +4"},
		{"old ones after the last new one are not known to be gone", list(false, 5, 6), list(false, 1, 2), "+1 +2"},
		{"unless the new ones end", list(true, 1, 5, 6), list(true, 1), " 1 -5 -6"},
		{"nothing left", list(true, 1), list(true), "-1"},
		{"many gone", list(false, append(many, 40)...), list(false, 30), "-1 -2 -3 -4 -5 -6 -7 -8 -9 -10 +30 15 more"},
		{"more gone than known", list(false, many...), list(false, 30), "-1 -2 -3 -4 -5 -6 -7 -8 -9 -10 +30 15 more or more"},
	} {
		got := ""
		change := compareFires(c.before, c.after)
		for _, f := range change.fires {
			got += " " + marks[f.Change] + f.Local
		}
		if change.more > 0 {
			got += fmt.Sprintf(" %d more", change.more)
		}
		if change.atLeast {
			got += " or more"
		}
		if got = strings.TrimPrefix(got, " "); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
