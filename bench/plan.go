package bench

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// PayloadBytes is the length of every job's payload.
const PayloadBytes = 100

const (
	tenants = 100
	queues  = 8
)

// plan derives everything about a set of jobs from their numbers 0..n-1, so that the bench knows what to expect of a
// delivery without keeping it. An item is an execution to be delivered: of a one-shot it has the job's number, the k-th
// occurrence, from 0, of recurring job i is item k*n+i. A plan is immutable and safe for concurrent use.
type plan struct {
	seed   uint64
	n      int
	queues []string
	// due is when an item falls due, in milliseconds UTC: its nominal instant, after which its spread comes, if any.
	due func(item int) int64
	// recurs is nil for one-shots.
	recurs *recurrence
	// rival parties share one queue: see fair.go.
	rivals bool
}

// newPlan makes a plan of n jobs. queuePrefix sets the queues of this run apart from whatever else the server holds.
func newPlan(seed uint64, n int, queuePrefix string, due func(i int) int64) *plan {
	p := &plan{seed: seed, n: n, due: due}
	for q := range queues {
		p.queues = append(p.queues, queuePrefix+"q"+strconv.Itoa(q))
	}
	return p
}

// uniform spreads n jobs evenly over span from start on. Consecutive numbers lie far apart, as the order in which real
// jobs are created says little about when they are due.
func uniform(start time.Time, span time.Duration, n int) func(int) int64 {
	first, ms := start.UnixMilli(), uint64(span.Milliseconds())
	stride := coprime(n)
	return func(i int) int64 {
		slot := uint64(i) * stride % uint64(n)
		return first + int64(slot*ms/uint64(n))
	}
}

// coprime is a number near the golden section of n that shares no factor with it, so that i*coprime mod n visits every
// slot once.
func coprime(n int) uint64 {
	gcd := func(a, b uint64) uint64 {
		for b != 0 {
			a, b = b, a%b
		}
		return a
	}
	for c := uint64(n)*618/1000 + 1; ; c++ {
		if gcd(c, uint64(n)) == 1 {
			return c
		}
	}
}

// at makes every job due at one instant.
func at(t time.Time) func(int) int64 {
	ms := t.UnixMilli()
	return func(int) int64 { return ms }
}

// items is how many executions the jobs have in all, job is the one that an item is of.
func (p *plan) items() int {
	if p.recurs == nil {
		return p.n
	}
	return p.n * p.recurs.runs
}

func (p *plan) job(item int) int { return item % p.n }

// nominal is the instant that an item stands for, in milliseconds UTC.
func (p *plan) nominal(item int) int64 {
	if p.recurs == nil {
		return p.due(item)
	}
	return p.recurs.nominal(p.due(item))
}

// name is an item in words.
func (p *plan) name(item int) string {
	if p.recurs == nil {
		return fmt.Sprintf("job %d", item)
	}
	return fmt.Sprintf("job %d, occurrence %d of %d", p.job(item), item/p.n+1, p.recurs.runs)
}

// item is what a lease is for; why says that it is for nothing of this plan.
func (p *plan) item(lease *carillonv1.Lease) (item int, why string) {
	i, ok := p.number(lease.GetPayload())
	if !ok {
		return 0, "its payload belongs to no job"
	}
	if p.recurs == nil {
		return i, ""
	}
	nominal := lease.GetNominalTime().AsTime()
	since := nominal.Sub(time.UnixMilli(p.nominal(i)))
	if since < 0 || since%p.recurs.interval != 0 || since/p.recurs.interval >= time.Duration(p.recurs.runs) {
		return 0, fmt.Sprintf("job %d has no occurrence at %s", i, nominal.Format(time.RFC3339Nano))
	}
	return i + p.n*int(since/p.recurs.interval), ""
}

func (p *plan) tenant(i int) string {
	if p.rivals {
		return tenantName(rivalOf(i))
	}
	return tenantName(i % tenants)
}

func tenantName(t int) string { return tenantNames[t] }

var tenantNames = func() (names [tenants]string) {
	for t := range names {
		names[t] = fmt.Sprintf("t%03d", t)
	}
	return names
}()

func (p *plan) queue(i int) string {
	if p.rivals {
		return p.queues[0]
	}
	return p.queues[i/tenants%queues]
}

// key is the job's idempotency key.
func (p *plan) key(i int) string {
	b := strconv.AppendUint(make([]byte, 0, 24), p.seed, 36)
	b = append(b, '-')
	return string(strconv.AppendInt(b, int64(i), 10))
}

// payload fills dst, of PayloadBytes, with what looks random and names the job: its first word is a bijection of the
// number, the others follow from it.
func (p *plan) payload(dst []byte, i int) {
	word := mix(p.seed ^ uint64(i))
	var b [8]byte
	for len(dst) > 0 {
		binary.LittleEndian.PutUint64(b[:], word)
		dst = dst[copy(dst, b[:]):]
		word = mix(word + 0x9e3779b97f4a7c15)
	}
}

// number is the job that payload belongs to; ok is false if it is not, byte by byte, the payload of a job of this plan.
func (p *plan) number(payload []byte) (i int, ok bool) {
	if len(payload) != PayloadBytes {
		return 0, false
	}
	n := unmix(binary.LittleEndian.Uint64(payload)) ^ p.seed
	if n >= uint64(p.n) {
		return 0, false
	}
	var want [PayloadBytes]byte
	p.payload(want[:], int(n))
	return int(n), string(want[:]) == string(payload)
}

// fill turns req into the request that creates job i. It overwrites what a former fill left there, so that a caller may
// keep one request per item of its batches.
func (p *plan) fill(req *carillonv1.CreateJobRequest, i int) {
	if req.Job == nil {
		req.Job = &carillonv1.JobSpec{
			Payload:  make([]byte, PayloadBytes),
			Schedule: &carillonv1.Schedule{When: &carillonv1.Schedule_At{At: &timestamppb.Timestamp{}}},
		}
	}
	req.IdempotencyKey = p.key(i)
	req.Job.Tenant = p.tenant(i)
	req.Job.Queue = p.queue(i)
	p.payload(req.Job.Payload, i)
	if p.rivals {
		priority := rivalPriority(i)
		req.Job.Priority = &priority
	}
	if p.recurs != nil {
		req.Job.Id = req.IdempotencyKey // the spread follows from it
		req.Job.Schedule = p.recurs.schedule(p.nominal(i))
		return
	}
	ms := p.due(i)
	when := req.Job.Schedule.GetAt()
	when.Seconds, when.Nanos = ms/1000, int32(ms%1000)*1e6
}

const (
	mixA = 0xbf58476d1ce4e5b9
	mixB = 0x94d049bb133111eb
)

// mix is the finalizer of SplitMix64: a bijection of 64-bit words whose outputs look random.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * mixA
	x = (x ^ x>>27) * mixB
	return x ^ x>>31
}

// unmix undoes mix.
func unmix(x uint64) uint64 {
	x = (x ^ x>>31 ^ x>>62) * inverse(mixB)
	x = (x ^ x>>27 ^ x>>54) * inverse(mixA)
	return x ^ x>>30 ^ x>>60
}

// inverse is the multiplicative inverse of odd a modulo 2^64, by Newton's iteration, which doubles the right bits.
func inverse(a uint64) uint64 {
	x := a
	for range 5 {
		x *= 2 - a*x
	}
	return x
}
