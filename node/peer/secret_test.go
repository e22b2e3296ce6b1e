package peer

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParseSecret(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want string // of the error; "" is none
	}{
		"empty":       {" \n", "it is empty"},
		"short":       {"  fifteen bytes!!  \n", "it has 15 bytes"},
		"shortest":    {"sixteen bytes !!\n", ""},
		"longest":     {"\t" + strings.Repeat("x", maxSecret) + "\r\n", ""},
		"longer":      {strings.Repeat("x", maxSecret+1), "more than 65536 bytes"},
		"white space": {strings.Repeat(" ", 100) + "sixteen bytes !!", ""},
	} {
		_, err := ParseSecret([]byte(c.text))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestSecretIsNotPrinted(t *testing.T) {
	s := testSecret(t, "one")
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if got := fmt.Sprintf(format, s); got != "[cluster secret]" {
			t.Errorf("%s prints %s", format, got)
		}
	}
	if got := s.LogValue().String(); got != "[cluster secret]" {
		t.Errorf("it is logged as %s", got)
	}
}

func TestLoadSecret(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	if _, err := LoadSecret(path); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("no file: %v", err)
	}
	write(t, path, strings.Repeat("x", 1<<20), 0o600)
	if _, err := LoadSecret(path); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "more than") {
		t.Errorf("a large file: %v", err)
	}
	write(t, path, "a secret of the cluster\n", 0o600)
	loaded, err := LoadSecret(path)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := ParseSecret([]byte("a secret of the cluster"))
	if err != nil || string(parsed.value) != string(loaded.value) {
		t.Errorf("loaded another secret; %v", err)
	}
	for _, mode := range []os.FileMode{0o640, 0o604, 0o610} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadSecret(path); !errors.Is(err, ErrSecretExposed) || !strings.Contains(err.Error(), "chmod 600 "+path) {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
}

// The CA's certificate is the same on every node and of every build: this hash may not change.
func TestCAIsDeterministic(t *testing.T) {
	first, second := testCredentials(t, "one", "s1"), testCredentials(t, "one", "s2")
	sum := sha256.Sum256(first.ca.Raw)
	const golden = "5932e1b02924ed03e3bbe0d849eae247bdba549074d1c95eface6bf76e75a876"
	if got := hex.EncodeToString(sum[:]); got != golden {
		t.Errorf("the CA of the test's secret hashes to %s", got)
	}
	if !first.ca.Equal(second.ca) {
		t.Error("two nodes have different CAs")
	}
	if first.ca.Equal(testCredentials(t, "other", "s1").ca) {
		t.Error("two secrets have the same CA")
	}
}

func TestTLSFiles(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, KeyFile+".tmp"), "left by a crash", 0o644)
	c := testCredentials(t, "one", "s1")
	for range 2 {
		if err := c.WriteTLSFiles(dir); err != nil {
			t.Fatal(err)
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 3 {
		t.Errorf("%d files, %v", len(files), err)
	}
	for _, f := range files {
		if info, err := f.Info(); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", f.Name(), info.Mode(), err)
		}
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, CertFile), filepath.Join(dir, KeyFile))
	if err != nil {
		t.Fatal(err)
	}
	if pair.Leaf.Subject.CommonName != "s1" || pair.Leaf.DNSNames[0] != ServerName {
		t.Errorf("the certificate is of %s", pair.Leaf.Subject)
	}
	if err := pair.Leaf.CheckSignatureFrom(c.ca); err != nil {
		t.Error(err)
	}
	if err := c.WriteTLSFiles(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("into no directory: %v", err)
	}
}

func TestCredentialsOfNoStore(t *testing.T) {
	for _, store := range []string{"", strings.Repeat("x", maxStoreName+1)} {
		if _, err := NewCredentials(testSecret(t, "one"), store); err == nil {
			t.Errorf("made credentials for a store of %d bytes", len(store))
		}
	}
	if _, err := NewCredentials(Secret{}, "s1"); err == nil {
		t.Error("made credentials of no secret")
	}
}

func testSecret(t testing.TB, which string) Secret {
	t.Helper()
	s, err := ParseSecret([]byte("the tests' secret, " + which))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func testCredentials(t testing.TB, secret, store string) *Credentials {
	t.Helper()
	c, err := NewCredentials(testSecret(t, secret), store)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func write(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}
