package expand

import (
	"fmt"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// WrongItem is an item that the state machine refuses not for being out of date: evaluator and state machine differ.
type WrongItem struct {
	Item    *storagev1.ExpandJob
	Refusal *fsm.Refusal
}

func (w *WrongItem) Error() string {
	return fmt.Sprintf("expansion of job %q of tenant %q refused: %s %s", w.Item.JobId, w.Item.Tenant, w.Refusal.Field, w.Refusal.Message)
}
