// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package netguard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Guards of every kind, named after the addresses that they allow.
var (
	strict *Guard
	loop   = &Guard{AllowLoopback: true}
	priv   = &Guard{AllowPrivate: true}
	both   = &Guard{AllowLoopback: true, AllowPrivate: true}
)

func TestHost(t *testing.T) {
	const none, l, p, lp, all = "", "l", "p", "lp", "all"
	tests := []struct {
		host   string
		allow  string // which guards allow it
		reason Reason
	}{
		{"example.com", all, ""},
		{"EXAMPLE.com.", all, ""},
		{"xlocalhost", all, ""},
		{"localhost.example", all, ""},
		{"local.example", all, ""},
		{"1.example", all, ""},
		{"example.1", all, ""},
		{"0x7g", all, ""},
		{"8.8.8.8", all, ""},
		{"8.8.8.8.", all, ""},
		{"[2606:4700:4700::1111]", all, ""},
		{"localhost", l, ReasonHost},
		{"LOCALHOST", l, ReasonHost},
		{"localhost.", l, ReasonHost},
		{"a.b.localhost", l, ReasonHost},
		{"printer.local", p, ReasonHost},
		{"local", p, ReasonHost},
		{"metadata.google.internal", p, ReasonHost},
		{"metadata.google.internal.", p, ReasonHost},
		{"2130706433", p, ReasonHost},
		{"0x7f000001", p, ReasonHost},
		{"0X7F.1", p, ReasonHost},
		{"127.1", p, ReasonHost},
		{"127.0.0.01", p, ReasonHost},
		{"0177.0.0.1", p, ReasonHost},
		{"1.2.3.4.5", p, ReasonHost},
		{"256.1.1.1", p, ReasonHost},
		{"0x", p, ReasonHost},
		{"127.0.0.1..", none, ReasonHost}, // some take it for 127.0.0.1
		{"localhost..", none, ReasonHost},
		{".localhost", none, ReasonHost},
		{"a..example", none, ReasonHost},
		{"..", none, ReasonHost},
		{"", none, ReasonHost},
		{".", none, ReasonHost},
		{"127.0.0.1", l, ReasonAddress},
		{"127.0.0.1.", l, ReasonAddress},
		{"127.9.9.9", l, ReasonAddress},
		{"[::1]", l, ReasonAddress},
		{"::1", l, ReasonAddress},
		{"[::ffff:127.0.0.1]", l, ReasonAddress},
		{"[64:ff9b::127.0.0.1]", l, ReasonAddress},
		{"10.0.0.1", p, ReasonAddress},
		{"169.254.169.254", p, ReasonAddress},
		{"224.0.0.1", p, ReasonAddress},
		{"[fe80::1%eth0]", p, ReasonAddress},
		{"[fd00::1]", p, ReasonAddress},
		{"[::1%lo]", l, ReasonAddress},
		{"[::ffff:127.0.0.1%lo]", l, ReasonAddress},
		{"[64:ff9b::127.0.0.1%lo]", l, ReasonAddress},
		{"[::%lo]", l, ReasonAddress}, // leads to ::1, as :: does
		{"[64:ff9b::10.0.0.1%eth0]", p, ReasonAddress},
		{"[2606:4700::1%eth0]", p, ReasonAddress},
		{"0.0.0.0", l, ReasonAddress},
		{"0.0.0.1", l, ReasonAddress},
		{"[::]", l, ReasonAddress},
		{"[::ffff:0.0.0.0]", l, ReasonAddress},
	}
	for _, tt := range tests {
		t.Run(tt.host, func(t *testing.T) {
			for name, g := range map[string]*Guard{"": strict, "zero": {}, l: loop, p: priv, lp: both} {
				err := g.Host(tt.host)
				if tt.allow == all || tt.allow != none && tt.allow == name || tt.allow != none && name == lp {
					require.NoError(t, err, "guard %q", name)
					continue
				}
				require.ErrorIs(t, err, ErrForbidden, "guard %q", name)
				var e *Error
				require.ErrorAs(t, err, &e)
				require.Equal(t, tt.reason, e.Reason)
				require.Contains(t, err.Error(), "netguard: ")
			}
		})
	}
}

func TestLoopback(t *testing.T) {
	for _, host := range []string{"localhost", "LocalHost.", "a.localhost", "127.0.0.1", "127.3.2.1", "::1", "[::1]", "::ffff:127.0.0.1", "0.0.0.0", "::"} {
		require.True(t, Loopback(host), host)
	}
	for _, host := range []string{"", "example.com", "localhost.example", "xlocalhost", "64:ff9b::127.0.0.1", "127.1", "10.0.0.1", "2130706433"} {
		require.False(t, Loopback(host), host)
	}
}

// answers is a resolver that knows these names.
func answers(names map[string][]string) func(context.Context, string, string) ([]netip.Addr, error) {
	return func(_ context.Context, network, host string) ([]netip.Addr, error) {
		var addrs []netip.Addr
		for _, s := range names[host] {
			if a := netip.MustParseAddr(s); network == "ip" || network == "ip4" && a.Is4() || network == "ip6" && a.Is6() {
				addrs = append(addrs, a)
			}
		}
		return addrs, nil
	}
}

func TestResolve(t *testing.T) {
	names := answers(map[string][]string{
		"good.example":  {"93.184.216.34", "2606:4700::1"},
		"mixed.example": {"93.184.216.34", "10.0.0.5"},
		"home.local":    {"93.184.216.34"},
	})
	g := &Guard{Lookup: names}
	addrs, err := g.Resolve(t.Context(), "good.example")
	require.NoError(t, err)
	require.Len(t, addrs, 2)

	addrs, err = g.Resolve(t.Context(), "[2606:4700::1]")
	require.NoError(t, err)
	require.Equal(t, []netip.Addr{netip.MustParseAddr("2606:4700::1")}, addrs)

	var e *Error
	_, err = g.Resolve(t.Context(), "mixed.example")
	require.ErrorAs(t, err, &e)
	require.Equal(t, Error{"10.0.0.5", ReasonAddress}, *e)

	_, err = g.Resolve(t.Context(), "home.local")
	require.ErrorAs(t, err, &e)
	require.Equal(t, Error{"home.local", ReasonHost}, *e)

	var dns *net.DNSError
	_, err = g.Resolve(t.Context(), "nobody.example")
	require.ErrorAs(t, err, &dns)
	require.True(t, dns.IsNotFound)

	boom := errors.New("no network")
	_, err = (&Guard{Lookup: func(context.Context, string, string) ([]netip.Addr, error) { return nil, boom }}).Resolve(t.Context(), "x.example")
	require.Equal(t, boom, err)

	_, err = strict.Resolve(t.Context(), "8.8.8.8") // needs no look-up
	require.NoError(t, err)
}

func TestControl(t *testing.T) {
	require.NoError(t, strict.Control(t.Context(), "tcp4", "8.8.8.8:443", nil))
	require.NoError(t, loop.Control(t.Context(), "tcp6", "[::1]:443", nil))
	for _, address := range []string{"127.0.0.1:80", "[::1]:80", "[fe80::1%eth0]:80", "[::ffff:10.0.0.1]:80", "/run/docker.sock", "@abstract", "localhost:80", ""} {
		require.ErrorIs(t, strict.Control(t.Context(), "", address, nil), ErrForbidden, address)
	}
}

// serve starts a server on a loopback address and returns its port.
func serve(t *testing.T, h http.HandlerFunc) (port string) {
	ts := httptest.NewServer(h)
	t.Cleanup(ts.Close)
	return ts.URL[strings.LastIndexByte(ts.URL, ':')+1:]
}

func get(t *testing.T, g *Guard, url string) (*http.Response, error) {
	tr := g.Transport()
	t.Cleanup(tr.CloseIdleConnections)
	res, err := (&http.Client{Transport: tr, CheckRedirect: NoRedirect}).Get(url)
	if err == nil {
		res.Body.Close()
	}
	return res, err
}

func TestTransport(t *testing.T) {
	requests := 0
	port := serve(t, func(w http.ResponseWriter, r *http.Request) {
		requests++
		http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
	})
	names := answers(map[string][]string{
		"rebound.example": {"127.0.0.1"},
		"second.example":  {"169.254.169.254", "127.0.0.1"},
	})
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")

	t.Run("no redirect is followed", func(t *testing.T) {
		res, err := get(t, loop, "http://127.0.0.1:"+port)
		require.NoError(t, err)
		require.Equal(t, http.StatusFound, res.StatusCode)
		require.Equal(t, 1, requests)
	})
	for _, url := range []string{"http://127.0.0.1:", "http://[::1]:", "http://localhost:", "http://0.0.0.0:", "http://2130706433:", "http://rebound.example:", "http://second.example:",
		// net/http maps these to an address or to localhost.
		"http://127。0。0。1:", "http://１２７.0.0.1:", "http://ｌｏｃａｌｈｏｓｔ:", "http://local\u00adhost:", "http://127.0.0.1.:", "http://LOCALHOST.:"} {
		t.Run(url, func(t *testing.T) {
			_, err := get(t, &Guard{Lookup: names}, url+port)
			require.ErrorIs(t, err, ErrForbidden)
			require.Equal(t, 1, requests)
		})
	}
	t.Run("name without a resolver of its own", func(t *testing.T) {
		_, err := get(t, strict, "http://localhost:"+port)
		require.ErrorIs(t, err, ErrForbidden)
		res, err := get(t, loop, "http://localhost:"+port)
		require.NoError(t, err)
		require.Equal(t, http.StatusFound, res.StatusCode)
	})
	t.Run("the next address is tried", func(t *testing.T) {
		requests = 0
		_, err := get(t, &Guard{Lookup: names, AllowLoopback: true}, "http://second.example:"+port)
		require.NoError(t, err)
		require.Equal(t, 1, requests)
	})
}

// An allowed name is refused after its address has changed.
func TestDialSeesRebinding(t *testing.T) {
	port := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("reached") })
	addr := "93.184.216.34"
	g := &Guard{Lookup: func(context.Context, string, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr(addr)}, nil
	}}
	_, err := g.Resolve(t.Context(), "moving.example")
	require.NoError(t, err)
	addr = "127.0.0.1"
	_, err = get(t, g, "http://moving.example:"+port)
	require.ErrorIs(t, err, ErrForbidden)
}

func TestDialContext(t *testing.T) {
	_, err := loop.DialContext(t.Context(), "tcp", "no port")
	require.Error(t, err)

	boom := errors.New("no network")
	g := &Guard{Lookup: func(_ context.Context, network, _ string) ([]netip.Addr, error) {
		require.Equal(t, "ip4", network)
		return nil, boom
	}}
	_, err = g.DialContext(t.Context(), "tcp4", "x.example:80")
	require.Equal(t, boom, err)
}

func FuzzHost(f *testing.F) {
	for _, s := range []string{"localhost", "127.0.0.1", "0x7f.1", "[::1]", "a.local.", "example.com", "[fe80::1%a]", "017700000001"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, host string) {
		require.NoError(t, errIfHarsher(host))
		if Loopback(host) {
			require.Error(t, strict.Host(host))
			require.NoError(t, loop.Host(host))
		}
		if strict.Host(host) != nil {
			return
		}
		// An allowed host is a name of another host or a public address.
		_, addr := parse(host)
		require.Equal(t, addr.IsValid(), Public(addr))
		if ip := net.ParseIP(host); ip != nil {
			require.False(t, ip.IsLoopback() || ip.IsPrivate() || ip.IsUnspecified())
		}
		require.Equal(t, strict.Host(strings.ToUpper(host)) == nil, true)
	})
}

// errIfHarsher checks that allowing more never forbids anything.
func errIfHarsher(host string) error {
	for _, g := range []*Guard{loop, priv} {
		if strict.Host(host) == nil && g.Host(host) != nil || g.Host(host) == nil && both.Host(host) != nil {
			return errors.New("a guard that allows more refuses " + host)
		}
	}
	return nil
}

func TestCheckOrigins(t *testing.T) {
	require.NoError(t, CheckOrigins(nil))
	require.NoError(t, CheckOrigins([]string{"*", "null", "https://app.example", "http://localhost:8080", "http://[::1]:1", "app://x"}))
	for _, text := range []string{"", "app.example", "https://", "https://app.example/", "https://App.example", "https://u@app.example", "https://app.example?x", "https://*.app.example"} {
		require.ErrorContains(t, CheckOrigins([]string{"*", text}), fmt.Sprintf("%q is not an origin", text))
	}
}
