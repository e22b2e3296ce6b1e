package node

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func openDir(t *testing.T, path string) *DataDir {
	t.Helper()
	d, err := OpenDataDir(path, "n1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// startOnce opens and closes a data directory.
func startOnce(t *testing.T, path string) Ident {
	t.Helper()
	d := openDir(t, path)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	return d.Ident()
}

func refused(t *testing.T, path string, target error, words ...string) {
	t.Helper()
	_, err := OpenDataDir(path, "n1")
	if err == nil || target != nil && !errors.Is(err, target) {
		t.Fatalf("error is %v, want %v", err, target)
	}
	for _, word := range append(words, path) {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not say %q", err, word)
		}
	}
}

func write(t *testing.T, content string, path ...string) {
	t.Helper()
	file := filepath.Join(path...)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path ...string) {
	t.Helper()
	if err := os.Remove(filepath.Join(path...)); err != nil {
		t.Fatal(err)
	}
}

func TestAStoreIsTheSameAtEachStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "some", "data")
	first := startOnce(t, path)
	if !isID(first.ClusterID) || !isID(first.StoreUUID) || first.Boots != 1 || first.CreatedMS == 0 {
		t.Fatalf("%+v", first)
	}
	renamed, err := OpenDataDir(path, "n2")
	if err != nil {
		t.Fatal(err)
	}
	if err := renamed.Close(); err != nil {
		t.Fatal(err)
	}
	second := renamed.Ident()
	if second.BootID == first.BootID || !isID(second.BootID) {
		t.Errorf("boot ids %q and %q", first.BootID, second.BootID)
	}
	want := first
	want.Name, want.Boots, want.BootID = "n2", 2, second.BootID
	if second != want {
		t.Errorf("got  %+v\nwant %+v", second, want)
	}
	if other := startOnce(t, t.TempDir()); other.StoreUUID == first.StoreUUID || other.ClusterID == first.ClusterID {
		t.Error("another directory is the same store")
	}
}

func TestASecondProcessIsRefused(t *testing.T) {
	path := t.TempDir()
	first := openDir(t, path)
	refused(t, path, ErrDataDirInUse, "process ")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	// The refused start did not count.
	if ident := startOnce(t, path); ident.Boots != 2 {
		t.Errorf("boots is %d", ident.Boots)
	}
}

func TestANewerFormatIsRefused(t *testing.T) {
	path := t.TempDir()
	before := startOnce(t, path)
	write(t, "7\n", path, formatFile)
	refused(t, path, ErrNewerFormat, "7", "up to 1", "run the version of carillon that wrote it")
	write(t, "1\n", path, formatFile)
	if ident := startOnce(t, path); ident.Boots != before.Boots+1 {
		t.Error("the refused start counted")
	}
}

func TestADamagedFormatIsRefused(t *testing.T) {
	for _, content := range []string{"", "x", "-1", "0"} {
		path := t.TempDir()
		startOnce(t, path)
		write(t, content, path, formatFile)
		refused(t, path, nil, formatFile)
	}
}

func TestDataOfNobodyKnownIsRefused(t *testing.T) {
	for _, data := range []string{etcdDir, pebbleDir} {
		t.Run(data+" without ident", func(t *testing.T) {
			path := t.TempDir()
			startOnce(t, path)
			write(t, "x", path, data, "file")
			remove(t, path, identFile)
			refused(t, path, ErrIdentLost, data, identFile)
		})
		t.Run(data+" without format", func(t *testing.T) {
			path := t.TempDir()
			write(t, "x", path, data, "file")
			refused(t, path, nil, data, formatFile)
		})
	}
	t.Run("ident without format", func(t *testing.T) {
		path := t.TempDir()
		startOnce(t, path)
		remove(t, path, formatFile)
		refused(t, path, nil, identFile, formatFile)
	})
}

func TestAnInterruptedFirstStartIsTakenUp(t *testing.T) {
	t.Run("after the directory", func(t *testing.T) {
		path := t.TempDir()
		write(t, "", path, lockFile)
		write(t, "9", path, formatFile+".tmp")
		startOnce(t, path)
	})
	t.Run("after the format", func(t *testing.T) {
		path := t.TempDir()
		write(t, "1\n", path, formatFile)
		write(t, "{", path, identFile+".tmp")
		if err := os.Mkdir(filepath.Join(path, etcdDir), 0o700); err != nil {
			t.Fatal(err)
		}
		if ident := startOnce(t, path); ident.Boots != 1 {
			t.Errorf("boots is %d", ident.Boots)
		}
	})
}

func TestADamagedIdentIsRefused(t *testing.T) {
	path := t.TempDir()
	startOnce(t, path)
	whole, err := os.ReadFile(filepath.Join(path, identFile))
	if err != nil {
		t.Fatal(err)
	}
	for n := range whole {
		write(t, string(whole[:n]), path, identFile)
		refused(t, path, ErrIdentLost, identFile)
		flipped := append([]byte(nil), whole...)
		flipped[n] ^= 1
		write(t, string(flipped), path, identFile)
		refused(t, path, ErrIdentLost, identFile)
	}
	write(t, string(whole), path, identFile)
	startOnce(t, path)
}

func TestADirectoryThatCannotBeWrittenIsRefused(t *testing.T) {
	t.Run("a file stands in its place", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "file")
		write(t, "x", path)
		refused(t, path, nil)
	})
	// A directory in a file's place, as that refuses root too.
	for _, name := range []string{lockFile, formatFile + ".tmp", identFile + ".tmp", identFile} {
		t.Run("no "+name, func(t *testing.T) {
			path := t.TempDir()
			if err := os.MkdirAll(filepath.Join(path, name, "x"), 0o700); err != nil {
				t.Fatal(err)
			}
			refused(t, path, nil, name)
		})
	}
}

// What stands on the disk is a promise: this is read by every later version.
func TestIdentAsItStandsOnTheDisk(t *testing.T) {
	ident := Ident{
		ClusterID: strings.Repeat("0c", 16), StoreUUID: strings.Repeat("a5", 16), Name: "n1", Boots: 3, CreatedMS: 1700000000000,
		BootID: "not kept",
	}
	want := `{"cluster_id":"0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c","store_uuid":"a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5","name":"n1","boots":3,"created_ms":1700000000000}` +
		"\n" + "bbb60361\n"
	if got := string(ident.encode()); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	ident.Formed = true
	if got := string(ident.encode()); !strings.Contains(got, `"created_ms":1700000000000,"formed":true}`) {
		t.Errorf("once formed: %q", got)
	}
}

func FuzzDecodeIdent(f *testing.F) {
	f.Add(Ident{ClusterID: randomID(), StoreUUID: randomID(), Name: "n1", Boots: 3, CreatedMS: 1}.encode())
	f.Add(Ident{}.encode())
	f.Add([]byte("{}\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		ident, err := decodeIdent(content)
		if err != nil {
			return
		}
		if again, err := decodeIdent(ident.encode()); err != nil || again != ident {
			t.Fatalf("%+v became %+v, %v", ident, again, err)
		}
	})
}
