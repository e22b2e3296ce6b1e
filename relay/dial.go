package relay

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"
)

// newHTTPClient makes a client that goes where it may. It knows no proxy: that would dial in its place.
func newHTTPClient(config Config) *http.Client {
	dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}
	if !config.AllowPrivate {
		// After names were resolved, so that no name leads to where it must not.
		dialer.Control = func(_, address string, _ syscall.RawConn) error { return checkPublic(address) }
	}
	return &http.Client{
		Transport: &http.Transport{
			DialContext:            dialer.DialContext,
			ForceAttemptHTTP2:      true,
			TLSHandshakeTimeout:    10 * time.Second,
			MaxIdleConnsPerHost:    100,
			IdleConnTimeout:        90 * time.Second,
			MaxResponseHeaderBytes: 64 << 10,
			// Results come as they are, and not larger than they look.
			DisableCompression: true,
		},
		CheckRedirect: func(next *http.Request, via []*http.Request) error {
			first := via[0]
			if len(via) > config.MaxRedirects || next.Method != first.Method || next.URL.Scheme != first.URL.Scheme && next.URL.Scheme != "https" {
				return http.ErrUseLastResponse
			}
			return nil
		},
	}
}

// checkPublic refuses an address, "ip:port", that is not one of the public Internet.
func checkPublic(address string) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("address %q: %w", address, err)
	}
	if !isPublic(at.Addr()) {
		return fmt.Errorf("address %s is not public, and only --allow-private lets requests go there", at.Addr())
	}
	return nil
}

// special are the ranges that IANA's registries of special-purpose addresses keep from the public Internet, and those
// that lead to IPv4 addresses by another way.
var special = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
	"192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
	"224.0.0.0/4", "240.0.0.0/4",
	"::/96", "::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16",
	"3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
)

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

func isPublic(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	for _, p := range special {
		if p.Contains(a) {
			return false
		}
	}
	return a.IsValid()
}
