package manifest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// Change is a field in which two jobs differ. Old or New is empty if one of them does not have it.
type Change struct {
	// Field is its path as a file has it, such as schedule.every.interval or labels.team.
	Field string `json:"field"`
	Old   string `json:"old,omitempty"`
	New   string `json:"new,omitempty"`
}

// Compare names the fields in which two jobs differ, in their order. Of lists it tells what is in one and not in the other.
func Compare(old, new *carillonv1.JobSpec) []Change {
	return compareMessage(old.ProtoReflect(), new.ProtoReflect(), "")
}

func compareMessage(a, b protoreflect.Message, path string) (changes []Change) {
	fields := a.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		at := join(path, field.JSONName())
		va, vb := a.Get(field), b.Get(field)
		switch {
		case a.Has(field) == b.Has(field) && va.Equal(vb):
		case field.IsMap():
			changes = append(changes, compareMap(va.Map(), vb.Map(), at)...)
		case field.IsList():
			changes = append(changes, compareList(field, va.List(), vb.List(), at)...)
		case field.Kind() == protoreflect.BytesKind:
			changes = append(changes, Change{at, showBytes(va.Bytes()), showBytes(vb.Bytes())})
		case field.Kind() == protoreflect.MessageKind && !isScalar(field.Message()):
			inner := compareMessage(va.Message(), vb.Message(), at)
			if len(inner) == 0 { // one has it empty, the other not at all
				inner = []Change{{at, shown(a, field), shown(b, field)}}
			}
			changes = append(changes, inner...)
		default:
			changes = append(changes, Change{at, shown(a, field), shown(b, field)})
		}
	}
	return changes
}

// isScalar says whether a message is written as a text.
func isScalar(md protoreflect.MessageDescriptor) bool {
	return md.FullName() == durationName || md.FullName() == timestampName
}

// shown is a field's value as a file has it; empty if there is none.
func shown(m protoreflect.Message, field protoreflect.FieldDescriptor) string {
	if !m.Has(field) {
		return ""
	}
	return showValue(field, m.Get(field))
}

func showValue(field protoreflect.FieldDescriptor, v protoreflect.Value) string {
	if field.Kind() == protoreflect.MessageKind {
		switch v.Message().Interface().(type) {
		case *durationpb.Duration, *timestamppb.Timestamp:
		default:
			return "{}"
		}
	}
	if n := encodeValue(field, v); n.text != "" {
		return n.text
	}
	return `""`
}

// showBytes is a payload: as text if it is short, else what tells it from another.
func showBytes(b []byte) string {
	const most = 60
	switch {
	case len(b) == 0:
		return ""
	case len(b) <= most && isText(b) && !bytes.ContainsAny(b, "\n\t"):
		return string(b)
	}
	sum := sha256.Sum256(b)
	return fmt.Sprintf("%d bytes, sha256 %x…", len(b), sum[:4])
}

func compareMap(a, b protoreflect.Map, path string) (changes []Change) {
	keys := append(sortedKeys(a), sortedKeys(b)...)
	slices.Sort(keys)
	for _, k := range slices.Compact(keys) {
		at := protoreflect.ValueOfString(k).MapKey()
		c := Change{Field: join(path, k)}
		if a.Has(at) {
			c.Old = orQuotes(a.Get(at).String())
		}
		if b.Has(at) {
			c.New = orQuotes(b.Get(at).String())
		}
		if c.Old != c.New {
			changes = append(changes, c)
		}
	}
	return changes
}

// orQuotes tells an empty text from none.
func orQuotes(s string) string {
	if s == "" {
		return `""`
	}
	return s
}

// compareList tells what was taken from a list and what was added. If only the order differs, it shows that.
func compareList(field protoreflect.FieldDescriptor, a, b protoreflect.List, path string) (changes []Change) {
	olds, news := showList(field, a), showList(field, b)
	gone := slices.DeleteFunc(slices.Clone(olds), func(s string) bool { return slices.Contains(news, s) })
	added := slices.DeleteFunc(slices.Clone(news), func(s string) bool { return slices.Contains(olds, s) })
	if len(gone) == 0 && len(added) == 0 {
		return []Change{{path, fmt.Sprint(olds), fmt.Sprint(news)}}
	}
	if len(gone) == 1 && len(added) == 1 {
		return []Change{{path, gone[0], added[0]}}
	}
	for _, s := range gone {
		changes = append(changes, Change{Field: path, Old: s})
	}
	for _, s := range added {
		changes = append(changes, Change{Field: path, New: s})
	}
	return changes
}

func showList(field protoreflect.FieldDescriptor, l protoreflect.List) (all []string) {
	for i := range l.Len() {
		all = append(all, showValue(field, l.Get(i)))
	}
	return all
}
