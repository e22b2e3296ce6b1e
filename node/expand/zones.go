package expand

import (
	"slices"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

const (
	// zonesRows is how many rows one step reads, zonesPage how many jobs it lets wait at once.
	zonesRows = 4096
	zonesPage = 500
	// zonesTries is how often the jobs of a page are expanded that stay as they are.
	zonesTries = 3
	// zonesPause is the pause, in ms, after each page, so that a large shard's walk leaves the machine to others.
	zonesPause = 250
	// zonesEvery is how often a shard is looked at, zonesAgain the pause after a walk that came to nothing, in ms.
	zonesEvery = 10_000
	zonesAgain = 60_000
)

// Zones brings a shard's horizons to the evaluator's zone data, if that is newer: it walks over the jobs and lets those wait
// in the queue whose horizons are older, page by page. With older data it does nothing.
//
// The shard is told when a walk begins and when it has ended. What comes in meanwhile with an older horizon, such as a job
// made through a node of an older version, has the state machine refuse the end. Then, and when jobs cannot be expanded, the
// walk begins again later.
type Zones struct {
	version string
	// from is the version that held when the walk began.
	from  string
	phase phase
	// page is what is waited for, tries how often; cursor is where the next one begins, nil at the end.
	page   []fsm.JobRef
	tries  int
	cursor []byte
	nextAt int64
}

type phase uint8

const (
	// looking at what the shard's own row says.
	looking phase = iota
	// beginning and ending: the command that says so is in flight.
	beginning
	ending
	// walking over the jobs.
	walking
)

// NewZones is for one leadership of a shard.
func NewZones(e *Evaluator) *Zones { return &Zones{version: e.ZoneVersion} }

// Step does a bounded piece of work at an instant of the queue's clock. It returns a command to propose, whose end Told is to
// be told; or else when to come again, 0: not before the queue has changed.
func (z *Zones) Step(rows fsm.Reader, q *Queue, at int64) (cmd *storagev1.Command, againAt int64) {
	switch {
	case z.nextAt > at:
		return nil, z.nextAt
	case z.phase == looking:
		if z.from = fsm.ReadMeta(rows).ZoneVersion; z.from >= z.version {
			return nil, z.rest(at + zonesEvery)
		}
		z.phase = beginning
		return z.command(false), 0
	case z.phase != walking || slices.ContainsFunc(z.page, q.Waits):
		return nil, 0
	}
	if z.page = z.older(rows); len(z.page) > 0 {
		if z.tries++; z.tries == zonesTries {
			return nil, z.rest(at + zonesAgain)
		}
		q.Add(at, z.page...)
		return nil, 0
	}
	if z.cursor == nil {
		z.phase = ending
		return z.command(true), 0
	}
	z.page, z.cursor = fsm.OlderHorizons(rows, z.version, z.cursor, zonesPage, zonesRows)
	z.tries, z.nextAt = 0, at+zonesPause
	if z.cursor == nil {
		z.nextAt = at
	}
	q.Add(at, z.page...)
	return nil, z.nextAt
}

// older are the jobs of the page that are not as they should be.
func (z *Zones) older(rows fsm.Reader) []fsm.JobRef {
	return slices.DeleteFunc(z.page, func(ref fsm.JobRef) bool {
		return !fsm.IsOlder(fsm.ReadJob(rows, ref.Tenant, ref.JobID), z.version)
	})
}

func (z *Zones) command(done bool) *storagev1.Command {
	return &storagev1.Command{SetZoneVersion: &storagev1.SetZoneVersion{Version: z.version, Done: done}}
}

// Told takes in the end of a command: ok says that it was applied and not refused. It returns whether a walk has ended well.
func (z *Zones) Told(at int64, ok bool) (ended bool) {
	switch {
	case !ok:
		z.rest(at + zonesAgain)
	case z.phase == beginning:
		z.phase, z.page, z.cursor = walking, nil, fsm.FirstJob()
	case z.phase == ending:
		z.rest(at + zonesEvery)
		return true
	}
	return false
}

// rest goes back to looking, at an instant.
func (z *Zones) rest(at int64) int64 {
	z.phase, z.page, z.nextAt = looking, nil, at
	return at
}
