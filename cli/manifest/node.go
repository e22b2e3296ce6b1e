package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sort"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/carillon-scheduler/carillon/proto/codec"
)

// kind is what a node is.
type kind int

const (
	null kind = iota
	text
	// number is a number as it is written.
	number
	// boolean is "true" or "false".
	boolean
	// plain is text that YAML takes for an instant or a day, because it has no quotes.
	plain
	list
	mapping
)

// node is a value of a document, whether that is YAML or JSON.
type node struct {
	kind kind
	line int
	// text is what a scalar says.
	text string
	// keys are a mapping's, in their order; items are its values, or a list's.
	keys  []key
	items []*node
}

// key is a key of a mapping.
type key struct {
	name string
	line int
}

func (n *node) add(name string, value *node) {
	n.keys, n.items = append(n.keys, key{name: name, line: value.line}), append(n.items, value)
}

// get is the value of a key; nil if there is none.
func (n *node) get(name string) *node {
	for i, k := range n.keys {
		if k.name == name {
			return n.items[i]
		}
	}
	return nil
}

// String is a scalar as it is written, cut, or what else it is.
func (n *node) String() string {
	switch n.kind {
	case null:
		return "empty"
	case list:
		return "a list"
	case mapping:
		return "an object"
	case text:
		return fmt.Sprintf("%q", cut(n.text))
	default:
		return cut(n.text)
	}
}

// syntaxError is why a text is no document.
type syntaxError struct {
	line int
	text string
}

func (e *syntaxError) Error() string { return e.text }

// documents are those of a file: JSON if it begins like that, else YAML. Empty ones are left out.
func documents(body []byte) ([]*node, error) {
	body = bytes.TrimPrefix(body, []byte("\xef\xbb\xbf"))
	if start := bytes.TrimLeft(body, " \t\r\n"); len(start) > 0 && (start[0] == '{' || start[0] == '[') {
		return fromJSON(body)
	}
	return fromYAML(body)
}

func fromYAML(body []byte) (docs []*node, err error) {
	loader, err := yaml.NewLoader(bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("make loader: %w", err)
	}
	for {
		var doc yaml.Node
		switch err := loader.Load(&doc); {
		case err == io.EOF:
			return docs, nil
		case err != nil:
			return docs, yamlError(body, err)
		}
		left := maxNodes
		for _, root := range doc.Content {
			n, err := convert(root, 0, &left)
			if err != nil {
				return docs, err
			}
			if n.kind != null {
				docs = append(docs, n)
			}
		}
	}
}

// yamlError says where and what in fewer words than the library.
func yamlError(body []byte, err error) error {
	var failed *yaml.LoadError
	if !errors.As(err, &failed) {
		return &syntaxError{text: err.Error()}
	}
	e := &syntaxError{line: failed.Mark.Line, text: "is no YAML: " + failed.Message}
	if failed.Mark.Line == 0 {
		return e
	}
	lines := bytes.SplitN(body, []byte("\n"), failed.Mark.Line+1)
	line := string(lines[min(failed.Mark.Line, len(lines))-1])
	value := strings.TrimLeft(line[strings.LastIndexAny(line, "-:[,")+1:], " ")
	if strings.HasPrefix(value, "*") || strings.HasPrefix(value, "@") || strings.HasPrefix(value, "%") {
		e.text += "; a text that begins with " + value[:1] + " must be in quotes"
	}
	return e
}

// scalarKinds are the kinds of scalars by their tags.
var scalarKinds = map[string]kind{
	"!!str": text, "!!int": number, "!!float": number, "!!bool": boolean, "!!null": null, "!!timestamp": plain,
}

// convert replaces aliases by what they stand for. left is how many nodes the document may still have.
func convert(y *yaml.Node, depth int, left *int) (*node, error) {
	if *left--; *left < 0 || depth > maxDepth {
		return nil, &syntaxError{line: y.Line, text: "has too much in it, or too deep"}
	}
	n := &node{line: y.Line}
	switch y.Kind {
	case yaml.AliasNode:
		return convert(y.Alias, depth+1, left)
	case yaml.ScalarNode:
		known := false
		if n.kind, known = scalarKinds[y.ShortTag()]; !known {
			return nil, &syntaxError{line: y.Line, text: "has the tag " + cut(y.Tag) + ", which means nothing here"}
		}
		if n.text = y.Value; n.kind == boolean {
			n.text = strings.ToLower(n.text)
		}
		return n, nil
	case yaml.SequenceNode:
		n.kind = list
	default:
		n.kind = mapping
	}
	for i, child := range y.Content {
		if n.kind == mapping && i%2 == 0 {
			if child.Kind != yaml.ScalarNode {
				return nil, &syntaxError{line: child.Line, text: "has a key that is no text"}
			}
			n.keys = append(n.keys, key{name: child.Value, line: child.Line})
			continue
		}
		item, err := convert(child, depth+1, left)
		if err != nil {
			return nil, err
		}
		n.items = append(n.items, item)
	}
	return n, nil
}

// jsonReader makes nodes of JSON, which YAML is a superset of but for surrogate pairs.
type jsonReader struct {
	*json.Decoder
	// ends are the offsets of the line ends.
	ends []int
}

func fromJSON(body []byte) (docs []*node, err error) {
	r := jsonReader{Decoder: json.NewDecoder(bytes.NewReader(body))}
	r.UseNumber()
	for i, c := range body {
		if c == '\n' {
			r.ends = append(r.ends, i)
		}
	}
	for at := 0; at < len(body); { // the decoder would put something else in place of what is no text
		c, size := utf8.DecodeRune(body[at:])
		if c == utf8.RuneError && size == 1 {
			return nil, &syntaxError{line: r.lineAt(at), text: "is not valid UTF-8"}
		}
		at += size
	}
	if at := codec.LoneSurrogate(body); at >= 0 {
		return nil, &syntaxError{line: r.lineAt(at), text: fmt.Sprintf("has %s, half of a surrogate pair without the other half", body[at:at+6])}
	}
	for {
		n, err := r.value(0)
		var syntax *json.SyntaxError
		switch {
		case err == io.EOF:
			return docs, nil
		case errors.As(err, &syntax):
			return docs, &syntaxError{line: r.lineAt(int(syntax.Offset)), text: "is no JSON: " + err.Error()}
		case errors.Is(err, io.ErrUnexpectedEOF):
			return docs, &syntaxError{line: r.lineAt(len(body)), text: "is no JSON: it ends too early"}
		case err != nil:
			return docs, err
		}
		docs = append(docs, n)
	}
}

func (r jsonReader) lineAt(offset int) int { return sort.SearchInts(r.ends, offset) + 1 }

// value reads the next value; io.EOF if there is none.
func (r jsonReader) value(depth int) (*node, error) {
	token, err := r.Token()
	if err != nil {
		return nil, err
	}
	n := &node{line: r.lineAt(int(r.InputOffset()) - 1)}
	switch t := token.(type) {
	case string:
		n.kind, n.text = text, t
	case json.Number:
		n.kind, n.text = number, t.String()
	case bool:
		n.kind, n.text = boolean, fmt.Sprint(t)
	case json.Delim:
		return n, r.fill(n, t, depth)
	}
	return n, nil
}

// fill reads a list or a mapping up to its end.
func (r jsonReader) fill(n *node, open json.Delim, depth int) error {
	if depth > maxDepth {
		return &syntaxError{line: n.line, text: "has too much in it, or too deep"}
	}
	n.kind = list
	if open == '{' {
		n.kind = mapping
	}
	for r.More() {
		if n.kind == mapping {
			token, err := r.Token()
			if err != nil {
				return noEOF(err)
			}
			name, _ := token.(string) // the decoder has nothing else here
			n.keys = append(n.keys, key{name: name, line: r.lineAt(int(r.InputOffset()) - 1)})
		}
		item, err := r.value(depth + 1)
		if err != nil {
			return noEOF(err)
		}
		n.items = append(n.items, item)
	}
	_, err := r.Token()
	return noEOF(err)
}

// noEOF is err, where the end of the text is one.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// cut is a value as an error repeats it.
func cut(s string) string {
	const most = 60
	if runes := []rune(s); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return s
}
