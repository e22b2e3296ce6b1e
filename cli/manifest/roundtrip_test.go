package manifest

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// write is a file of jobs in both forms.
func write(t check, jobs ...Job) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, form := range []string{"yaml", "json"} {
		var b bytes.Buffer
		w := NewJSON(&b)
		if form == "yaml" {
			var err error
			if w, err = NewYAML(&b); err != nil {
				t.Fatal(err)
			}
		}
		for _, job := range jobs {
			if err := w.Write(job); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		files[form] = b.String()
	}
	return files
}

// check is a test, or one of its random cases.
type check interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// comesBack checks that a job is read as it was written.
func comesBack(t check, job Job) {
	t.Helper()
	for form, file := range write(t, job) {
		jobs, err := Read([]string{Stdin}, strings.NewReader(file), job.Spec.GetTenant())
		if err != nil {
			t.Fatalf("%s: %v\n%s", form, err, file)
		}
		if len(jobs) != 1 || !proto.Equal(jobs[0].Spec, job.Spec) || jobs[0].Version != job.Version {
			t.Fatalf("%s is read as %v, was %v\n%s", form, jobs, job.Spec, file)
		}
	}
}

// fill sets every field of a message. Of a oneof it sets the choice that take picks.
func fill(m protoreflect.Message, take func(protoreflect.OneofDescriptor) protoreflect.FieldDescriptor) {
	switch of := m.Interface().(type) {
	case *durationpb.Duration:
		of.Seconds, of.Nanos = 90_061, 500_000_000
		return
	case *timestamppb.Timestamp:
		of.Seconds, of.Nanos = 1_772_960_400, 7_000_000
		return
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if one := field.ContainingOneof(); one != nil && !one.IsSynthetic() && take(one) != field {
			continue
		}
		switch {
		case field.IsList():
			l := m.Mutable(field).List()
			for range 2 {
				l.Append(filled(field, l.NewElement, take))
			}
		case field.IsMap():
			pairs := m.Mutable(field).Map()
			for _, k := range []string{"a", "b.c: d"} {
				pairs.Set(protoreflect.ValueOfString(k).MapKey(), filled(field.MapValue(), pairs.NewValue, take))
			}
		default:
			m.Set(field, filled(field, func() protoreflect.Value { return m.NewField(field) }, take))
		}
	}
}

func filled(
	field protoreflect.FieldDescriptor, empty func() protoreflect.Value,
	take func(protoreflect.OneofDescriptor) protoreflect.FieldDescriptor,
) protoreflect.Value {
	switch field.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString("*/5 yes " + string(field.Name()))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte{0, 0xff, 0xfe})
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		values := field.Enum().Values()
		return protoreflect.ValueOfEnum(values.Get(values.Len() - 1).Number())
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(1<<32 - 1)
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(1<<64 - 1)
	case protoreflect.MessageKind:
		v := empty()
		fill(v.Message(), take)
		return v
	}
	panic("a field of a new kind: " + field.FullName())
}

// TestEveryFieldComesBack: whoever adds a field to JobSpec has it in files, too.
func TestEveryFieldComesBack(t *testing.T) {
	choices := (&carillonv1.Schedule{}).ProtoReflect().Descriptor().Oneofs().ByName("when").Fields()
	if choices.Len() < 4 {
		t.Fatal("a kind of schedule is missing")
	}
	for i := range choices.Len() {
		chosen := choices.Get(i)
		spec := new(carillonv1.JobSpec)
		fill(spec.ProtoReflect(), func(one protoreflect.OneofDescriptor) protoreflect.FieldDescriptor {
			if one.FullName() != chosen.ContainingOneof().FullName() {
				t.Fatalf("%s: a oneof that this test does not know", one.FullName())
			}
			return chosen
		})
		job := Job{Spec: spec, Version: 7}
		if chosen.Name() != "delay" {
			comesBack(t, job)
			continue
		}
		_, err := Read([]string{Stdin}, strings.NewReader(write(t, job)["yaml"]), "")
		if faults, _ := err.(Faults); len(faults) != 1 || faults[0].Field != "schedule.delay" {
			t.Errorf("a delay is read with %v", err)
		}
	}
}

// TestZerosComeBack: what is set to zero is not what is not set.
func TestZerosComeBack(t *testing.T) {
	comesBack(t, Job{Spec: &carillonv1.JobSpec{
		Id: "a", Schedule: &carillonv1.Schedule{When: &carillonv1.Schedule_Every{Every: &carillonv1.Every{}}},
		Priority: new(uint32(0)), Retry: &carillonv1.RetryPolicy{JitterThousandths: new(uint32(0)), FirstDelay: &durationpb.Duration{}},
		Lease: &durationpb.Duration{},
	}})
}

// TestNoJobsAreNone: a file of no jobs is one, too.
func TestNoJobsAreNone(t *testing.T) {
	for form, file := range write(t) {
		if jobs, err := Read([]string{Stdin}, strings.NewReader(file), ""); err != nil || len(jobs) != 0 {
			t.Errorf("%s: %v, %v", form, jobs, err)
		}
	}
}

func at() *carillonv1.Schedule {
	return &carillonv1.Schedule{When: &carillonv1.Schedule_At{At: &timestamppb.Timestamp{Seconds: 1_772_960_400}}}
}

// TestAnyTextComesBack: texts and payloads of any characters are read as they were.
func TestAnyTextComesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(
			rapid.String(),
			rapid.StringMatching(`[ \t\r\n#:\-*&!|>'"%@{}\[\],?a0~.]{0,12}`),
			rapid.SampledFrom([]string{"", "yes", "null", "~", "1e3", "0x1f", "2026-12-24", "<<", "=", "a\n", "\n a", "a: b", "\u0085", "\ufeff", "\u2028"}),
		)
		spec := &carillonv1.JobSpec{
			Id: "a", Tenant: "t", Schedule: at(), FairnessKey: text.Draw(t, "key"), ContentType: text.Draw(t, "type"),
			Labels:  map[string]string{text.Draw(t, "label"): text.Draw(t, "value")},
			Payload: []byte(text.Draw(t, "payload")),
		}
		comesBack(t, Job{Spec: spec})
	})
}

// TestJSONPayloadsComeBack: a payload of JSON is shown as such if every byte of it comes back.
func TestJSONPayloadsComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		scalar := rapid.OneOf(
			rapid.Just[any](nil), rapid.Bool().AsAny(), rapid.Int().AsAny(), rapid.Float64().AsAny(), rapid.String().AsAny(),
			rapid.SampledFrom([]json.Number{"0", "-0", "1e5", "1E+5", "1.50", "123456789012345678901234567890", "-1.5e-7"}).AsAny(),
		)
		value := rapid.MapOf(rapid.String(), rapid.OneOf(scalar, rapid.SliceOf(scalar).AsAny(), rapid.MapOf(rapid.String(), scalar).AsAny())).Draw(t, "value")
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(value); err != nil {
			t.Fatal(err)
		}
		spec := &carillonv1.JobSpec{
			Id: "a", Tenant: "t", Schedule: at(), ContentType: "application/json", Payload: bytes.TrimSuffix(b.Bytes(), []byte("\n")),
		}
		comesBack(t, Job{Spec: spec})
		if file := write(t, Job{Spec: spec})["yaml"]; !strings.Contains(file, "payloadJson:") {
			t.Fatalf("JSON is not shown as such:\n%s", file)
		}
	})
}

func TestDurations(t *testing.T) {
	for in, want := range map[string]string{
		"90s": "1m30s", "24h": "1d", "7d": "7d", "36h": "36h", "1h30m": "1h30m", "1.5s": "1.5s", "3600s": "1h", "0s": "0s", "60m": "1h", "10m": "10m",
		"1ns": "1ns", "-24h": "-24h",
	} {
		d, err := ParseDuration(in)
		if err != nil || FormatDuration(d) != want {
			t.Errorf("%s is %s, want %s: %v", in, FormatDuration(d), want, err)
		}
		if again, err := ParseDuration(want); err != nil || again != d {
			t.Errorf("%s is read as %s: %v", want, again, err)
		}
	}
	for _, in := range []string{"", "5", "d", "1.5d", "200000d", "-200000d", "soon", "1d12h"} {
		if d, err := ParseDuration(in); err == nil {
			t.Errorf("%q is read as %s", in, d)
		}
	}
}
