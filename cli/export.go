package cli

import (
	"context"
	"errors"
	"slices"

	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"

	"github.com/carillon-scheduler/carillon/cli/manifest"
	"github.com/carillon-scheduler/carillon/client"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

func (p *program) exportCommand() *cli.Command {
	c := p.calling(cli.Command{
		Name: "export", Usage: "write jobs as a file for 'apply'", ArgsUsage: "[ID...]",
		Description: "All jobs of the tenant, but for one-shots with nothing left to fire; with ids just those. Applied as it is, the\n" +
			"file changes nothing. It is YAML, with -o json JSON.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "queue", Usage: "only of this `QUEUE`"},
			&cli.StringFlag{Name: "prefix", Usage: "only whose id starts with `PREFIX`"},
			&cli.StringSliceFlag{Name: "label", Aliases: []string{"l"}, Usage: "only with this `KEY=VALUE`, or KEY; repeatable"},
			&cli.BoolFlag{Name: "versions", Usage: "write versions too, so that an apply fails for jobs that were changed since"},
		},
	}, p.exportJobs)
	perRequest(c)
	return c
}

func (p *program) exportJobs(_ context.Context, c *call) error {
	if c.NArg() > 0 {
		for _, name := range []string{"queue", "prefix", "label"} {
			if c.IsSet(name) {
				return usage(c.Context, "ids and --%s exclude each other", name)
			}
		}
	}
	w := manifest.NewJSON(p.stdout)
	if !c.print.json {
		var err error
		if w, err = manifest.NewYAML(p.stdout); err != nil {
			return err
		}
	}
	// An export takes as long as it takes; the timeout is that of each request.
	ctx, ids := c.Context.Context, c.Args().Slice()
	if c.NArg() == 0 {
		var err error
		if ids, err = idsToExport(ctx, c); err != nil {
			return err
		}
	}
	for block := range slices.Chunk(ids, applyBlock) {
		if err := export(ctx, c, w, block); err != nil {
			return err
		}
	}
	return w.Close()
}

// idsToExport are those of the jobs that the flags select, in their order, so that two exports can be compared.
func idsToExport(ctx context.Context, c *call) (ids []string, err error) {
	for job, err := range c.client.ListJobs(ctx, &carillonv1.ListJobsRequest{
		Tenant: c.tenant, Queue: c.String("queue"), IdPrefix: c.String("prefix"), Label: c.StringSlice("label"), PageSize: 1000,
	}) {
		if err != nil {
			return nil, err
		}
		if !isHistory(job) {
			ids = append(ids, job.GetId())
		}
	}
	slices.Sort(ids)
	return ids, nil
}

// export writes some jobs. A list has no payloads, so that each is read. Who was listed and is gone by then is left out.
func export(ctx context.Context, c *call, w *manifest.Writer, ids []string) error {
	jobs := make([]*carillonv1.Job, len(ids))
	calls, ctx := errgroup.WithContext(ctx)
	calls.SetLimit(applyInFlight)
	for i, id := range ids {
		calls.Go(func() (err error) {
			jobs[i], err = c.client.GetJob(ctx, &carillonv1.GetJobRequest{Id: id, Tenant: c.tenant})
			if errors.Is(err, client.ErrNotFound) && c.NArg() == 0 {
				return nil
			}
			return err
		})
	}
	if err := calls.Wait(); err != nil {
		return err
	}
	for _, job := range jobs {
		if job == nil {
			continue
		}
		out := manifest.Job{Spec: specIn(job)}
		if c.Bool("versions") {
			out.Version = job.GetVersion()
		}
		if err := w.Write(out); err != nil {
			return err
		}
	}
	return nil
}
