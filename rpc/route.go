package rpc

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

// route is one google.api.http binding: a verb and a path, and where the request's fields come from.
type route struct {
	verb    string
	pattern string
	method  *method
	// segments of the path; an empty one takes a value for the next of params.
	segments []string
	params   []protoreflect.FieldDescriptor
	// hasBody: there is a body, for all fields but params or, if body is not nil, for that field only. The other fields
	// come from the query, by either spelling.
	hasBody bool
	body    protoreflect.FieldDescriptor
	query   map[string]protoreflect.FieldDescriptor
	// key is the field that the header Idempotency-Key fills; nil: there is none.
	key protoreflect.FieldDescriptor
	// answer is the field of the response that is answered; nil: the whole message.
	answer protoreflect.FieldDescriptor
}

// newRoute reads the binding of a method. It fails for what rest cannot serve, so that a mistake in the proto shows when
// the server starts.
func newRoute(m *method) (*route, error) {
	rule, ok := proto.GetExtension(m.schema.Options(), annotations.E_Http).(*annotations.HttpRule)
	if !ok || rule == nil {
		return nil, fmt.Errorf("bind %s: no google.api.http option", m.procedure)
	}
	rt := &route{method: m}
	switch pattern := rule.Pattern.(type) {
	case *annotations.HttpRule_Get:
		rt.verb, rt.pattern = http.MethodGet, pattern.Get
	case *annotations.HttpRule_Post:
		rt.verb, rt.pattern = http.MethodPost, pattern.Post
	case *annotations.HttpRule_Put:
		rt.verb, rt.pattern = http.MethodPut, pattern.Put
	case *annotations.HttpRule_Patch:
		rt.verb, rt.pattern = http.MethodPatch, pattern.Patch
	case *annotations.HttpRule_Delete:
		rt.verb, rt.pattern = http.MethodDelete, pattern.Delete
	default:
		return nil, fmt.Errorf("bind %s: verb %T is not served", m.procedure, rule.Pattern)
	}
	if len(rule.AdditionalBindings) > 0 {
		return nil, fmt.Errorf("bind %s: only one binding is served", m.procedure)
	}
	if err := rt.bindBodies(rule); err != nil {
		return nil, err
	}
	if err := rt.bindPath(); err != nil {
		return nil, err
	}
	return rt, rt.bindQuery()
}

// bindBodies finds the fields that are the bodies of request and answer.
func (rt *route) bindBodies(rule *annotations.HttpRule) error {
	in, out := rt.method.schema.Input().Fields(), rt.method.schema.Output().Fields()
	rt.key = in.ByName("idempotency_key")
	rt.hasBody = rule.Body != ""
	if rt.hasBody && rule.Body != "*" {
		if rt.body = in.ByName(protoreflect.Name(rule.Body)); !isSingleMessage(rt.body) {
			return fmt.Errorf("bind %s: body %q is not a message field", rt.method.procedure, rule.Body)
		}
	}
	if rule.ResponseBody != "" {
		if rt.answer = out.ByName(protoreflect.Name(rule.ResponseBody)); !isSingleMessage(rt.answer) {
			return fmt.Errorf("bind %s: response body %q is not a message field", rt.method.procedure, rule.ResponseBody)
		}
	}
	return nil
}

func isSingleMessage(field protoreflect.FieldDescriptor) bool {
	return field != nil && field.Message() != nil && field.Cardinality() != protoreflect.Repeated
}

// bindPath splits the pattern and finds the fields of its {names}.
func (rt *route) bindPath() error {
	for segment := range strings.SplitSeq(strings.TrimPrefix(rt.pattern, "/"), "/") {
		if !strings.HasPrefix(segment, "{") {
			rt.segments = append(rt.segments, segment)
			continue
		}
		name := strings.Trim(segment, "{}")
		field := rt.method.schema.Input().Fields().ByName(protoreflect.Name(name))
		if field == nil || field.Kind() != protoreflect.StringKind || field.IsList() {
			return fmt.Errorf("bind %s: %s names no string field", rt.method.procedure, segment)
		}
		rt.segments = append(rt.segments, "")
		rt.params = append(rt.params, field)
	}
	return nil
}

// bindQuery collects the fields that the query may set.
func (rt *route) bindQuery() error {
	if rt.hasBody && rt.body == nil {
		return nil
	}
	rt.query = map[string]protoreflect.FieldDescriptor{}
	fields := rt.method.schema.Input().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if field == rt.body || slices.Contains(rt.params, field) {
			continue
		}
		if !isQueryKind(field) {
			return fmt.Errorf("bind %s: field %s cannot stand in a query", rt.method.procedure, field.Name())
		}
		rt.query[string(field.Name())] = field
		rt.query[field.JSONName()] = field
	}
	return nil
}

// isQueryKind says whether parseScalar reads the field's kind.
func isQueryKind(field protoreflect.FieldDescriptor) bool {
	switch field.Kind() {
	case protoreflect.StringKind, protoreflect.BoolKind, protoreflect.Int32Kind, protoreflect.Uint32Kind,
		protoreflect.Uint64Kind, protoreflect.EnumKind:
		return true
	case protoreflect.MessageKind:
		name := field.Message().FullName()
		return !field.IsList() && (name == fieldMaskName || name == timestampName)
	}
	return false
}

// fieldMaskName is one of the two messages that stand in queries: as names with commas between them. The other is an instant.
var fieldMaskName = (&fieldmaskpb.FieldMask{}).ProtoReflect().Descriptor().FullName()

// matchRoute finds the route of a request and the values of its path. If only the verb does not match, allowed has those
// that do. A path without values goes before one with them: routes are in that order.
func matchRoute(routes []*route, verb, escapedPath string) (found *route, values, allowed []string) {
	segments := strings.Split(strings.TrimPrefix(escapedPath, "/"), "/")
	for _, rt := range routes {
		taken, ok := rt.match(segments)
		switch {
		case !ok:
		case rt.verb == verb:
			return rt, taken, nil
		case !slices.Contains(allowed, rt.verb):
			allowed = append(allowed, rt.verb)
		}
	}
	return nil, nil, allowed
}

// match returns the values of the path's {names}, unescaped.
func (rt *route) match(segments []string) (values []string, ok bool) {
	if len(segments) != len(rt.segments) {
		return nil, false
	}
	for i, want := range rt.segments {
		if want != "" && want != segments[i] {
			return nil, false
		}
	}
	for i, want := range rt.segments {
		if want != "" {
			continue
		}
		value, err := url.PathUnescape(segments[i])
		if err != nil {
			return nil, false
		}
		values = append(values, value)
	}
	return values, true
}
