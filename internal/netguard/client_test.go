// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package netguard

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/race"
)

type otherTransport struct{ http.RoundTripper }

func TestClientGuardsTransports(t *testing.T) {
	dial := func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("dialed") }
	proxy := http.ProxyURL(&url.URL{Scheme: "http", Host: "127.0.0.1:1"})
	for _, tt := range []struct {
		name      string
		guard     *Guard
		transport http.RoundTripper
		isNew     bool
	}{
		{"none", strict, nil, true},
		{"plain", strict, &http.Transport{}, true},
		{"dial", strict, &http.Transport{DialContext: dial}, true},
		{"proxy", strict, &http.Transport{Proxy: proxy}, true},
		{"TLS dial", loop, &http.Transport{DialTLSContext: dial}, false},
		{"other type", strict, otherTransport{}, false},
		{"open guard, none", both, nil, true},
		{"open guard", both, &http.Transport{DialContext: dial}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			user := &http.Client{Transport: tt.transport}
			c, isNew := tt.guard.Client(user)
			require.Equal(t, tt.isNew, isNew)
			require.Equal(t, tt.isNew, c.Transport != tt.transport)
			require.NotNil(t, c.Transport)
			require.ErrorIs(t, c.CheckRedirect(nil, nil), http.ErrUseLastResponse)
			require.Nil(t, user.CheckRedirect, "the client of the user is modified")
		})
	}
	c, isNew := both.Client(nil)
	require.True(t, isNew)
	require.NotNil(t, c.Transport.(*http.Transport).Proxy)
	c, _ = strict.Client(nil)
	require.Nil(t, c.Transport.(*http.Transport).Proxy, "a proxy would connect in its place")
}

func TestClientDialReceivesAllowedAddress(t *testing.T) {
	var dialed []string
	dial := func(_ context.Context, _, address string) (net.Conn, error) {
		dialed = append(dialed, address)
		return nil, errors.New("refused")
	}
	user := &http.Client{Transport: &http.Transport{DialContext: dial}}
	g := &Guard{Lookup: answers(map[string][]string{
		"good.example":  {"93.184.216.34", "2606:4700::1"},
		"mixed.example": {"93.184.216.34", "10.0.0.5"},
	})}
	c, _ := g.Client(user)
	_, err := c.Get("http://good.example:81/")
	require.ErrorContains(t, err, "refused")
	require.Equal(t, []string{"93.184.216.34:81", "[2606:4700::1]:81"}, dialed)
	_, err = c.Get("http://mixed.example/")
	require.ErrorIs(t, err, ErrForbidden)
	require.Len(t, dialed, 2)
}

// An address that does not answer delays the next one for a moment only. A connection that is too late is closed.
func TestClientDialsNextAddressWhileOneIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late, end := net.Pipe()
		dial := func(ctx context.Context, _, address string) (net.Conn, error) {
			if address != "93.184.216.34:80" {
				<-ctx.Done()
				return late, nil
			}
			conn, peer := net.Pipe()
			go func() { _ = peer.Close() }()
			return conn, nil
		}
		g := &Guard{Lookup: answers(map[string][]string{"good.example": {"2606:4700::1", "2606:4700::2", "93.184.216.34"}})}
		start := time.Now()
		conn, err := g.wrapDial(dial)(t.Context(), "tcp", "good.example:80")
		require.NoError(t, err)
		require.Equal(t, 2*fallbackDelay, time.Since(start))
		require.NoError(t, conn.Close())
		_, err = end.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
	})
}

// A changed transport is as guarded as an own one, also if the change sets how it dials.
func TestChangedTransportIsGuarded(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	defer srv.Close()
	open := (&net.Dialer{}).DialContext
	for name, change := range map[string]func(*http.Transport){
		"nothing":  func(*http.Transport) {},
		"dial":     func(t *http.Transport) { t.DialContext = open },
		"TLS dial": func(t *http.Transport) { t.DialTLSContext = open },
		"old dial": func(t *http.Transport) { t.Dial = net.Dial }, //lint:ignore SA1019 the deprecated field
	} {
		tr := strict.ChangedTransport(change)
		_, err := (&http.Client{Transport: tr}).Get(srv.URL)
		require.ErrorIs(t, err, ErrForbidden, name)
		tr = loop.ChangedTransport(change)
		res, err := (&http.Client{Transport: tr}).Get(srv.URL)
		require.NoError(t, err, name)
		require.NoError(t, res.Body.Close())
		tr.CloseIdleConnections()
	}
	require.True(t, strict.ChangedTransport(func(t *http.Transport) { t.DisableCompression = true }).DisableCompression)
}

// A transport with a proxy connects to it wherever it is. The proxy gets no request for a host that is not allowed, and
// connections past the proxy are guarded.
func TestClientGuardsProxiedRequests(t *testing.T) {
	var requested []string
	proxy := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { requested = append(requested, r.URL.Host) }))
	defer proxy.Close()
	address, err := url.Parse(proxy.URL)
	require.NoError(t, err)
	g := &Guard{Lookup: answers(map[string][]string{"good.example": {"93.184.216.34"}, "bad.example": {"10.0.0.5"}})}
	c, _ := g.Client(&http.Client{Transport: &http.Transport{Proxy: func(r *http.Request) (*url.URL, error) {
		if r.URL.Hostname() == "direct.example" {
			return nil, nil
		}
		return address, nil
	}}})
	defer c.CloseIdleConnections()
	for host, isAllowed := range map[string]bool{
		"good.example": true, "elsewhere.example": true, "bad.example": false, "10.0.0.5": false, "127.0.0.1": false, "direct.example": false,
	} {
		res, err := c.Get("http://" + host + "/")
		require.Equal(t, isAllowed, err == nil, "%s: %v", host, err)
		if err == nil {
			require.NoError(t, res.Body.Close())
		}
	}
	require.ElementsMatch(t, []string{"good.example", "elsewhere.example"}, requested)
}

func TestRequestHost(t *testing.T) {
	for _, tt := range []struct {
		local, host, want string
		ok                bool
	}{
		{"127.0.0.1:80", "localhost:80", "localhost", true},
		{"127.0.0.1:80", "LOCALHOST.", "LOCALHOST.", true},
		{"127.0.0.1:80", "127.0.0.2", "127.0.0.2", true},
		{"[::1]:80", "[::1]", "[::1]", true},
		{"[::1]:80", "[::1]:80", "::1", true},
		{"[::ffff:127.0.0.1]:80", "evil.example", "evil.example", false},
		{"127.0.0.1:80", "evil.example:80", "evil.example", false},
		{"127.0.0.1:80", "evil.localhost", "evil.localhost", false},
		{"127.0.0.1:80", "192.0.2.1", "192.0.2.1", false},
		{"127.0.0.1:80", "", "", false},
		{"192.0.2.1:80", "api.example:80", "api.example", true},
		{"", "api.example", "api.example", true},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Host = tt.host
		if tt.local != "" {
			local, err := net.ResolveTCPAddr("tcp", tt.local)
			require.NoError(t, err)
			r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, local))
		}
		host, ok := RequestHost(r)
		require.Equal(t, tt.want, host, "%+v", tt)
		require.Equal(t, tt.ok, ok, "%+v", tt)
	}
}

func TestHostAllocatesNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	for _, host := range []string{"api.example.com", "a.very.long.name.of.a.host.that.needs.memory.example"} {
		require.Zero(t, testing.AllocsPerRun(100, func() {
			if strict.Host(host) != nil || Loopback(host) {
				t.Error("refused")
			}
		}), host)
	}
}

// A conn whose network is lost takes bytes that do not arrive.
type lossyConn struct {
	net.Conn
	isLost *atomic.Bool
}

func (c lossyConn) Write(p []byte) (int, error) {
	if c.isLost.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// A pipeListener accepts its connections until it is closed, once.
type pipeListener chan net.Conn

func (l pipeListener) Accept() (net.Conn, error) {
	if c, ok := <-l; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (l pipeListener) Close() error {
	close(l)
	return nil
}

func (l pipeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 443} }

// Requests do not share a lost HTTP/2 connection until TCP reports the loss.
func TestTransportLeavesLostHTTP2Connection(t *testing.T) {
	ts := httptest.NewTLSServer(http.NotFoundHandler())
	certificates, roots := ts.TLS.Certificates, ts.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	ts.Close()
	synctest.Test(t, func(t *testing.T) {
		l := make(pipeListener)
		srv := &http.Server{Handler: http.NotFoundHandler(), TLSConfig: &tls.Config{Certificates: certificates}}
		served := make(chan error, 1)
		go func() { served <- srv.ServeTLS(l, "", "") }()
		var last *atomic.Bool
		tr := both.ChangedTransport(func(tr *http.Transport) {
			tr.TLSClientConfig = &tls.Config{RootCAs: roots}
			tr.DialContext = func(context.Context, string, string) (net.Conn, error) {
				here, there := net.Pipe()
				l <- there
				last = new(atomic.Bool)
				return lossyConn{here, last}, nil
			}
		})
		get := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://example.com/", http.NoBody)
			require.NoError(t, err)
			res, err := (&http.Client{Transport: tr}).Do(req)
			if err != nil {
				return err
			}
			require.Equal(t, 2, res.ProtoMajor)
			return res.Body.Close()
		}
		require.NoError(t, get())
		last.Store(true)
		start := time.Now()
		require.Error(t, get())
		require.LessOrEqual(t, time.Since(start), 2*pingTimeout)
		require.NoError(t, get())
		tr.CloseIdleConnections()
		require.NoError(t, srv.Close())
		<-served
	})
}
