package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// compactJSON is a node as JSON without space. It fails on what JSON does not have.
func compactJSON(n *node) ([]byte, *syntaxError) {
	var b bytes.Buffer
	if err := writeJSON(&b, n); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func writeJSON(b *bytes.Buffer, n *node) *syntaxError {
	switch n.kind {
	case null:
		b.WriteString("null")
	case text, plain:
		writeText(b, n.text)
	case boolean:
		b.WriteString(n.text)
	case number:
		if !json.Valid([]byte(n.text)) {
			return &syntaxError{line: n.line, text: fmt.Sprintf("has the number %s, which JSON writes otherwise", cut(n.text))}
		}
		b.WriteString(n.text)
	case list:
		return writeItems(b, n, '[', ']')
	case mapping:
		return writeItems(b, n, '{', '}')
	}
	return nil
}

func writeItems(b *bytes.Buffer, n *node, open, end byte) *syntaxError {
	seen := make(map[string]bool, len(n.keys))
	b.WriteByte(open)
	for i, item := range n.items {
		if i > 0 {
			b.WriteByte(',')
		}
		if n.kind == mapping {
			k := n.keys[i]
			if seen[k.name] {
				return &syntaxError{line: k.line, text: fmt.Sprintf("has the key %q twice", cut(k.name))}
			}
			seen[k.name] = true
			writeText(b, k.name)
			b.WriteByte(':')
		}
		if err := writeJSON(b, item); err != nil {
			return err
		}
	}
	b.WriteByte(end)
	return nil
}

// writeText writes a text with no more escapes than JSON needs.
func writeText(b *bytes.Buffer, s string) {
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		panic(fmt.Sprintf("encode text: %v", err)) // a text has no way to fail
	}
	b.Truncate(b.Len() - 1) // without the line end
}
