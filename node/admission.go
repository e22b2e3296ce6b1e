package node

import (
	"time"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

const (
	// patiencePerPriority is how much longer new work may have to wait with each step of priority: what is of priority 0
	// is refused once the queue before it is 100 ms long, priority 9 at 1 s.
	patiencePerPriority = 100 * time.Millisecond
	// triggerPatience is that of a trigger, whose job's priority only the shard knows.
	triggerPatience = 6 * patiencePerPriority
	// shedRetryAfter is what callers are told whose command was refused for that: an overload does not pass in a moment.
	shedRetryAfter = time.Second
)

// patience tells new work, which an overloaded shard refuses by priority, from everything that accepted work needs: claims,
// heartbeats, completions and what the node itself proposes. All jobs of a CreateJobs are of one priority.
func patience(cmd *storagev1.Command) time.Duration {
	switch {
	case cmd.CreateJobs != nil:
		return time.Duration(cmd.CreateJobs.Items[0].GetTemplate().GetPriority()+1) * patiencePerPriority
	case cmd.TriggerJob != nil:
		return triggerPatience
	default:
		return 0
	}
}
