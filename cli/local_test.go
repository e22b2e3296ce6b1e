package cli

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
)

func TestALineOfALogThatIsTooLongHidesNothingBehindIt(t *testing.T) {
	var out bytes.Buffer
	l := &local{out: &out}
	long := strings.Repeat("x", 3*localLine+7)
	if err := l.copyLines("n1", strings.NewReader("first\n"+long+"\nlast\nno end")); err != nil {
		t.Fatal(err)
	}
	want := "n1 | first\nn1 | " + long[:localLine] + "\nn1 | last\nn1 | no end\n"
	if got := out.String(); got != want {
		t.Errorf("%d bytes are shown, want %d: %.30q ... %.40q", len(got), len(want), got, got[max(0, len(got)-40):])
	}
}

func TestANodeThatDoesNotStartSaysSo(t *testing.T) {
	var out bytes.Buffer
	l := &local{out: &out}
	err := l.node(t.Context(), "n2", filepath.Join(t.TempDir(), "none"), nil)
	if err == nil || !strings.HasPrefix(out.String(), "n2 | start n2: ") {
		t.Errorf("%v is returned, and shown is %q", err, out.String())
	}
}
