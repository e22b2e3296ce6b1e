package control

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// zapBridge is a zap core that writes to slog. etcd tells much at info that is of interest only to somebody who debugs
// it, so that its levels go down by one: info becomes debug. Warnings and errors keep theirs.
type zapBridge struct {
	log    *slog.Logger
	fields []zapcore.Field
}

// newZapLogger returns a zap logger that writes to log, each message at most once a minute, because etcd repeats its
// warnings with every request that meets their cause.
func newZapLogger(log *slog.Logger, options ...zap.Option) *zap.Logger {
	bridge := zapBridge{log: log.With("component", "etcd")}
	return zap.New(zapcore.NewSamplerWithOptions(bridge, time.Minute, 1, 0), options...)
}

// fatalHook has fatal called instead of os.Exit(1).
func fatalHook(fatal func(error)) []zap.Option {
	if fatal == nil {
		return nil
	}
	return []zap.Option{zap.WithFatalHook(onFatal(fatal))}
}

// onFatal is told of the last word that etcd writes.
type onFatal func(error)

func (f onFatal) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	encoder := zapcore.NewMapObjectEncoder()
	for _, field := range fields {
		field.AddTo(encoder)
	}
	f(fmt.Errorf("etcd: %s: %v", entry.Message, encoder.Fields["error"]))
}

func slogLevel(level zapcore.Level) slog.Level {
	switch {
	case level >= zapcore.ErrorLevel:
		return slog.LevelError
	case level == zapcore.WarnLevel:
		return slog.LevelWarn
	default:
		return slog.LevelDebug
	}
}

func (b zapBridge) Enabled(level zapcore.Level) bool {
	return b.log.Enabled(context.Background(), slogLevel(level))
}

func (b zapBridge) With(fields []zapcore.Field) zapcore.Core {
	return zapBridge{log: b.log, fields: append(slices.Clip(b.fields), fields...)}
}

func (b zapBridge) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if !b.Enabled(entry.Level) || expectedWarnings[entry.Message] {
		return checked
	}
	return checked.AddCore(entry, b)
}

func (b zapBridge) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	encoder := zapcore.NewMapObjectEncoder()
	for _, f := range b.fields {
		f.AddTo(encoder)
	}
	for _, f := range fields {
		f.AddTo(encoder)
	}
	attrs := make([]slog.Attr, 0, len(encoder.Fields))
	for _, key := range slices.Sorted(maps.Keys(encoder.Fields)) {
		attrs = append(attrs, slog.Any(key, encoder.Fields[key]))
	}
	b.log.LogAttrs(context.Background(), slogLevel(entry.Level), entry.Message, attrs...)
	return nil
}

func (b zapBridge) Sync() error { return nil }

// expectedWarnings are about how we configure etcd, on purpose, or what a first start always says: the storage version is
// written once the member has a term. A learner asks to be promoted until it may.
var expectedWarnings = map[string]bool{
	"Failed to detect schema version":                                                      true,
	"failed to update storage version":                                                     true,
	"rejecting promote learner: learner is not ready":                                      true,
	"failed to promote a member":                                                           true,
	"simple token is not cryptographically signed":                                         true,
	"Running http and grpc server on single port. This is not recommended for production.": true,
}
