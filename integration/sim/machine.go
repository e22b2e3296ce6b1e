package sim

import (
	"github.com/carillon-scheduler/carillon/fsm"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// machine is a shard's state machine on one node. It shows the model every entry, and plants the faults that the state
// machine itself has no switch for.
type machine struct {
	n     *node
	shard uint32
	inner *fsm.Machine
}

func (m *machine) Apply(s fsm.State, index uint64, e *storagev1.Entry) ([]fsm.Result, fsm.Effects) {
	entry := e
	faults := &m.n.c.cfg.Faults
	if faults.StaleTokenAccepted {
		entry = freshTokens(s, e)
	}
	results, effects := m.inner.Apply(s, index, entry)
	meta := m.inner.Meta()
	if faults.LowWaterAhead && meta.LowWaterMs > 0 {
		meta.LowWaterMs = meta.ClockMs + 1000
		setMeta(s, meta)
	}
	if faults.LeasesExpireInOutage {
		meta.LeaderSinceMs = 0
		setMeta(s, meta)
	}
	if m.n.failed {
		return results, effects // read from a disk that answers nothing: the node throws it away
	}
	for _, cmd := range e.Commands {
		m.n.placed[cmd] = index
	}
	m.n.c.model.applied(m, s, index, e, results)
	return results, effects
}

func setMeta(s fsm.State, meta *storagev1.Meta) {
	value, err := meta.MarshalVT()
	if err != nil {
		panic(err) // a row that has just been read
	}
	s.Set(fsm.MetaKey(), value)
}

// freshTokens is an entry whose completions carry the live tokens of their executions, whatever they said.
func freshTokens(s fsm.State, e *storagev1.Entry) *storagev1.Entry {
	e = e.CloneVT()
	for _, cmd := range e.Commands {
		for _, item := range cmd.GetCompletions().GetItems() {
			if live, _, ok := fsm.Find(s, item.ExecutionId); ok && live.Fencing != 0 {
				item.Fencing = live.Fencing
			}
		}
	}
	return e
}
