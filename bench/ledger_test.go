package bench

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// book is a ledger of three accepted jobs, due at start, and what a test does to it.
type book struct {
	*ledger
	t *testing.T
}

func newBook(t *testing.T) book {
	l := newLedger(newPlan(1, 3, "", at(start)), 3)
	for i := range 3 {
		l.created(i, accepted)
	}
	return book{l, t}
}

// deliver hands over job i at start+after.
func (b book) deliver(i int, after time.Duration, attempt uint32, fencing uint64, change ...func(*carillonv1.Lease)) delivery {
	b.t.Helper()
	payload := make([]byte, PayloadBytes)
	b.plan.payload(payload, i)
	lease := &carillonv1.Lease{
		Attempt: attempt, FencingNumber: fencing, Payload: payload, Tenant: b.plan.tenant(i), Queue: b.plan.queue(i),
		NominalTime: timestamppb.New(start), LeaseLength: durationpb.New(30 * time.Second),
	}
	for _, c := range change {
		c(lease)
	}
	got := b.receive(start.Add(after), []*carillonv1.Lease{lease})
	if len(got) == 0 {
		return delivery{item: -1, lease: lease}
	}
	return got[0]
}

// finish completes a delivery; code is the refusal, empty: accepted.
func (b book) finish(d delivery, code string) {
	b.t.Helper()
	r := &carillonv1.CompleteResult{Result: &carillonv1.CompleteResult_State{
		State: carillonv1.ExecutionState_EXECUTION_STATE_SUCCEEDED}}
	if code != "" {
		r.Result = &carillonv1.CompleteResult_Error{Error: &carillonv1.ItemError{Code: code}}
	}
	if _, err := b.complete([]delivery{d}, []*carillonv1.CompleteResult{r}); err != nil {
		b.t.Fatal(err)
	}
}

func (b book) finishOthers() {
	for i := range 3 {
		if b.items[i].attempt == 0 {
			b.finish(b.deliver(i, time.Millisecond, 1, uint64(100+i)), "")
		}
	}
}

func TestLedger(t *testing.T) {
	const ms = time.Millisecond
	for _, tc := range []struct {
		name string
		do   func(b book)
		want tally
		says string
	}{
		{name: "all is well", do: func(b book) {}, want: tally{delivered: 3, completed: 3}},
		{
			name: "delivered twice as the same attempt",
			do: func(b book) {
				b.finish(b.deliver(0, ms, 1, 5), "")
				b.deliver(1, ms, 1, 6)
				b.finish(b.deliver(1, 2*ms, 1, 7), "")
			},
			want: tally{delivered: 3, completed: 3, duplicates: 1}, says: "job 1: delivered twice as attempt 1",
		},
		{
			name: "delivered again after its completion",
			do: func(b book) {
				b.finish(b.deliver(0, ms, 1, 5), "")
				b.deliver(0, time.Minute, 2, 9)
			},
			want: tally{delivered: 3, completed: 3, duplicates: 1}, says: "job 0: delivered again after its completion",
		},
		{
			name: "delivered again while its lease was good",
			do: func(b book) {
				b.deliver(0, ms, 1, 5)
				b.finish(b.deliver(0, 29*time.Second, 2, 9), "")
			},
			want: tally{delivered: 3, completed: 3, duplicates: 1}, says: "under a lease of 30s",
		},
		{
			name: "a second attempt after its lease has ended is right",
			do: func(b book) {
				first := b.deliver(0, ms, 1, 5)
				second := b.deliver(0, 31*time.Second, 2, 9)
				b.finish(first, "failed_precondition")
				b.finish(second, "")
			},
			want: tally{delivered: 3, completed: 3, redelivered: 1, stale: 1},
		},
		{
			name: "a third attempt too soon after the second",
			do: func(b book) {
				b.deliver(0, ms, 1, 5)
				b.deliver(0, 31*time.Second, 2, 9)
				b.finish(b.deliver(0, 32*time.Second, 3, 10), "")
			},
			want: tally{delivered: 3, completed: 3, redelivered: 1, duplicates: 1}, says: "delivered again after 1s",
		},
		{
			name: "two completions accepted under two leases",
			do: func(b book) {
				first := b.deliver(0, ms, 1, 5)
				second := b.deliver(0, 31*time.Second, 2, 9)
				b.finish(first, "")
				b.finish(second, "")
			},
			want: tally{delivered: 3, completed: 3, redelivered: 1, duplicates: 1}, says: "two completions accepted",
		},
		{
			name: "a completion answered twice under one lease is one",
			do: func(b book) {
				d := b.deliver(0, ms, 1, 5)
				b.finish(d, "")
				b.finish(d, "")
			},
			want: tally{delivered: 3, completed: 3},
		},
		{
			name: "early by a tick",
			do:   func(b book) { b.finish(b.deliver(0, -1, 1, 5), "") },
			want: tally{delivered: 3, completed: 3, early: 1}, says: "job 0: received 1ns before its time",
		},
		{
			name: "exactly on time is not early",
			do:   func(b book) { b.finish(b.deliver(0, 0, 1, 5), "") },
			want: tally{delivered: 3, completed: 3},
		},
		{
			name: "another payload",
			do: func(b book) {
				b.deliver(0, ms, 1, 5, func(l *carillonv1.Lease) { l.Payload[99] ^= 0x80 })
			},
			want: tally{delivered: 3, completed: 3, corrupt: 1}, says: "belongs to no job",
		},
		{
			name: "another tenant",
			do: func(b book) {
				b.finish(b.deliver(0, ms, 1, 5, func(l *carillonv1.Lease) { l.Tenant = "t001" }), "")
			},
			want: tally{delivered: 3, completed: 3, corrupt: 1}, says: "its tenant is t001",
		},
		{
			name: "another nominal time",
			do: func(b book) {
				b.finish(b.deliver(0, ms, 1, 5, func(l *carillonv1.Lease) { l.NominalTime.Nanos++ }), "")
			},
			want: tally{delivered: 3, completed: 3, corrupt: 1}, says: "its nominal time is",
		},
		{
			name: "a refused job is delivered",
			do:   func(b book) { b.items[2].state = shed },
			want: tally{delivered: 3, completed: 3, corrupt: 1}, says: "job 2: delivered, but its create was refused",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBook(t)
			tc.do(b)
			b.finishOthers()
			got := b.close()
			words := strings.Join(got.examples, "\n")
			got.examples, tc.want.accepted = nil, 3
			if !sameTally(got, tc.want) {
				t.Errorf("got  %+v\nwant %+v", got, tc.want)
			}
			if !strings.Contains(words, tc.says) || (tc.says == "") != (words == "") {
				t.Errorf("examples say %q, not %q", words, tc.says)
			}
			select {
			case <-b.finished:
			default:
				t.Error("all jobs are completed and the ledger does not say that it is finished")
			}
		})
	}
}

// sameTally compares all counts.
func sameTally(a, b tally) bool {
	a.examples, b.examples = nil, nil
	return a.accepted == b.accepted && a.shed == b.shed && a.unknown == b.unknown && a.delivered == b.delivered &&
		a.completed == b.completed && a.redelivered == b.redelivered && a.duplicates == b.duplicates &&
		a.early == b.early && a.corrupt == b.corrupt && a.stale == b.stale && a.lost == b.lost
}

func TestLedgerCountsLostJobs(t *testing.T) {
	b := newBook(t)
	b.finish(b.deliver(0, time.Millisecond, 1, 1), "")
	b.deliver(1, time.Millisecond, 1, 2)
	b.created(2, unknown) // the last word: it may or may not exist
	if got := b.close(); got.lost != 1 || !strings.Contains(got.examples[0], "job 1: accepted, 1 attempts seen") {
		t.Errorf("one job was delivered and never completed: %+v", got)
	}
	select {
	case <-b.finished:
		t.Error("finished with one completion of three")
	default:
	}
}

func TestLedgerSendsAgainWhatCouldNotBeAppliedNow(t *testing.T) {
	b := newBook(t)
	d := b.deliver(0, time.Millisecond, 1, 1)
	refused := &carillonv1.CompleteResult{Result: &carillonv1.CompleteResult_Error{
		Error: &carillonv1.ItemError{Code: "unavailable"}}}
	again, err := b.complete([]delivery{d}, []*carillonv1.CompleteResult{refused})
	if err != nil || len(again) != 1 {
		t.Errorf("again %v, error %v", again, err)
	}
	refused.GetError().Code = "invalid_argument"
	if _, err := b.complete([]delivery{d}, []*carillonv1.CompleteResult{refused}); err == nil {
		t.Error("a completion that is refused for good is not reported")
	}
	if _, err := b.complete([]delivery{d}, nil); err == nil {
		t.Error("an answer without results is not reported")
	}
}
