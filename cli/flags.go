package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/carillon-scheduler/carillon/cli/manifest"
)

// lengthFlag reads a flag that holds a duration; nil if it is not set.
func lengthFlag(c *cli.Context, name string) (*durationpb.Duration, error) {
	if !c.IsSet(name) {
		return nil, nil
	}
	d, err := manifest.ParseDuration(c.String(name))
	if err != nil {
		return nil, usage(c, "--%s: %s", name, err)
	}
	return durationpb.New(d), nil
}

// instantFlag reads a flag that holds an instant; nil if it is not set.
func instantFlag(c *cli.Context, name string) (*timestamppb.Timestamp, error) {
	if !c.IsSet(name) {
		return nil, nil
	}
	t, err := parseInstant(c.String(name))
	if err != nil {
		if slices.Contains(whenFlags, name) {
			err = fmt.Errorf("%w, or a duration from now such as +90m or -2h", err)
		}
		return nil, usage(c, "--%s: %s", name, err)
	}
	return t, nil
}

func parseInstant(s string) (*timestamppb.Timestamp, error) {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return nil, fmt.Errorf("%q is not an instant such as 2026-01-31T09:00:00Z or 2026-01-31T10:00:00+01:00", s)
	}
	return timestamppb.New(t), nil
}

// optionalNumber is the value of a flag whose number may be left out: --flag, --flag 3, --flag=3.
type optionalNumber struct{ text string }

// Set implements cli.Generic; package flag says "true" where no value is given. Text that is no number is optionalFlag's to
// refuse: package flag would say that it is no boolean.
func (o *optionalNumber) Set(s string) error {
	o.text = s
	return nil
}

func (o *optionalNumber) String() string { return o.text }

// optionalFlag reads a flag whose number may be left out: unsaid then, and 0 without the flag.
func optionalFlag(c *cli.Context, name string, unsaid uint32) (uint32, error) {
	if !c.IsSet(name) {
		return 0, nil
	}
	text := c.Generic(name).(*optionalNumber).text
	if text == "true" {
		return unsaid, nil
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0, usage(c, "--%s: %q is not a number", name, text)
	}
	return uint32(n), nil
}

// IsBoolFlag tells package flag that the value may be missing.
func (o *optionalNumber) IsBoolFlag() bool { return true }

// pairsFlag reads a repeated flag of the form key=value; nil if it is not set.
func pairsFlag(c *cli.Context, name string) (map[string]string, error) {
	if !c.IsSet(name) {
		return nil, nil
	}
	pairs := make(map[string]string)
	for _, pair := range c.StringSlice(name) {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return nil, usage(c, "--%s: %q is not key=value", name, pair)
		}
		if _, twice := pairs[key]; twice {
			return nil, usage(c, "--%s: %q is given twice", name, key)
		}
		pairs[key] = value
	}
	return pairs, nil
}

// uint32Flag reads a flag that holds a number; nil if it is not set.
func uint32Flag(c *cli.Context, name string) (*uint32, error) {
	if !c.IsSet(name) {
		return nil, nil
	}
	n := c.Int64(name)
	if n < 0 || n > 1<<32-1 {
		return nil, usage(c, "--%s: %d is out of range", name, n)
	}
	return new(uint32(n)), nil
}

// numberFlag reads a flag that holds a number; 0 if it is not set.
func numberFlag(c *cli.Context, name string) (uint32, error) {
	n, err := uint32Flag(c, name)
	if n == nil {
		return 0, err
	}
	return *n, nil
}

// uint32sFlag reads a flag that holds numbers, of which the parser takes none that is larger.
func uint32sFlag(c *cli.Context, name string) (list []uint32) {
	for _, n := range c.UintSlice(name) {
		list = append(list, uint32(n))
	}
	return list
}

// expectedFlag guards a change.
func expectedFlag() cli.Flag {
	return &cli.Uint64Flag{
		Name: "expected-version", Usage: "fail unless `VERSION` is the current one", DefaultText: "any",
	}
}
