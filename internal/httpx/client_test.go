// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package httpx

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/netguard"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/internal/retry"
)

func parse(t *testing.T, raw string) *url.URL {
	t.Helper()
	u, err := url.Parse(raw)
	require.NoError(t, err)
	return u
}

func newTestServer(t *testing.T, h http.HandlerFunc) *httptest.Server {
	ts := httptest.NewServer(h)
	t.Cleanup(ts.Close)
	return ts
}

func newTestClient(t *testing.T, o ClientOptions) *Client {
	c := NewClient(&o)
	t.Cleanup(c.Close)
	return c
}

// roundTrip is a transport of a user.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestClientReturnsResponse(t *testing.T) {
	ts := newTestServer(t, func(w http.ResponseWriter, r *http.Request) {
		require.Equal(t, []string{"a/b, c/d"}, r.Header["Accept"])
		require.Equal(t, []string{"identity"}, r.Header["Accept-Encoding"])
		require.Equal(t, "/p?q=1", r.RequestURI)
		body, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		require.Equal(t, int64(len(body)), r.ContentLength)
		w.Header().Set("Content-Type", "c/d; charset=utf-8")
		_, _ = w.Write(append(body, r.Header.Get("X-A")...))
	})
	header := http.Header{"X-A": {"a"}}
	c := newTestClient(t, ClientOptions{Secrets: func(_ context.Context, _ string, h http.Header) error {
		h.Set("Authorization", "Bearer a")
		return nil
	}})
	data, res, err := c.Fetch(t.Context(), &Request{
		Method: "POST", URL: parse(t, ts.URL+"/p?q=1"), Header: header, Body: []byte("body"), Accept: []string{"a/b", "c/d"},
	})
	require.NoError(t, err)
	require.Equal(t, "bodya", string(data))
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Equal(t, http.Header{"X-A": {"a"}}, header, "the header of the caller is modified")
}

func TestClientRefusesInsecureURLBeforeDial(t *testing.T) {
	var dials atomic.Int32
	tr := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		dials.Add(1)
		return nil, errors.New("dialed")
	}}
	secrets := func(context.Context, string, http.Header) error {
		t.Error("asked for secrets")
		return nil
	}
	for _, raw := range []string{
		"http://example.com/?secret", "http://10.0.0.1/", "http://user:secret@127.0.0.1/", "ftp://example.com/",
		"https://example.com:0/", "/p", "https://localhost.:99999/",
	} {
		c := newTestClient(t, ClientOptions{HTTPClient: &http.Client{Transport: tr}, Secrets: secrets})
		_, err := c.Do(t.Context(), &Request{Op: "test", Method: "GET", URL: parse(t, raw)})
		require.ErrorIs(t, err, netguard.ErrForbidden, raw)
		require.ErrorIs(t, err, ErrConnect, raw)
		require.Equal(t, retry.Permanent, retry.ClassOf(err), raw)
		require.NotContains(t, err.Error(), "secret")
		require.Contains(t, err.Error(), "test: GET ")
	}
	require.Zero(t, dials.Load())
	c := newTestClient(t, ClientOptions{HTTPClient: &http.Client{Transport: tr}, AllowInsecure: true})
	_, err := c.Do(t.Context(), &Request{Method: "GET", URL: parse(t, "http://example.com/")})
	require.ErrorContains(t, err, "dialed")
	require.Equal(t, int32(1), dials.Load())
}

func TestClientFollowsNoRedirect(t *testing.T) {
	other := newTestServer(t, func(http.ResponseWriter, *http.Request) { t.Error("the redirect was followed") })
	ts := newTestServer(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL+"/?"+r.Header.Get("Authorization"), http.StatusTemporaryRedirect)
	})
	follow := func(*http.Request, []*http.Request) error { return nil }
	for _, user := range []*http.Client{nil, http.DefaultClient, {CheckRedirect: follow}, {CheckRedirect: follow, Timeout: time.Minute}} {
		for _, guard := range []*netguard.Guard{nil, {AllowLoopback: true}} {
			secrets := func(_ context.Context, _ string, h http.Header) error {
				h.Set("Authorization", "token")
				return nil
			}
			c := newTestClient(t, ClientOptions{HTTPClient: user, Guard: guard, Secrets: secrets})
			_, err := c.Do(t.Context(), &Request{Method: "POST", URL: parse(t, ts.URL)})
			var e *Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, http.StatusTemporaryRedirect, e.Status)
			require.Contains(t, err.Error(), "got status 307 Temporary Redirect, want status 2xx")
			require.Equal(t, retry.Permanent, retry.ClassOf(err))
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestClientSendsSecretToItsOriginOnly(t *testing.T) {
	var origins, got []string
	c := newTestClient(t, ClientOptions{
		AllowInsecure: true,
		HTTPClient: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			got = append(got, r.Header.Get("Authorization"))
			return &http.Response{StatusCode: 204, Body: http.NoBody}, nil
		})},
		Secrets: func(_ context.Context, origin string, h http.Header) error {
			origins = append(origins, origin)
			if origin == "https://a.example" {
				h.Set("Authorization", "token")
			}
			return nil
		},
	})
	urls := []string{
		"https://a.example/x", "https://A.example:443/y", "http://a.example/", "http://a.example:80",
		"https://a.example:8443", "https://b.example", "http://a.example:443",
	}
	for _, raw := range urls {
		_, err := c.Do(t.Context(), &Request{Method: "GET", URL: parse(t, raw)})
		require.NoError(t, err)
	}
	require.Equal(t, []string{"https://a.example", "https://a.example", "http://a.example", "http://a.example",
		"https://a.example:8443", "https://b.example", "http://a.example:443"}, origins)
	require.Equal(t, []string{"token", "token", "", "", "", "", ""}, got)
}

func TestClientReportsFailedSecret(t *testing.T) {
	ts := newTestServer(t, func(http.ResponseWriter, *http.Request) {})
	c := newTestClient(t, ClientOptions{Secrets: func(ctx context.Context, _ string, h http.Header) error {
		// A request for the token has a connection; the request that needs it has none.
		res, err := http.DefaultTransport.RoundTrip(httptest.NewRequestWithContext(ctx, "GET", ts.URL, nil))
		require.NoError(t, err)
		res.Body.Close()
		return context.DeadlineExceeded
	}})
	_, err := c.Do(t.Context(), &Request{Method: "GET", URL: parse(t, ts.URL)})
	require.ErrorIs(t, err, ErrConnect)
	require.ErrorIs(t, err, ErrTimeout)
	require.Equal(t, retry.Unsent, retry.ClassOf(err))
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

func TestClientBoundsResponse(t *testing.T) {
	size := 0
	ts := newTestServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/error" {
			w.WriteHeader(http.StatusBadGateway)
		}
		_, _ = w.Write(make([]byte, size))
	})
	for _, tt := range []struct {
		size    int
		options int64
		limit   int64
		ok      bool
	}{
		{1000, 1000, 0, true},
		{1001, 1000, 0, false},
		{1001, 1000, 1001, true},
		{100, 1000, 99, false},
		{100000, 1000, -1, true},
		{100000, -1, 0, true},
		{64 << 20, 0, 0, true},
		{64<<20 + 1, 0, 0, false},
	} {
		size = tt.size
		c := newTestClient(t, ClientOptions{MaxResponse: tt.options})
		data, _, err := c.Fetch(t.Context(), &Request{Op: "op", Method: "GET", URL: parse(t, ts.URL), Limit: tt.limit})
		if tt.ok {
			require.NoError(t, err, "%+v", tt)
			require.Len(t, data, tt.size)
			continue
		}
		require.ErrorIs(t, err, ErrTooLarge, "%+v", tt)
		require.Equal(t, retry.Permanent, retry.ClassOf(err), "a message too large is sent again")
		require.Equal(t, "op: GET "+ts.URL+": httpx: message too large", err.Error())
	}
	size = 1 << 20
	_, err := newTestClient(t, ClientOptions{}).Do(t.Context(), &Request{Method: "GET", URL: parse(t, ts.URL+"/error")})
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Len(t, e.Body, 64<<10)
}

func TestClientBoundsHeader(t *testing.T) {
	ts := newTestServer(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-A", strings.Repeat("a", 65<<10))
	})
	for _, guard := range []*netguard.Guard{nil, {AllowLoopback: true}} {
		c := newTestClient(t, ClientOptions{Guard: guard})
		_, err := c.Do(t.Context(), &Request{Method: "GET", URL: parse(t, ts.URL)})
		require.ErrorContains(t, err, "header")
		require.Equal(t, retry.Unknown, retry.ClassOf(err))
	}
}

func TestClientRefusesGzip(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write(make([]byte, 1<<20))
	_ = z.Close()
	require.Less(t, packed.Len(), 10000)
	ts := newTestServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "identity" || r.URL.Path == "/force" {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(packed.Bytes())
		}
	})
	fetch := func(path string) ([]byte, error) {
		data, _, err := newTestClient(t, ClientOptions{}).Fetch(t.Context(), &Request{Method: "GET", URL: parse(t, ts.URL+path)})
		return data, err
	}
	data, err := fetch("/")
	require.NoError(t, err)
	require.Empty(t, data)
	_, err = fetch("/force")
	require.ErrorContains(t, err, "got content coding gzip, want none")
}

func TestClientRefusesMediaType(t *testing.T) {
	kind := ""
	ts := newTestServer(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Content-Type"] = []string{kind}
		_, _ = w.Write([]byte("<html>"))
	})
	c := newTestClient(t, ClientOptions{})
	for _, kind = range []string{"text/html", "text/event-streamx", ""} {
		accept := []string{"text/event-stream", "a/b"}
		_, err := c.Do(t.Context(), &Request{Op: "op", Method: "GET", URL: parse(t, ts.URL), Accept: accept})
		require.EqualError(t, err, fmt.Sprintf("op: GET %s: got media type %q, want text/event-stream or a/b", ts.URL, kind))
		var e *Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, "<html>", string(e.Body))
		require.Equal(t, retry.Unknown, retry.ClassOf(err), "the peer may have processed the request")
	}
}

// TestClientDistinguishesFailures: a failed connection, a 404 and a timeout.
// An expiring context ends like one with a deadline when it is closed.
type expiring struct {
	context.Context
	done chan struct{}
}

func (e expiring) Done() <-chan struct{} { return e.done }

func (e expiring) Err() error {
	select {
	case <-e.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func TestClientDistinguishesFailures(t *testing.T) {
	const closed = "http://127.0.0.1:1" // no other server gets this port
	hold, late := make(chan struct{}), expiring{t.Context(), make(chan struct{})}
	deadline, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	ts := newTestServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			close(late.done)
			<-hold
		}
		http.NotFound(w, r)
	})
	defer close(hold)
	c := newTestClient(t, ClientOptions{})
	do := func(ctx context.Context, raw string) error {
		_, err := c.Do(ctx, &Request{Op: "arc: create task", Method: "POST", URL: parse(t, raw), Body: []byte("b")})
		return err
	}
	for _, tt := range []struct {
		err                  error
		isConnect, isTimeout bool
		status               int
		class                retry.Class
		text                 string
	}{
		{do(t.Context(), closed+"/p?secret"), true, false, 0, retry.Unsent, closed + "/p: dial tcp"},
		{do(t.Context(), ts.URL+"/p?secret"), false, false, 404, retry.Permanent,
			ts.URL + "/p: got status 404 Not Found, want status 2xx"},
		{do(late, ts.URL+"/slow?secret"), false, true, 0, retry.Unknown,
			ts.URL + "/slow: context deadline exceeded"},
		{do(deadline, ts.URL+"/p?secret"), true, true, 0, retry.Unsent, ts.URL + "/p: context deadline exceeded"},
	} {
		require.Equal(t, tt.isConnect, errors.Is(tt.err, ErrConnect), "%v", tt.err)
		require.Equal(t, tt.isTimeout, errors.Is(tt.err, ErrTimeout), "%v", tt.err)
		require.Equal(t, tt.class, retry.ClassOf(tt.err), "%v", tt.err)
		require.True(t, strings.HasPrefix(tt.err.Error(), "arc: create task: POST "+tt.text), "%v", tt.err)
		require.NotContains(t, tt.err.Error(), "secret")
		var e *Error
		require.ErrorAs(t, tt.err, &e)
		require.Equal(t, tt.status, e.Status)
		require.Equal(t, tt.class, e.RetryClass())
	}
}

func TestClientNeverReportsSentRequestAsUnsent(t *testing.T) {
	const received, handshake = "received", "handshake"
	for _, tt := range []struct {
		cut  string
		want retry.Class
	}{{received, retry.Unknown}, {handshake, retry.Unsent}} {
		t.Run(tt.cut, func(t *testing.T) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer ln.Close()
			var served sync.WaitGroup
			served.Go(func() {
				conn, err := ln.Accept()
				if err != nil {
					return
				}
				_, _ = conn.Read(make([]byte, 64<<10))
				conn.Close()
			})
			scheme := map[string]string{received: "http://", handshake: "https://"}[tt.cut]
			u := parse(t, scheme+ln.Addr().String())
			_, err = newTestClient(t, ClientOptions{}).Do(t.Context(), &Request{Method: "POST", URL: u, Body: []byte("pay")})
			require.Error(t, err)
			require.Equal(t, tt.want, retry.ClassOf(err), "%v", err)
			require.Equal(t, tt.want == retry.Unsent, errors.Is(err, ErrConnect))
			served.Wait()
		})
	}
	t.Run("transport of the user", func(t *testing.T) {
		for cause, want := range map[error]retry.Class{
			errors.New("broken"): retry.Unknown,
			io.ErrUnexpectedEOF:  retry.Unknown,
			context.Canceled:     retry.Unknown,
			&net.OpError{Op: "dial", Err: errors.New("refused")}: retry.Unsent,
			&netguard.Error{Reason: netguard.ReasonHost}:         retry.Permanent,
		} {
			fail := roundTrip(func(*http.Request) (*http.Response, error) { return nil, cause })
			c := newTestClient(t, ClientOptions{HTTPClient: &http.Client{Transport: fail}})
			_, err := c.Do(t.Context(), &Request{Method: "POST", URL: parse(t, "https://a.example/?secret")})
			require.Equal(t, want, retry.ClassOf(err), "%v", err)
			require.Equal(t, want == retry.Unsent || want == retry.Permanent, errors.Is(err, ErrConnect), "%v", err)
			require.NotContains(t, err.Error(), "secret")
		}
	})
}

// A userBody is the body of a response of a user's transport.
type userBody struct {
	io.Reader
	isClosed bool
}

func (b *userBody) Close() error {
	b.isClosed = true
	return nil
}

func TestClientClosesUnexpectedResponse(t *testing.T) {
	body := &userBody{Reader: iotest.ErrReader(errors.New("broken"))}
	status := 200
	answer := roundTrip(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: status, Body: body, ContentLength: -1}, nil
	})
	c := newTestClient(t, ClientOptions{HTTPClient: &http.Client{Transport: answer}})
	r := &Request{Method: "GET", URL: parse(t, "https://a.example/")}
	_, _, err := c.Fetch(t.Context(), r)
	require.ErrorContains(t, err, "broken")
	require.Equal(t, retry.Unknown, retry.ClassOf(err), "the peer has processed the request")
	require.True(t, body.isClosed)

	for _, status = range []int{101, 302, 500} {
		body.isClosed = false
		_, err = c.Do(t.Context(), r)
		require.ErrorContains(t, err, "want status 2xx")
		require.True(t, body.isClosed)
	}
}

// A refusal is an error although the rest of its body does not arrive and the request has no deadline.
func TestClientBoundsBodyOfRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, stop := newPipeServer(t, &http.Server{}, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, "closed")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		})
		start := time.Now()
		_, err := l.client().Do(t.Context(), &Request{Method: "GET", URL: parse(t, "http://a.example/")})
		var e *Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, 503, e.Status)
		require.Equal(t, "closed", string(e.Body))
		require.Equal(t, errorTimeout, time.Since(start))
		stop()
	})
}

func TestClientReportsUntrustedCertificate(t *testing.T) {
	ts := httptest.NewTLSServer(http.NotFoundHandler())
	defer ts.Close()
	ts.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	_, err := newTestClient(t, ClientOptions{}).Do(t.Context(), &Request{Method: "GET", URL: parse(t, ts.URL)})
	require.ErrorIs(t, err, ErrConnect)
	require.Equal(t, retry.Permanent, retry.ClassOf(err))
}

func TestClientReportsTruncatedBody(t *testing.T) {
	ts := newTestServer(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte("begin"))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	c := newTestClient(t, ClientOptions{})
	data, _, err := c.Fetch(t.Context(), &Request{Op: "op", Method: "GET", URL: parse(t, ts.URL)})
	require.Equal(t, "begin", string(data))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "op", e.Op)
	require.Equal(t, retry.Unknown, e.RetryClass())
}

func TestClientErrorCarriesRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &http.Server{}
		l, stop := newPipeServer(t, srv, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", "7")
			_ = Respond(w, http.StatusServiceUnavailable, "", nil, time.Second)
		})
		defer stop()
		c := l.client()
		start := time.Now()
		policy := retry.Policy{MaxAttempts: 2, Base: -1, Logger: slog.New(slog.DiscardHandler)}
		err := retry.Do(t.Context(), policy, false, func(ctx context.Context, _ int) error {
			_, err := c.Do(ctx, &Request{Method: "POST", URL: parse(t, "http://a.example/")})
			return err
		})
		require.Equal(t, 7*time.Second, time.Since(start))
		var e *Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, retry.Refused, e.RetryClass())
		require.Equal(t, "7", e.Header.Get("Retry-After"))
	})
}

func TestClientGuardSeesEveryDial(t *testing.T) {
	ts := newTestServer(t, func(http.ResponseWriter, *http.Request) { t.Error("reached") })
	port := parse(t, ts.URL).Port()
	// The name passes the check of the URL, and resolves to this host.
	guard := &netguard.Guard{Lookup: func(context.Context, string, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	}}
	var d net.Dialer
	for name, user := range map[string]*http.Client{
		"none":      nil,
		"default":   {},
		"transport": {Transport: &http.Transport{}},
		"dial":      {Transport: &http.Transport{DialContext: d.DialContext}},
	} {
		c := newTestClient(t, ClientOptions{HTTPClient: user, Guard: guard, AllowInsecure: true})
		for _, host := range []string{"a.example:", "127.0.0.1:", "localhost:"} {
			_, err := c.Do(t.Context(), &Request{Method: "GET", URL: parse(t, "http://"+host+port)})
			require.ErrorIs(t, err, netguard.ErrForbidden, "%s %s", name, host)
			require.Equal(t, retry.Permanent, retry.ClassOf(err))
		}
	}
	proxy := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(parse(t, ts.URL))}}
	_, err := newTestClient(t, ClientOptions{HTTPClient: proxy, Guard: guard, AllowInsecure: true}).
		Do(t.Context(), &Request{Method: "GET", URL: parse(t, "http://localhost:"+port)})
	require.ErrorIs(t, err, netguard.ErrForbidden, "without a guarded dial the host of the URL is checked")
}

func TestClientUpgradeReturnsOnly101(t *testing.T) {
	status := http.StatusSwitchingProtocols
	ts := newTestServer(t, func(w http.ResponseWriter, r *http.Request) {
		require.Equal(t, "x", r.Header.Get("Upgrade"))
		require.Empty(t, r.Header.Get("Accept-Encoding"))
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "x")
		w.WriteHeader(status)
		if status != http.StatusSwitchingProtocols {
			_, _ = io.WriteString(w, "no")
		}
	})
	plain := &http.Transport{DisableCompression: true, DisableKeepAlives: true}
	c := newTestClient(t, ClientOptions{HTTPClient: &http.Client{Transport: plain}})
	header := http.Header{"Connection": {"Upgrade"}, "Upgrade": {"x"}}
	req := &Request{Method: "GET", URL: parse(t, ts.URL), Upgrade: true, Header: header}
	res, err := c.Do(t.Context(), req)
	require.NoError(t, err)
	_, ok := res.Body.(io.ReadWriteCloser)
	require.True(t, ok)
	res.Body.Close()
	for _, status = range []int{200, 401, 503} {
		_, err = c.Do(t.Context(), req)
		var e *Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, status, e.Status)
		require.Equal(t, "no", string(e.Body))
		require.Contains(t, err.Error(), "want status 101")
	}
}

// TestClientAddsFewAllocations compares with the same request by net/http.
func TestClientAddsFewAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	answer := []byte(`{"a":1}`)
	user := &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}},
			Body: io.NopCloser(bytes.NewReader(answer)), ContentLength: int64(len(answer)), Request: r}, nil
	})}
	raw, body := "https://a.example/p", []byte("{}")
	u := parse(t, raw)
	ctx := context.Background()
	plain := testing.AllocsPerRun(1000, func() {
		req, err := http.NewRequestWithContext(ctx, "POST", raw, bytes.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json")
		req.Header.Set("Authorization", "Bearer a")
		res, err := user.Do(req)
		require.NoError(t, err)
		_, err = io.ReadAll(res.Body)
		require.NoError(t, err)
		res.Body.Close()
	})
	c := newTestClient(t, ClientOptions{HTTPClient: user, Secrets: func(_ context.Context, _ string, h http.Header) error {
		h.Set("Authorization", "Bearer a")
		return nil
	}})
	header, accept := http.Header{"Content-Type": {"application/json"}}, []string{"application/json"}
	client := testing.AllocsPerRun(1000, func() {
		_, _, err := c.Fetch(ctx, &Request{Op: "op", Method: "POST", URL: u, Header: header, Body: body, Accept: accept})
		require.NoError(t, err)
	})
	t.Logf("net/http %v, Client %v", plain, client)
	require.LessOrEqual(t, client, plain+3)
}

func TestClientConcurrentUse(t *testing.T) {
	ts := newTestServer(t, func(w http.ResponseWriter, r *http.Request) {
		data, _ := Body(w, r, -1, time.Minute)
		_ = Respond(w, http.StatusOK, "text/plain", data, time.Minute)
	})
	c := newTestClient(t, ClientOptions{})
	header := http.Header{"X-A": {"a"}}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 20 {
				want := bytes.Repeat([]byte{byte(i)}, 1000*i)
				got, _, err := c.Fetch(t.Context(), &Request{Method: "POST", URL: parse(t, ts.URL), Header: header, Body: want})
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("got %d bytes and %v, want %d bytes", len(got), err, len(want))
				}
			}
		})
	}
	wg.Wait()
}

// A transport of a user may break the rules of its interface, and sees the fields of the request.
func TestClientGuardsAgainstTransport(t *testing.T) {
	var sent *http.Request
	var res *http.Response
	transport := roundTrip(func(r *http.Request) (*http.Response, error) {
		sent = r
		return res, nil
	})
	c := newTestClient(t, ClientOptions{Prefix: "p: ", HTTPClient: &http.Client{Transport: transport}})
	header := http.Header{"X-A": {"a"}}
	r := &Request{Op: "op", Method: "POST", URL: parse(t, "https://a.example/"), Header: header, Body: []byte("body")}
	_, err := c.Do(t.Context(), r)
	require.ErrorContains(t, err, "p: op: POST https://a.example/: httpx: transport returned neither")
	require.Equal(t, http.Header{"X-A": {"a"}}, header, "the header of the request is not changed")
	require.Equal(t, []string{"identity"}, sent.Header["Accept-Encoding"])
	body, err := io.ReadAll(sent.Body)
	require.NoError(t, err)
	require.Equal(t, "body", string(body))
	rewound, err := sent.GetBody()
	require.NoError(t, err)
	body, err = io.ReadAll(rewound)
	require.NoError(t, err)
	require.Equal(t, "body", string(body))

	res = &http.Response{StatusCode: 200}
	data, _, err := c.Fetch(t.Context(), r)
	require.NoError(t, err)
	require.Empty(t, data)
}

// A panickingBody panics in one of its methods.
type panickingBody struct{ in string }

func (b panickingBody) Read(p []byte) (int, error) {
	if b.in == "Read" {
		panic("Read failed")
	}
	return copy(p, "{}"), io.EOF
}

func (b panickingBody) Close() error {
	if b.in == "Close" {
		panic("Close failed")
	}
	return nil
}

func TestClientSurvivesPanicsOfTransport(t *testing.T) {
	for in, isSent := range map[string]bool{"RoundTrip": false, "Read": true, "Close": true} {
		for _, status := range []int{http.StatusOK, http.StatusTeapot} {
			user := &http.Client{Transport: roundTrip(func(*http.Request) (*http.Response, error) {
				if !isSent {
					panic("RoundTrip failed")
				}
				return &http.Response{StatusCode: status, Header: http.Header{}, Body: panickingBody{in}}, nil
			})}
			c := NewClient(&ClientOptions{HTTPClient: user, AllowInsecure: true})
			_, _, err := c.Fetch(t.Context(), &Request{Method: http.MethodGet, URL: &url.URL{Scheme: "http", Host: "peer.example"}})
			if in == "Close" && status == http.StatusOK {
				require.NoError(t, err)
				continue
			}
			var e *Error
			require.ErrorAs(t, err, &e, "%s %d", in, status)
			if !isSent || status == http.StatusOK {
				var p *guard.PanicError
				require.ErrorAs(t, err, &p, "%s %d", in, status)
				require.NotEqual(t, retry.Unsent, retry.ClassOf(err), "it may have been sent")
			}
		}
	}
}
