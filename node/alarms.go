package node

import (
	"log/slog"
	"slices"
	"sync"

	"github.com/carillon-scheduler/carillon/rpc"
)

// alarms are conditions that an operator should see until they end.
type alarms struct {
	logger *slog.Logger
	now    func() int64
	mu     sync.Mutex
	raised []rpc.Alarm
}

// set raises or ends an alarm; only a change is logged.
func (a *alarms) set(name string, on bool, message string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.IndexFunc(a.raised, func(r rpc.Alarm) bool { return r.Name == name })
	switch {
	case on && i < 0:
		a.raised = append(a.raised, rpc.Alarm{Name: name, Message: message, SinceMS: a.now()})
		a.logger.Error("alarm raised", "alarm", name, "message", message)
	case on:
		a.raised[i].Message = message
	case i >= 0:
		a.raised = slices.Delete(a.raised, i, i+1)
		a.logger.Info("alarm ended", "alarm", name)
	}
}

func (a *alarms) list() []rpc.Alarm {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.raised)
}
