package peer

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// detector holds the rules by which a peer is suspect: silent for silentLimit, or deaf to this process for as long; its loop's last
// turn or its last sync older than ageLimit; started anew, once for each start. Both limits are doubled for a while for one that was suspected wrongly
// several times, which is: it had been alive, and was back so soon that more patience would have helped. A saturated machine must not be voted out
// in a loop, but a network that is cut again and again must not make failovers slow. Facts come by heard, conclusions by check; the time is
// an argument. It belongs to one goroutine at a time.
type detector struct {
	peers map[string]*suspicion
	// checked is the time of the last check; counting is since when silence counts: if the checks themselves pause, the
	// process was suspended or starved, and the silence is its own.
	checked, counting time.Time
	// again: the next check says once more of whom it is suspicious.
	again bool
}

// suspicion is what is known of a peer.
type suspicion struct {
	// since is when it became a peer, heard when its last beat came (zero: never).
	since, heard     time.Time
	boot             uint64
	turnAge, syncAge time.Duration
	// deaf is for how long, by its last beat, it had heard nothing of this process.
	deaf time.Duration
	// restarted: a new boot was heard of and not yet reported.
	restarted bool
	suspect   bool
	reason    string
	// suspectBoot is the boot that was suspected, at suspectAt; if it comes back, it had been alive. 0: none counts.
	suspectBoot uint64
	suspectAt   time.Time
	// flaps counts the wrong suspicions; flapped are the times of the last ones, the oldest first.
	flaps        uint64
	flapped      [flapsToDouble]time.Time
	doubledUntil time.Time
}

// event is a change of mind about a peer.
type event struct {
	store   string
	suspect bool
	reason  string
}

func newDetector() *detector { return &detector{peers: make(map[string]*suspicion)} }

// add makes store a peer, not suspect until it has been silent for as long as any other may be.
func (d *detector) add(store string, now time.Time) {
	if d.peers[store] == nil {
		d.peers[store] = &suspicion{since: now}
	}
}

func (d *detector) remove(store string) { delete(d.peers, store) }

// heard takes in a beat. One of an earlier start, or of a store that is no peer, says nothing.
func (d *detector) heard(store string, boot uint64, turnAge, syncAge, deaf time.Duration, now time.Time) {
	p := d.peers[store]
	if p == nil || boot < p.boot {
		return
	}
	if boot > p.boot && p.boot != 0 {
		p.restarted = true
	}
	p.boot, p.turnAge, p.syncAge, p.deaf, p.heard = boot, turnAge, syncAge, deaf, now
}

// check draws the conclusions, in the order of the stores' names.
func (d *detector) check(now time.Time) []event {
	if d.checked.IsZero() || now.Sub(d.checked) > pauseLimit {
		d.counting = now
	}
	d.checked = now
	var events []event
	for _, store := range slices.Sorted(maps.Keys(d.peers)) {
		p := d.peers[store]
		reason := p.verdict(now, d.counting)
		switch {
		case !p.suspect && reason != "":
			p.begin(reason, now)
			events = append(events, event{store: store, suspect: true, reason: reason})
		case p.suspect && reason == "":
			p.end(now)
			events = append(events, event{store: store})
		case p.suspect && d.again:
			events = append(events, event{store: store, suspect: true, reason: reason})
		}
		p.restarted = false
	}
	d.again = false
	return events
}

// verdict says why the peer is suspect as of now; "": it is not.
func (p *suspicion) verdict(now, counting time.Time) string {
	silent, age := silentLimit, ageLimit
	if now.Before(p.doubledUntil) {
		silent, age = 2*silent, 2*age
	}
	if p.restarted && !p.suspect {
		return fmt.Sprintf("it has started anew (boot %d)", p.boot)
	}
	last := latest(p.since, p.heard)
	if p.suspect && p.heard.IsZero() {
		return p.reason
	}
	if !p.suspect {
		last = latest(last, counting)
	}
	switch quiet := now.Sub(last); {
	case quiet >= silent:
		return fmt.Sprintf("it has been silent for %s", quiet.Round(time.Millisecond))
	case p.deaf >= silent && (p.suspect || now.Sub(counting) > p.deaf): // else the silence was this process's own
		return fmt.Sprintf("it has not heard this node for %s", p.deaf.Round(time.Millisecond))
	case p.turnAge > age:
		return fmt.Sprintf("its loop has stood still for %s", p.turnAge.Round(time.Millisecond))
	case p.syncAge > age:
		return fmt.Sprintf("its disk has stood still for %s", p.syncAge.Round(time.Millisecond))
	}
	return ""
}

func (p *suspicion) begin(reason string, now time.Time) {
	p.suspect, p.reason = true, reason
	p.suspectBoot, p.suspectAt = p.boot, now
	if p.restarted { // it was rightly suspected: it had ended
		p.suspectBoot = 0
	}
}

func (p *suspicion) end(now time.Time) {
	p.suspect, p.reason = false, ""
	if p.suspectBoot == 0 || p.suspectBoot != p.boot || now.Sub(p.suspectAt) > soonBack {
		return
	}
	p.flaps++
	copy(p.flapped[:], p.flapped[1:])
	p.flapped[flapsToDouble-1] = now
	if first := p.flapped[0]; !first.IsZero() && now.Sub(first) <= doubledFor {
		p.doubledUntil = now.Add(doubledFor)
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
