package sim

import (
	"errors"
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/node/replica"
)

var (
	oneSeed = flag.Uint64("seed", 0, "the only seed TestSim plays; 0: fresh ones for as long as SIM_FOR says")
	from    = flag.Uint64("from", 0, "the first of the seeds that TestSim plays; 0: by the clock if SIM_FOR is set, else 1")
	steps   = flag.Int("steps", 10_000, "how many steps of trouble a seed has")
	verbose = flag.Bool("log", false, "print what happens in the one seed")
)

// TestSim plays fresh seeds for SIM_FOR, or one. Without SIM_FOR it plays the same ones each time, as far as it gets in ten
// seconds: whoever changes something else is not to be stopped by a seed that nobody has seen.
func TestSim(t *testing.T) {
	began := time.Now()
	length, first := 10*time.Second, uint64(1)
	if s := os.Getenv("SIM_FOR"); s != "" {
		first = uint64(began.UnixNano()) % 1_000_000_000 * 1000
		var err error
		if length, err = time.ParseDuration(s); err != nil {
			t.Fatalf("SIM_FOR: %v", err)
		}
	}
	if *from != 0 {
		first = *from
	}
	if *oneSeed != 0 {
		first = *oneSeed
	}
	var total Report
	seeds := uint64(0)
	for ; seeds == 0 || *oneSeed == 0 && time.Since(began) < length; seeds++ {
		cfg := Config{Seed: first + seeds, Steps: *steps}
		if *verbose {
			cfg.Log = os.Stdout
		}
		r, err := Run(cfg)
		if err != nil {
			t.Fatalf("seed %d: %v\nagain: go test ./integration/sim -run TestSim -seed %d -steps %d", cfg.Seed, err, cfg.Seed, *steps)
		}
		total.add(r)
	}
	took := time.Since(began).Seconds()
	t.Logf("%d seeds from %d, %d steps, %d s of virtual time: %.1f seeds and %.0f steps a second", seeds, first, total.Steps,
		total.VirtualMS/1000, float64(seeds)/took, float64(total.Steps)/took)
	t.Logf("slowest: every shard served after %d ms, everything at its end after %d ms", total.LedMS, total.EndedMS)
	for k, n := range total.Counts {
		t.Logf("%s: %d", Kind(k), n)
		if n == 0 && seeds >= 20 && *steps >= 5000 {
			t.Errorf("%s: never: the simulation shows less than it says", Kind(k))
		}
	}
}

// add sums up.
func (r *Report) add(other Report) {
	r.Steps += other.Steps
	r.VirtualMS += other.VirtualMS
	r.LedMS, r.EndedMS = max(r.LedMS, other.LedMS), max(r.EndedMS, other.EndedMS)
	for k, n := range other.Counts {
		r.Counts[k] += n
	}
}

// Without trouble everything works at once.
func TestQuiet(t *testing.T) {
	r, err := Run(Config{Seed: 1, Steps: 8000, Quiet: true})
	if err != nil {
		t.Fatal(err)
	}
	if r.Counts[Created] < 10 || r.Counts[Completed] < 10 || r.Counts[LeaseLost] > 0 {
		t.Errorf("%+v", r)
	}
}

// The same seed plays the same run.
func TestRepeatable(t *testing.T) {
	for seed := range uint64(4) {
		a, errA := Run(Config{Seed: 100 + seed, Steps: 4000})
		b, errB := Run(Config{Seed: 100 + seed, Steps: 4000})
		if a != b || (errA == nil) != (errB == nil) {
			t.Fatalf("seed %d: %+v %v\nand then %+v %v", 100+seed, a, errA, b, errB)
		}
	}
}

// caught plays seeds until one notices a planted fault: it must be noticed the same way again, and not without the fault.
func caught(t *testing.T, faults Faults) {
	t.Helper()
	caughtBy(t, faults, "")
}

// caughtBy is caught by a check whose complaint contains complaint.
func caughtBy(t *testing.T, faults Faults, complaint string) {
	t.Helper()
	began := time.Now()
	for seed := uint64(1); time.Since(began) < time.Minute; seed++ {
		cfg := Config{Seed: seed, Steps: 10_000, Faults: faults}
		first, err := Run(cfg)
		if err == nil {
			continue
		}
		var p *panicked
		if errors.As(err, &p) && p.ours() {
			t.Fatalf("seed %d: the test itself broke: %v", seed, err)
		}
		if !strings.Contains(err.Error(), complaint) {
			t.Fatalf("seed %d: another check complained: %v", seed, err)
		}
		again, repeated := Run(cfg)
		if repeated == nil || first != again {
			t.Fatalf("seed %d failed by %v; played again it gave %v", seed, err, repeated)
		}
		if _, err := Run(Config{Seed: seed, Steps: cfg.Steps}); err != nil {
			t.Fatalf("seed %d fails without the fault too: %v", seed, err)
		}
		t.Logf("seed %d, step %d, after %s: %.300s", seed, first.Steps, time.Since(began).Round(time.Millisecond), err)
		return
	}
	t.Fatal("a minute went by without a complaint")
}

func TestPlantedFaultNoFencingIsCaught(t *testing.T) {
	caught(t, Faults{Replica: replica.Faults{NoFencing: true}})
}

func TestPlantedFaultReplyBeforeSyncIsCaught(t *testing.T) {
	caught(t, Faults{Replica: replica.Faults{ReplyBeforeSync: true}})
}

func TestPlantedFaultAppliedIndexApartIsCaught(t *testing.T) {
	caught(t, Faults{Replica: replica.Faults{AppliedIndexApart: true}})
}

func TestPlantedFaultTruncateByIndexAloneIsCaught(t *testing.T) {
	caught(t, Faults{Replica: replica.Faults{TruncateByIndexAlone: true}})
}

func TestPlantedFaultReusedReplicaIDIsCaught(t *testing.T) {
	caught(t, Faults{Replica: replica.Faults{ReusedReplicaID: true}})
}

func TestPlantedFaultAmnesiacVoterIsCaught(t *testing.T) {
	caught(t, Faults{Replica: replica.Faults{AmnesiacVoter: true}})
}

func TestPlantedFaultStaleTokenAcceptedIsCaught(t *testing.T) {
	caught(t, Faults{StaleTokenAccepted: true})
}

func TestPlantedFaultTimerLostAtTakeoverIsCaught(t *testing.T) {
	caught(t, Faults{TimerLostAtTakeover: true})
}

func TestPlantedFaultLowWaterAheadIsCaught(t *testing.T) {
	caught(t, Faults{LowWaterAhead: true})
}

func TestPlantedFaultLeasesExpireInOutageIsCaught(t *testing.T) {
	caught(t, Faults{LeasesExpireInOutage: true})
}

func TestPlantedFaultFollowerReadsUnaskedIsCaught(t *testing.T) {
	caughtBy(t, Faults{FollowerReadsUnasked: true}, "read of shard")
}

func TestPlantedFaultInstantLostIsCaught(t *testing.T) {
	caughtBy(t, Faults{InstantLost: true}, "S4: ")
}

func TestPlantedFaultRowLostIsCaught(t *testing.T) {
	caughtBy(t, Faults{RowLost: true}, "verify: ")
}
