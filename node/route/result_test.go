package route

import (
	"errors"
	"fmt"
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/replica"
	"github.com/carillon-scheduler/carillon/proto/codec"
	"github.com/carillon-scheduler/carillon/rpc"

	clusterv1 "github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// carried is what arrives of an outcome.
func carried(t interface{ Fatal(...any) }, o rpc.Outcome) rpc.Outcome {
	data, err := codec.Proto{}.Marshal(&clusterv1.ProposeResponse{Outcomes: []*clusterv1.Outcome{encodeOutcome(&o)}})
	if err != nil {
		t.Fatal(err)
	}
	res := new(clusterv1.ProposeResponse)
	if err := (codec.Proto{}).Unmarshal(data, res); err != nil {
		t.Fatal(err)
	}
	return decodeOutcome(res.Outcomes[0])
}

// same says in which fields two results differ; no items and nil items are the same.
func same(a, b fsm.Result) error {
	va, vb := reflect.ValueOf(a), reflect.ValueOf(b)
	for i := range va.NumField() {
		x, y := va.Field(i), vb.Field(i)
		if x.Kind() == reflect.Slice && x.Len() == 0 && y.Len() == 0 {
			continue
		}
		if !equal(x.Interface(), y.Interface()) {
			return fmt.Errorf("field %s: %v became %v", va.Type().Field(i).Name, x, y)
		}
	}
	return nil
}

func equal(x, y any) bool {
	switch x := x.(type) {
	case proto.Message:
		return proto.Equal(x, y.(proto.Message))
	case []*storagev1.Execution:
		y := y.([]*storagev1.Execution)
		if len(x) != len(y) {
			return false
		}
		for i := range x {
			if !proto.Equal(x[i], y[i]) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(x, y)
}

// fill sets everything that v can hold to something that is not zero.
func fill(t *testing.T, v reflect.Value) {
	switch v.Interface().(type) {
	case *storagev1.Job:
		v.Set(reflect.ValueOf(&storagev1.Job{Version: 7, Labels: []*storagev1.KeyValue{{Key: "k", Value: "v"}}}))
		return
	case *storagev1.Task:
		v.Set(reflect.ValueOf(&storagev1.Task{Id: "task", DoneCount: 4, Cursor: []byte{0, 1}}))
		return
	case []*storagev1.Execution:
		v.Set(reflect.ValueOf([]*storagev1.Execution{{JobId: "a", Fencing: 9, ClaimId: "c"}, {JobId: "b", Template: &storagev1.Template{Queue: "q"}}}))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(t, v.Index(0))
		fill(t, v.Index(1))
	case reflect.String:
		v.SetString("text")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(5)
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(6)
	default:
		t.Fatalf("this test does not know how to fill a %s: teach it, and the codec", v.Type())
	}
}

// TestEveryFieldOfAResultTravels fails when fsm.Result, Item or Refusal gains a field that the codec does not know.
func TestEveryFieldOfAResultTravels(t *testing.T) {
	var full fsm.Result
	fill(t, reflect.ValueOf(&full).Elem())
	got := carried(t, rpc.Outcome{Result: full})
	if got.Err != nil {
		t.Fatal(got.Err)
	}
	if err := same(full, got.Result); err != nil {
		t.Error(err)
	}
}

func TestAnyResultTravels(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		refusal := rapid.Custom(func(t *rapid.T) *fsm.Refusal {
			return &fsm.Refusal{
				Code: fsm.Code(rapid.IntRange(0, int(fsm.Moved)).Draw(t, "code")), Message: rapid.String().Draw(t, "message"),
				Field: rapid.String().Draw(t, "field"), Version: rapid.Uint64().Draw(t, "version"),
				Fields: rapid.SliceOfN(rapid.String(), 1, 3).Draw(t, "fields"),
			}
		})
		result := fsm.Result{
			Refusal: rapid.OneOf(rapid.Just[*fsm.Refusal](nil), refusal).Draw(t, "refusal"), ExecutionID: rapid.String().Draw(t, "id"),
			Fired: rapid.IntRange(0, 1<<40).Draw(t, "fired"), MoreDue: rapid.Bool().Draw(t, "more due"),
			Removed: rapid.IntRange(0, 1<<40).Draw(t, "removed"), More: rapid.Bool().Draw(t, "more"),
			Items: rapid.SliceOf(rapid.Custom(func(t *rapid.T) fsm.Item {
				return fsm.Item{
					Refusal:     rapid.OneOf(rapid.Just[*fsm.Refusal](nil), refusal).Draw(t, "refusal"),
					Incarnation: rapid.Uint64().Draw(t, "incarnation"), CreatedMS: rapid.Int64().Draw(t, "created"),
					FirstMS: rapid.Int64().Draw(t, "first"), Duplicate: rapid.Bool().Draw(t, "duplicate"),
					DeadlineMS: rapid.Int64().Draw(t, "deadline"), CancelRequested: rapid.Bool().Draw(t, "cancel"),
					State: storagev1.ExecutionState(rapid.Int32Range(0, 9).Draw(t, "state")),
				}
			})).Draw(t, "items"),
		}
		if rapid.Bool().Draw(t, "has a job") {
			result.Job = &storagev1.Job{Version: rapid.Uint64().Draw(t, "version"), Queue: rapid.String().Draw(t, "queue")}
			result.Task = &storagev1.Task{Id: rapid.String().Draw(t, "task")}
		}
		for range rapid.IntRange(0, 3).Draw(t, "leases") {
			result.Leases = append(result.Leases, &storagev1.Execution{JobId: rapid.String().Draw(t, "job"), Fencing: rapid.Uint64().Draw(t, "fencing")})
		}
		got := carried(t, rpc.Outcome{Result: result})
		if got.Err != nil {
			t.Fatal(got.Err)
		}
		if err := same(result, got.Result); err != nil {
			t.Fatal(err)
		}
	})
}

// TestRefusalCodesArePinned: the numbers are on the wire, between nodes of two versions.
func TestRefusalCodesArePinned(t *testing.T) {
	for code, want := range map[fsm.Code]clusterv1.RefusalCode{
		fsm.OK:                 clusterv1.RefusalCode_REFUSAL_CODE_UNSPECIFIED,
		fsm.InvalidArgument:    clusterv1.RefusalCode_REFUSAL_CODE_INVALID_ARGUMENT,
		fsm.NotFound:           clusterv1.RefusalCode_REFUSAL_CODE_NOT_FOUND,
		fsm.AlreadyExists:      clusterv1.RefusalCode_REFUSAL_CODE_ALREADY_EXISTS,
		fsm.Aborted:            clusterv1.RefusalCode_REFUSAL_CODE_ABORTED,
		fsm.FailedPrecondition: clusterv1.RefusalCode_REFUSAL_CODE_FAILED_PRECONDITION,
		fsm.ResourceExhausted:  clusterv1.RefusalCode_REFUSAL_CODE_RESOURCE_EXHAUSTED,
		fsm.StaleTerm:          clusterv1.RefusalCode_REFUSAL_CODE_STALE_TERM,
		fsm.Moved:              clusterv1.RefusalCode_REFUSAL_CODE_MOVED,
	} {
		if clusterv1.RefusalCode(code) != want {
			t.Errorf("code %d is %v on the wire", code, want)
		}
	}
}

func TestErrorsTravel(t *testing.T) {
	for _, err := range []error{
		replica.ErrAmbiguous, replica.ErrOverloaded, replica.ErrTooLarge, replica.ErrNoReplica, replica.ErrStopped,
	} {
		if got := carried(t, rpc.Outcome{Err: fmt.Errorf("propose: %w", err)}); !errors.Is(got.Err, err) {
			t.Errorf("%v became %v", err, got.Err)
		}
	}
	want := replica.NotLeaderError{Shard: 3, Term: 1 << 40, Store: "s2"}
	var got *replica.NotLeaderError
	if out := carried(t, rpc.Outcome{Err: &want}); !errors.As(out.Err, &got) || *got != want {
		t.Errorf("%v became %v", &want, out.Err)
	}
	if out := carried(t, rpc.Outcome{Err: errors.New("disk on fire")}); out.Err == nil || out.Err.Error() != "disk on fire" {
		t.Errorf("an error without a kind became %v", out.Err)
	}
	if out := decodeOutcome(new(clusterv1.Outcome)); out.Err == nil {
		t.Error("an empty outcome passes for a result")
	}
}

// FuzzOutcome: whatever comes is decoded or refused, and what was decoded once is the same when it is carried again.
func FuzzOutcome(f *testing.F) {
	full := rpc.Outcome{Result: fsm.Result{Refusal: &fsm.Refusal{Code: fsm.Moved, Fields: []string{"a"}}, Items: make([]fsm.Item, 2)}}
	for _, o := range []rpc.Outcome{full, {Err: &replica.NotLeaderError{Shard: 1, Store: "s"}}, {Err: replica.ErrAmbiguous}} {
		data, err := codec.Proto{}.Marshal(encodeOutcome(&o))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		msg := new(clusterv1.Outcome)
		if (codec.Proto{}).Unmarshal(data, msg) != nil {
			return
		}
		first := decodeOutcome(msg)
		again := carried(t, first)
		if (first.Err == nil) != (again.Err == nil) || first.Err != nil && first.Err.Error() != again.Err.Error() {
			t.Fatalf("%v became %v", first.Err, again.Err)
		}
		if err := same(first.Result, again.Result); err != nil {
			t.Fatal(err)
		}
	})
}
