package cli

import (
	"os"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

func TestEveryCommandIsInTheDocs(t *testing.T) {
	body, err := os.ReadFile("../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	var walk func(name string, commands []*cli.Command)
	walk = func(name string, commands []*cli.Command) {
		for _, c := range commands {
			if len(c.Subcommands) > 0 {
				walk(name+" "+c.Name, c.Subcommands)
				continue
			}
			line := "`" + strings.TrimSpace(name+" "+c.Name+" "+c.ArgsUsage) + "`"
			if !strings.Contains(string(body), line) {
				t.Errorf("docs/cli.md does not have %s", line)
			}
		}
	}
	walk("carillon", (&program{}).app().Commands)
}
