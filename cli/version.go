package cli

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/urfave/cli/v2"

	"github.com/carillon-scheduler/carillon/node"
)

// version is what the binary was built from.
type version struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (p *program) versionCommand() *cli.Command {
	return &cli.Command{
		Name: "version", Usage: "print the version",
		Flags: []cli.Flag{&cli.StringFlag{
			Name: "output", Aliases: []string{"o"}, Value: "table", Usage: "`FORMAT` of the answer: table or json",
		}},
		Action: func(c *cli.Context) error {
			if err := checkArguments(c, ""); err != nil {
				return err
			}
			print, err := newPrinter(c, p.stdout)
			if err != nil {
				return err
			}
			v := thisVersion()
			if print.json {
				encoder := json.NewEncoder(p.stdout)
				encoder.SetIndent("", "  ")
				return encoder.Encode(v)
			}
			return print.table([][]string{
				{"version", v.Version}, {"revision", orDash(v.Revision)}, {"go", v.Go}, {"platform", v.Platform},
			})
		},
	}
}

func thisVersion() version {
	v := version{Version: node.Version, Go: runtime.Version(), Platform: fmt.Sprintf("%s/%s", runtime.GOOS, runtime.GOARCH)}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				v.Revision = s.Value
			}
		}
	}
	return v
}
