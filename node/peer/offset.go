package peer

import "time"

// ClockStatus is how a peer's clocks stand against this node's, by the beat of the last few with the shortest round trip:
// its error is at most half of that, and a millisecond.
type ClockStatus struct {
	// Known: there was a round trip. The rest says nothing before.
	Known bool
	// RoundTrip is the network's, both ways.
	RoundTrip time.Duration
	// WallOffset is the peer's wall clock minus this node's, ClockOffset the same of the disciplined clocks.
	WallOffset, ClockOffset time.Duration
	// OK: the peer says that its wall clock agrees with its disciplined clock.
	OK bool
}

// roundTrips estimates the offsets. The zero value has no samples.
type roundTrips struct {
	samples [clockSamples]ClockStatus
	next    int
}

// add takes in a beat that came at now, since this node's start boot, when its own clocks were as in h. Only a beat that
// answers one of this start is a round trip.
func (r *roundTrips) add(b beat, boot uint64, now time.Duration, h Health) {
	if b.echoBoot != boot {
		return
	}
	trip := now - b.echoSent - b.echoHeld
	if b.echoSent < 0 || b.echoHeld < 0 || b.echoSent > now || trip < 0 || trip > maxRoundTrip {
		return
	}
	r.samples[r.next] = ClockStatus{
		Known: true, RoundTrip: trip, OK: b.clockOK,
		WallOffset:  msApart(b.wallMS, h.WallMS) + trip/2,
		ClockOffset: msApart(b.clockMS, h.ClockMS) + trip/2,
	}
	r.next = (r.next + 1) % clockSamples
}

// best is the sample with the shortest round trip; what the peer says of its clock is of the newest.
func (r *roundTrips) best() ClockStatus {
	var best ClockStatus
	for _, s := range r.samples {
		if s.Known && (!best.Known || s.RoundTrip < best.RoundTrip) {
			best = s
		}
	}
	best.OK = r.samples[(r.next+clockSamples-1)%clockSamples].OK
	return best
}

// msApart is a - b, of milliseconds since 1970; what no Duration can hold is the largest there is.
func msApart(a, b int64) time.Duration {
	const most = int64(1) << 40 // 34 years
	return time.Duration(min(max(a-b, -most), most)) * time.Millisecond
}
