// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcpserver_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/altartest"
	"github.com/fivewire/fivewire/altar/mcpserver"
	"github.com/fivewire/fivewire/internal/kit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const contracts = `{"contracts":[
	{"name":"math/add","description":"Adds two integers.","parameters":[{"name":"a","type":"integer","required":true},{"name":"b","type":"integer","required":true}]},
	{"name":"ticket","parameters":[{"name":"id","type":"integer","required":true}]},
	{"name":"secret","parameters":[]},
	{"name":"wait","parameters":[]},
	{"name":"texts","streaming":true,"parameters":[]},
	{"name":"count","streaming":true,"parameters":[{"name":"n","type":"integer","required":true}]}]}`

type sum struct {
	A int64 `json:"a"`
	B int64 `json:"b"`
}

type number struct {
	N int64 `json:"n"`
}

type ticket struct {
	ID int64 `json:"id"`
}

// eras are the versions of the protocol with and without sessions.
var eras = []string{"2026-07-28", "2025-11-25", "2025-03-26"}

// A fixture is a handler in front of a Host with one Runtime.
type fixture struct {
	host     *altar.Host
	handler  http.Handler
	url      string
	started  chan struct{} // of the tool wait
	canceled chan struct{}
}

func newFixture(t *testing.T, options *mcpserver.Options) *fixture {
	t.Helper()
	f := &fixture{started: make(chan struct{}, 1), canceled: make(chan struct{}, 1)}
	m, err := altar.DecodeManifest([]byte(contracts))
	require.NoError(t, err)
	auth, err := altar.APIKeyAuthenticator(map[string]*altar.Principal{"key-a": {ID: "alice"}, "key-b": {ID: "bob"}})
	require.NoError(t, err)
	discard := slog.New(slog.DiscardHandler)
	host, err := altar.NewHost(m, &altar.HostOptions{Logger: discard, Auth: altar.Auth{Authenticator: auth, AllowAnonymous: options != nil && options.AllowAnonymous,
		Authorizer: altar.AuthorizerFunc(func(_ context.Context, r *altar.AuthorizeRequest) error {
			if r.Contract.Name == "secret" && !r.ForListing {
				return altar.Errorf(altar.ErrAuthorizationFailed, "", "not for %s", r.Principal.ID)
			}
			return nil
		})}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = host.Close() })
	rt, err := altar.NewRuntime("rt-01", &altar.RuntimeOptions{Logger: discard})
	require.NoError(t, err)
	altar.AddTool(rt, "math/add", func(_ context.Context, in sum) (int64, error) { return in.A + in.B, nil })
	altar.AddTool(rt, "ticket", func(_ context.Context, in ticket) (ticket, error) { return in, nil })
	altar.AddTool(rt, "secret", func(context.Context, struct{}) (string, error) { return "", nil })
	altar.AddTool(rt, "wait", func(ctx context.Context, _ struct{}) (string, error) {
		f.started <- struct{}{}
		<-ctx.Done()
		f.canceled <- struct{}{}
		return "", ctx.Err()
	})
	altar.AddStreamTool(rt, "count", func(_ context.Context, in number, out *altar.ChunkWriter) error {
		for i := range in.N {
			if err := out.Send(fmt.Sprint(i, " ")); err != nil {
				return err
			}
		}
		return nil
	})
	altar.AddStreamTool(rt, "texts", func(_ context.Context, _ struct{}, out *altar.ChunkWriter) error {
		return errors.Join(out.Send("a"), out.Send(nil), out.Send("b"))
	})
	conn, err := host.Dial(&altar.Principal{ID: "runtime"})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = rt.Run(ctx, conn)
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	altartest.WaitTools(t, host, 6)
	o := mcpserver.Options{Logger: discard}
	if options != nil {
		o = *options
		o.Logger = discard
	}
	if o.Authenticator == nil && !o.AllowAnonymous {
		o.Authenticator = auth
	}
	handler, err := mcpserver.NewHandler(host, &o)
	require.NoError(t, err)
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	f.host, f.handler, f.url = host, handler, server.URL
	return f
}

// keyed adds a key to each request, and keeps the last response.
type keyed struct {
	key  string
	base *http.Transport
}

func (k *keyed) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if k.key != "" {
		r.Header.Set(altar.APIKeyHeader, k.key)
	}
	return k.base.RoundTrip(r)
}

// dial returns a session of the SDK's client.
func (f *fixture) dial(t *testing.T, key, version string, opts *mcp.ClientOptions) (*mcp.ClientSession, error) {
	t.Helper()
	transport := &keyed{key, &http.Transport{}}
	t.Cleanup(transport.base.CloseIdleConnections)
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, opts)
	s, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: f.url, HTTPClient: &http.Client{Transport: transport},
		MaxRetries: -1, DisableStandaloneSSE: true}, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err == nil {
		t.Cleanup(func() { _ = s.Close() })
	}
	return s, err
}

func textOf(res *mcp.CallToolResult) string { return res.Content[0].(*mcp.TextContent).Text }

// The SDK's client lists and calls the tools in each version of the protocol.
func TestTools(t *testing.T) {
	f := newFixture(t, nil)
	for _, version := range eras {
		t.Run(version, func(t *testing.T) {
			s, err := f.dial(t, "key-a", version, nil)
			require.NoError(t, err)
			require.Equal(t, version, s.InitializeResult().ProtocolVersion)
			list, err := s.ListTools(t.Context(), nil)
			require.NoError(t, err)
			i := slices.IndexFunc(list.Tools, func(t *mcp.Tool) bool { return t.Title == "math/add" })
			require.GreaterOrEqual(t, i, 0)
			add := list.Tools[i]
			require.Equal(t, "Adds two integers.", add.Description)
			require.Equal(t, []any{"a", "b"}, add.InputSchema.(map[string]any)["required"])
			res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: add.Name, Arguments: sum{9007199254740993, 1}})
			require.NoError(t, err)
			require.False(t, res.IsError)
			require.Equal(t, "9007199254740994", textOf(res))

			res, err = s.CallTool(t.Context(), &mcp.CallToolParams{Name: add.Name, Arguments: map[string]any{"a": "x", "c": 1}})
			require.NoError(t, err)
			require.True(t, res.IsError)
			for _, path := range []string{"\n/a: ", "\n/b: ", "\n/c: "} {
				require.Contains(t, textOf(res), path)
			}
			require.Len(t, res.StructuredContent.(map[string]any)["errors"], 3)

			res, err = s.CallTool(t.Context(), &mcp.CallToolParams{Name: "secret"})
			require.NoError(t, err)
			require.True(t, res.IsError)
			require.Contains(t, textOf(res), "not for alice")

			_, err = s.CallTool(t.Context(), &mcp.CallToolParams{Name: "unknown"})
			require.ErrorContains(t, err, "unknown tool")
		})
	}
}

// Integers above 2^53 keep each digit on the wire, in text and in structured content.
func TestExactIntegers(t *testing.T) {
	f := newFixture(t, nil)
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ticket","arguments":{"id":%s}}}`
	for _, id := range []string{"9007199254740993", `"9223372036854775807"`} {
		status, text := f.post(t, "key-a", fmt.Sprintf(body, id))
		require.Equal(t, http.StatusOK, status)
		require.Contains(t, text, `"structuredContent":{"id":`+strings.Trim(id, `"`)+`}`)
		require.Contains(t, text, `"text":"{\"id\":`+strings.Trim(id, `"`)+`}"`)
	}
}

// post sends a request of an older version.
func (f *fixture) post(t *testing.T, key, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.url, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("Mcp-Protocol-Version", "2025-11-25")
	if key != "" {
		req.Header.Set(altar.APIKeyHeader, key)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(text)
}

// Each chunk of a streaming tool is a progress notification.
func TestProgress(t *testing.T) {
	f := newFixture(t, nil)
	for _, version := range eras {
		t.Run(version, func(t *testing.T) {
			var got []string
			arrived := make(chan string, 10)
			s, err := f.dial(t, "key-a", version, &mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
				arrived <- fmt.Sprint(r.Params.Progress, " ", r.Params.Message)
			}})
			require.NoError(t, err)
			params := &mcp.CallToolParams{Name: "count", Arguments: number{3}}
			params.SetProgressToken("p-1")
			res, err := s.CallTool(t.Context(), params)
			require.NoError(t, err)
			require.Equal(t, "0 1 2 ", textOf(res))
			for range 3 {
				select {
				case text := <-arrived:
					got = append(got, text)
				case <-time.After(time.Minute):
					t.Fatal("no progress")
				}
			}
			require.ElementsMatch(t, []string{"1 0 ", "2 1 ", "3 2 "}, got)
		})
	}
	small := newFixture(t, &mcpserver.Options{MaxOutput: 10})
	s, err := small.dial(t, "key-a", eras[0], nil)
	require.NoError(t, err)
	res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "count", Arguments: number{1000}})
	require.NoError(t, err)
	require.True(t, res.IsError)
}

// A chunk that is not a text makes the result a list, also null.
func TestNullChunk(t *testing.T) {
	s, err := newFixture(t, nil).dial(t, "key-a", eras[0], nil)
	require.NoError(t, err)
	res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "texts"})
	require.NoError(t, err)
	require.JSONEq(t, `["a",null,"b"]`, textOf(res))
}

// Name and Version are those of the server, Timeout ends a call, and pages of AllowedOrigins may call.
func TestOptions(t *testing.T) {
	for _, tt := range []struct {
		options       *mcpserver.Options
		name, version string
		status        int // of a page of another origin
	}{
		{nil, "altar", "1", http.StatusForbidden},
		{&mcpserver.Options{Name: "tools", Version: "2", Timeout: 20 * time.Millisecond, AllowedOrigins: []string{"https://a.example"}}, "tools", "2", http.StatusOK},
	} {
		f := newFixture(t, tt.options)
		s, err := f.dial(t, "key-a", eras[1], nil)
		require.NoError(t, err)
		require.Equal(t, []string{tt.name, tt.version}, []string{s.InitializeResult().ServerInfo.Name, s.InitializeResult().ServerInfo.Version})
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.url, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
		require.NoError(t, err)
		r.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}, "Origin": {"https://a.example"}, altar.APIKeyHeader: {"key-a"}}
		w := httptest.NewRecorder()
		f.handler.ServeHTTP(w, r)
		require.Equal(t, tt.status, w.Code, w.Body)
		if tt.options != nil {
			res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "wait"})
			require.NoError(t, err)
			require.True(t, res.IsError)
			require.Contains(t, textOf(res), "EXECUTION_TIMEOUT")
		}
	}
}

// Methods of capabilities that the server does not announce are unknown.
func TestOtherMethods(t *testing.T) {
	f := newFixture(t, nil)
	for _, version := range eras {
		s, err := f.dial(t, "key-a", version, nil)
		require.NoError(t, err)
		_, err = s.ListPrompts(t.Context(), nil)
		require.ErrorContains(t, err, "prompts/list")
		require.Nil(t, s.InitializeResult().Capabilities.Prompts)
		_, err = s.ListResources(t.Context(), nil)
		require.ErrorContains(t, err, "resources/list")
	}
}

// The end of the request cancels the call at the Runtime.
func TestCancel(t *testing.T) {
	f := newFixture(t, nil)
	for _, version := range eras {
		t.Run(version, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"wait","arguments":{},"_meta":{` +
				`"io.modelcontextprotocol/protocolVersion":"` + version + `","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},` +
				`"io.modelcontextprotocol/clientCapabilities":{}}}}`
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url, strings.NewReader(body))
			require.NoError(t, err)
			for name, value := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
				"Mcp-Protocol-Version": version, "Mcp-Method": "tools/call", "Mcp-Name": "wait", altar.APIKeyHeader: "key-a"} {
				req.Header.Set(name, value)
			}
			result := make(chan error, 1)
			go func() {
				res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
				if err == nil {
					_, err = io.Copy(io.Discard, res.Body)
					_ = res.Body.Close()
				}
				result <- err
			}()
			<-f.started
			cancel()
			require.Error(t, <-result)
			select {
			case <-f.canceled:
			case <-time.After(time.Minute):
				t.Fatal("the tool was not canceled")
			}
		})
	}
}

// Strangers are refused before their body is read, and a handler is not open by mistake.
func TestAuthentication(t *testing.T) {
	f := newFixture(t, nil)
	for _, key := range []string{"", "wrong"} {
		status, _ := f.post(t, key, `{`)
		require.Equal(t, http.StatusUnauthorized, status)
		_, err := f.dial(t, key, eras[0], nil)
		require.Error(t, err)
	}
	status, _ := f.post(t, "key-a", `{"jsonrpc":"2.0","jsonrpc":"2.0"}`)
	require.Equal(t, http.StatusBadRequest, status)
	open := newFixture(t, &mcpserver.Options{AllowAnonymous: true})
	s, err := open.dial(t, "", eras[0], nil)
	require.NoError(t, err)
	res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "ticket", Arguments: ticket{1}})
	require.NoError(t, err)
	require.JSONEq(t, `{"id":1}`, textOf(res))
	_, err = mcpserver.NewHandler(nil, &mcpserver.Options{AllowAnonymous: true})
	require.Error(t, err)
	m, err := altar.DecodeManifest([]byte(contracts))
	require.NoError(t, err)
	host, err := altar.NewHost(m, &altar.HostOptions{Auth: altar.Auth{AllowAnonymous: true, Authorizer: altar.AuthorizerFunc(altar.AllowAll)}})
	require.NoError(t, err)
	defer host.Close()
	_, err = mcpserver.NewHandler(host, nil)
	require.Error(t, err, "no Authenticator")
}

// A slowBody blocks until its end, and counts its reads.
type slowBody struct {
	reads atomic.Int64
	end   chan struct{}
}

func (b *slowBody) Read([]byte) (int, error) {
	b.reads.Add(1)
	<-b.end
	return 0, io.ErrUnexpectedEOF
}

// serve answers a request with a body without a known length, or of the given one.
func (f *fixture) serve(key string, body io.Reader, length int64) int {
	req := httptest.NewRequest(http.MethodPost, f.url, body)
	req.ContentLength = length
	req.Header.Set(altar.APIKeyHeader, key)
	w := httptest.NewRecorder()
	f.handler.ServeHTTP(w, req)
	return w.Code
}

// The memory of a body is reserved before it is read, for authenticated callers only.
func TestSlowBodies(t *testing.T) {
	f := newFixture(t, nil)
	body := &slowBody{end: make(chan struct{})}
	require.Equal(t, http.StatusUnauthorized, f.serve("wrong", body, 1<<20))
	require.Equal(t, http.StatusRequestEntityTooLarge, f.serve("key-a", body, 5<<20))
	require.Zero(t, body.reads.Load())
	const share = 16 // of 4 MiB
	var slow sync.WaitGroup
	for range share / 2 {
		slow.Go(func() { f.serve("key-a", body, 4<<20) })
		slow.Go(func() { f.serve("key-a", io.MultiReader(io.LimitReader(zeros{}, 4<<20-1), body), -1) }) // reserved as it arrives
	}
	require.Eventually(t, func() bool { return body.reads.Load() == share }, time.Minute, time.Millisecond)
	require.Equal(t, http.StatusServiceUnavailable, f.serve("key-a", body, -1))
	s, err := f.dial(t, "key-b", eras[0], nil)
	require.NoError(t, err)
	_, err = s.ListTools(t.Context(), nil)
	require.NoError(t, err)
	close(body.end)
	slow.Wait()
	require.EqualValues(t, share, body.reads.Load())
	require.Equal(t, http.StatusBadRequest, f.serve("key-a", body, -1))
}

// zeros are endless.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// Without a bound of a request, the share of its caller is the bound.
func TestUnboundedBody(t *testing.T) {
	f := newFixture(t, &mcpserver.Options{MaxMessage: -1})
	require.Equal(t, http.StatusServiceUnavailable, f.serve("key-a", zeros{}, -1))
	require.Equal(t, http.StatusServiceUnavailable, f.serve("key-a", zeros{}, 65<<20))
	require.Equal(t, http.StatusBadRequest, f.serve("key-a", strings.NewReader(`{`), -1))
}

// A client whose request is refused in a shutdown reaches another server, not this one on the same connection.
func TestShutdownEndsConnections(t *testing.T) {
	f := newFixture(t, nil)
	status := kit.CheckPostLeaves(t, f.handler, http.Header{altar.APIKeyHeader: {"key-a"}},
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ticket","arguments":{"id":1}}}`, f.host.Shutdown)
	require.Equal(t, http.StatusServiceUnavailable, status)
}

// A call that meets the end of the Host is refused at once: its session looks for no other Host.
func TestShutdownInCall(t *testing.T) {
	var f *fixture
	f = newFixture(t, &mcpserver.Options{Authenticator: altar.AuthenticatorFunc(func(*http.Request) (*altar.Principal, error) {
		return &altar.Principal{ID: "alice"}, f.host.Close()
	})})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ticket"}}`))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	w := httptest.NewRecorder()
	f.handler.ServeHTTP(w, req)
	require.NoError(t, ctx.Err())
	require.Contains(t, w.Body.String(), `"error":`)
}

// The memory of arriving bodies is that of a principal in its tenant, as at the Host.
func TestTenantsHaveSeparateMemory(t *testing.T) {
	f := newFixture(t, nil)
	h, err := mcpserver.NewHandler(f.host, &mcpserver.Options{Authenticator: altar.AuthenticatorFunc(func(r *http.Request) (*altar.Principal, error) {
		return &altar.Principal{ID: "admin", Tenant: r.Header.Get("X-Tenant")}, nil
	})})
	require.NoError(t, err)
	reading := make(chan struct{}, 16)
	end := make(chan struct{})
	status := func(tenant string, body io.Reader, size int64) int {
		r := httptest.NewRequest(http.MethodPost, "/", body)
		r.ContentLength = size
		r.Header.Set("X-Tenant", tenant)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	var slow sync.WaitGroup
	for range cap(reading) {
		slow.Go(func() {
			status("a", readerFunc(func([]byte) (int, error) {
				reading <- struct{}{}
				<-end
				return 0, io.EOF
			}), 4<<20)
		})
	}
	for range cap(reading) {
		<-reading
	}
	require.Equal(t, http.StatusServiceUnavailable, status("a", strings.NewReader("[]"), 2))
	require.NotEqual(t, http.StatusServiceUnavailable, status("b", strings.NewReader("[]"), 2))
	close(end)
	slow.Wait()
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestExpiredPrincipalIsNotAuthenticated(t *testing.T) {
	h, err := mcpserver.NewHandler(newFixture(t, nil).host, &mcpserver.Options{Logger: slog.New(slog.DiscardHandler),
		Authenticator: altar.AuthenticatorFunc(func(*http.Request) (*altar.Principal, error) {
			return &altar.Principal{ID: "alice", Expires: time.Now()}, nil
		})})
	require.NoError(t, err)
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	require.Equal(t, http.StatusUnauthorized, w.Code, w.Body)
}
