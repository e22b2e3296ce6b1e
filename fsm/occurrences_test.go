package fsm

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// showOccurrences is a script's line: occurrences id=job from=1m to=10m all limit=3
func showOccurrences(sc *script, out *strings.Builder, a args) {
	q := OccurrenceQuery{
		Tenant: a.str("tenant", "t"), JobID: a.str("id", "job"), FromMS: a.instant("from"), ToMS: a.instant("to"),
		AllKinds: a.has("all"), NowMS: sc.now,
	}
	var cursor []byte
	for {
		page, ok := ReadOccurrences(sc.s, q, cursor, int(a.num("limit", 100)))
		if !ok {
			out.WriteString("no such job\n")
			return
		}
		for i := range page.List {
			fmt.Fprintf(out, "%s\n", showOccurrence(&page.List[i]))
		}
		if page.Next == nil {
			if page.KnownFromMS > q.FromMS {
				fmt.Fprintf(out, "known from %s\n", show(page.KnownFromMS))
			}
			if page.KnownToMS != 0 {
				fmt.Fprintf(out, "known to %s\n", show(page.KnownToMS))
			}
			return
		}
		out.WriteString("next page\n")
		cursor = page.Next
	}
}

func showOccurrence(o *Occurrence) string {
	if e := o.Execution; e != nil {
		text := showID(ExecutionID(e)) + " " + state(e.State)
		if e.Late {
			text += ", late"
		}
		return text
	}
	if o.ToMS == o.FromMS && o.Count == 1 {
		return show(o.FromMS) + " " + o.Why
	}
	return fmt.Sprintf("%s to %s: %d %s", show(o.FromMS), show(o.ToMS), o.Count, o.Why)
}

// TestOccurrencesAreWhole: over shards of random history, each job's occurrences are what its rows hold, in order, in
// pages of any size, and ranges of time cut out what they should.
func TestOccurrencesAreWhole(t *testing.T) {
	seen := 0
	for seed := range uint64(4) {
		r := recordLog(seed, 300)
		for n := range 30 {
			for _, tenant := range []string{"t", "t-1"} {
				seen += r.wantOccurrences(t, seed, OccurrenceQuery{Tenant: tenant, JobID: fmt.Sprintf("job-%d", n), AllKinds: n%3 > 0, NowMS: r.now})
			}
		}
	}
	if seen < 500 {
		t.Errorf("the shards had %d occurrences: too few to tell anything", seen)
	}
}

func (r *recorder) wantOccurrences(t *testing.T, seed uint64, q OccurrenceQuery) (seen int) {
	t.Helper()
	first, ok := ReadOccurrences(quick{r.s}, q, nil, 1)
	if !ok {
		return 0
	}
	read := func(q OccurrenceQuery, limit int) []Occurrence {
		return pages(t, func(c []byte) ([]Occurrence, []byte) {
			page, _ := ReadOccurrences(quick{r.s}, q, c, limit)
			if len(page.List) > limit {
				t.Fatalf("seed %d, %+v: %d on a page of %d", seed, q, len(page.List), limit)
			}
			return page.List, page.Next
		})
	}
	all := read(q, 1000)
	if got, want := decided(all), r.decidedOf(first.Job, &q); !slices.Equal(got, want) {
		t.Errorf("seed %d, %+v: decided are\n%v\nwant\n%v", seed, q, got, want)
	}
	if !slices.IsSortedFunc(all, func(a, b Occurrence) int { return int(a.FromMS - b.FromMS) }) {
		t.Errorf("seed %d, %+v: not in order: %v", seed, q, shown(all))
	}
	if len(all) > 100 {
		return len(all)
	}
	for _, limit := range []int{1, 2, 7} {
		if got := shown(read(q, limit)); !slices.Equal(got, shown(all)) {
			t.Errorf("seed %d, %+v in pages of %d:\n%v\nwant\n%v", seed, q, limit, got, shown(all))
		}
	}
	if len(all) < 3 {
		return len(all)
	}
	part := q
	part.FromMS, part.ToMS = all[len(all)/3].ToMS, all[2*len(all)/3].FromMS
	var want []Occurrence
	for _, o := range all {
		if o.ToMS >= part.FromMS && o.FromMS <= part.ToMS {
			want = append(want, o)
		}
	}
	// Of what is pending a whole list has the next one only.
	if got := decided(read(part, 2)); part.FromMS <= part.ToMS && !slices.Equal(got, decided(want)) {
		t.Errorf("seed %d, %+v:\n%v\nwant\n%v", seed, part, got, decided(want))
	}
	return len(all)
}

// decidedOf finds the decided occurrences of a job by looking at every row.
func (r *recorder) decidedOf(j *storagev1.Job, q *OccurrenceQuery) []string {
	var list []Occurrence
	for _, k := range r.s.keys {
		if ref, ok := parseEndedKey([]byte(k)); ok && ref.char == charRange && ref.id.Tenant == q.Tenant && ref.id.JobID == q.JobID &&
			ref.id.Incarnation == j.Incarnation {
			v := &storagev1.RangeVerdict{}
			value, _ := r.s.Get([]byte(k))
			mustDecode([]byte(k), value, v.UnmarshalVT)
			list = append(list, Occurrence{FromMS: v.FromMs, ToMS: v.ToMs, Count: v.Count, Why: v.Why, RecordedMS: v.RecordedMs})
		}
		_, e := readHint(r.s, []byte(k))
		if e == nil || e.Tenant != q.Tenant || e.JobId != q.JobID || e.Incarnation != j.Incarnation ||
			!q.AllKinds && e.Kind != storagev1.ExecutionKind_EXECUTION_KIND_SCHEDULE {
			continue
		}
		list = append(list, Occurrence{FromMS: e.NominalMs, ToMS: e.NominalMs, Count: 1, Execution: e})
	}
	return decided(list)
}

// decided are those that have an execution or a verdict, sorted as text.
func decided(list []Occurrence) []string {
	list = slices.DeleteFunc(slices.Clone(list), func(o Occurrence) bool { return o.Execution == nil && o.RecordedMS == 0 })
	text := shown(list)
	slices.Sort(text)
	return text
}

func shown(list []Occurrence) (text []string) {
	for i := range list {
		text = append(text, showOccurrence(&list[i]))
	}
	return text
}

// quick reads rows without spoiling what it has handed out, which a large backlog has no time for.
type quick struct{ *memState }

func (q quick) Scan(start, end []byte, fn func(key, value []byte) bool) {
	i, _ := slices.BinarySearch(q.keys, string(start))
	for ; i < len(q.keys) && (end == nil || q.keys[i] < string(end)); i++ {
		if !fn([]byte(q.keys[i]), q.values[q.keys[i]]) {
			return
		}
	}
}

// TestOccurrencesInABacklog: a job's few executions are found in a stream of very many others, some of them at the same
// instants, page by page within the bound.
func TestOccurrencesInABacklog(t *testing.T) {
	s := newMemState()
	put := func(jobID string, nominal int64, spread string) {
		e := &storagev1.Execution{
			Tenant: "t", JobId: jobID, Incarnation: 1, Kind: storagev1.ExecutionKind_EXECUTION_KIND_SCHEDULE, NominalMs: nominal,
			State: storagev1.ExecutionState_EXECUTION_STATE_READY, Template: &storagev1.Template{Queue: "q", FairnessKey: spread},
		}
		s.Set(ReadyKey(e), mustEncode(e.MarshalVT()))
	}
	j := &storagev1.Job{
		Version: 1, Incarnation: 1, State: storagev1.JobState_JOB_STATE_PAUSED, CreatedMs: epochMS,
		Schedule: &storagev1.Schedule{Every: &storagev1.Every{IntervalMs: 1000, AnchorMs: epochMS, EndMs: epochMS}},
		Template: &storagev1.Template{Queue: "q"}, WatermarkMs: epochMS + 1e9,
	}
	s.Set(JobKey("t", "mine"), mustEncode(j.MarshalVT()))
	var want []string
	for i := range int64(60_000) {
		put("another", epochMS+i, "")
		put("zebra", epochMS+i, "")
		if i%20_000 == 7 {
			put("mine", epochMS+i, "")
			put("mine", epochMS+i+1, "other-stream")
			want = append(want, fmt.Sprint(epochMS+i), fmt.Sprint(epochMS+i+1))
		}
	}
	short := 0
	var got []string
	var cursor []byte
	for {
		page, _ := ReadOccurrences(quick{s}, OccurrenceQuery{Tenant: "t", JobID: "mine", NowMS: epochMS}, cursor, 100)
		for _, o := range page.List {
			got = append(got, fmt.Sprint(o.FromMS))
		}
		if page.Next == nil {
			break
		}
		if bytes.Compare(page.Next, cursor) <= 0 {
			t.Fatalf("cursor went from %x to %x", cursor, page.Next)
		}
		cursor, short = page.Next, short+1
	}
	if !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
	if short < 2 {
		t.Errorf("it took %d pages: the bound was not met", short+1)
	}
}
