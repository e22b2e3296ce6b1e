package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// sharesFlags say how a queue's priorities share its workers.
func sharesFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "weights", Usage: "`NUMBERS` by which priorities 0 to 9 share the workers: ten, with commas"},
		&cli.BoolFlag{Name: "strict", Usage: "the highest priority goes first, in place of weights"},
		&cli.UintFlag{Name: "floor", Usage: "with --strict, the `PERCENT` that each lower priority has all the same (default: 1)"},
	}
}

func weightFlag() cli.Flag {
	return &cli.UintFlag{Name: "weight", Usage: "`NUMBER` by which it shares workers with other tenants"}
}

// readShares returns nil if no flag says anything.
func readShares(c *cli.Context) (*carillonv1.PriorityShares, error) {
	if !c.IsSet("weights") && !c.IsSet("strict") && !c.IsSet("floor") {
		return nil, nil
	}
	s := &carillonv1.PriorityShares{Strict: c.Bool("strict"), FloorPercent: uint32(c.Uint("floor"))}
	if !c.IsSet("weights") {
		return s, nil
	}
	for _, text := range strings.Split(c.String("weights"), ",") {
		w, err := strconv.ParseUint(strings.TrimSpace(text), 10, 32)
		if err != nil {
			return nil, usage(c, "--weights: %q is not a number; give ten, of priorities 0 to 9, with commas", text)
		}
		s.Weights = append(s.Weights, uint32(w))
	}
	return s, nil
}

func sharesText(s *carillonv1.PriorityShares) string {
	switch {
	case s == nil:
		return "default weights"
	case s.GetStrict():
		return fmt.Sprintf("strict, %d%% for each lower one", s.GetFloorPercent())
	}
	return "weights " + strings.Trim(strings.Join(strings.Fields(fmt.Sprint(s.GetWeights())), ","), "[]")
}
