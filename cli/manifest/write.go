package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"unicode"

	"go.yaml.in/yaml/v4"
)

// Writer writes jobs as one file: YAML with a document per job, or JSON with all of them in one.
type Writer struct {
	w    io.Writer
	yaml *yaml.Dumper
	n    int
}

// NewYAML is a Writer of YAML.
func NewYAML(w io.Writer) (*Writer, error) {
	dumper, err := yaml.NewDumper(w, yaml.WithIndent(2), yaml.WithLineWidth(-1))
	if err != nil {
		return nil, fmt.Errorf("make dumper: %w", err)
	}
	return &Writer{w: w, yaml: dumper}, nil
}

// NewJSON is a Writer of JSON: {"jobs": [...]}.
func NewJSON(w io.Writer) *Writer { return &Writer{w: w} }

// Write writes a job. Read, given what is written, has the same.
func (w *Writer) Write(job Job) error {
	n := encode(job)
	w.n++
	if w.yaml != nil {
		if err := w.yaml.Dump(yamlNode(n)); err != nil {
			return fmt.Errorf("write job %s: %w", job.Spec.GetId(), err)
		}
		return nil
	}
	compact, fault := compactJSON(n)
	if fault != nil {
		return fmt.Errorf("write job %s: %w", job.Spec.GetId(), fault)
	}
	var b bytes.Buffer
	if w.n == 1 {
		b.WriteString("{\n  \"jobs\": [\n    ")
	} else {
		b.WriteString(",\n    ")
	}
	if err := json.Indent(&b, compact, "    ", "  "); err != nil {
		return fmt.Errorf("indent job %s: %w", job.Spec.GetId(), err)
	}
	_, err := w.w.Write(b.Bytes())
	return err
}

// Close ends the file.
func (w *Writer) Close() error {
	switch {
	case w.yaml != nil && w.n == 0: // the library does not know how to end what has not begun
		return nil
	case w.yaml != nil:
		return w.yaml.Close()
	case w.n == 0:
		_, err := io.WriteString(w.w, "{\n  \"jobs\": []\n}\n")
		return err
	}
	_, err := io.WriteString(w.w, "\n  ]\n}\n")
	return err
}

// yamlTags are the tags by which a scalar of a kind is read as that kind again.
var yamlTags = map[kind]string{
	text: "!!str", number: "!!int", boolean: "!!bool", null: "!!null", plain: "!!timestamp",
}

func yamlNode(n *node) *yaml.Node {
	y := &yaml.Node{Kind: yaml.ScalarNode, Tag: yamlTags[n.kind], Value: n.text}
	switch n.kind {
	case null:
		y.Value = "null"
	case number:
		y.Tag = "" // as it resolves: whole or not
	case text:
		y.Style = textStyle(n.text)
	case list, mapping:
		y = &yaml.Node{Kind: yaml.SequenceNode}
		if n.kind == mapping {
			y.Kind = yaml.MappingNode
		}
		if len(n.items) == 0 {
			y.Style = yaml.FlowStyle
		}
		for i, item := range n.items {
			if n.kind == mapping {
				name := n.keys[i].name
				y.Content = append(y.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: name, Style: keyStyle(name)})
			}
			y.Content = append(y.Content, yamlNode(item))
		}
	}
	return y
}

// textStyle leaves ordinary text to the library, which knows when to quote, and quotes what is out of the ordinary.
func textStyle(s string) yaml.Style {
	for _, r := range s {
		if !unicode.IsPrint(r) && r != '\n' {
			return yaml.DoubleQuotedStyle
		}
	}
	return 0
}

// keyStyle is that of a key: on one line in any case.
func keyStyle(s string) yaml.Style {
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return yaml.DoubleQuotedStyle
		}
	}
	return 0
}
