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
)

func TestMain(m *testing.M) {
	// The server of net/http keeps a connection for half a second whose body it refused.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

// TLS 1.2 at the least, and 1.3 wherever the peer has it (AIR-003, AIR-087).
func TestTLS(t *testing.T) {
	for _, tt := range []struct {
		most uint16
		want uint16
	}{{tls.VersionTLS11, 0}, {tls.VersionTLS12, tls.VersionTLS12}, {tls.VersionTLS13, tls.VersionTLS13}} {
		var got uint16
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.TLS.Version }))
		srv.TLS = &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tt.most}
		srv.Config.ErrorLog = nil
		srv.StartTLS()
		c := Client(nil, true, false)
		transport := c.Transport.(*http.Transport)
		transport.TLSClientConfig.RootCAs = srv.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
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
	_, err := Exchange(t.Context(), Client(nil, false, false), http.MethodGet, srv.URL, nil, "", 100)
	require.ErrorContains(t, err, "not allowed")
	c := Client(nil, true, false)
	defer c.CloseIdleConnections()
	_, err = Exchange(t.Context(), c, http.MethodGet, srv.URL, nil, "", 99)
	require.ErrorIs(t, err, ErrTooLarge)
	res, err := Exchange(t.Context(), c, http.MethodGet, srv.URL+"/redirect", nil, "", 100)
	require.NoError(t, err)
	require.Equal(t, http.StatusFound, res.Status)
}

// Every request carries the version and who asks; a secret and a content type only
// where there are some (AIR-133).
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

// A caller's own client is used, but never with its redirects.
func TestOwnClient(t *testing.T) {
	own := &http.Client{Transport: http.DefaultTransport}
	c := Client(own, false, false)
	require.Equal(t, own.Transport, c.Transport)
	require.Nil(t, own.CheckRedirect, "the caller's client is not changed")
	require.ErrorIs(t, c.CheckRedirect(nil, nil), http.ErrUseLastResponse)
}
