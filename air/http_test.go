// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air/internal/web"
)

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
		c := web.Client(nil, true, false)
		transport := c.Transport.(*http.Transport)
		transport.TLSClientConfig.RootCAs = srv.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
		res, err := web.Exchange(t.Context(), c, http.MethodGet, srv.URL, nil, "", 10)
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
	_, err := web.Exchange(t.Context(), web.Client(nil, false, false), http.MethodGet, srv.URL, nil, "", 100)
	require.ErrorContains(t, err, "not allowed")
	c := web.Client(nil, true, false)
	defer c.CloseIdleConnections()
	_, err = web.Exchange(t.Context(), c, http.MethodGet, srv.URL, nil, "", 99)
	require.ErrorIs(t, err, web.ErrTooLarge)
	res, err := web.Exchange(t.Context(), c, http.MethodGet, srv.URL+"/redirect", nil, "", 100)
	require.NoError(t, err)
	require.Equal(t, http.StatusFound, res.Status)
}

// Only JSON, with any parameters, or no type at all (AIR-D70).
func TestJSONContent(t *testing.T) {
	for text, want := range map[string]bool{
		"": true, "application/json": true, "Application/JSON; charset=utf-8": true, "application/json; x": true,
		"text/plain": false, "application/didcomm-signed+json": false, "application/jsonx": false, "json": false, ";": false,
	} {
		require.Equal(t, want, jsonContent(text), text)
	}
}
