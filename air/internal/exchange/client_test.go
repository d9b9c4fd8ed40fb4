// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/internal/httpx"
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
		c := New(Options{AllowLoopback: true, Transport: func(t *http.Transport) {
			t.TLSClientConfig = &tls.Config{RootCAs: srv.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}
		}})
		res, err := c.Do(t.Context(), &Request{Method: http.MethodGet, URL: srv.URL, Limit: 10})
		if tt.want == 0 {
			require.Error(t, err)
		} else {
			require.NoError(t, err)
			require.Equal(t, 200, res.Status)
		}
		require.Equal(t, tt.want, got)
		c.Close()
		srv.Close()
	}
}

// The client refuses addresses of this machine when it dials, redirects, answers without end and those that do not come.
func TestOutbound(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/redirect":
			http.Redirect(w, r, "/", http.StatusFound)
			return
		case "/slow":
			<-r.Context().Done()
		}
		_, _ = w.Write(make([]byte, 100))
	}))
	defer srv.Close()
	do := func(c *Client, path string, limit int64) (*Reply, error) {
		return c.Do(t.Context(), &Request{Op: "test", Method: http.MethodGet, URL: srv.URL + path, Limit: limit})
	}
	strict := New(Options{})
	_, err := do(strict, "?secret", 100)
	require.ErrorIs(t, err, netguard.ErrForbidden)
	require.NotContains(t, err.Error(), "secret")
	c := New(Options{AllowLoopback: true, Timeout: 50 * time.Millisecond})
	defer c.Close()
	_, err = do(c, "", 99)
	require.ErrorIs(t, err, httpx.ErrTooLarge)
	res, err := do(c, "/redirect", 100)
	require.NoError(t, err)
	require.Equal(t, http.StatusFound, res.Status)
	_, err = do(c, "/slow", 100)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = c.Do(t.Context(), &Request{Method: http.MethodGet, URL: ":"})
	require.Error(t, err)
}

// Every request has the version and the agent; the secret, for its origin, and the content type are optional
// (AIR-133, AIR-D85).
func TestRequestHeaders(t *testing.T) {
	var got http.Header
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		got = r.Header
	}))
	defer srv.Close()
	var origin, secret string
	c := New(Options{AllowLoopback: true, Secrets: func(o string) string {
		origin = o
		return secret
	}})
	defer c.Close()
	for _, secret = range []string{"", "s"} {
		for _, body := range []string{"", "{}"} {
			_, err := c.Do(t.Context(), &Request{Method: http.MethodPost, URL: srv.URL + "/x", Body: []byte(body), Header: http.Header{"X": {"y"}}})
			require.NoError(t, err)
			require.Equal(t, srv.URL, origin)
			require.Equal(t, "v1", got.Get("X-A2A-Version"))
			require.Equal(t, JSONType, got.Get("Accept"))
			require.Equal(t, "y", got.Get("X"))
			require.Contains(t, got.Get("User-Agent"), "draft-1-candidate")
			require.Equal(t, secret, got.Get(SecretHeader))
			require.Equal(t, body != "", got.Get("Content-Type") == JSONType)
		}
	}
}

// The transport of a caller is not changed; its copy follows no redirect and dials allowed addresses only.
func TestClientGuardsOwnClientOfCaller(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	defer srv.Close()
	own := &http.Client{Transport: &http.Transport{}}
	_, err := New(Options{HTTPClient: own}).Do(t.Context(), &Request{Method: http.MethodGet, URL: srv.URL})
	require.ErrorIs(t, err, netguard.ErrForbidden)
	require.Nil(t, own.CheckRedirect)
	require.Nil(t, own.Transport.(*http.Transport).DialContext)
}
