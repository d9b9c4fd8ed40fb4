// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"context"
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/internal/netguard"
)

func TestMain(m *testing.M) {
	// The server of net/http keeps a connection for half a second whose body it refused.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

// The minimum is TLS 1.2, and TLS 1.3 is used if the peer supports it (AIR-003, AIR-087).
func TestTLS(t *testing.T) {
	for _, tt := range []struct {
		max  uint16
		want uint16
	}{{tls.VersionTLS11, 0}, {tls.VersionTLS12, tls.VersionTLS12}, {tls.VersionTLS13, tls.VersionTLS13}} {
		var got uint16
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.TLS.Version }))
		srv.TLS = &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tt.max}
		srv.Config.ErrorLog = nil
		srv.StartTLS()
		c, _ := Client(nil, true, false)
		transport := c.Transport.(*http.Transport)
		transport.TLSClientConfig = &tls.Config{RootCAs: srv.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}
		res, err := Exchange(t.Context(), c, http.MethodGet, srv.URL, nil, "", 10)
		if tt.want == 0 {
			require.Error(t, err)
		} else {
			require.NoError(t, err)
			require.Equal(t, 200, res.Status)
		}
		require.Equal(t, tt.want, got)
		transport.CloseIdleConnections()
		srv.Close()
	}
}

// The client refuses addresses of this machine when it dials, redirects, and
// answers without end.
func TestOutbound(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/redirect" {
			http.Redirect(w, r, "/", http.StatusFound)
			return
		}
		_, _ = w.Write(make([]byte, 100))
	}))
	defer srv.Close()
	strict, _ := Client(nil, false, false)
	_, err := Exchange(t.Context(), strict, http.MethodGet, srv.URL, nil, "", 100)
	require.ErrorContains(t, err, "not allowed")
	c, _ := Client(nil, true, false)
	defer c.CloseIdleConnections()
	_, err = Exchange(t.Context(), c, http.MethodGet, srv.URL, nil, "", 99)
	require.ErrorIs(t, err, ErrTooLarge)
	res, err := Exchange(t.Context(), c, http.MethodGet, srv.URL+"/redirect", nil, "", 100)
	require.NoError(t, err)
	require.Equal(t, http.StatusFound, res.Status)
}

// Every request has the version and the agent; the secret and the content type are optional
// (AIR-133).
func TestNewRequest(t *testing.T) {
	r, err := NewRequest(context.Background(), http.MethodPost, "https://relay.example/", []byte("{}"), "s")
	require.NoError(t, err)
	require.Equal(t, "v1", r.Header.Get("X-A2A-Version"))
	require.Equal(t, "s", r.Header.Get(SecretHeader))
	require.Equal(t, JSONType, r.Header.Get("Content-Type"))
	require.Equal(t, JSONType, r.Header.Get("Accept"))
	require.Contains(t, r.Header.Get("User-Agent"), "draft-1-candidate")
	r, err = NewRequest(context.Background(), http.MethodGet, "https://relay.example/", nil, "")
	require.NoError(t, err)
	require.NotContains(t, r.Header, SecretHeader)
	require.NotContains(t, r.Header, "Content-Type")
	_, err = NewRequest(context.Background(), http.MethodGet, ":", nil, "")
	require.Error(t, err)
	_, err = Exchange(context.Background(), http.DefaultClient, http.MethodGet, ":", nil, "", 1)
	require.Error(t, err)
}

// The client of a caller is not changed; its copy follows no redirect and dials allowed addresses
// only.
func TestClientGuardsOwnClientOfCaller(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	defer srv.Close()
	own := &http.Client{Transport: &http.Transport{}}
	c, isNew := Client(own, false, false)
	require.True(t, isNew)
	require.Nil(t, own.CheckRedirect)
	require.ErrorIs(t, c.CheckRedirect(nil, nil), http.ErrUseLastResponse)
	_, err := Exchange(t.Context(), c, http.MethodGet, srv.URL, nil, "", 100)
	require.ErrorIs(t, err, netguard.ErrForbidden)
}
