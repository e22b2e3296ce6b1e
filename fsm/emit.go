package fsm

import (
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

const (
	eventSchema    = 1
	eventBlockSize = 256
)

// eventBuffer collects the events of one entry. Its memory is used again for the next.
type eventBuffer struct {
	blocks [][]storagev1.Event
	list   []*storagev1.Event
	rec    storagev1.EventRecord
}

func (b *eventBuffer) reset() { b.list = b.list[:0] }

// next returns an empty event at the end of the list. It grows by blocks, so that pointers stay.
func (b *eventBuffer) next() *storagev1.Event {
	i := len(b.list)
	if i/eventBlockSize == len(b.blocks) {
		b.blocks = append(b.blocks, make([]storagev1.Event, eventBlockSize))
	}
	e := &b.blocks[i/eventBlockSize][i%eventBlockSize]
	e.Reset()
	b.list = append(b.list, e)
	return e
}

// record returns the record of the list, valid until the next reset; nil when nothing happened.
func (b *eventBuffer) record(index uint64, atMS int64) *storagev1.EventRecord {
	if len(b.list) == 0 {
		return nil
	}
	b.rec.Schema, b.rec.Index, b.rec.AtMs, b.rec.Events = eventSchema, index, atMS, b.list
	return &b.rec
}

// emit records a transition of e.
func (a *apply) emit(t storagev1.EventType, e *storagev1.Execution) *storagev1.Event {
	ev := a.emitJob(t, e.Tenant, e.JobId, e.Incarnation, e.JobVersion)
	ev.Kind, ev.NominalMs, ev.Discriminator = e.Kind, e.NominalMs, e.Discriminator
	ev.Attempt, ev.Fencing = e.Attempt, e.Fencing
	if n := len(e.Attempts); ev.Fencing == 0 && n > 0 {
		// The lease that has just ended.
		ev.Fencing = e.Attempts[n-1].Fencing
	}
	return ev
}

// emitJob records a transition of a job.
func (a *apply) emitJob(t storagev1.EventType, tenant, jobID string, incarnation, version uint64) *storagev1.Event {
	ev := a.m.events.next()
	ev.Type, ev.Tenant, ev.JobId, ev.Incarnation, ev.JobVersion = t, tenant, jobID, incarnation, version
	ev.RequestId, ev.TraceId = a.command.RequestId, a.command.TraceId
	return ev
}
