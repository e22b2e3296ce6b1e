package relay

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/client"
)

// minSecretBytes is the shortest key that is taken.
const minSecretBytes = 16

// ParseSecret reads a secret as it stands in a file: "whsec_" and base64, as Standard Webhooks has it, or any other text,
// which is the key itself without white space around it. It fails if the key has less than 16 bytes.
func ParseSecret(text []byte) ([]byte, error) {
	trimmed := strings.TrimSpace(string(text))
	key := []byte(trimmed)
	if encoded, ok := strings.CutPrefix(trimmed, "whsec_"); ok {
		decoded, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			return nil, fmt.Errorf("what follows whsec_ is not base64")
		}
		key = decoded
	}
	if len(key) < minSecretBytes {
		return nil, fmt.Errorf("the key has %d bytes: want at least %d", len(key), minSecretBytes)
	}
	return key, nil
}

// sign adds the headers of Standard Webhooks: identity, time and a signature of both and the body for each secret.
func sign(h http.Header, secrets [][]byte, id string, now time.Time, body []byte) {
	at := strconv.FormatInt(now.Unix(), 10)
	h.Set("Webhook-Id", id)
	h.Set("Webhook-Timestamp", at)
	signatures := make([]string, len(secrets))
	for i, secret := range secrets {
		mac := hmac.New(sha256.New, secret)
		fmt.Fprintf(mac, "%s.%s.", id, at)
		mac.Write(body)
		signatures[i] = "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	if len(signatures) > 0 {
		h.Set("Webhook-Signature", strings.Join(signatures, " "))
	}
}

// setHeaders tells of an execution.
func setHeaders(h http.Header, e *client.Execution) {
	contentType := e.ContentType
	if contentType == "" {
		contentType = "application/octet-stream"
	}
	h.Set("Content-Type", contentType)
	h.Set("User-Agent", "carillon-relay")
	for name, value := range e.Headers {
		if isToken(name) {
			h.Set("Carillon-Header-"+name, headerText(value))
		}
	}
	set := func(name, value string) { h.Set("Carillon-"+name, headerText(value)) }
	number := func(name string, n uint64) { set(name, strconv.FormatUint(n, 10)) }
	set("Execution-Id", e.ID)
	set("Job-Id", e.JobID)
	number("Job-Version", e.JobVersion)
	set("Tenant", e.Tenant)
	set("Queue", e.Queue)
	set("Kind", strings.ToLower(strings.TrimPrefix(e.Kind.String(), "EXECUTION_KIND_")))
	number("Priority", uint64(e.Priority))
	number("Attempt", uint64(e.Attempt))
	number("Max-Attempts", uint64(e.MaxAttempts))
	set("Nominal-Time", e.NominalTime.UTC().Format(time.RFC3339Nano))
	number("Fencing", e.FencingNumber)
	if e.PayloadRef != "" {
		set("Payload-Ref", e.PayloadRef)
	}
}

// headerText is s as it can stand in a header: unchanged if it is printable ASCII, else as encoded words of RFC 2047.
func headerText(s string) string { return mime.QEncoding.Encode("utf-8", s) }

// isToken reports whether s can be a part of a header's name.
func isToken(s string) bool {
	for _, r := range s {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', strings.ContainsRune("!#$%&'*+-.^_`|~", r):
		default:
			return false
		}
	}
	return s != ""
}
