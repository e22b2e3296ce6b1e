package integration

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// The network between the nodes is cut, whole and in one direction: the majority goes on, the rest refuses and loses nothing,
// and all is as before when it is healed.
func TestDrillNetworkIsCut(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(drillSeed(t), 0))
	n := newNetwork(t, "--shards", "4")
	for _, s := range n.f.nodes {
		s.launch()
	}
	n.f.awaitReady()
	d := n.f.drill(8)
	cuts := []func(*drill, *network, *server){isolated, unheard, deaf, pairCut}
	rng.Shuffle(len(cuts), func(i, j int) { cuts[i], cuts[j] = cuts[j], cuts[i] })
	for i, end := 0, time.Now().Add(drillLength(t, 0)); i < len(cuts) || time.Now().Before(end); i++ {
		victim := d.leader(uint32(rng.IntN(4)))
		cuts[i%len(cuts)](d, n, victim)
		n.heal()
		d.awaitWhole(victim, 30*time.Second)
		d.gap("healed", failoverLimit)
	}
	d.end()
}

// isolated: the victim and the others do not hear each other.
func isolated(d *drill, n *network, victim *server) {
	d.t.Helper()
	kept := fmt.Sprint("kept-", time.Now().UnixNano())
	await(d.t, 10*time.Second, "a job is accepted after what was before", func() bool {
		_, err := try(victim.jobs().CreateJob, &carillonv1.CreateJobRequest{Job: &carillonv1.JobSpec{Id: kept, Schedule: in(time.Hour)}})
		return err == nil
	})
	victim.awaitJob(kept)
	for _, s := range d.others(victim) {
		n.lose(victim, s)
		n.lose(s, victim)
	}
	d.awaitLeaders(d.others(victim)[0], victim, 15*time.Second)
	pause(d.t, time.Second)
	d.gap(d.name(victim)+" cut off", failoverLimit)
	_, err := try(victim.jobs().CreateJob, &carillonv1.CreateJobRequest{Job: &carillonv1.JobSpec{Schedule: in(time.Hour)}})
	unavailable(d.t, err)
	if res, err := try(victim.jobs().GetJob, &carillonv1.GetJobRequest{Id: kept, Stale: true}); err != nil || res.GetJob().GetId() != kept {
		d.t.Errorf("a stale read at the node that is cut off: %v, %v", res, err)
	}
}

// unheard: what the victim sends is lost.
func unheard(d *drill, n *network, victim *server) {
	d.t.Helper()
	for _, s := range d.others(victim) {
		n.lose(victim, s)
	}
	d.awaitLeaders(d.others(victim)[0], victim, 15*time.Second)
	pause(d.t, time.Second)
	d.gap(d.name(victim)+" is not heard", failoverLimit)
}

// deaf: what is sent to the victim is lost.
func deaf(d *drill, n *network, victim *server) {
	d.t.Helper()
	for _, s := range d.others(victim) {
		n.lose(s, victim)
	}
	d.awaitLeaders(d.others(victim)[0], victim, 15*time.Second)
	pause(d.t, time.Second)
	d.gap(d.name(victim)+" hears nothing", failoverLimit)
}

// pairCut: the victim and one other do not hear each other; the third hears both.
func pairCut(d *drill, n *network, victim *server) {
	d.t.Helper()
	other := d.others(victim)[0]
	n.lose(victim, other)
	n.lose(other, victim)
	pause(d.t, 4*time.Second)
	d.gap(fmt.Sprintf("%s and %s do not hear each other", d.name(victim), d.name(other)), failoverLimit)
}
