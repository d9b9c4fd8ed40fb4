// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/memory"
	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/profile"
	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/airtest"
	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/altartest"
	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/store"
)

// A link connects one more caller to a server in this process and returns its call.
type link func(tb testing.TB) (call func(context.Context) error)

// idleGoal is 32 KiB for a connection and 4 KiB for a session, on both sides.
const idleGoal = 2 * 36 << 10

// endToEnd has a server of each protocol, with all that it keeps in a store.
var endToEnd = []struct {
	name  string
	serve func(tb testing.TB, e environment) link
	idle  int64 // bound of the bytes of an idle caller, client and server together
	kept  int64 // bound of the bytes of a call that outlive the calls of [TestSoak]
}{
	{"arc", serveARC, idleGoal, 300},
	{"a2e", serveA2E, idleGoal, 400},
	{"altar", serveALTAR, 80 << 10, 300}, // over the goal where goroutines begin with large stacks
	{"accp", serveACCP, idleGoal, 8 << 10},
	{"air", serveAIR, idleGoal, 2 << 10},
}

var quiet = slog.New(slog.DiscardHandler)

// An environment is what a server and its callers run on.
type environment struct {
	store.Store
	retention time.Duration // of ended tasks and of results; zero means the defaults
	network   *pipes        // nil means loopback
	sessions  int64         // bound for a principal; zero means the defaults
}

// web serves a handler until the end of the test.
func (e environment) web(tb testing.TB, h http.Handler) string {
	ts := httptest.NewUnstartedServer(h)
	if e.network != nil {
		_ = ts.Listener.Close()
		ts.Listener = e.network.listen()
	}
	ts.Start()
	tb.Cleanup(ts.Close)
	return ts.URL
}

// client returns a client whose connections are those of one caller.
func (e environment) client(tb testing.TB) *http.Client {
	if e.network == nil {
		return own(tb)
	}
	transport := &http.Transport{DialContext: e.network.dial}
	tb.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// own returns a client whose connections are those of one caller.
func own(tb testing.TB) *http.Client {
	transport := &http.Transport{}
	tb.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// serveARC creates a task, which the store keeps, and whose handler returns at once.
func serveARC(tb testing.TB, e environment) link {
	srv, err := arc.NewServer(&arc.ServerOptions{
		Auth:        arc.Auth{AllowAnonymous: true},
		Logger:      quiet,
		Limits:      arc.Limits{MaxMemory: -1, MaxMemoryPerPrincipal: -1, MaxStorage: -1, MaxStoragePerPrincipal: -1, MaxItems: -1, MaxItemsPerPrincipal: -1},
		Persistence: arc.Persistence{Store: store.Sub(e, "arc/"), TaskRetention: e.retention},
	})
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = srv.Close() })
	srv.HandleTasks("work-01", arc.TaskHandlerFunc(func(context.Context, *arc.TaskRun) error { return nil }))
	url := e.web(tb, srv) + "/arc"
	return func(tb testing.TB) func(context.Context) error {
		c, err := arc.NewClient(url, "you-01", &arc.ClientOptions{HTTPClient: e.client(tb)})
		require.NoError(tb, err)
		return func(ctx context.Context) error {
			_, err := c.CreateTask(ctx, "work-01", &arc.CreateTaskParams{InitialMessage: arc.UserText("go")}, nil)
			return err
		}
	}
}

// serveA2E stores an entry of a memory, over a connection in this process.
func serveA2E(tb testing.TB, e environment) link {
	h, err := a2e.NewHost(&a2e.HostOptions{Auth: a2e.Auth{AllowAnonymous: true}, Logger: quiet,
		Limits: a2e.Limits{MaxItems: e.sessions, MaxItemsPerPrincipal: e.sessions}})
	require.NoError(tb, err)
	plugin, err := memory.NewPlugin(&memory.Options{Store: store.Sub(e, "a2e/")})
	require.NoError(tb, err)
	h.AddPlugin(plugin)
	tb.Cleanup(func() { _ = h.Close() })
	n := 0
	return func(tb testing.TB) func(context.Context) error {
		near, far := net.Pipe()
		var served sync.WaitGroup
		served.Go(func() { _ = h.Serve(context.Background(), far) })
		n++
		c, err := a2e.NewClient(near, &a2e.ClientOptions{AgentID: fmt.Sprint("agent-", n), Types: memory.Types(), Capabilities: h.Capabilities()})
		require.NoError(tb, err)
		tb.Cleanup(func() {
			_ = c.Close()
			served.Wait()
		})
		_, err = c.Connect(tb.Context())
		require.NoError(tb, err)
		m, err := memory.NewClient(c)
		require.NoError(tb, err)
		opened, err := m.Init(tb.Context(), &memory.InitRequest{}, nil)
		require.NoError(tb, err)
		request := &memory.StoreRequest{MemoryID: opened.MemoryID,
			Entries: []json.RawMessage{json.RawMessage(`{"key":{"k":"v"},"content":"x","tier":"episodic"}`)}}
		return func(ctx context.Context) error {
			_, err := m.Store(ctx, request, nil)
			return err
		}
	}
}

// serveALTAR calls a tool over WebSocket.
func serveALTAR(tb testing.TB, e environment) link {
	m, err := altar.DecodeManifest([]byte(`{"version":"1.0.0","contracts":[{"name":"echo","description":"Repeats","parameters":[{"name":"text","type":"string"}]}]}`))
	require.NoError(tb, err)
	h, err := altar.NewHost(m, &altar.HostOptions{
		ID:          "host-1",
		Auth:        altar.Auth{AllowAnonymous: true, Authorizer: altar.AuthorizerFunc(altar.AllowAll)},
		Logger:      quiet,
		Limits:      altar.Limits{MaxItemsPerPrincipal: e.sessions},
		Persistence: altar.Persistence{Store: store.Sub(e, "altar/"), ResultTTL: e.retention},
	})
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = h.Close() })
	r, err := altar.NewRuntime("echo", &altar.RuntimeOptions{Logger: quiet})
	require.NoError(tb, err)
	type text struct {
		Text string `json:"text"`
	}
	altar.AddTool(r, "echo", func(_ context.Context, in text) (string, error) { return in.Text, nil })
	conn, err := h.Dial(&altar.Principal{ID: "runtime"})
	require.NoError(tb, err)
	ctx, stop := context.WithCancel(context.Background())
	var ran sync.WaitGroup
	ran.Go(func() { _ = r.Run(ctx, conn) })
	tb.Cleanup(func() {
		stop()
		ran.Wait()
	})
	url := "ws" + strings.TrimPrefix(e.web(tb, h), "http") + altar.WebSocketPath
	return func(tb testing.TB) func(context.Context) error {
		c, err := altar.NewClient(func(ctx context.Context) (altar.Conn, error) {
			return altar.DialWebSocket(ctx, url, &altar.WebSocketDialOptions{HTTPClient: e.client(tb)})
		}, nil)
		require.NoError(tb, err)
		tb.Cleanup(func() { _ = c.Close() })
		session, err := c.CreateSession(tb.Context(), nil)
		require.NoError(tb, err)
		altartest.WaitTools(tb, h, 1)
		return func(ctx context.Context) error {
			_, err := altar.CallAs[string](ctx, session, "echo", text{"hello"}, nil)
			if errors.Is(err, altar.ErrSessionInvalid) { // expired
				if session, err = c.CreateSession(ctx, nil); err == nil {
					_, err = altar.CallAs[string](ctx, session, "echo", text{"hello"}, nil)
				}
			}
			return err
		}
	}
}

// serveACCP calls a tool over HTTP, in a session for each caller.
func serveACCP(tb testing.TB, e environment) link {
	srv, err := accp.NewServer("desk", &accp.ServerOptions{
		Auth: accp.Auth{AllowAnonymous: true}, Logger: quiet, Persistence: accp.Persistence{Store: store.Sub(e, "accp/"), Retention: e.retention},
	})
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = srv.Close() })
	srv.Handle(accp.IntentReq, profile.OpTool, profile.NewToolHandler(map[string]profile.ToolFunc{
		"echo": func(_ context.Context, args accp.Params) (accp.Value, error) {
			return accp.String(args.Text("text")), nil
		},
	}))
	url := e.web(tb, srv) + accp.FramesPath
	return func(tb testing.TB) func(context.Context) error {
		c, err := accp.NewClient(url, "you", &accp.ClientOptions{HTTPClient: e.client(tb),
			Session: accp.SessionOptions{Persistence: accp.Persistence{Retention: e.retention}}})
		require.NoError(tb, err)
		tb.Cleanup(func() { _ = c.Close() })
		return func(ctx context.Context) error {
			m, err := accp.NewMessage(accp.IntentReq, profile.OpTool, profile.SchemaTool,
				profile.ToolCall{Name: "echo", Arguments: accp.Map(accp.Param{Key: "text", Value: accp.String("hello")})})
			if err != nil {
				return err
			}
			_, err = c.Call(ctx, m, nil)
			return err
		}
	}
}

// serveAIR pushes a signed envelope to an inbox, which remembers it in the store.
func serveAIR(tb testing.TB, e environment) link {
	registry := new(airtest.Registry)
	resolver, err := air.NewResolver(&air.ResolverOptions{RegistryURL: e.web(tb, registry), HTTPClient: e.client(tb), AllowLoopback: true, Logger: quiet})
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = resolver.Close() })
	agent := func(n int) *air.Identity {
		id, err := air.GenerateIdentity(airtest.DID(airID(n)))
		require.NoError(tb, err)
		return id
	}
	bob := agent(1)
	inbox, err := air.NewInbox(bob, air.HandlerFunc(func(context.Context, *air.Delivery) error { return nil }), &air.InboxOptions{
		Resolver: resolver, BodyTypes: []string{"note"}, Logger: quiet,
		Limits: air.Limits{RateLimit: -1, AddressRateLimit: -1}, Persistence: air.Persistence{Store: store.Sub(e, "air/")},
	})
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = inbox.Close() })
	registry.Register(bob, e.web(tb, inbox)+"/")
	n := 1
	return func(tb testing.TB) func(context.Context) error {
		n++
		alice := agent(n)
		registry.Register(alice, "https://example.org/inbox")
		c, err := air.NewClient(alice, &air.ClientOptions{Resolver: resolver, HTTPClient: e.client(tb), BodyTypes: []string{"note"}, Logger: quiet})
		require.NoError(tb, err)
		return func(ctx context.Context) error {
			_, err := c.Send(ctx, &air.Draft{To: bob.DID(), Body: &air.Raw{Type: "note", JSON: []byte(`{"text":"hello","type":"note"}`)}}, nil)
			return err
		}
	}
}

// BenchmarkEndToEnd has client and server of each protocol in one process. Its memory figures are those of
// both.
func BenchmarkEndToEnd(b *testing.B) {
	for _, p := range endToEnd {
		for _, engine := range engines[:2] { // memory and SQLite
			for _, callers := range []int{1, 64} {
				b.Run(fmt.Sprintf("%s/%s/callers=%d", p.name, engine.name, callers), func(b *testing.B) {
					runEndToEnd(b, p.serve(b, environment{Store: engineFor(b, engine.name)}), callers)
				})
			}
		}
	}
}

func engineFor(tb testing.TB, name string) store.Store {
	if name == "Memory" {
		return store.NewMemory()
	}
	s, err := openPlace(tb.Context(), "sqlite "+tb.TempDir()+"/state.db")
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = s.(io.Closer).Close() })
	return s
}

func runEndToEnd(b *testing.B, connect link, callers int) {
	calls := make([]func(context.Context) error, callers)
	for i := range calls {
		calls[i] = connect(b)
		require.NoError(b, calls[i](b.Context())) // connections, caches, pools
	}
	took := make([][]time.Duration, callers)
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for c := range callers {
		wg.Go(func() {
			for i := c; i < b.N; i += callers {
				start := time.Now()
				if err := calls[c](b.Context()); err != nil {
					b.Error(err)
					return
				}
				took[c] = append(took[c], time.Since(start))
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	all := slices.Concat(took...)
	if len(all) == 0 {
		b.Fatal("no calls")
	}
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2].Nanoseconds())/1000, "p50-µs")
	b.ReportMetric(float64(all[len(all)*99/100].Nanoseconds())/1000, "p99-µs")
}
