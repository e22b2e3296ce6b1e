package rpc

import (
	"strings"
	"testing"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// Whatever JSON cannot be read, the error says which field it is about, with its whole path, and what belongs there.
func TestUnreadableJSONNamesTheField(t *testing.T) {
	deep := strings.Repeat(`{"job":`, 20_000)
	const cannot = "cannot be read: "
	for _, c := range []struct{ body, field, text string }{
		{`{"items": [{"job": {"schedule": {"delay": "5m"}}}]}`, "items[0].job.schedule.delay",
			`is "5m"; it must be a duration in seconds, such as "300s"`},
		{`{"items": [{}, {"job": {"schedule": {"at": "yesterday"}}}]}`, "items[1].job.schedule.at",
			`is "yesterday"; it must be an instant as RFC 3339 has it, such as "2030-01-01T08:00:00Z"`},
		{`{"items": [{"job": {"schedule": {"at": {}}}}]}`, "items[0].job.schedule.at", "is an object; it must be an instant"},
		{"{\"items\": [\n {},\n {\"job\": {\"labels\": {\"ü\": \"ü\"}, \"lease\":\n 5}}]}", "items[1].job.lease",
			`is 5; it must be a duration in seconds, such as "300s"`},
		{`{"items": [{"job": {"schedule": {"after": "1s"}}}]}`, "items[0].job.schedule.after",
			"is an unknown field; known here: at, delay, every, cron, spread, maxFiresPerDay"},
		{`{"items": [{"job": {"schedule": {"every": "10s"}}}]}`, "items[0].job.schedule.every",
			`is "10s"; it must be an object such as {"interval": "10s"}`},
		{`{"items": [{"job": {"schedule": "10s"}}]}`, "items[0].job.schedule", `is "10s"; it must be an object such as ` +
			`{"at": "2030-01-01T08:00:00Z"} or {"delay": "10s"} or {"every": {"interval": "10s"}} or {"cron": {"lines": ["text"]}}`},
		{`{"items": [{"job": {"retry": 5}}]}`, "items[0].job.retry", `is 5; it must be an object such as {"maxAttempts": 1}`},
		{`{"items": [{"job": {"retry": {"maxAttempts": "many"}}}]}`, "items[0].job.retry.max_attempts",
			`is "many"; it must be a whole number that is not negative`},
		{`{"items": [{"job": {"retry": {"max_attempts": -1}}}]}`, "items[0].job.retry.max_attempts", "is -1; it must be a whole"},
		{`{"items": [{"job": {"labels": {"Team": 1}}}]}`, "items[0].job.labels.Team", "is 1; it must be a text in quotes"},
		{`{"items": [{"job": {"labels": ["a"]}}]}`, "items[0].job.labels", `is a list; it must be an object such as {"key": "text"}`},
		{`{"items": [{"job": {"payload": "!"}}]}`, "items[0].job.payload",
			`is "!"; it must be base64, such as "aGVsbG8=" for "hello"`},
		{`{"items": [{"job": {"payload": "` + strings.Repeat("!", 100) + `"}}]}`, "items[0].job.payload",
			`is "` + strings.Repeat("!", 60) + `…"; it must`},
		{`{"items": [{"job": {"catchUp": "SOMETIMES"}}]}`, "items[0].job.catch_up",
			`is "SOMETIMES"; it must be one of CATCH_UP_NONE, CATCH_UP_LATEST, CATCH_UP_ALL`},
		{`{"items": [{"job": {"id": "a", "id": "b"}}]}`, "items[0].job.id", cannot},
		{`{"items": [{"job": {"schedule": {"delay": "1s", "at": "2030-01-01T08:00:00Z"}}}]}`, "items[0].job.schedule.at", cannot},
		{`{"items": [{"job": {"id": "\ud800"}}]}`, "items[0].job.id", `has \ud800, half of a surrogate pair without the other half`},
		{`{"requestId": 7}`, "request_id", "is 7; it must be a text in quotes"},
		{`{"items": [{"job": {"id":`, "items[0].job.id", cannot},
		{`{"items": 1}`, "items", `is 1; it must be a list such as [{"job": {"id": "text"}}]`},
		{`{"items": [true]}`, "items[0]", `is true; it must be an object such as {"job": {"id": "text"}}`},
		{`{"itmes": []}`, "itmes", "is an unknown field; known here: items, requestId"},
		{`{} {}`, "", cannot},
		{`[]`, "", cannot},
		{`{`, "", cannot},
		{``, "", cannot},
		{`nonsense`, "", cannot},
	} {
		field, text := decodeJSON([]byte(c.body), &carillonv1.BatchCreateJobsRequest{})
		if field != c.field || !strings.HasPrefix(text, c.text) {
			t.Errorf("%.200s: field %q, %q; want field %q, %q", c.body, field, text, c.field, c.text)
		}
	}
	patch := `{"id": "a", "updateMask": 5, "job": {}}`
	if field, text := decodeJSON([]byte(patch), &carillonv1.UpdateJobRequest{}); field != "update_mask" ||
		!strings.HasPrefix(text, "is 5; it must be names of fields") {
		t.Errorf("%s: field %q, %q", patch, field, text)
	}
	if field, text := decodeJSON([]byte(`{"all": true}`), &carillonv1.Released{}); field != "all" ||
		text != "is an unknown field; there are none here" {
		t.Errorf("field %q, %q", field, text)
	}
	if field, _ := decodeJSON([]byte(deep), &carillonv1.CreateJobRequest{}); len(field) > 200 {
		t.Errorf("the path of a deeply nested error has %d characters", len(field))
	}
}
