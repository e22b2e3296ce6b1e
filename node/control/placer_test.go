package control

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A view in words: stores are single letters with marks, "a" is up and live for long; "a-" is silent since a moment, "a--"
// for long; "a~" drains; "a!" is gone; "a+" is live since a moment; "a'" is on the node of the store before it.
func storesFrom(words string) (stores []StoreView) {
	for i, word := range strings.Fields(words) {
		s := StoreView{For: time.Hour}
		s.UUID, s.Name, s.NodeID, s.State, s.Live = word[:1], "node-"+word[:1], uint64(i)+1, StoreUp, true
		switch marks := word[1:]; {
		case strings.Contains(marks, "--"):
			s.Live = false
		case strings.Contains(marks, "-"):
			s.Live, s.For = false, time.Second
		case strings.Contains(marks, "!"):
			s.Live, s.State = false, StoreGone
		case strings.Contains(marks, "~"):
			s.State = StoreDraining
		case strings.Contains(marks, "+"):
			s.For = time.Second
		}
		if strings.Contains(word, "'") {
			s.Name = stores[i-1].Name
		}
		stores = append(stores, s)
	}
	return stores
}

// Shards are the letters of their replicas' stores, the leader's in upper case: "Abc". With "Abc>abd" it is not yet what it
// should be: it was told last that the voters are a, b and d.
func viewFrom(stores, shards string) View {
	v := View{Stores: storesFrom(stores), Actual: map[uint32]Actual{}, Leaders: map[uint32]string{}}
	for i, word := range strings.Fields(shards) {
		id := uint32(i) + 1
		wanted, actual, lags := strings.Cut(word, ">")
		s := Shard{ID: id, Gen: 5}
		a := Actual{Shard: id, Epoch: 9, Gen: 5}
		rids := map[string]uint64{}
		for _, letter := range strings.Split(wanted, "") {
			store := strings.ToLower(letter)
			if store != letter {
				v.Leaders[id] = store
			}
			s.NextRID++
			rids[store] = s.NextRID
			s.Replicas = append(s.Replicas, Replica{RID: s.NextRID, Store: store})
		}
		s.NextRID++
		a.Voters = s.Replicas
		if lags {
			a.Gen, a.Voters = 4, nil
			for _, store := range strings.Split(actual, "") {
				if rids[store] == 0 {
					rids[store] = s.NextRID
					s.NextRID++
				}
				a.Voters = append(a.Voters, Replica{RID: rids[store], Store: store})
			}
		}
		v.Wanted = append(v.Wanted, s)
		v.Actual[id] = a
	}
	return v
}

func wordOf(s Shard) string {
	word := ""
	for _, r := range s.Replicas {
		word += r.Store
	}
	return word
}

func TestPlace(t *testing.T) {
	for _, c := range []struct {
		name, stores, shards string
		gone, changes        string
	}{
		{"all is well", "a b c", "Abc aBc abC", "", ""},
		{"one node alone", "a", "A A", "", ""},
		{"never to two voters", "a b", "A A", "", ""},
		{"from one to three", "a b c", "A A", "", "1:abc 2:abc"},
		{"from two to three", "a b c", "Ab aB", "", "1:abc 2:abc"},
		{"to the emptiest", "a b c d", "Abc Abc Ab", "", "3:abd"},
		{"not to silent, draining, gone stores", "a b- c~ d!", "A", "", ""},
		{"a silent store is waited for", "a b c- d", "Abc aBd", "", ""},
		{"not for ever", "a b c-- d", "Abc aBd", "", "1:abd"},
		{"but for as long as there is no other", "a b c--", "Abc", "", ""},
		{"a gone store is replaced", "a b c! d", "Abc aBd", "", "1:abd"},
		{"a store that nobody knows is gone", "a b d", "Abc", "", "1:abd"},
		{"a node is back with a new store", "a b c- d'", "Abc aBc", "c", "1:abd 2:abd"},
		{"a second store under a living name", "a b c d'", "Abc", "", ""},
		{"the new store is silent too", "a b c- d-'", "Abc", "c", ""},
		{"the old store gets nothing, whatever its lease says", "a b c d--'", "Abd", "", ""},
		{"drained, when there is another", "a b c~ d", "Abc", "", "1:abd"},
		{"not drained, when there is none", "a b c~", "Abc", "", ""},
		{"repairs come first", "a b c! d e", "A Abc", "", "2:abd 1:aeb"},
		{"a shard on its way is left alone", "a b c~ d", "Abc>ab Abc", "", "2:abd"},
		{"unless it waits for a store that is lost", "a b c! d", "Abc>ab", "", "1:abd"},
		{"not if the lost one is a voter still", "a b c! d", "Abd>abc", "", ""},
		{"what the group has is wanted again, if no other store has room", "a b c d--", "Abd>abc", "", "1:abc"},
		{"another store goes first", "a b c d-- e", "Abd>abc", "", "1:abe"},
		{"not before the wanted store is lost", "a b c d-", "Abd>abc", "", ""},
		{"nor because it drains", "a b c d~", "Abd>abc", "", ""},
		{"not what is silent", "a b c- d--", "Abd>abc", "", ""},
		{"a store that drains is better than none", "a b c~ d--", "Abd>abc", "", "1:abc"},
		{"not on a node that has had a later store", "a b c e'- d--", "Abd>abc", "", ""},
		{"replicas are evened out, by shards that others lead", "a b c d", "Abc Bac Abc", "", "2:bdc 1:adc"},
		{"a few at a time", "a b c d", strings.Repeat("Abc ", 20), "", "1:adc 2:abd"},
		{"not while something is to be mended", "a b c d e! f", "Abc Abc Abc Abc Abe", "", "5:abd"},
	} {
		t.Run(c.name, func(t *testing.T) {
			plan := Place(viewFrom(c.stores, c.shards))
			var changes []string
			for _, s := range plan.Changes {
				changes = append(changes, fmt.Sprintf("%d:%s", s.ID, wordOf(s)))
			}
			equal(t, strings.Join(plan.Gone, " "), c.gone)
			equal(t, strings.Join(changes, " "), c.changes)
		})
	}
}

func TestOnlySoManyShardsAreOnTheirWay(t *testing.T) {
	equal(t, len(Place(viewFrom("a b c", strings.Repeat("A ", 64))).Changes), MaxChanging)
	equal(t, len(Place(viewFrom("a b c", strings.Repeat("A ", 64)+strings.Repeat("Abc>a ", 5))).Changes), MaxChanging-5)
	// Those that are stuck do not keep one another from being helped; those without a leader hold up nobody.
	equal(t, len(Place(viewFrom("a b c! d", strings.Repeat("Abc>ab ", 20))).Changes), 20)
	equal(t, len(Place(viewFrom("a b c d", strings.Repeat("abc>ab ", 20)+"A A ")).Changes), 2)
}

func TestAShardThatWasNeverPublishedIsLeftAlone(t *testing.T) {
	v := viewFrom("a b c", "A")
	delete(v.Actual, 1)
	equal(t, Place(v).Changes, nil)
}

// A shard that waits for a store that is lost gets another one as often as it takes, but never a new replica on one that may
// have been given one on the way: that one is wanted again.
func TestAStuckShardGoesOnToAnotherStore(t *testing.T) {
	v := viewFrom("a b c! d e f", "Abc>abc")
	v.Actual[1] = Actual{Shard: 1, Epoch: 9, Gen: 5, Voters: v.Wanted[0].Replicas}
	lose := func(i int) string {
		v.Stores[i].Live, v.Stores[i].State = false, StoreGone
		plan := Place(v)
		if len(plan.Changes) != 1 {
			return ""
		}
		v.Wanted[0] = plan.Changes[0]
		return wordOf(v.Wanted[0])
	}
	equal(t, lose(2), "abd")
	equal(t, len(v.Wanted[0].Dropped), 0)
	equal(t, lose(3), "abe")
	v.Stores[3].Live, v.Stores[3].State = true, StoreDraining
	equal(t, lose(4), "abf")
	equal(t, v.Wanted[0].Dropped, []Replica{{4, "d"}, {5, "e"}})
	v.Stores[4].Live, v.Stores[4].State = true, StoreUp
	equal(t, lose(0), "ebf") // d drains
	equal(t, v.Wanted[0].Replicas[0], Replica{5, "e"})
	equal(t, v.Wanted[0].Dropped, []Replica{{4, "d"}, {1, "a"}})
	v.Stores[0].Live, v.Stores[0].State = true, StoreUp
	equal(t, lose(5), "eba") // what the group has goes first
	equal(t, v.Wanted[0].Replicas[2], Replica{1, "a"})
	equal(t, v.Wanted[0].NextRID, 7)
	v.Actual[1] = Actual{Shard: 1, Epoch: 9, Gen: v.Wanted[0].Gen, Voters: v.Wanted[0].Replicas}
	v.Stores[3].State = StoreUp
	equal(t, lose(4), "dba")
	equal(t, v.Wanted[0].Replicas[0], Replica{7, "d"}) // the one of before is destroyed by now
	equal(t, len(v.Wanted[0].Dropped), 0)
}

// Whatever happens to the stores, every plan keeps the rules, and after the last event the shards come to rest with what
// they should have. rapid prints the seed of a failure.
func TestPlacementKeepsItsRulesAndComesToRest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const letters = "abcdefgh"
		n := rapid.IntRange(1, len(letters)).Draw(t, "stores")
		first := rapid.IntRange(1, min(n, 3)).Draw(t, "seed")
		seed := Seed{ClusterID: "c", Shards: rapid.IntRange(1, 40).Draw(t, "shards"), Stores: strings.Split(letters[:first], "")}
		v := View{Stores: storesFrom(strings.Join(strings.Split(letters[:n], ""), " ")), Actual: map[uint32]Actual{}, Leaders: map[uint32]string{}}
		v.Wanted = seed.firstMap().Shards
		destroyed := map[string]bool{} // replicas, by their shards and ids
		for range rapid.IntRange(0, 6).Draw(t, "events") {
			i := rapid.IntRange(0, n-1).Draw(t, "store")
			s := &v.Stores[i]
			switch rapid.SampledFrom([]string{"silent", "back", "gone", "drain", "up"}).Draw(t, "event") {
			case "silent":
				s.Live, s.For = false, rapid.SampledFrom([]time.Duration{time.Second, time.Hour}).Draw(t, "for")
			case "back":
				s.Live = s.State != StoreGone
			case "gone":
				s.Live, s.State = false, StoreGone
			case "drain":
				s.State = StoreDraining
			case "up":
				s.State = StoreUp
			}
			settle(&v, destroyed, func() bool { return rapid.Bool().Draw(t, "settles") })
			step(t, &v, destroyed)
		}
		for rounds := 0; step(t, &v, destroyed); rounds++ {
			if rounds > 300 {
				t.Fatal("it wants something else for ever")
			}
		}
		nothingStuck(t, v)
		rounds := 0
		for settle(&v, destroyed, func() bool { return true }); step(t, &v, destroyed); rounds++ {
			settle(&v, destroyed, func() bool { return true })
			if rounds > 300 {
				t.Fatal("it never comes to rest")
			}
		}
		rested(t, v)
	})
}

// settle lets shards come to what is wanted of them, as their leaders would; one that is lost with all its stores cannot. The
// stores destroy what their groups have come to be without.
func settle(v *View, destroyed map[string]bool, does func() bool) {
	for _, s := range v.Wanted {
		if does() {
			for rid := uint64(1); rid < s.NextRID; rid++ {
				if !slices.ContainsFunc(s.Replicas, func(r Replica) bool { return r.RID == rid }) {
					destroyed[fmt.Sprint(s.ID, rid)] = true
				}
			}
			v.Actual[s.ID] = Actual{Shard: s.ID, Gen: s.Gen, Epoch: 1, Voters: s.Replicas}
			v.Leaders[s.ID] = s.Replicas[0].Store
		}
	}
}

// step makes a plan, checks it and carries it out.
func step(t *rapid.T, v *View, destroyed map[string]bool) bool {
	plan, again := Place(*v), Place(*v)
	if fmt.Sprint(plan) != fmt.Sprint(again) {
		t.Fatalf("two plans from one view: %v and %v", plan, again)
	}
	usable := map[string]bool{}
	for _, s := range v.Stores {
		usable[s.UUID] = s.Live && s.State == StoreUp
	}
	for _, next := range plan.Changes {
		standing := v.Wanted[next.ID-1]
		if done, err := successorShard(standing, v.Actual[next.ID], next, v.BasisOf(next)); done || err != nil {
			t.Fatalf("%v after %v: %v", next, standing, err)
		}
		for _, r := range next.Replicas {
			if r.RID >= standing.NextRID && !usable[r.Store] {
				t.Fatalf("%v puts a replica on %s", next, r.Store)
			}
			if destroyed[fmt.Sprint(next.ID, r.RID)] {
				t.Fatalf("%v wants replica %d again, which is destroyed", next, r.RID)
			}
		}
		if len(next.Replicas) == 2 && len(standing.Replicas) == 1 {
			t.Fatalf("%v has two replicas", next)
		}
		v.Wanted[next.ID-1] = next
	}
	return len(plan.Changes) > 0
}

// nothingStuck: no shard waits for a store that is lost while another one could be had.
func nothingStuck(t *rapid.T, v View) {
	p := newPlacer(v)
	for _, s := range v.Wanted {
		if len(p.usable) >= MaxReplicas && p.stuck(s) {
			t.Fatalf("%v, which is %v, waits for ever", s, v.Actual[s.ID])
		}
	}
}

func rested(t *rapid.T, v View) {
	p := newPlacer(v)
	most, fewest := 0, 1<<30
	for _, store := range p.usable {
		most, fewest = max(most, p.replicas[store]), min(fewest, p.replicas[store])
	}
	for _, s := range v.Wanted {
		if len(p.usable) < MaxReplicas {
			return
		}
		if len(s.Replicas) != MaxReplicas {
			t.Fatalf("%v does not have %d replicas", s, MaxReplicas)
		}
		for _, r := range s.Replicas {
			if p.lost(r.Store) || p.stores[r.Store].State == StoreDraining {
				t.Fatalf("%v has a replica on %s", s, r.Store)
			}
		}
	}
	// Stores that are silent for a moment keep what they have, which can be anything.
	if len(p.usable) == len(v.Stores) && most-fewest > 1 {
		t.Fatalf("replicas per store: %v", p.replicas)
	}
}

func TestBalanceLeaders(t *testing.T) {
	for _, c := range []struct{ name, stores, shards, transfers string }{
		{"even", "a b c", "Abc aBc abC Abc Abc", ""},
		{"by three", "a b c", "Abc Abc Abc", "1:a>b"},
		{"to both", "a b c", strings.Repeat("Abc ", 6), "1:a>b 2:a>c 3:a>b"},
		{"a few at a time", "a b c", strings.Repeat("Abc ", 60), "1:a>b 2:a>c 3:a>b 4:a>c 5:a>b"},
		{"not to one that is just up, silent or draining", "a b+ c- d~", strings.Repeat("Abc Abd ", 6), ""},
		{"from one that drains, whatever that does to the others", "a~ b c", "Abc Abc aBc", "1:a>c 2:a>b"},
		{"a drain goes first", "a b c~", "Abc Abc Abc abC", "4:c>b"},
		{"by way of another", "a b c d", "Ab Ab Ab Bc", "1:a>b 4:b>c"},
		{"not where nobody votes", "a b c d", "Abc Abc aBc aBc", ""},
		{"not a shard on its way", "a b c", "Abc>ab Abc>ab Abc>ab Abc>ab", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, x := range BalanceLeaders(viewFrom(c.stores, c.shards)) {
				got = append(got, fmt.Sprintf("%d:%s>%s", x.Shard, x.From, x.To))
			}
			equal(t, strings.Join(got, " "), c.transfers)
		})
	}
}

// On any placement, transfers are of voters to stores that may lead, a few at a time, and they come to an end with no two
// stores more than two apart that a hand-over could bring nearer.
func TestBalancingComesToRest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "stores")
		var words []string
		for i := range n {
			words = append(words, string(rune('a'+i))+rapid.SampledFrom([]string{"", "", "", "+", "~"}).Draw(t, "mark"))
		}
		v := viewFrom(strings.Join(words, " "), "")
		v.Wanted = Seed{ClusterID: "c", Shards: rapid.IntRange(1, 60).Draw(t, "shards"), Stores: strings.Split("abcdef"[:n], "")}.firstMap().Shards
		settle(&v, map[string]bool{}, func() bool { return true })
		for _, s := range v.Wanted {
			v.Leaders[s.ID] = rapid.SampledFrom(s.Replicas).Draw(t, "leader").Store
		}
		for rounds := 0; ; rounds++ {
			moves := BalanceLeaders(v)
			if len(moves) > MaxTransfers || rounds > 60 {
				t.Fatalf("%d transfers in round %d", len(moves), rounds)
			}
			if len(moves) == 0 {
				break
			}
			for _, x := range moves {
				b := newBalancer(v)
				if v.Leaders[x.Shard] != x.From || !b.votes(x.Shard, x.To) || !slices.Contains(b.targets, x.To) {
					t.Fatalf("transfer %+v is none", x)
				}
				v.Leaders[x.Shard] = x.To
			}
		}
		b := newBalancer(v)
		for shard, leader := range b.leader {
			for _, to := range b.targets {
				may := slices.Contains(b.targets, leader) && b.votes(shard, to)
				if may && b.leads[leader]-b.leads[to] > maxSkew {
					t.Fatalf("%s leads %d, %s %d", leader, b.leads[leader], to, b.leads[to])
				}
			}
			if strings.Contains(words[leader[0]-'a'], "~") && slices.ContainsFunc(b.targets, func(to string) bool { return b.votes(shard, to) }) {
				t.Fatalf("%s drains and leads shard %d", leader, shard)
			}
		}
	})
}

func TestSightingsCountFromTheLastChange(t *testing.T) {
	var s Sightings
	start := time.Unix(1000, 0)
	see := func(after time.Duration, live bool, boot string) time.Duration {
		stores := []StoreView{{StoreRecord: StoreRecord{UUID: "a", Live: live, BootID: boot}}}
		s.Observe(stores, start.Add(after))
		return stores[0].For
	}
	equal(t, see(0, true, "1"), 0)
	equal(t, see(time.Minute, true, "1"), time.Minute)
	equal(t, see(2*time.Minute, false, "1"), 0)
	equal(t, see(3*time.Minute, false, "1"), time.Minute)
	equal(t, see(4*time.Minute, true, "2"), 0)
	equal(t, see(5*time.Minute, true, "3"), 0)
	s.Observe(nil, start) // forgets it
	equal(t, see(6*time.Minute, true, "3"), 0)
}
