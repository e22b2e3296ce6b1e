package fsm

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// A pause of a queue, of a tenant or by a rule is one row of settings, consulted when something fires and when it is claimed.
// It holds from the entry that puts it to the one that replaces it, or to the one in which the timer of its end fires: whether
// it holds is state, and no comparison with a clock that another leader may read differently.

// releasePrefixOfID begins the ids of tasks that release what a pause around jobs has stopped.
const releasePrefixOfID = "release~"

// What a pause is of, in keys of settings and of the timers of pauses.
const (
	ofQueue  = 'q'
	ofTenant = 't'
	ofRule   = 'p'
)

// pause is what is known of the pause in one row of settings.
type pause struct {
	of      byte
	name    string
	version uint64
	// tenant whose jobs alone it may stop; empty: of all tenants.
	tenant string
	holds  bool
	// queue and labels narrow down which of those it stops.
	queue  string
	labels []*storagev1.LabelSelector
	// untilMS is when it ends by itself; 0: it does not.
	untilMS int64
	resume  storagev1.CatchUp
}

func pauseOfQueue(q *storagev1.QueueSettings) pause {
	p := pauseOf(q.GetPause(), QueuePaused(q))
	p.of, p.name, p.version, p.queue = ofQueue, q.GetName(), q.GetVersion(), q.GetName()
	return p
}

func pauseOfTenant(t *storagev1.TenantSettings) pause {
	p := pauseOf(t.GetPause(), TenantPaused(t))
	p.of, p.name, p.version, p.tenant = ofTenant, t.GetName(), t.GetVersion(), t.GetName()
	return p
}

func pauseOfRule(r *storagev1.PauseRule) pause {
	p := pauseOf(r.GetPause(), rulePauses(r))
	p.of, p.name, p.version, p.tenant, p.labels = ofRule, r.GetId(), r.GetVersion(), r.GetTenant(), r.GetLabels()
	return p
}

func pauseOf(p *storagev1.Pause, holds bool) pause {
	return pause{holds: holds, untilMS: p.GetUntilMs(), resume: p.GetResume()}
}

// QueuePaused says whether a shard's row of a queue's settings, nil if there is none, pauses the queue.
func QueuePaused(q *storagev1.QueueSettings) bool {
	return q.GetPaused() && !q.GetDeleted() && !q.GetPause().GetOver()
}

// TenantPaused is QueuePaused for a tenant.
func TenantPaused(t *storagev1.TenantSettings) bool {
	return t.GetPaused() && !t.GetDeleted() && !t.GetPause().GetOver()
}

func rulePauses(r *storagev1.PauseRule) bool {
	return r != nil && !r.Deleted && !r.GetPause().GetOver()
}

// String names what is paused, for events and ids of tasks.
func (p *pause) String() string {
	switch p.of {
	case ofQueue:
		return "queue:" + p.name
	case ofTenant:
		return "tenant:" + p.name
	default:
		return "rule:" + p.name
	}
}

// timerKey is where the timer of its end stands; nil when it has none.
func (p *pause) timerKey() []byte {
	if !p.holds || p.untilMS == 0 {
		return nil
	}
	return timerPauseKey(p.untilMS, p.of, p.name)
}

// paused says whether the queue or the tenant of an execution is.
func (m *Machine) paused(e *storagev1.Execution) bool {
	return QueuePaused(m.queues[e.Template.GetQueue()]) || TenantPaused(m.tenants[e.Tenant])
}

// stopped says whether anything stops a recurring job: its own pause, or one of those around it. Nothing is decided of it then.
func (m *Machine) stopped(tenant string, j *storagev1.Job) bool {
	return j.State == storagev1.JobState_JOB_STATE_PAUSED || m.stoppedAround(tenant, j)
}

// stoppedAround says whether a pause of its queue, of its tenant or by a rule stops a recurring job.
func (m *Machine) stoppedAround(tenant string, j *storagev1.Job) bool {
	return QueuePaused(m.queues[j.Template.GetQueue()]) || TenantPaused(m.tenants[tenant]) || m.ruled(tenant, j.Labels)
}

// lastRule is the rule of the pause around a job that ended last, of those that have not released yet all that they stopped;
// unspecified: the job's own.
func (m *Machine) lastRule(tenant string, j *storagev1.Job) storagev1.CatchUp {
	for _, t := range m.releases {
		if releases(t, tenant, j) {
			return t.Resume
		}
	}
	return storagev1.CatchUp_CATCH_UP_UNSPECIFIED
}

// releases says whether a task releases what a pause has stopped of a job.
func releases(t *storagev1.Task, tenant string, j *storagev1.Job) bool {
	f := t.Filter
	return (f.GetTenant() == "" || f.GetTenant() == tenant) && (f.GetQueue() == "" || f.GetQueue() == j.Template.GetQueue()) &&
		matchesAll(f.GetLabels(), j.Labels)
}

// ruled says whether a rule stops the jobs of a tenant that have these labels.
func (m *Machine) ruled(tenant string, labels []*storagev1.KeyValue) bool {
	return slices.ContainsFunc(m.holding, func(r *storagev1.PauseRule) bool { return ruleMatches(r, tenant, labels) })
}

// Stops says which pauses of queues, tenants and rules stop the jobs of a tenant, by a shard's rows of settings. It reads each once:
// it is good for as long as its Reader is.
type Stops struct {
	r      Reader
	tenant string
	// paused are the queues that were looked up.
	paused map[string]bool
	ofAll  []string
	rules  []*storagev1.PauseRule
}

// NewStops reads the tenant's settings and the rules.
func NewStops(r Reader, tenant string) *Stops {
	s := &Stops{r: r, tenant: tenant, paused: map[string]bool{}}
	if t := ReadTenant(r, tenant); TenantPaused(t) {
		stop := pauseOfTenant(t)
		s.ofAll = append(s.ofAll, stop.String())
	}
	prefix := bytes.TrimSuffix(PauseRuleKey(""), []byte{0})
	r.Scan(prefix, PrefixEnd(prefix), func(key, value []byte) bool {
		rule := &storagev1.PauseRule{}
		mustDecode(key, value, rule.UnmarshalVT)
		if rulePauses(rule) {
			s.rules = append(s.rules, rule)
		}
		return true
	})
	return s
}

// Of names what stops a job, in the order queue:NAME, tenant:NAME, rule:ID.
func (s *Stops) Of(j *storagev1.Job) (by []string) {
	queue := j.Queue
	if j.Template != nil {
		queue = j.Template.Queue
	}
	paused, known := s.paused[queue]
	if !known {
		paused = QueuePaused(ReadQueue(s.r, queue))
		s.paused[queue] = paused
	}
	if paused {
		by = append(by, (&pause{of: ofQueue, name: queue}).String())
	}
	by = append(by, s.ofAll...)
	for _, rule := range s.rules {
		if ruleMatches(rule, s.tenant, j.Labels) {
			stop := pauseOfRule(rule)
			by = append(by, stop.String())
		}
	}
	return by
}

// ruledExecution says whether a rule stops e by what its job's labels are now. The job's row is read only if there is a rule
// that may concern it.
func (a *apply) ruledExecution(e *storagev1.Execution) bool {
	if !slices.ContainsFunc(a.m.holding, func(r *storagev1.PauseRule) bool { return r.Tenant == "" || r.Tenant == e.Tenant }) {
		return false
	}
	j := a.jobOf(e)
	return j != nil && a.m.ruled(e.Tenant, j.Labels)
}

func ruleMatches(r *storagev1.PauseRule, tenant string, labels []*storagev1.KeyValue) bool {
	return (r.Tenant == "" || r.Tenant == tenant) && matchesAll(r.Labels, labels)
}

func matchesAll(selectors []*storagev1.LabelSelector, labels []*storagev1.KeyValue) bool {
	for _, want := range selectors {
		if !hasLabel(labels, want.Key, want.Value, want.AnyValue) {
			return false
		}
	}
	return true
}

// hasLabel says whether one of the labels has the key and, unless any will do, the value.
func hasLabel(labels []*storagev1.KeyValue, key, value string, anyValue bool) bool {
	return slices.ContainsFunc(labels, func(l *storagev1.KeyValue) bool {
		return l.Key == key && (anyValue || l.Value == value)
	})
}

// putPauseRule replaces a rule unless a newer one stands. A deleted one is a tombstone, so that none comes back.
func (a *apply) putPauseRule(r *storagev1.PauseRule) Result {
	switch {
	case r.Id == "" || !isName(r.Id):
		return Result{Refusal: refuseField("id", "malformed")}
	case r.Tenant != "" && !isID(r.Tenant):
		return Result{Refusal: refuseField("tenant", "malformed")}
	case len(r.Labels) > maxSelectors:
		return Result{Refusal: refuseField("labels", "more than %d", maxSelectors)}
	case len(r.Reason) > maxErrorBytes:
		return Result{Refusal: refuseField("reason", "more than %d bytes", maxErrorBytes)}
	}
	for _, l := range r.Labels {
		if len(l.Key) > maxNameBytes || len(l.Value) > maxNameBytes {
			return Result{Refusal: refuseField("labels", "a key or value of more than %d bytes", maxNameBytes)}
		}
	}
	if refusal := validPause(r.Pause); refusal != nil {
		return Result{Refusal: refusal}
	}
	old := a.m.rules[r.Id]
	if old.GetVersion() >= r.Version {
		return Result{}
	}
	value := mustEncode(r.MarshalVT())
	kept := &storagev1.PauseRule{}
	key := PauseRuleKey(r.Id)
	mustDecode(key, value, kept.UnmarshalVT)
	a.m.rules[kept.Id] = kept
	a.m.findHolding()
	a.s.Set(key, value)
	before, after := pauseOfRule(old), pauseOfRule(kept)
	if before.holds && after.holds {
		// Deleted and made anew, and the shard has heard of both at once: what only the old one stopped is released.
		a.pauseChanged(before, pause{resume: before.resume})
		before.holds = false
	}
	return a.pauseChanged(before, after)
}

// findHolding collects the rules that hold, in order of their ids.
func (m *Machine) findHolding() {
	m.holding = m.holding[:0]
	for _, id := range slices.Sorted(maps.Keys(m.rules)) {
		if r := m.rules[id]; rulePauses(r) {
			m.holding = append(m.holding, r)
		}
	}
}

func validPause(p *storagev1.Pause) *Refusal {
	switch {
	case p == nil:
		return nil
	case p.UntilMs != 0 && !isInstant(p.UntilMs):
		return refuseField("until", "out of range")
	case len(p.By) > maxNameBytes:
		return refuseField("paused_by", "more than %d bytes", maxNameBytes)
	case p.Resume < storagev1.CatchUp_CATCH_UP_UNSPECIFIED || p.Resume > storagev1.CatchUp_CATCH_UP_ALL:
		return refuseField("resume_rule", "unknown")
	case p.Over:
		return refuseField("pause", "over is not a request's")
	default:
		return nil
	}
}

// pauseChanged lets follow what follows from another row of settings: the timer of a pause's end, and, if one has ended, the
// task that releases what it has stopped.
func (a *apply) pauseChanged(before, after pause) Result {
	a.effects.SettingsChanged = true
	if key := before.timerKey(); key != nil {
		a.dropTimer(key)
	}
	if key := after.timerKey(); key != nil {
		a.putTimer(after.untilMS, key, []byte{}, TimerPauseEnd, "")
	}
	switch {
	case after.holds && !before.holds:
		a.emitPause(storagev1.EventType_EVENT_TYPE_PAUSE_BEGAN, &after)
	case before.holds && !after.holds:
		a.emitPause(storagev1.EventType_EVENT_TYPE_PAUSE_ENDED, &before)
		return Result{Task: a.startRelease(&before, after.resume)}
	}
	return Result{}
}

func (a *apply) emitPause(t storagev1.EventType, p *pause) {
	a.emitJob(t, p.tenant, "", 0, p.version).Subject = p.String()
}

// firePauseEnd ends a pause whose time has come.
func (a *apply) firePauseEnd(t *dueTimer) {
	a.work++
	a.s.Delete(t.key)
	var before, after pause
	switch t.of {
	case ofQueue:
		q := a.m.queues[t.name]
		before = pauseOfQueue(q)
		endPause(t, &before, q.GetPause())
		after = pauseOfQueue(q)
		a.s.Set(QueueKey(t.name), mustEncode(q.MarshalVT()))
	case ofTenant:
		s := a.m.tenants[t.name]
		before = pauseOfTenant(s)
		endPause(t, &before, s.GetPause())
		after = pauseOfTenant(s)
		a.s.Set(TenantKey(t.name), mustEncode(s.MarshalVT()))
	default:
		r := a.m.rules[t.name]
		before = pauseOfRule(r)
		endPause(t, &before, r.GetPause())
		after = pauseOfRule(r)
		a.s.Set(PauseRuleKey(t.name), mustEncode(r.MarshalVT()))
		a.m.findHolding()
	}
	a.pauseChanged(before, after)
}

// endPause marks in the shard's own row that the pause is over.
func endPause(t *dueTimer, before *pause, p *storagev1.Pause) {
	if !before.holds || before.untilMS != t.atMS {
		panic(corrupt(t.key))
	}
	p.Over = true
}

// startRelease leaves a task that releases what a pause has stopped; nil when nothing is stopped at all.
func (a *apply) startRelease(p *pause, rule storagev1.CatchUp) *storagev1.Task {
	if a.meta.Parked == 0 && a.meta.Held == 0 {
		return nil
	}
	if rule == storagev1.CatchUp_CATCH_UP_UNSPECIFIED {
		rule = p.resume
	}
	t := &storagev1.Task{
		Id: fmt.Sprintf("%s%s~%d", releasePrefixOfID, p, p.version), Kind: storagev1.TaskKind_TASK_KIND_RELEASE,
		Filter: &storagev1.Filter{Tenant: p.tenant, Queue: p.queue, Labels: p.labels}, Resume: rule, EndedOrder: 1,
		CreatedMs: a.meta.ClockMs, UpdatedMs: a.meta.ClockMs,
	}
	if len(a.m.releases) > 0 {
		t.EndedOrder = a.m.releases[0].EndedOrder + 1
	}
	a.m.releases = slices.Insert(a.m.releases, 0, t.CloneVT())
	a.putTask(t)
	a.effects.TasksStarted = true
	return t
}
