package manifest

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// Fields of a job in a file that JobSpec does not have under this name.
const (
	fieldVersion     = "version"
	fieldPayload     = "payload"
	fieldPayloadText = "payloadText"
	fieldPayloadJSON = "payloadJson"
	fieldPayloadFile = "payloadFile"
)

var ownFields = []string{fieldVersion, fieldPayloadText, fieldPayloadJSON, fieldPayloadFile}

var (
	durationName  = (&durationpb.Duration{}).ProtoReflect().Descriptor().FullName()
	timestampName = (&timestamppb.Timestamp{}).ProtoReflect().Descriptor().FullName()
)

// decoder makes a job of a node and collects what is wrong with it.
type decoder struct {
	file string
	// readFile reads a payload file, by its path as the job names it.
	readFile func(path string) ([]byte, error)
	faults   Faults
}

func (d *decoder) fault(line int, path, format string, args ...any) {
	d.faults = append(d.faults, Fault{File: d.file, Line: line, Field: path, Text: fmt.Sprintf(format, args...)})
}

// job makes a job of a document's node.
func (d *decoder) job(n *node) Job {
	job := Job{Spec: new(carillonv1.JobSpec), File: d.file, Line: n.line}
	if n.kind != mapping {
		d.fault(n.line, "", "has %s where a job must be, an object such as {id: report, schedule: …}", n)
		return job
	}
	rest, payloads := *n, 0
	rest.keys, rest.items = nil, nil
	for i, k := range n.keys {
		value := n.items[i]
		switch k.name {
		case fieldPayload, fieldPayloadText, fieldPayloadJSON, fieldPayloadFile:
			if payloads++; payloads == 2 {
				d.fault(k.line, k.name, "is one payload too many: a job has one")
			}
		}
		switch k.name {
		case fieldVersion:
			if v, ok := d.unsigned(value, fieldVersion, 64); ok {
				job.Version = v
			}
		case fieldPayloadText, fieldPayloadJSON, fieldPayloadFile:
			job.Spec.Payload = d.payload(k.name, value)
		default:
			rest.keys, rest.items = append(rest.keys, k), append(rest.items, value)
		}
	}
	d.twice(n, "")
	d.message(&rest, job.Spec.ProtoReflect(), "")
	d.check(job.Spec, n)
	return job
}

// check finds what is missing, and what means nothing in a file.
func (d *decoder) check(spec *carillonv1.JobSpec, n *node) {
	if spec.GetId() == "" && n.get("id") == nil {
		d.fault(n.line, "id", "is missing: a file's jobs are known by it")
	} else if spec.GetId() == "" && n.get("id").kind == text {
		d.fault(n.get("id").line, "id", "is empty: a file's jobs are known by it")
	}
	schedule := n.get("schedule")
	switch {
	case schedule == nil:
		d.fault(n.line, "schedule", "is missing")
	case schedule.kind == mapping && schedule.get("delay") != nil:
		d.fault(schedule.get("delay").line, "schedule.delay", "counts from whenever the file is applied; a file names the instant: at")
	case schedule.kind == mapping && schedule.get("at") == nil && schedule.get("every") == nil && schedule.get("cron") == nil:
		d.fault(schedule.line, "schedule", "has none of at, every, cron")
	}
}

// twice finds keys that stand more than once in a mapping.
func (d *decoder) twice(n *node, path string) {
	seen := make(map[string]int, len(n.keys))
	for _, k := range n.keys {
		if line, ok := seen[k.name]; ok {
			d.fault(k.line, join(path, k.name), "stands in line %d already", line)
			continue
		}
		seen[k.name] = k.line
	}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// message fills m with a mapping's fields.
func (d *decoder) message(n *node, m protoreflect.Message, path string) {
	if n.kind != mapping {
		d.fault(n.line, path, "is %s; it must be an object with some of %s", n, strings.Join(names(m.Descriptor(), path), ", "))
		return
	}
	if path != "" { // of the job itself all keys have been looked at
		d.twice(n, path)
	}
	chosen := map[protoreflect.FullName]string{}
	for i, k := range n.keys {
		field := m.Descriptor().Fields().ByJSONName(k.name)
		if field == nil {
			d.fault(k.line, join(path, k.name), "is an unknown field%s", d.meant(m.Descriptor(), path, k.name))
			continue
		}
		if one := field.ContainingOneof(); one != nil && !one.IsSynthetic() {
			if other, ok := chosen[one.FullName()]; ok && other != k.name {
				d.fault(k.line, join(path, k.name), "excludes %s", join(path, other))
				continue
			}
			chosen[one.FullName()] = k.name
		}
		d.field(n.items[i], m, field, join(path, k.name))
	}
}

// names are the fields of a message; of a job also those that only files have.
func names(md protoreflect.MessageDescriptor, path string) []string {
	var all []string
	for i := range md.Fields().Len() {
		all = append(all, md.Fields().Get(i).JSONName())
	}
	if path == "" {
		all = append(all, ownFields...)
	}
	return all
}

// meant is what the unknown field of a message may have been meant to be.
func (d *decoder) meant(md protoreflect.MessageDescriptor, path, name string) string {
	plain := func(s string) string { return strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(s)) }
	known := names(md, path)
	if i := slices.IndexFunc(known, func(s string) bool { return plain(s) == plain(name) }); i >= 0 {
		return "; did you mean " + known[i] + "?"
	}
	return "; known here: " + strings.Join(known, ", ")
}

// field sets a field of m.
func (d *decoder) field(n *node, m protoreflect.Message, field protoreflect.FieldDescriptor, path string) {
	switch {
	case field.IsList():
		if n.kind != list {
			d.fault(n.line, path, "is %s; it must be a list", n)
			return
		}
		values := m.Mutable(field).List()
		for i, item := range n.items {
			if v, ok := d.value(item, field, fmt.Sprintf("%s[%d]", path, i), values.NewElement); ok {
				values.Append(v)
			}
		}
	case field.IsMap():
		if n.kind != mapping {
			d.fault(n.line, path, "is %s; it must be an object such as {key: value}", n)
			return
		}
		d.twice(n, path)
		pairs := m.Mutable(field).Map()
		for i, k := range n.keys {
			if v, ok := d.value(n.items[i], field.MapValue(), join(path, k.name), pairs.NewValue); ok {
				pairs.Set(protoreflect.ValueOfString(k.name).MapKey(), v)
			}
		}
	default:
		if v, ok := d.value(n, field, path, func() protoreflect.Value { return m.NewField(field) }); ok {
			m.Set(field, v)
		}
	}
}

// value reads a single value of a field; empty makes one.
func (d *decoder) value(
	n *node, field protoreflect.FieldDescriptor, path string, empty func() protoreflect.Value,
) (v protoreflect.Value, ok bool) {
	if n.kind == null {
		d.fault(n.line, path, "has no value; leave it out to have the default")
		return v, false
	}
	switch field.Kind() {
	case protoreflect.StringKind:
		if n.kind != text && n.kind != plain {
			d.fault(n.line, path, "is %s; it must be a text%s", n, quoted(n))
			return v, false
		}
		return protoreflect.ValueOfString(n.text), true
	case protoreflect.BytesKind:
		b, ok := d.base64(n, path)
		return protoreflect.ValueOfBytes(b), ok
	case protoreflect.BoolKind:
		if n.kind != boolean {
			d.fault(n.line, path, "is %s; it must be true or false", n)
			return v, false
		}
		return protoreflect.ValueOfBool(n.text == "true"), true
	case protoreflect.EnumKind:
		return d.enum(n, field.Enum(), path)
	case protoreflect.Uint32Kind:
		u, ok := d.unsigned(n, path, 32)
		return protoreflect.ValueOfUint32(uint32(u)), ok
	case protoreflect.Uint64Kind:
		u, ok := d.unsigned(n, path, 64)
		return protoreflect.ValueOfUint64(u), ok
	case protoreflect.MessageKind:
		v = empty()
		before := len(d.faults)
		switch field.Message().FullName() {
		case durationName:
			d.duration(n, v.Message().Interface().(*durationpb.Duration), path)
		case timestampName:
			d.instant(n, v.Message().Interface().(*timestamppb.Timestamp), path)
		default:
			d.message(n, v.Message(), path)
		}
		return v, len(d.faults) == before
	default:
		panic(fmt.Sprintf("%s: fields of kind %s are not known here", field.FullName(), field.Kind()))
	}
}

// quoted is what makes a text of a scalar that is none.
func quoted(n *node) string {
	if n.kind == number || n.kind == boolean {
		return fmt.Sprintf(`: put it in quotes, "%s"`, n)
	}
	return ""
}

// unsigned reads a whole number of so many bits. REST writes those of 64 bits as text.
func (d *decoder) unsigned(n *node, path string, bits int) (uint64, bool) {
	if n.kind == number || n.kind == text && bits == 64 {
		if u, err := strconv.ParseUint(n.text, 10, bits); err == nil {
			return u, true
		}
	}
	d.fault(n.line, path, "is %s; it must be a whole number from 0 to %d", n, uint64(1)<<bits-1)
	return 0, false
}

func (d *decoder) enum(n *node, enum protoreflect.EnumDescriptor, path string) (v protoreflect.Value, ok bool) {
	prefix := enumPrefix(enum)
	if n.kind == text {
		long := prefix + strings.ToUpper(strings.ReplaceAll(strings.TrimPrefix(n.text, prefix), "-", "_"))
		if value := enum.Values().ByName(protoreflect.Name(long)); value != nil && value.Number() != 0 {
			return protoreflect.ValueOfEnum(value.Number()), true
		}
	}
	var known []string
	for i := 1; i < enum.Values().Len(); i++ {
		known = append(known, enumName(enum, protoreflect.EnumNumber(enum.Values().Get(i).Number())))
	}
	d.fault(n.line, path, "is %s; it must be one of %s", n, strings.Join(known, ", "))
	return v, false
}

// enumPrefix is what the names of an enum's values begin with.
func enumPrefix(enum protoreflect.EnumDescriptor) string {
	return strings.TrimSuffix(string(enum.Values().Get(0).Name()), "UNSPECIFIED")
}

// enumName is the short name of a value: "queue-one" for OVERLAP_QUEUE_ONE.
func enumName(enum protoreflect.EnumDescriptor, number protoreflect.EnumNumber) string {
	value := enum.Values().ByNumber(number)
	if value == nil {
		return fmt.Sprint(number)
	}
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(string(value.Name()), enumPrefix(enum)), "_", "-"))
}

func (d *decoder) duration(n *node, to *durationpb.Duration, path string) {
	if n.kind != text {
		d.fault(n.line, path, "is %s; it must be a duration such as 90s, 1h30m or 7d", n)
		return
	}
	length, err := ParseDuration(n.text)
	if err != nil {
		d.fault(n.line, path, "%s", err)
		return
	}
	of := durationpb.New(length)
	to.Seconds, to.Nanos = of.GetSeconds(), of.GetNanos()
}

func (d *decoder) instant(n *node, to *timestamppb.Timestamp, path string) {
	t, err := time.Parse(time.RFC3339Nano, n.text)
	if err != nil || n.kind != text && n.kind != plain {
		d.fault(n.line, path, "is %s; it must be an instant such as 2026-01-31T09:00:00Z or 2026-01-31T10:00:00+01:00", n)
		return
	}
	of := timestamppb.New(t)
	to.Seconds, to.Nanos = of.GetSeconds(), of.GetNanos()
}

func (d *decoder) base64(n *node, path string) ([]byte, bool) {
	if n.kind == text {
		encoding := base64.StdEncoding
		if strings.ContainsAny(n.text, "-_") {
			encoding = base64.URLEncoding
		}
		if !strings.HasSuffix(n.text, "=") {
			encoding = encoding.WithPadding(base64.NoPadding)
		}
		if b, err := encoding.DecodeString(n.text); err == nil {
			return b, true
		}
	}
	d.fault(n.line, path, "is %s; it must be base64, as in the API; payloadText takes text, payloadFile a file", n)
	return nil, false
}

// payload reads what only files have.
func (d *decoder) payload(name string, n *node) []byte {
	if name == fieldPayloadJSON {
		b, err := compactJSON(n)
		if err != nil {
			d.fault(err.line, name, "%s", err.text)
		}
		return b
	}
	if n.kind != text && n.kind != plain {
		d.fault(n.line, name, "is %s; it must be a text%s", n, quoted(n))
		return nil
	}
	if name == fieldPayloadText {
		return []byte(n.text)
	}
	b, err := d.readFile(n.text)
	if err != nil {
		d.fault(n.line, name, "%s", err)
	}
	return b
}
