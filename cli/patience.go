package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"
)

// patience listens to the client's log and tells the person at the terminal, once, why an answer takes so long.
type patience struct {
	w       io.Writer
	timeout time.Duration
	once    sync.Once
}

// Enabled takes everything: the client says little.
func (p *patience) Enabled(context.Context, slog.Level) bool { return true }

// Handle tells of the first retry.
func (p *patience) Handle(_ context.Context, r slog.Record) (err error) {
	if r.Message != "retrying call" {
		return nil
	}
	p.once.Do(func() {
		why := ""
		r.Attrs(func(a slog.Attr) bool {
			if a.Key == "error" {
				why = ": " + a.Value.String()
			}
			return true
		})
		_, err = fmt.Fprintf(p.w, "Trying again for up to %s%s\n", short(p.timeout), why)
	})
	return err
}

// WithAttrs and WithGroup are not used by what is listened to.
func (p *patience) WithAttrs([]slog.Attr) slog.Handler { return p }
func (p *patience) WithGroup(string) slog.Handler      { return p }
