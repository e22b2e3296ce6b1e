package sim

import (
	"slices"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/expand"
	"github.com/carillon-scheduler/carillon/schedule"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// evaluator is one of a node that starts. All have the same zones: only what they call their version differs. Horizons are
// short, so that jobs outlive them.
func (c *cluster) evaluator() expand.Evaluator {
	version := []string{"2026a", "2026b", "2026c"}[c.rng.IntN(3)]
	return expand.Evaluator{
		ZoneVersion: version,
		Horizon: func(cron *storagev1.Cron, from int64, n int) (*storagev1.Horizon, error) {
			h, err := schedule.Horizon(cron, from, min(n, 1+c.rng.IntN(6)))
			if err != nil {
				return nil, err
			}
			h.ZoneVersion = version
			if c.cfg.Faults.InstantLost && len(h.NextMs) > 2 {
				h.NextMs = slices.Delete(h.NextMs, 1, 2)
			}
			return h, nil
		},
		Pass: schedule.Pass,
	}
}

// at is the clock that paces the expander, which runs evenly.
func (d *dispatcher) at() int64 { return d.n.c.now/millisecond + 1 }

// expand proposes what cron jobs fire next, and does a step towards newer zone data.
func (d *dispatcher) expand() {
	c, before := d.n.c, d.counts
	jobs, again := d.queue.Take(d.at())
	if len(jobs) > 0 {
		rows := d.n.rows(d.shard)
		b := d.n.evaluator.Evaluate(rows, jobs, d.n.clockMS(), func() bool { return c.rng.IntN(8) == 0 })
		if err := b.Err(); err != nil {
			c.fail("shard %d: %w", d.shard, err)
		}
		d.queue.Evaluated(b)
		if cmd := b.Command(); cmd != nil {
			d.propose(cmd, func(r fsm.Result, err error) {
				if err != nil {
					d.queue.Lost(d.at(), b)
				} else if err := d.queue.Applied(d.at(), b, r.Items); err != nil {
					c.fail("shard %d: %w", d.shard, err)
				}
				c.report.Counts[Expanded] += int(d.counts.Expanded - before.Expanded)
				c.report.Counts[ExpansionStale] += int(d.counts.Refused - before.Refused)
				c.report.Counts[PassedOver] += int(d.counts.Passed - before.Passed)
			})
		} else {
			d.wake(millisecond)
		}
	}
	d.wakeAt(again)
	cmd, again := d.zones.Step(d.n.rows(d.shard), d.queue, d.at())
	if cmd != nil {
		d.propose(cmd, func(r fsm.Result, err error) {
			if d.zones.Told(d.at(), err == nil && r.Refusal == nil) {
				c.count(ZonesRaised)
			}
		})
	}
	d.wakeAt(again)
}

// wakeAt has it decide at an instant of the expander's clock; 0: there is none.
func (d *dispatcher) wakeAt(at int64) {
	if at != 0 {
		d.wake((at - d.at()) * millisecond)
	}
}
