package control

import "testing"

func TestDutyOf(t *testing.T) {
	want := Shard{ID: 1, Gen: 3, Replicas: []Replica{{RID: 4, Store: "a"}, {RID: 2, Store: "b"}}, NextRID: 5}
	came := Actual{Shard: 1, Epoch: 9, Gen: 3, Voters: want.Replicas}
	behind := Actual{Shard: 1, Epoch: 9, Gen: 2, Voters: []Replica{{RID: 2, Store: "b"}}}
	for _, c := range []struct {
		name, store string
		standing    uint64
		gen         uint64
		is          Actual
		duty        Duty
	}{
		{"a wanted replica is made", "a", 0, 0, behind, Duty{Add: 4, Stands: true}},
		{"one that stands stays", "b", 2, 1, came, Duty{Stands: true}},
		{"nobody makes what is not wanted", "c", 0, 0, came, Duty{}},
		{"one that the group has dropped goes", "c", 3, 3, came, Duty{Remove: true}},
		{"an older one makes room for the next", "a", 1, 1, came, Duty{Remove: true, Add: 4, Stands: true}},
		{"one that an earlier generation has dropped makes room for what that waits for", "a", 1, 2, behind,
			Duty{Remove: true, Add: 4, Stands: true}},
		{"one that may still be needed stays", "c", 3, 3, behind, Duty{Stands: true}},
		{"one that is still a member stays", "c", 3, 3, Actual{Gen: 3, Voters: []Replica{{RID: 2}}, Learners: []Replica{{RID: 3}}},
			Duty{Stands: true}},
		{"of a group of which nothing was heard yet, whatever stands stays", "c", 3, 0, Actual{}, Duty{Stands: true}},
	} {
		if got := DutyOf(want, c.is, c.store, c.standing, c.gen); got != c.duty {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.duty)
		}
	}
}

func TestActualOf(t *testing.T) {
	want := Shard{ID: 1, Gen: 3, Replicas: []Replica{{RID: 4, Store: "a"}}}
	was := Actual{Voters: []Replica{{RID: 1, Store: "c"}}}
	got := ActualOf(want, was, 7, 3, []uint64{4, 2, 1}, []uint64{9})
	if got.Shard != 1 || got.Epoch != 7 || got.Gen != 3 || len(got.Voters) != 3 || len(got.Learners) != 1 {
		t.Fatalf("%+v", got)
	}
	if got.Voters[0].Store != "a" || got.Voters[1].Store != "" || got.Voters[2].Store != "c" || got.Learners[0].RID != 9 {
		t.Errorf("%+v", got)
	}
}

// A node that has two stores for a moment, the old one not known to be dead yet, gets no second replica of a shard; nor does a
// store that its group has still to leave.
func TestPlaceTakesNoRoomThatIsNone(t *testing.T) {
	v := viewFrom("a~ b c d'", "Abc")
	if plan := Place(v); len(plan.Changes) > 0 {
		t.Errorf("two copies on one node: %+v", plan.Changes)
	}
	v = viewFrom("a~ b c d", "Abc")
	if plan := Place(v); len(plan.Changes) != 1 || !plan.Changes[0].on("d") {
		t.Fatalf("a drained store is not emptied: %+v", plan.Changes)
	}
	a := v.Actual[1]
	a.Learners = []Replica{{RID: 9, Store: "d"}}
	v.Actual[1] = a
	if plan := Place(v); len(plan.Changes) > 0 {
		t.Errorf("a store that is still in the group: %+v", plan.Changes)
	}
}
