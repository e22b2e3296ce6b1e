package rpc

import (
	"strings"
	"testing"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// Whatever JSON cannot be read, the error says which field it is about, with its whole path.
func TestUnreadableJSONNamesTheField(t *testing.T) {
	deep := strings.Repeat(`{"job":`, 20_000)
	for _, c := range []struct{ body, field string }{
		{`{"items": [{"job": {"schedule": {"delay": "soon"}}}]}`, "items[0].job.schedule.delay"},
		{`{"items": [{}, {"job": {"schedule": {"at": "yesterday"}}}]}`, "items[1].job.schedule.at"},
		{"{\"items\": [\n {},\n {\"job\": {\"labels\": {\"ü\": \"ü\"}, \"lease\":\n 5}}]}", "items[1].job.lease"},
		{`{"items": [{"job": {"schedule": {"after": "1s"}}}]}`, "items[0].job.schedule.after"},
		{`{"items": [{"job": {"retry": {"maxAttempts": "many"}}}]}`, "items[0].job.retry.max_attempts"},
		{`{"items": [{"job": {"retry": {"max_attempts": -1}}}]}`, "items[0].job.retry.max_attempts"},
		{`{"items": [{"job": {"labels": {"Team": 1}}}]}`, "items[0].job.labels.Team"},
		{`{"items": [{"job": {"payload": "!"}}]}`, "items[0].job.payload"},
		{`{"items": [{"job": {"catchUp": "SOMETIMES"}}]}`, "items[0].job.catch_up"},
		{`{"items": [{"job": {"id": "a", "id": "b"}}]}`, "items[0].job.id"},
		{`{"requestId": 7}`, "request_id"},
		{`{"items": [{"job": {"id":`, "items[0].job.id"},
		{`{"items": 1}`, "items"},
		{`{"itmes": []}`, "itmes"},
		{`{} {}`, ""},
		{`[]`, ""},
		{`{`, ""},
		{``, ""},
		{`nonsense`, ""},
	} {
		field, text := decodeJSON([]byte(c.body), &carillonv1.BatchCreateJobsRequest{})
		if field != c.field || !strings.HasPrefix(text, "cannot be read: ") {
			t.Errorf("%s: field %q, %q; want field %q", c.body, field, text, c.field)
		}
	}
	if field, _ := decodeJSON([]byte(deep), &carillonv1.CreateJobRequest{}); len(field) > 200 {
		t.Errorf("the path of a deeply nested error has %d characters", len(field))
	}
}
