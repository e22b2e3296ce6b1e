// Carillon is a distributed job scheduler in one binary. See README.md.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/carillon-scheduler/carillon/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := cli.Run(ctx, os.Args, os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
