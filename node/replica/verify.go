package replica

import (
	"fmt"
	"slices"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/store"
)

// Verify asks for a look at a replica's rows as the entry at Index left them: as they stand when the turn that asks is
// committed and before the next one. Every replica of the shard asks, with the same Index, Term and Chain.
type Verify struct {
	Shard uint32
	// ID is the command's.
	ID          string
	Index, Term uint64
	// Chain is the hash chain over the entries up to Index and what they wrote.
	Chain uint64
}

// requestVerifies asks for what the entry that was just applied wants; nothing more is applied in this turn then.
func (c *Core) requestVerifies(r *replica, ids []string) {
	for _, id := range ids {
		r.verifying = true
		c.out.Verifies = append(c.out.Verifies, Verify{
			Shard: r.shard, ID: id, Index: r.applied.index, Term: r.applied.term, Chain: r.applied.chain,
		})
	}
}

// applyAll applies all that waits, and forgets what was to be verified: a snapshot is to replace the rows.
func (c *Core) applyAll(r *replica) error {
	for len(r.applies) > 0 {
		r.verifying = false
		if err := c.applyWaiting(r); err != nil {
			return err
		}
	}
	c.out.Verifies = slices.DeleteFunc(c.out.Verifies, func(v Verify) bool { return v.Shard == r.shard })
	return nil
}

// passVerifies hands the rows to be looked at to those who have the time.
func (h *Host) passVerifies(turn Turn) error {
	if h.cfg.OnVerify == nil {
		return nil
	}
	for _, v := range turn.Verifies {
		rows, err := h.core.engine.NewSnapshot()
		if err != nil {
			return fmt.Errorf("snapshot shard %d: %w", v.Shard, err)
		}
		h.cfg.OnVerify(v, rows)
	}
	return nil
}

// AppliedAt returns up to which entry a shard's rows are applied, and the hash chain there.
func AppliedAt(rows store.Source, shard uint32) (index, chain uint64, err error) {
	applied, err := loadRow(rows, shard, fsm.KindApplied, decodeApplied)
	if err != nil {
		return 0, 0, fmt.Errorf("read applied index of shard %d: %w", shard, err)
	}
	return applied.index, applied.chain, nil
}
