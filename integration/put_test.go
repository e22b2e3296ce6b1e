package integration

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// R2: a hundred callers put one id at once, through the binary; then the server is killed. One occurrence is pending, of the
// definition that came last, and putting that again, by the command line as well, changes nothing.
func TestR2ConcurrentPuts(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	const callers = 100
	anchor := soon(time.Hour)
	definition := func(i int) *carillonv1.JobSpec {
		return &carillonv1.JobSpec{Schedule: every(2*time.Hour, anchor.Add(time.Duration(i)*time.Second))}
	}
	var group errgroup.Group
	var mu sync.Mutex
	last := map[uint64]int{} // which definition made a version
	for i := range callers {
		group.Go(func() error {
			res, err := try(s.jobs().PutJob, &carillonv1.PutJobRequest{Id: "j", Job: definition(i)})
			mu.Lock()
			defer mu.Unlock()
			last[res.GetJob().GetVersion()] = i
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	s.kill()
	s.start()
	want := anchor.Add(time.Duration(last[callers]) * time.Second)
	list := s.occurrences(&carillonv1.ListOccurrencesRequest{Id: "j"})
	if len(last) != callers || len(list) != 1 || !list[0].GetTime().AsTime().Equal(want) {
		t.Fatalf("%d versions; pending are %v, want %v", len(last), list, want)
	}
	res := call(t, s.jobs().PutJob, &carillonv1.PutJobRequest{Id: "j", Job: definition(last[callers])})
	if res.GetOutcome() != carillonv1.PutOutcome_PUT_OUTCOME_UNCHANGED || res.GetJob().GetVersion() != callers {
		t.Errorf("putting it again: %v", res)
	}
	out := s.cli("jobs", "put", "j", "--every", "2h", "--anchor", want.Format(time.RFC3339Nano), "--expected-version", fmt.Sprint(callers))
	if !strings.Contains(out, "unchanged") {
		t.Errorf("carillon jobs put: %s", out)
	}
}
