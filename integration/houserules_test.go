package integration

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/carillon-scheduler/carillon"

// arrows says what each package may import: of this module, and of the third parties that belong to one owner. Whoever
// adds an arrow here changes the architecture and says so in docs/architecture.md.
var arrows = map[string][]string{
	"":                                    {"cli"},
	"cli":                                 {"cli/manifest", "client", "command", "relay", "node", "bench", "proto/carillon/v1", "proto/carillon/v1/carillonv1connect"},
	"cli/manifest":                        {"proto/carillon/v1", "proto/codec"},
	"client":                              {"proto/carillon/v1", "proto/carillon/v1/carillonv1connect", "proto/codec"},
	"client/clienttest":                   {"client", "cron", "proto/carillon/v1", "proto/carillon/v1/carillonv1connect"},
	"command":                             {"client", "proto/carillon/v1"},
	"relay":                               {"client"},
	"bench":                               {"client", "proto/carillon/v1", "proto/carillon/v1/carillonv1connect", "proto/codec"},
	"node":                                {"node/clock", "node/control", "node/dispatch", "node/expand", "node/peer", "node/replica", "node/route", "rpc", "cron", "schedule", "store", "fsm", "proto/carillon/storage/v1", "proto/carillon/cluster/v1"},
	"node/clock":                          {},
	"node/control":                        {"proto/carillon/storage/v1"},
	"node/dispatch":                       {"fsm", "wheel", "proto/carillon/storage/v1"},
	"node/expand":                         {"fsm", "proto/carillon/storage/v1"},
	"node/peer":                           {"node/replica"},
	"node/route":                          {"fsm", "node/dispatch", "node/replica", "rpc", "proto/carillon/storage/v1", "proto/carillon/cluster/v1", "proto/carillon/cluster/v1/clusterv1connect", "proto/codec"},
	"node/replica":                        {"fsm", "store", "proto/carillon/storage/v1"},
	"rpc":                                 {"fsm", "cron", "schedule", "proto/carillon/v1", "proto/carillon/v1/carillonv1connect", "proto/carillon/storage/v1", "proto/codec"},
	"store":                               {"fsm"},
	"fsm":                                 {"proto/carillon/storage/v1"},
	"wheel":                               {},
	"cron":                                {},
	"schedule":                            {"cron", "proto/carillon/storage/v1"},
	"integration":                         {},
	"integration/sim":                     {"fsm", "schedule", "node/control", "node/expand", "node/replica", "store", "proto/carillon/storage/v1"},
	"proto/carillon/v1":                   {},
	"proto/carillon/storage/v1":           {},
	"proto/carillon/v1/carillonv1connect": {"proto/carillon/v1"},
	"proto/carillon/cluster/v1":           {"proto/carillon/storage/v1"},
	"proto/codec":                         {},

	"proto/carillon/cluster/v1/clusterv1connect": {"proto/carillon/cluster/v1"},
}

// owners says which packages may import a third party, by import path prefix.
var owners = map[string][]string{
	"go.etcd.io/etcd/client/pkg":    {"node/control", "node"},
	"go.etcd.io/etcd/client/v3":     {"node/control"},
	"go.etcd.io/etcd/server":        {"node/control"},
	"go.etcd.io/raft":               {"node/replica", "node/control"},
	"github.com/cockroachdb/pebble": {"store"},
	"connectrpc.com":                {"rpc", "client", "client/clienttest", "bench", "cli", "node/route", "proto/carillon/v1/carillonv1connect", "proto/carillon/cluster/v1/clusterv1connect"},
	"github.com/urfave/cli":         {"cli"},
	"go.yaml.in/yaml":               {"cli/manifest"},
	"github.com/prometheus":         {"node", "relay", "cli"},
	"github.com/sony/gobreaker":     {"relay"},
}

type file struct {
	path, pkg string
	ast       *ast.File
	imports   []string
}

// sources parses the tree's Go files, tests left out.
func sources(t *testing.T) []file {
	t.Helper()
	var files []file
	fset := token.NewFileSet()
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel("..", path)
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && rel != "." {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		pkg := filepath.ToSlash(filepath.Dir(rel))
		if pkg == "." {
			pkg = ""
		}
		one := file{path: filepath.ToSlash(rel), pkg: pkg, ast: f}
		for _, spec := range f.Imports {
			p, _ := strconv.Unquote(spec.Path.Value)
			one.imports = append(one.imports, p)
		}
		files = append(files, one)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 20 {
		t.Fatalf("found only %d Go files: the walk is broken", len(files))
	}
	return files
}

func TestImportArrows(t *testing.T) {
	for _, f := range sources(t) {
		allowed, known := arrows[f.pkg]
		if !known {
			t.Errorf("%s: package %q has no line in the table of arrows", f.path, f.pkg)
			continue
		}
		for _, imp := range f.imports {
			if own, ok := strings.CutPrefix(imp, module+"/"); ok && !slices.Contains(allowed, own) {
				t.Errorf("%s imports %s: an arrow that is not drawn", f.path, own)
			}
			for prefix, who := range owners {
				if (imp == prefix || strings.HasPrefix(imp, prefix+"/")) && !slices.Contains(who, f.pkg) {
					t.Errorf("%s imports %s: that belongs to %v", f.path, imp, who)
				}
			}
		}
	}
}

// TestPureCore: fsm and wheel know no clock, no randomness, no goroutine, no logging and no host zone.
func TestPureCore(t *testing.T) {
	forbidden := []string{"time", "math/rand", "math/rand/v2", "crypto/rand", "os", "log", "log/slog", "sync", "net", "context", "io/fs"}
	for _, f := range sources(t) {
		if f.pkg != "fsm" && f.pkg != "wheel" {
			continue
		}
		for _, imp := range f.imports {
			if slices.Contains(forbidden, imp) {
				t.Errorf("%s imports %s", f.path, imp)
			}
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s starts a goroutine", f.path)
			case *ast.SelectStmt:
				t.Errorf("%s selects", f.path)
			case *ast.ChanType:
				t.Errorf("%s uses a channel", f.path)
			case *ast.Ident:
				if f.pkg == "fsm" && (n.Name == "float64" || n.Name == "float32") {
					t.Errorf("%s uses floats", f.path)
				}
			}
			return true
		})
	}
}
