package replica

import (
	"context"
	"fmt"
	"log/slog"

	"go.etcd.io/raft/v3"
)

// raftLogger passes raft's lines on. What raft calls information is debugging to an operator.
type raftLogger struct{ to *slog.Logger }

var _ raft.Logger = raftLogger{}

func (l raftLogger) log(level slog.Level, line func() string) {
	if l.to.Enabled(context.Background(), level) {
		l.to.Log(context.Background(), level, "raft", "line", line())
	}
}

func (l raftLogger) print(level slog.Level, v []any) {
	l.log(level, func() string { return fmt.Sprint(v...) })
}

func (l raftLogger) printf(level slog.Level, format string, v []any) {
	l.log(level, func() string { return fmt.Sprintf(format, v...) })
}

func (l raftLogger) Debug(v ...any)                   { l.print(slog.LevelDebug, v) }
func (l raftLogger) Debugf(format string, v ...any)   { l.printf(slog.LevelDebug, format, v) }
func (l raftLogger) Info(v ...any)                    { l.print(slog.LevelDebug, v) }
func (l raftLogger) Infof(format string, v ...any)    { l.printf(slog.LevelDebug, format, v) }
func (l raftLogger) Warning(v ...any)                 { l.print(slog.LevelWarn, v) }
func (l raftLogger) Warningf(format string, v ...any) { l.printf(slog.LevelWarn, format, v) }
func (l raftLogger) Error(v ...any)                   { l.print(slog.LevelError, v) }
func (l raftLogger) Errorf(format string, v ...any)   { l.printf(slog.LevelError, format, v) }

// Fatal and Panic are raft's broken invariants: going on would serve what it cannot vouch for.
func (l raftLogger) Fatal(v ...any)                 { panic("raft: " + fmt.Sprint(v...)) }
func (l raftLogger) Fatalf(format string, v ...any) { panic("raft: " + fmt.Sprintf(format, v...)) }
func (l raftLogger) Panic(v ...any)                 { panic("raft: " + fmt.Sprint(v...)) }
func (l raftLogger) Panicf(format string, v ...any) { panic("raft: " + fmt.Sprintf(format, v...)) }
