package peer

import (
	"log/slog"
	"sync"
	"time"
)

// complaints warns of what others do wrong, but not each time they do it.
type complaints struct {
	logger *slog.Logger
	mu     sync.Mutex
	last   time.Time
	kept   int
}

// warn logs, unless it has done so just before.
func (c *complaints) warn(message string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if !c.last.IsZero() && now.Sub(c.last) < complaintInterval {
		c.kept++
		return
	}
	if c.kept > 0 {
		args = append(args, "others_not_logged", c.kept)
	}
	c.last, c.kept = now, 0
	c.logger.Warn(message, args...)
}
