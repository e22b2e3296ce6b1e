package rpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// rest serves the google.api.http bindings of the methods: paths below /v1/, JSON in and out, the same handlers as the
// Connect paths. Unlike a transcoding proxy it decodes straight into the request message, so that it can refuse what it
// does not know and say which field it was.
type rest struct {
	routes []*route
	log    *slog.Logger
}

// serve answers a request. Nothing outside the routes' table is served.
func (t *rest) serve(w http.ResponseWriter, r *http.Request) {
	found, values, allowed := matchRoute(t.routes, r.Method, r.URL.EscapedPath())
	if found == nil {
		if len(allowed) == 0 {
			t.notFound(w, r)
			return
		}
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		t.fail(w, http.StatusMethodNotAllowed, connect.NewError(connect.CodeUnimplemented,
			fmt.Errorf("%s is not served here; allowed: %s", r.Method, strings.Join(allowed, ", "))))
		return
	}
	req := found.method.newRequest()
	if status, err := found.decode(w, r, values, req); err != nil {
		answer, _ := callError(err)
		t.fail(w, status, answer)
		return
	}
	res, err := found.method.call(r.Context(), req)
	if err != nil {
		answer, _ := callError(err)
		t.fail(w, httpStatus[answer.Code()], answer)
		return
	}
	t.answer(w, found, res)
}

// notFound answers for a path that nothing is served at, and says where the API is. Connect clients take what they call and
// the server does not know for unimplemented.
func (t *rest) notFound(w http.ResponseWriter, r *http.Request) {
	first, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if isProcedure := strings.Contains(strings.Trim(first, "."), "."); isProcedure {
		t.fail(w, http.StatusNotFound, connect.NewError(connect.CodeUnimplemented, fmt.Errorf("no such procedure: %s", r.URL.Path)))
		return
	}
	hint := "; the API is below /v1, such as GET /v1/jobs"
	if found, _, allowed := matchRoute(t.routes, r.Method, "/v1"+r.URL.EscapedPath()); found != nil || len(allowed) > 0 {
		hint = "; did you mean /v1" + r.URL.Path + "?"
	} else if strings.HasPrefix(r.URL.Path, "/v1/") {
		hint = ""
	}
	t.fail(w, http.StatusNotFound, connect.NewError(connect.CodeNotFound, fmt.Errorf("no such path: %s%s", r.URL.Path, hint)))
}

// answer writes the response message, or the field of it that the binding names.
func (t *rest) answer(w http.ResponseWriter, found *route, res proto.Message) {
	if found.answer != nil {
		res = res.ProtoReflect().Get(found.answer).Message().Interface()
	}
	body, err := marshalJSON(res)
	if err != nil {
		t.log.Error("encode answer", slog.String("procedure", found.method.procedure), slog.Any("error", err))
		t.fail(w, http.StatusInternalServerError, connect.NewError(connect.CodeInternal, errors.New("internal error")))
		return
	}
	t.write(w, http.StatusOK, body)
}

// restError is the body of an answer that is not 200.
type restError struct {
	Code    string            `json:"code"`
	Message string            `json:"message"`
	Details []json.RawMessage `json:"details,omitempty"`
}

// fail writes an error. Details are readable JSON with their type in "@type".
func (t *rest) fail(w http.ResponseWriter, status int, err *connect.Error) {
	out := restError{Code: err.Code().String(), Message: err.Message()}
	for _, detail := range err.Details() {
		value, valueErr := detail.Value()
		if valueErr != nil {
			panic(fmt.Sprintf("read own error detail: %v", valueErr))
		}
		out.Details = append(out.Details, detailJSON(value))
	}
	for name, values := range err.Meta() {
		w.Header()[name] = values
	}
	body, marshalErr := json.Marshal(out)
	if marshalErr != nil {
		panic(fmt.Sprintf("marshal own error: %v", marshalErr))
	}
	t.write(w, status, body)
}

// detailJSON is a detail's JSON with its type as first field.
func detailJSON(m proto.Message) json.RawMessage {
	body, err := marshalJSON(m)
	if err != nil {
		panic(fmt.Sprintf("marshal own error detail: %v", err))
	}
	head := fmt.Sprintf(`{"@type":%q`, m.ProtoReflect().Descriptor().FullName())
	if len(body) > len("{}") {
		head += ","
	}
	return append([]byte(head), body[1:]...)
}

func (t *rest) write(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)+1))
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	// A caller that went away is noticed by the call, which is w.
	_, _ = w.Write(append(body, '\n'))
}

// marshalJSON encodes without the random spaces that protojson puts in.
func marshalJSON(m proto.Message) ([]byte, error) {
	body, err := protojson.Marshal(m)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	out.Grow(len(body) + 1)
	if err := json.Compact(&out, body); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// decode fills req from body, path and query. status goes with an error.
func (rt *route) decode(w http.ResponseWriter, r *http.Request, values []string, req proto.Message) (status int, err error) {
	body, status, err := rt.readBody(w, r)
	if err != nil {
		return status, err
	}
	m := req.ProtoReflect()
	if len(body) > 0 {
		into := req
		if rt.body != nil {
			into = m.Mutable(rt.body).Message().Interface()
		}
		if field, text := decodeJSON(body, into); text != "" {
			if rt.body != nil && field != "" {
				field = string(rt.body.Name()) + "." + field
			}
			return http.StatusBadRequest, invalidField(field, "%s", text)
		}
	}
	var v violations
	rt.setPath(m, values, &v)
	rt.setQuery(m, r.URL, &v)
	rt.setKey(m, r.Header.Values("Idempotency-Key"), &v)
	return http.StatusBadRequest, v.err()
}

// readBody reads a body where the binding has one. An absent body is an empty message.
func (rt *route) readBody(w http.ResponseWriter, r *http.Request) (body []byte, status int, err error) {
	limit := int64(rt.method.maxBytes)
	tooLarge := func() error {
		return invalidField("", "the body is larger than the %d bytes allowed here", limit)
	}
	if r.ContentLength > limit {
		return nil, http.StatusRequestEntityTooLarge, tooLarge()
	}
	body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	var maxBytes *http.MaxBytesError
	var answer *connect.Error
	switch {
	case errors.As(err, &maxBytes):
		return nil, http.StatusRequestEntityTooLarge, tooLarge()
	case errors.As(err, &answer):
		return nil, httpStatus[answer.Code()], answer
	case err != nil:
		return nil, http.StatusBadRequest, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("read body: %w", err))
	case len(body) == 0:
		return nil, 0, nil
	case !rt.hasBody:
		return nil, http.StatusBadRequest, invalidField("", "%s %s takes no body; use the query", r.Method, rt.pattern)
	}
	kind, params, mimeErr := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if charset, ok := params["charset"]; mimeErr != nil || kind != "application/json" || ok && !strings.EqualFold(charset, "utf-8") {
		return nil, http.StatusUnsupportedMediaType, invalidField("",
			"the content type is %q; send application/json", r.Header.Get("Content-Type"))
	}
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return nil, http.StatusUnsupportedMediaType, invalidField("", "content encoding %q is not accepted here", encoding)
	}
	return body, 0, nil
}

// setPath puts the path's values into the message. A body that says otherwise is refused.
func (rt *route) setPath(m protoreflect.Message, values []string, v *violations) {
	for i, field := range rt.params {
		if has := m.Get(field).String(); has != "" && has != values[i] {
			v.add(string(field.Name()), "is %q in the body and %q in the path", has, values[i])
			continue
		}
		m.Set(field, protoreflect.ValueOfString(values[i]))
	}
}

// setKey puts the header Idempotency-Key into the message, where there is a field for it.
func (rt *route) setKey(m protoreflect.Message, keys []string, v *violations) {
	if rt.key == nil || len(keys) == 0 {
		return
	}
	if has := m.Get(rt.key).String(); len(keys) > 1 || has != "" && has != keys[0] {
		v.add(string(rt.key.Name()), "is given more than once, and not the same")
		return
	}
	m.Set(rt.key, protoreflect.ValueOfString(keys[0]))
}

// setQuery puts the query's values into the message.
func (rt *route) setQuery(m protoreflect.Message, u *url.URL, v *violations) {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		v.add("", "the query is malformed: %v", err)
		return
	}
	for name, texts := range query {
		field, ok := rt.query[name]
		switch {
		case !ok:
			v.add(name, "is not a query parameter of %s", rt.pattern)
		case field.IsList():
			list := m.Mutable(field).List()
			for _, text := range texts {
				if value, ok := parseScalar(field, text, v); ok {
					list.Append(value)
				}
			}
		case len(texts) > 1:
			v.add(name, "is given %d times", len(texts))
		default:
			if value, ok := parseScalar(field, texts[0], v); ok {
				m.Set(field, value)
			}
		}
	}
}

// parseScalar reads a query value of the field's kind.
func parseScalar(field protoreflect.FieldDescriptor, text string, v *violations) (protoreflect.Value, bool) {
	name := string(field.Name())
	switch field.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(text), true
	case protoreflect.BoolKind:
		if text == "true" || text == "false" {
			return protoreflect.ValueOfBool(text == "true"), true
		}
		v.add(name, "is %q; it must be true or false", text)
	case protoreflect.Int32Kind:
		if n, err := strconv.ParseInt(text, 10, 32); err == nil {
			return protoreflect.ValueOfInt32(int32(n)), true
		}
		v.add(name, "is %q; it must be a number", text)
	case protoreflect.Uint32Kind:
		if n, err := strconv.ParseUint(text, 10, 32); err == nil {
			return protoreflect.ValueOfUint32(uint32(n)), true
		}
		v.add(name, "is %q; it must be a number that is not negative", text)
	case protoreflect.Uint64Kind:
		if n, err := strconv.ParseUint(text, 10, 64); err == nil {
			return protoreflect.ValueOfUint64(n), true
		}
		v.add(name, "is %q; it must be a number that is not negative", text)
	case protoreflect.EnumKind:
		enum := field.Enum().Values().ByName(protoreflect.Name(text))
		if enum != nil {
			return protoreflect.ValueOfEnum(enum.Number()), true
		}
		v.add(name, "is %q; it must be a name of %s such as %s", text, field.Enum().Name(), field.Enum().Values().Get(1).Name())
	case protoreflect.MessageKind:
		if field.Message().FullName() == fieldMaskName {
			mask := &fieldmaskpb.FieldMask{Paths: strings.Split(text, ",")}
			return protoreflect.ValueOfMessage(mask.ProtoReflect()), true
		}
		if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
			return protoreflect.ValueOfMessage(timestamppb.New(t).ProtoReflect()), true
		}
		v.add(name, "is %q; it must be an instant such as 2026-01-31T09:00:00Z", text)
	}
	return protoreflect.Value{}, false
}
