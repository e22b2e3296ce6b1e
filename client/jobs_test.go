package client_test

import (
	"fmt"
	"testing"

	"github.com/carillon-scheduler/carillon/client"
	"github.com/carillon-scheduler/carillon/client/clienttest"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// A list that was broken off on its second page, or read to its end, begins anew where it was asked to begin.
func TestAListIsReadFromItsStartEachTime(t *testing.T) {
	c := newClient(t, clienttest.NewServer())
	for i := range 7 {
		create(t, c, client.Job{ID: fmt.Sprint("j", i)})
	}
	list := c.ListJobs(t.Context(), &carillonv1.ListJobsRequest{PageSize: 2})
	for _, most := range []int{3, 7, 4, 7} {
		var ids []string
		for job, err := range list {
			if err != nil {
				t.Fatal(err)
			}
			if ids = append(ids, job.GetId()); len(ids) == most {
				break
			}
		}
		if want := []string{"j0", "j1", "j2", "j3", "j4", "j5", "j6"}[:most]; fmt.Sprint(ids) != fmt.Sprint(want) {
			t.Errorf("read %v, want %v", ids, want)
		}
	}
}
