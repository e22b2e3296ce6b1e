package node

import (
	"errors"
	"fmt"
	"testing"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/control"
	"github.com/carillon-scheduler/carillon/rpc"
)

// scene is a cluster of n1 to n4 with stores s1 to s4; s0 is n1's store of before. Each of the shards is on three of them.
func scene(shards ...string) *operation {
	o := &operation{
		stores: map[string]control.StoreRecord{}, leads: map[string]int{},
		view: control.View{Actual: map[uint32]control.Actual{}, Leaders: map[uint32]string{}},
	}
	for i, name := range []string{"n1", "n1", "n2", "n3", "n4"} {
		s := control.StoreRecord{UUID: fmt.Sprintf("s%d", i), Name: name, NodeID: uint64(i), State: control.StoreUp, Live: true}
		if i == 0 {
			s.State, s.Live = control.StoreGone, false
		}
		o.set(s)
	}
	for i, stores := range shards { // "123": replicas on s1, s2 and s3, and the first one leads
		shard := control.Shard{ID: uint32(i + 1), Gen: 1}
		for k, digit := range stores {
			shard.Replicas = append(shard.Replicas, control.Replica{RID: uint64(k + 1), Store: "s" + string(digit)})
		}
		o.view.Wanted = append(o.view.Wanted, shard)
		o.view.Actual[shard.ID] = control.Actual{Shard: shard.ID, Gen: 1, Voters: shard.Replicas}
		o.view.Leaders[shard.ID] = shard.Replicas[0].Store
		o.leads[shard.Replicas[0].Store]++
	}
	return o
}

// set puts a store's record in the place of the one of before.
func (o *operation) set(s control.StoreRecord) {
	o.stores[s.UUID] = s
	for i := range o.view.Stores {
		if o.view.Stores[i].UUID == s.UUID {
			o.view.Stores[i].StoreRecord = s
			return
		}
	}
	o.view.Stores = append(o.view.Stores, control.StoreView{StoreRecord: s})
}

// alter changes a store's record.
func (o *operation) alter(store string, change func(*control.StoreRecord)) control.StoreRecord {
	s := o.stores[store]
	change(&s)
	o.set(s)
	return s
}

func draining(s *control.StoreRecord) { s.State = control.StoreDraining }
func dead(s *control.StoreRecord)     { s.Live = false }

func TestNodesAreFoundByNameOrStore(t *testing.T) {
	o := scene()
	for name, store := range map[string]string{"n1": "s1", "s0": "s0", "s3": "s3", "n4": "s4"} {
		if s, err := o.find("node", name); err != nil || s.UUID != store {
			t.Errorf("%s: %s %v", name, s.UUID, err)
		}
	}
	o.alter("s2", func(s *control.StoreRecord) { s.State = control.StoreGone })
	if s, err := o.find("node", "n2"); err != nil || s.UUID != "s2" { // all that there is of it
		t.Errorf("n2: %s %v", s.UUID, err)
	}
	_, err := o.find("node", "n9")
	var refused *rpc.Refused
	if !errors.As(err, &refused) || refused.Refusal.Code != fsm.NotFound {
		t.Errorf("n9: %v", err)
	}
}

// Leaderships go where there is a vote, spread over those that lead fewest, and never to who is silent or drained.
func TestWhereLeadershipsGo(t *testing.T) {
	o := scene("123", "123", "123", "234")
	var to []string
	for _, s := range o.view.Wanted[:3] {
		to = append(to, o.plan(s, "s1", "").to)
	}
	if fmt.Sprint(to) != "[s3 s2 s3]" { // s2 has one already
		t.Errorf("spread to %v", to)
	}
	o = scene("123", "123")
	o.alter("s3", draining)
	o.alter("s2", dead)
	if m := o.plan(o.view.Wanted[0], "", ""); m.to != "" || m.reason == "" {
		t.Errorf("nobody can take it: %+v", m)
	}
	o = scene("123")
	shard := o.view.Wanted[0]
	if m := o.plan(shard, "s2", ""); m.reason != "" || m.from != "s1" || m.to != "s1" { // s2 leads it no longer
		t.Errorf("gone from s2 already: %+v", m)
	}
	for _, c := range []struct{ from, to, reason string }{
		{"", "s1", ""}, // it is there
		{"s1", "s2", ""},
		{"s2", "s3", "n1 leads it, not n2"},
		{"", "s4", "n4 has no replica of it with a vote"},
	} {
		if m := o.plan(shard, c.from, c.to); m.reason != c.reason {
			t.Errorf("from %q to %q: %q, must be %q", c.from, c.to, m.reason, c.reason)
		}
	}
	delete(o.view.Leaders, shard.ID)
	if m := o.plan(shard, "", "s2"); m.reason != "nobody leads it at the moment" {
		t.Errorf("%+v", m)
	}
}

// A drain is done when nothing is left that another node could have, and says what stays.
func TestHowFarADrainIs(t *testing.T) {
	o := scene("123", "234")
	s := o.alter("s2", draining)
	if c := o.drained(s); c.Done || c.Led != 1 || c.Replicas != 2 || c.Staying != 0 {
		t.Errorf("begun: %+v", c)
	}
	o.alter("s4", dead) // 1 and 3 are left: shard 1 has both, shard 2 could get one on s1
	o.view.Leaders[2] = "s3"
	o.leads = map[string]int{"s1": 1, "s3": 1}
	if c := o.drained(s); c.Done || c.Staying != 1 {
		t.Errorf("one can move: %+v", c)
	}
	o.view.Wanted[1].Replicas = o.view.Wanted[0].Replicas
	if c := o.drained(s); !c.Done || c.Staying != 2 || c.Led != 0 {
		t.Errorf("nothing can move: %+v", c)
	}
	o.view.Wanted, o.view.Actual = nil, nil
	if c := o.drained(s); !c.Done || c.Replicas != 0 {
		t.Errorf("empty: %+v", c)
	}
}

// What a gone store had is made elsewhere where there is room; a replica that the group has still counts.
func TestHowFarALossIsMadeGood(t *testing.T) {
	o := scene("123")
	s := o.alter("s2", func(s *control.StoreRecord) { s.State, s.Live = control.StoreGone, false })
	if c := o.gone(s); c.Done || c.Replicas != 1 || c.Staying != 0 {
		t.Errorf("there is room on s4: %+v", c)
	}
	o.view.Wanted[0].Replicas = scene("143").view.Wanted[0].Replicas
	if c := o.gone(s); c.Done || c.Replicas != 1 {
		t.Errorf("the group has it still: %+v", c)
	}
	o.view.Actual[1] = control.Actual{Shard: 1, Gen: 2, Voters: o.view.Wanted[0].Replicas}
	if c := o.gone(s); !c.Done || c.Replicas != 0 {
		t.Errorf("made good: %+v", c)
	}
}

// The last majority of a shard is not given up: neither of one configuration nor of a single replica.
func TestAMajorityIsNotGivenUp(t *testing.T) {
	o := scene()
	o.alter("s2", dead)
	for _, c := range []struct {
		voters []string
		lost   string
		needed bool
	}{
		{[]string{"s1", "s3", "s4"}, "s1", false},
		{[]string{"s1", "s2", "s3"}, "s2", false},
		{[]string{"s1", "s2", "s3"}, "s3", true},
		{[]string{"s1", "s3", "s4"}, "s2", false}, // it has no vote
		{[]string{"s1"}, "s1", true},
		{[]string{"s1", "s3"}, "s1", true},
		{[]string{"s0", "s1", "s2", "s3", "s4"}, "s0", false},
		{[]string{"s0", "s1", "s2", "s3", "s4"}, "s4", true},
		{[]string{"", "s1", "s3"}, "s1", true}, // one that nobody knows does not count as living
	} {
		if reason := o.needs(c.voters, c.lost); (reason != "") != c.needed {
			t.Errorf("%v without %s: %q", c.voters, c.lost, reason)
		}
	}
}
