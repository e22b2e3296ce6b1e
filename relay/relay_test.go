package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/carillon-scheduler/carillon/client"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// to is a relay to url.
func to(t *testing.T, url string, change func(*Config)) *Relay {
	t.Helper()
	config := Config{
		URL: url, Timeout: 10 * time.Second, AllowPrivate: true, MaxRetryAfter: time.Hour, Failures: 5, Pause: 10 * time.Second,
		Logger: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&config)
	}
	r, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// receiver is a server that answers with answer.
func receiver(t *testing.T, answer http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(answer)
	t.Cleanup(s.Close)
	return s.URL
}

// kindOf is what a worker makes of a handler's error; which of them it is only client knows.
func kindOf(err error) string {
	for kind, one := range map[string]error{
		"final": client.NonRetryable(nil), "snooze": client.SnoozeFor(0), "after": client.RetryAfter(nil, 0), "release": client.Release(nil),
	} {
		for e := err; e != nil; {
			if fmt.Sprintf("%T", e) == fmt.Sprintf("%T", one) {
				return kind
			}
			if many, ok := e.(interface{ Unwrap() []error }); ok {
				e = many.Unwrap()[0]
				continue
			}
			e = errors.Unwrap(e)
		}
	}
	if err == nil {
		return "success"
	}
	return "failure"
}

func TestRequestHasPayloadAndMetadata(t *testing.T) {
	var got http.Header
	var body []byte
	url := receiver(t, func(w http.ResponseWriter, req *http.Request) {
		got = req.Header
		body, _ = io.ReadAll(req.Body)
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte("re\x00sult"))
	})
	payload := []byte("hello\x00\xff")
	result, err := to(t, url+"/hook?a=b", nil).Handle(t.Context(), &client.Execution{
		ID: "acme~j~1~s~5", JobID: "j", Tenant: "acme", Queue: "mail", Attempt: 2, MaxAttempts: 5, FencingNumber: 1 << 63,
		NominalTime: time.Date(2026, 1, 31, 9, 0, 0, 0, time.UTC), ContentType: "text/plain", Payload: payload, PayloadRef: "s3://ä",
		Headers:  map[string]string{"Trace": "t\r\nInjected: 1", "not a token": "x"},
		Priority: 9, Kind: carillonv1.ExecutionKind_EXECUTION_KIND_BACKFILL, JobVersion: 7,
	})
	if err != nil || string(result) != "re\x00sult" || !bytes.Equal(body, payload) {
		t.Errorf("result %q, %v; body %q", result, err, body)
	}
	for name, want := range map[string]string{
		"Content-Type": "text/plain", "User-Agent": "carillon-relay", "Webhook-Id": "acme~j~1~s~5", "Webhook-Signature": "",
		"Carillon-Execution-Id": "acme~j~1~s~5", "Carillon-Job-Id": "j", "Carillon-Job-Version": "7", "Carillon-Tenant": "acme",
		"Carillon-Queue": "mail", "Carillon-Kind": "backfill", "Carillon-Priority": "9", "Carillon-Attempt": "2",
		"Carillon-Max-Attempts": "5", "Carillon-Nominal-Time": "2026-01-31T09:00:00Z", "Carillon-Fencing": "9223372036854775808",
		"Carillon-Payload-Ref": "=?utf-8?q?s3://=C3=A4?=", "Carillon-Header-Trace": "=?utf-8?q?t=0D=0AInjected:_1?=", "Injected": "",
	} {
		if got.Get(name) != want {
			t.Errorf("%s is %q, want %q", name, got.Get(name), want)
		}
	}
}

// The key, message and signature were made with another implementation:
// printf 'msg_1.1614265330.{"test": 2432232314}' | openssl dgst -sha256 -hmac "0123456789abcdef" -binary | base64
func TestSignatureIsThatOfStandardWebhooks(t *testing.T) {
	plain, err := ParseSecret([]byte("0123456789abcdef\n"))
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := ParseSecret([]byte("whsec_MDEyMzQ1Njc4OWFiY2RlZg==\n"))
	if err != nil || !bytes.Equal(plain, encoded) {
		t.Fatalf("keys %q and %q, %v", plain, encoded, err)
	}
	h := http.Header{}
	sign(h, [][]byte{plain, []byte("another key of 16")}, "msg_1", time.Unix(1614265330, 999), []byte(`{"test": 2432232314}`))
	first, second, _ := strings.Cut(h.Get("Webhook-Signature"), " ")
	if first != goldenSignature || !strings.HasPrefix(second, "v1,") || second == first || h.Get("Webhook-Timestamp") != "1614265330" {
		t.Errorf("headers %v", h)
	}
	for _, bad := range []string{"", "short", "whsec_c2hvcnQ=", "whsec_!!!!"} {
		if _, err := ParseSecret([]byte(bad)); err == nil {
			t.Errorf("secret %q was taken", bad)
		}
	}
}

func TestStatusDecides(t *testing.T) {
	tests := map[int]string{
		200: "success", 204: "success", 299: "success", 301: "failure", 304: "failure", 307: "failure", 400: "final", 401: "final",
		404: "final", 408: "failure", 409: "final", 410: "final", 422: "final", 425: "failure", 429: "failure", 500: "failure",
		501: "failure", 503: "failure", 599: "failure",
	}
	for status, want := range tests {
		followed := false
		url := receiver(t, func(w http.ResponseWriter, req *http.Request) {
			followed = req.URL.Path != "/"
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(status)
			if status >= 400 {
				_, _ = w.Write([]byte("because\nof " + strings.Repeat("x", 1000)))
			}
		})
		_, err := to(t, url+"/", nil).Handle(t.Context(), &client.Execution{})
		if got := kindOf(err); got != want || followed {
			t.Errorf("%d: %s (%v), want %s; followed: %v", status, got, err, want, followed)
		}
		if status >= 400 && (!strings.HasPrefix(err.Error(), fmt.Sprint(status)) || !strings.Contains(err.Error(), ": because of xxx") ||
			len(err.Error()) > 600) {
			t.Errorf("%d: error is %v", status, err)
		}
	}
}

func TestRetryAfterIsHonoured(t *testing.T) {
	now := time.Date(2026, 1, 31, 9, 0, 0, 0, time.UTC)
	tests := []struct {
		after, date string
		want        time.Duration
		ok          bool
	}{
		{after: "120", want: 2 * time.Minute, ok: true},
		{after: "0", want: 0, ok: true},
		{after: " 7 ", want: 7 * time.Second, ok: true},
		{after: "86400", want: time.Hour, ok: true},
		{after: "9223372036854775807", want: time.Hour, ok: true},
		{after: "Sat, 31 Jan 2026 09:05:00 GMT", want: 5 * time.Minute, ok: true},
		{after: "Sat, 31 Jan 2026 09:05:00 GMT", date: "Sat, 31 Jan 2026 09:04:00 GMT", want: time.Minute, ok: true},
		{after: "Sat, 31 Jan 2026 08:00:00 GMT", want: 0, ok: true},
		{after: "Sun, 31 Jan 2027 08:00:00 GMT", want: time.Hour, ok: true},
		{after: ""}, {after: "-1"}, {after: "soon"}, {after: "1.5"},
	}
	for _, test := range tests {
		h := http.Header{"Retry-After": {test.after}, "Date": {test.date}}
		if got, ok := retryAfter(h, now, time.Hour); got != test.want || ok != test.ok {
			t.Errorf("%q at %q: %s, %v", test.after, test.date, got, ok)
		}
	}
	url := receiver(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "30")
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	if _, err := to(t, url, nil).Handle(t.Context(), &client.Execution{}); kindOf(err) != "after" {
		t.Errorf("503 with Retry-After: %v", err)
	}
}

func TestResultHasALimit_W7(t *testing.T) {
	size := client.MaxResult
	url := receiver(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, size)) })
	if got, err := to(t, url, nil).Handle(t.Context(), &client.Execution{}); err != nil || len(got) != size {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	size++
	_, err := to(t, url, nil).Handle(t.Context(), &client.Execution{})
	if kindOf(err) != "failure" || err.Error() != "result is too long: more than 262144 bytes with status 200" {
		t.Errorf("beyond it: %v", err)
	}
}

func TestRedirectsAreFollowedIfTheyAreAllowedTo(t *testing.T) {
	var paths []string
	url := receiver(t, func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		paths = append(paths, req.Method+" "+req.URL.Path+" "+string(body))
		switch req.URL.Path {
		case "/307":
			http.Redirect(w, req, "/308", http.StatusTemporaryRedirect)
		case "/308":
			http.Redirect(w, req, "/end", http.StatusPermanentRedirect)
		case "/302":
			http.Redirect(w, req, "/end", http.StatusFound)
		}
	})
	tests := []struct {
		path string
		most int
		want string
	}{
		{"/307", 2, "success POST /307 hi, POST /308 hi, POST /end hi"},
		{"/307", 1, "failure POST /307 hi, POST /308 hi"},
		{"/302", 2, "failure POST /302 hi"}, // that would be a GET
	}
	for _, test := range tests {
		paths = nil
		_, err := to(t, url+test.path, func(c *Config) { c.MaxRedirects = test.most }).Handle(t.Context(), &client.Execution{Payload: []byte("hi")})
		if got := kindOf(err) + " " + strings.Join(paths, ", "); got != test.want {
			t.Errorf("%s: %s (%v)", test.path, got, err)
		}
	}
}

func TestAddressesThatAreNotPublicAreRefused(t *testing.T) {
	for text, want := range map[string]bool{
		"8.8.8.8": true, "1.1.1.1": true, "2606:4700::1111": true, "172.32.0.1": true, "100.128.0.1": true,
		"127.0.0.1": false, "127.1.2.3": false, "::1": false, "0.0.0.0": false, "::": false, "10.0.0.1": false, "172.16.0.1": false,
		"172.31.255.255": false, "192.168.1.1": false, "169.254.169.254": false, "100.64.0.1": false, "255.255.255.255": false,
		"224.0.0.1": false, "fe80::1": false, "fe80::1%eth0": false, "fd00::1": false, "ff02::1": false, "::ffff:10.0.0.1": false,
		"::ffff:8.8.8.8": true, "64:ff9b::a00:1": false, "2002:a00:1::": false, "::7f00:1": false, "198.18.0.1": false,
	} {
		if got := isPublic(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s is public: %v", text, got)
		}
	}
	asked := false
	url := receiver(t, func(http.ResponseWriter, *http.Request) { asked = true })
	for _, host := range []string{"127.0.0.1", "localhost"} {
		named := strings.Replace(url, "127.0.0.1", host, 1)
		_, err := to(t, named, func(c *Config) { c.AllowPrivate = false }).Handle(t.Context(), &client.Execution{})
		if kindOf(err) != "snooze" || !strings.Contains(err.Error(), "is not public") || asked {
			t.Errorf("%s: %v; asked: %v", host, err, asked)
		}
	}
}

func TestHostThatTakesNoConnectionCostsNoAttempt(t *testing.T) {
	s := httptest.NewServer(nil)
	url := s.URL
	s.Close()
	_, err := to(t, url, nil).Handle(t.Context(), &client.Execution{})
	if kindOf(err) != "snooze" || !strings.Contains(err.Error(), "nothing was sent") {
		t.Errorf("error is %v", err)
	}
	secure := httptest.NewTLSServer(nil)
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	defer secure.Close()
	_, err = to(t, secure.URL, nil).Handle(t.Context(), &client.Execution{})
	if kindOf(err) != "snooze" || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a certificate of nobody: %v", err)
	}
}

func TestAnswerThatDoesNotCome(t *testing.T) {
	ended := make(chan struct{})
	arrived := make(chan struct{}, 10)
	url := receiver(t, func(_ http.ResponseWriter, req *http.Request) {
		_, _ = io.ReadAll(req.Body) // only then the server watches the connection
		arrived <- struct{}{}
		select {
		case <-req.Context().Done():
		case <-ended:
		}
	})
	defer close(ended)
	_, err := to(t, url, func(c *Config) { c.Timeout = 50 * time.Millisecond }).Handle(t.Context(), &client.Execution{})
	if kindOf(err) != "failure" || err.Error() != "no answer in time" {
		t.Errorf("timeout: %v", err)
	}
	<-arrived
	r := to(t, url, func(c *Config) { c.Failures = 1 })
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-arrived
		cancel(client.ErrCancelled)
	}()
	if _, err = r.Handle(ctx, &client.Execution{}); !errors.Is(err, client.ErrCancelled) {
		t.Errorf("cancelled: %v", err)
	}
	if n := r.Gate(t.Context(), 7); n != 7 {
		t.Errorf("a cancel moved the breaker: it admits %d", n)
	}
}

// A bubble has its own clock, and the host is a function.
func TestBreakerStopsClaimsAndProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := &fakeHost{status: 500}
		r := to(t, "http://host.example/", func(c *Config) { c.Failures, c.Pause = 3, 10*time.Second })
		r.http.Transport = host
		post := func() string {
			_, err := r.Handle(t.Context(), &client.Execution{})
			return kindOf(err)
		}
		for i := range 3 {
			if n := r.Gate(t.Context(), 7); n != 7 {
				t.Fatalf("failure %d: the gate admits %d", i, n)
			}
			if got := post(); got != "failure" {
				t.Fatalf("failure %d: %s", i, got)
			}
		}
		// Open: what was claimed is given back unsent, and the gate waits for the pause.
		if got := post(); got != "release" || host.requests != 3 {
			t.Errorf("open: %s, %d requests", got, host.requests)
		}
		opened := time.Now()
		if n := r.Gate(t.Context(), 7); n != 1 || time.Since(opened).Round(time.Second) != 10*time.Second {
			t.Errorf("the gate admits %d after %s", n, time.Since(opened))
		}
		// Half-open: a probe that fails opens it again, and is not counted.
		if got := post(); got != "snooze" || host.requests != 4 {
			t.Errorf("probe: %s, %d requests", got, host.requests)
		}
		if got := post(); got != "release" {
			t.Errorf("after the probe: %s", got)
		}
		if n := r.Gate(t.Context(), 7); n != 1 {
			t.Errorf("the gate admits %d", n)
		}
		// While a probe is under way nothing else goes, and a host that refuses an execution is well.
		host.status, host.wait = 404, make(chan struct{})
		probe := make(chan string)
		go func() { probe <- post() }()
		synctest.Wait()
		if got := post(); got != "release" {
			t.Errorf("beside the probe: %s", got)
		}
		admitted := make(chan int)
		go func() { admitted <- r.Gate(t.Context(), 7) }()
		synctest.Wait()
		select {
		case n := <-admitted:
			t.Errorf("beside the probe the gate admits %d", n)
		default:
		}
		close(host.wait)
		if got := <-probe; got != "final" {
			t.Errorf("probe: %s", got)
		}
		if n := <-admitted; n != 7 {
			t.Errorf("closed: the gate admits %d", n)
		}
		if r.breaker.opens() != 2 {
			t.Errorf("it has opened %v times", r.breaker.opens())
		}
	})
}

// A probe that somebody cancels says nothing, and another may go; a gate that waits ends with its context.
func TestBreakerAfterACancelledProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := &fakeHost{status: 500}
		r := to(t, "http://host.example/", func(c *Config) { c.Failures = 1 })
		r.http.Transport = host
		_, _ = r.Handle(t.Context(), &client.Execution{}) // it opens
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if n := r.Gate(ctx, 7); n != 0 {
			t.Errorf("the gate admits %d after its end", n)
		}
		cancel()
		if n := r.Gate(t.Context(), 7); n != 1 {
			t.Errorf("the gate admits %d", n)
		}
		host.wait = make(chan struct{})
		ctx, stop := context.WithCancelCause(t.Context())
		probe := make(chan error)
		go func() {
			_, err := r.Handle(ctx, &client.Execution{})
			probe <- err
		}()
		synctest.Wait()
		stop(client.ErrCancelled)
		if err := <-probe; !errors.Is(err, client.ErrCancelled) {
			t.Errorf("probe: %v", err)
		}
		if n := r.Gate(t.Context(), 7); n != 1 {
			t.Errorf("the gate admits %d", n)
		}
	})
}

// fakeHost answers with a status, once wait is closed if there is one.
type fakeHost struct {
	status, requests int
	wait             chan struct{}
}

func (f *fakeHost) RoundTrip(req *http.Request) (*http.Response, error) {
	f.requests++
	if f.wait != nil {
		select {
		case <-f.wait:
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
	}
	return &http.Response{StatusCode: f.status, Status: http.StatusText(f.status), Body: http.NoBody, Header: http.Header{}}, nil
}

func TestConfigNamesTheFieldAtFault(t *testing.T) {
	good := Config{URL: "https://a.example", Timeout: 1, Failures: 1, Pause: time.Second, Logger: slog.New(slog.DiscardHandler)}
	tests := map[string]func(*Config){
		"url": func(c *Config) { c.URL = "ftp://a.example" }, "timeout": func(c *Config) { c.Timeout = 0 },
		"max-redirects": func(c *Config) { c.MaxRedirects = -1 }, "max-retry-after": func(c *Config) { c.MaxRetryAfter = -1 },
		"breaker-failures": func(c *Config) { c.Failures = 0 }, "breaker-pause": func(c *Config) { c.Pause = 0 },
	}
	for field, change := range tests {
		config := good
		change(&config)
		if _, err := New(config); err == nil || !strings.HasPrefix(err.Error(), field+":") {
			t.Errorf("%s: %v", field, err)
		}
	}
	for _, url := range []string{"", "a.example", "https://", "https://a.example/#b", "https://a b"} {
		config := good
		config.URL = url
		if _, err := New(config); err == nil || !strings.HasPrefix(err.Error(), "url:") {
			t.Errorf("url %q: %v", url, err)
		}
	}
}

const goldenSignature = "v1,/eq18zDSneP6GxEqBkou9aZQiMpiIJbrAyaMiIKwUGA="
