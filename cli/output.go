package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/urfave/cli/v2"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/carillon-scheduler/carillon/cli/manifest"
)

// printer prints answers as a table or as one JSON document.
type printer struct {
	w    io.Writer
	json bool
}

func newPrinter(c *cli.Context, w io.Writer) (*printer, error) {
	switch format := c.String("output"); format {
	case "table", "json":
		return &printer{w: w, json: format == "json"}, nil
	default:
		return nil, usage(c, "--output must be table or json, is %q", format)
	}
}

// message prints m as JSON, or as the rows of a two-column table that it makes.
func (p *printer) message(m proto.Message, rows func() [][]string) error {
	if !p.json {
		return p.table(rows())
	}
	body, err := marshal(m, "")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.w, "%s\n", body)
	return err
}

// marshal is m as indented JSON, as REST has it, without the random spaces of its encoder.
func marshal(m proto.Message, prefix string) ([]byte, error) {
	body, err := protojson.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode answer: %w", err)
	}
	var b bytes.Buffer
	if err := json.Indent(&b, body, prefix, "  "); err != nil {
		return nil, fmt.Errorf("indent answer: %w", err)
	}
	return b.Bytes(), nil
}

// table prints rows in columns.
func (p *printer) table(rows [][]string) error {
	t := tabwriter.NewWriter(p.w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		if _, err := fmt.Fprintln(t, strings.TrimRight(strings.Join(row, "\t"), "\t")); err != nil {
			return err
		}
	}
	return t.Flush()
}

// tableBlock is how many rows share their column widths; it bounds what a long list keeps in memory.
const tableBlock = 1000

// list prints what a sequence brings, at most limit items (0: all), as {"name":[...]} or as a table under header. It
// reports whether there was more.
func list[T proto.Message](
	p *printer, name string, items iter.Seq2[T, error], limit int, header []string, row func(T) []string,
) (more bool, err error) {
	block := [][]string{header}
	n := 0
	for item, err := range items {
		if err != nil {
			return false, err
		}
		if limit > 0 && n == limit {
			more = true
			break
		}
		n++
		if !p.json {
			if block = append(block, row(item)); len(block) > tableBlock {
				if err := p.table(block); err != nil {
					return false, err
				}
				block = block[:0]
			}
			continue
		}
		body, err := marshal(item, "    ")
		if err != nil {
			return false, err
		}
		if _, err := fmt.Fprintf(p.w, "%s\n    %s", opening(name, n), body); err != nil {
			return false, err
		}
	}
	if !p.json {
		return more, p.table(block)
	}
	if n == 0 {
		_, err = fmt.Fprintf(p.w, "{\n  %q: []\n}\n", name)
		return more, err
	}
	_, err = fmt.Fprint(p.w, "\n  ]\n}\n")
	return more, err
}

// opening is what stands before the nth item of a list.
func opening(name string, n int) string {
	if n == 1 {
		return fmt.Sprintf("{\n  %q: [", name)
	}
	return ","
}

// limitFlag bounds a list.
func limitFlag() cli.Flag {
	return &cli.IntFlag{Name: "limit", Value: 100, Usage: "print at most `N`; 0: all"}
}

// sayMore tells on standard error that a list was cut.
func (p *program) sayMore(c *call, more bool) error {
	if !more {
		return nil
	}
	_, err := fmt.Fprintf(p.stderr, "There are more than %d: see --limit.\n", c.Int("limit"))
	return err
}

// The cells of tables.

func instant(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return t.AsTime().Format("2006-01-02T15:04:05.999Z07:00")
}

// instantOf is t without its day if that is the day of another instant on the same line.
func instantOf(other, t *timestamppb.Timestamp) string {
	text, day := instant(t), instant(other)
	if len(text) > 11 && len(day) > 11 && text[:11] == day[:11] {
		return text[11:]
	}
	return text
}

// localColumn is a column beside one of instants, with what the clock of a job's zone shows. It is there if that says more.
type localColumn struct{ shown bool }

func (l *localColumn) see(t *timestamppb.Timestamp, local string) {
	l.shown = l.shown || local != "" && local != instant(t)
}

func (l *localColumn) header(name string) []string {
	if !l.shown {
		return []string{name}
	}
	return []string{name, "LOCAL"}
}

func (l *localColumn) cells(t *timestamppb.Timestamp, local string) []string {
	if !l.shown {
		return []string{instant(t)}
	}
	return []string{instant(t), orDash(local)}
}

func length(d *durationpb.Duration) string {
	if d == nil {
		return "-"
	}
	return short(d.AsDuration())
}

// short writes a duration to the millisecond, or to the microsecond below one.
func short(d time.Duration) string {
	unit := time.Microsecond
	if d >= time.Millisecond {
		unit = time.Millisecond
	}
	return manifest.FormatDuration(d.Round(unit))
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// firstLine is s as a cell: its first line, not too long.
func firstLine(s string) string {
	const most = 60
	line, _, cut := strings.Cut(s, "\n")
	line = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, line)
	if runes := []rune(line); len(runes) > most {
		line, cut = string(runes[:most]), true
	}
	if cut {
		line += "…"
	}
	return orDash(line)
}

// data shows opaque bytes: as text if they are that, else their number.
func data(b []byte) string {
	if utf8.Valid(b) && !bytes.ContainsFunc(b, func(r rune) bool { return !unicode.IsPrint(r) && !unicode.IsSpace(r) }) {
		return firstLine(string(b))
	}
	return fmt.Sprintf("%d bytes", len(b))
}

// enum is a value's name without its type's: "EXECUTION_STATE_DEAD" is "dead".
func enum(s interface{ String() string }, prefix string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(s.String(), prefix), "_", "-"))
}

// parseEnum finds the number of a value by the name that enum gives it.
func parseEnum(c *cli.Context, flag, prefix string, values map[string]int32) (int32, error) {
	name := c.String(flag)
	if name == "" {
		return 0, nil
	}
	n, ok := values[prefix+strings.ToUpper(strings.ReplaceAll(name, "-", "_"))]
	if !ok || n == 0 {
		var known []string
		for _, value := range slices.SortedFunc(maps.Keys(values), func(a, b string) int { return cmp.Compare(values[a], values[b]) }) {
			if values[value] != 0 {
				known = append(known, strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(value, prefix), "_", "-")))
			}
		}
		return 0, usage(c, "--%s: unknown value %q; known are %s", flag, name, strings.Join(known, ", "))
	}
	return n, nil
}
