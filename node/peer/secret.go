package peer

import (
	"bytes"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
)

// ErrSecretExposed: others than its owner can read the secret's file.
var ErrSecretExposed = errors.New("the file can be read by others than its owner")

// Secret is what makes a process a node of its cluster. It prints as a placeholder.
type Secret struct{ value []byte }

var _ slog.LogValuer = Secret{}

// LoadSecret reads a secret from a file, which nobody but its owner may be able to read (ErrSecretExposed). White space
// around it does not count; 16 bytes to 64 KiB must remain.
func LoadSecret(path string) (Secret, error) {
	text, err := readSecret(path)
	if err != nil {
		return Secret{}, fmt.Errorf("load cluster secret: %w", err)
	}
	s, err := ParseSecret(text)
	if err != nil {
		return Secret{}, fmt.Errorf("load cluster secret from %s: %w", path, err)
	}
	return s, nil
}

func readSecret(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err // names the path
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	// Windows has no such bits: Go makes them up there.
	if mode := info.Mode().Perm(); mode&0o077 != 0 && runtime.GOOS != "windows" {
		return nil, fmt.Errorf("%s has mode %#o: %w (chmod 600 %s)", path, mode, ErrSecretExposed, path)
	}
	// Twice the limit leaves room for white space.
	return io.ReadAll(io.LimitReader(f, 2*maxSecret))
}

// ParseSecret makes a Secret of text. White space around it does not count; 16 bytes to 64 KiB must remain.
func ParseSecret(text []byte) (Secret, error) {
	value := bytes.TrimSpace(text)
	switch {
	case len(value) == 0:
		return Secret{}, errors.New("parse cluster secret: it is empty (make one with: openssl rand -hex 32)")
	case len(value) < minSecret:
		return Secret{}, fmt.Errorf("parse cluster secret: it has %d bytes, must have at least %d (make one with: openssl rand -hex 32)",
			len(value), minSecret)
	case len(value) > maxSecret:
		return Secret{}, fmt.Errorf("parse cluster secret: it has more than %d bytes", maxSecret)
	}
	return Secret{bytes.Clone(value)}, nil
}

// String does not tell the secret.
func (s Secret) String() string { return "[cluster secret]" }

// GoString does not tell the secret.
func (s Secret) GoString() string { return s.String() }

// LogValue does not tell the secret.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// derive returns size bytes that depend on the secret and on what they are for.
func (s Secret) derive(purpose string, size int) ([]byte, error) {
	if len(s.value) == 0 {
		return nil, errors.New("the cluster secret is empty")
	}
	return hkdf.Key(sha256.New, s.value, nil, purpose, size)
}
