package rpc

import (
	"bytes"
	"encoding/base64"
	"math"
	"testing"
)

// What a token says survives it, at the edges of its numbers, too.
func TestLeaseTokensRoundTrip(t *testing.T) {
	for _, want := range []leaseToken{{0, 1}, {1, 1}, {64, 1 << 32}, {math.MaxUint32, math.MaxUint64}} {
		if got, err := parseLeaseToken(want.String()); err != nil || got != want {
			t.Errorf("%v came back as %v, %v", want, got, err)
		}
	}
}

// The encoding is a promise: tokens given out before an upgrade are completed after it.
func TestLeaseTokenIsPinned(t *testing.T) {
	if got, want := (leaseToken{shard: 3, fencing: 12345}).String(), "AQO5YM9craI"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestDamagedTokensAreRefused(t *testing.T) {
	lease, page := leaseToken{3, 12345}.String(), pageToken{list: 7, shard: 3, cursor: []byte("cursor")}.String()
	for i := range lease {
		damaged := []byte(lease)
		damaged[i] ^= 1
		if got, err := parseLeaseToken(string(damaged)); err == nil {
			t.Errorf("lease token %s was read as %v", damaged, got)
		}
	}
	for i := range page {
		damaged := []byte(page)
		damaged[i] ^= 1
		if got, err := parsePageToken(string(damaged), 7); err == nil {
			t.Errorf("page token %s was read as %v", damaged, got)
		}
	}
	for _, token := range []string{"", "A", lease + "A", lease[:len(lease)-1], page, "=" + lease, "\x00", string(make([]byte, 5000))} {
		if got, err := parseLeaseToken(token); err == nil {
			t.Errorf("%q was read as %v", token, got)
		}
	}
	if _, err := parsePageToken(page, 8); err == nil {
		t.Error("a page token of another list was accepted")
	}
}

func FuzzLeaseToken(f *testing.F) {
	f.Add(leaseToken{1, 1}.String())
	f.Add("AQO5YA")
	f.Fuzz(func(t *testing.T, s string) {
		if token, err := parseLeaseToken(s); err == nil && token.String() != s {
			t.Errorf("%q is a second spelling of %v", s, token)
		}
	})
}

func FuzzPageToken(f *testing.F) {
	f.Add(pageToken{list: 7, shard: 1}.String(), uint64(7))
	f.Add(pageToken{list: 7, shard: 9, cursor: []byte{0, 1}}.String(), uint64(7))
	f.Fuzz(func(t *testing.T, s string, list uint64) {
		token, err := parsePageToken(s, list)
		if err == nil && token.String() != s {
			t.Errorf("%q is a second spelling of %v", s, token)
		}
		// A body that is sealed like ours must not break the decoder either.
		body, _ := base64.RawURLEncoding.DecodeString(s)
		again, err := parsePageToken(seal(append([]byte{pageTokenVersion}, body...)), list)
		if err == nil && !bytes.Equal(again.cursor, body[min(12, len(body)):]) {
			t.Errorf("the cursor of %x came back as %x", body, again.cursor)
		}
	})
}
