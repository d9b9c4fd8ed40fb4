// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/catalogue"
	"github.com/fivewire/fivewire/a2e/tools"
)

// raw is an agent that writes lines by hand.
type raw struct {
	t    *testing.T
	rw   io.ReadWriteCloser
	in   *bufio.Reader
	done chan error
}

func open(t *testing.T, h *a2e.Host) *raw {
	agent, host := a2e.Pipe()
	return serveRaw(t, h, agent, host)
}

// serveRaw serves the end host of a connection.
func serveRaw(t *testing.T, h *a2e.Host, agent, host io.ReadWriteCloser) *raw {
	r := &raw{t: t, rw: agent, in: bufio.NewReader(agent), done: make(chan error, 1)}
	go func() { r.done <- h.Serve(context.Background(), host) }()
	t.Cleanup(func() { _ = agent.Close(); <-r.done })
	return r
}

func (r *raw) send(line string) {
	_, err := io.WriteString(r.rw, line+"\n")
	require.NoError(r.t, err)
}

func (r *raw) next() *a2e.Message {
	line, err := r.in.ReadBytes('\n')
	require.NoError(r.t, err)
	m, err := a2e.NewCodec(catalogue.Types()...).Decode(bytes.TrimSuffix(line, []byte{'\n'}))
	require.NoError(r.t, err)
	return m
}

func message(msgType, id, rest string) string {
	return `{"a2e":"1.0","type":"` + msgType + `","id":"` + id + `","ts":1` + rest + `}`
}

func (r *raw) shake(caps string) *a2e.Message {
	r.send(message("handshake/req", "h", `,"agent_id":"t","agent_caps":[`+caps+`],"auth_token":"s3cret"`))
	return r.next()
}

func wireError(t *testing.T, m *a2e.Message) *a2e.Error {
	body, ok := m.Body.(*a2e.ErrorBody)
	require.True(t, ok, "%s", m.Type)
	var e *a2e.Error
	require.ErrorAs(t, body.Err(), &e)
	return e
}

// A hostile agent gets its errors and costs no more than the limits (A2E-035,
// A2E-152, A2E-153, A2E-D06, A2E-D07, A2E-D08).
func TestHostileAgent(t *testing.T) {
	h := a2etest.Must(a2e.NewHost(&a2e.HostOptions{Auth: a2e.Auth{Authenticator: a2etest.KeyAuthenticator("s3cret")}, Limits: a2e.Limits{MaxMessage: 100_000}}))
	r := open(t, h)
	go func() { // an endless line, then a good one
		part := strings.Repeat("x", 64<<10)
		for range 200 {
			if _, err := io.WriteString(r.rw, part); err != nil {
				return
			}
		}
		_, _ = io.WriteString(r.rw, "\n"+message("ping", "p", "")+"\n")
	}()
	require.Equal(t, a2e.ReasonTooLarge, wireError(t, r.next()).Reason)
	require.Equal(t, "pong", r.next().Type)
	for line, reason := range map[string]string{
		strings.Repeat("[", 60_000):                                     a2e.ReasonTooDeep,
		`{"a2e":"1.0","type":"ping","type":"shutdown","id":"i","ts":1}`: "duplicate_key",
		"\xff": "invalid_utf8",
		"7":    "not_object",
		message("tool/call/req", "c", `,"tool_name":"x","arguments":{}`): "no_handshake",
		message(strings.Repeat("x", 257), "c2", ""):                      a2e.ReasonValue,
		message("ping", strings.Repeat("x", 257), ""):                    a2e.ReasonValue,
	} {
		r.send(line)
		require.Equal(t, reason, wireError(t, r.next()).Reason, "%.40q", line)
	}
	// Answers to requests never made, events and errors: nothing comes back.
	for i := range 1000 {
		r.send(message([]string{"tool/call/resp", "error", "x/y", "pong"}[i%4], fmt.Sprint(i), `,"req_id":"n","code":"x","data":{"success":true,"tool_name":"t","duration_ms":1}`))
	}
	r.send(message("ping", "p2", ""))
	require.Equal(t, "p2", r.next().ReqID())
	require.EqualValues(t, 1000, h.Stats().Dropped)
}

// A session that does not shake hands in time is closed, and one whose agent
// takes nothing is cut off.
func TestSlowAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := a2etest.NewHost(t, &a2e.HostOptions{Timing: a2e.Timing{WriteTimeout: 5 * time.Second}})
		r := open(t, h)
		start := time.Now()
		_, err := r.in.ReadByte()
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, 10*time.Second, time.Since(start))
	})
	synctest.Test(t, func(t *testing.T) {
		h := echoHost()
		r := open(t, h)
		require.Equal(t, "handshake/resp", r.shake(`"tools"`).Type)
		before := len(h.Sessions())
		require.Equal(t, 1, before)
		// The flood fills the pipe and then the room of the session; memory stays
		// bounded while the handler waits. Reading on shows that nothing was lost.
		r.send(message("tool/call/req", "f", `,"tool_name":"flood","arguments":{},"streaming":true,"timeout":1`))
		time.Sleep(100 * time.Millisecond)
		for i := int64(0); ; i++ {
			if i == 200 { // many times what there is room for
				time.Sleep(time.Second)
			}
			m := r.next()
			if m.Type == "error" {
				require.ErrorIs(t, wireError(t, m), a2e.ErrTimeout)
				require.Greater(t, i, int64(200))
				break
			}
			require.Equal(t, i, m.Body.(*a2e.EventBody).Seq)
		}
	})
}

// Exclusive plugins do not pass requests on, other plugins do (A2E-055, A2E-056, A2E-057, A2E-077,
// A2E-D34), and middleware wraps all of them.
func TestPlugins(t *testing.T) {
	type ask struct{}
	type whoResponse struct {
		ReqID string `json:"req_id,omitzero" jsonmap:"always"`
		Who   string `json:"who,omitzero" jsonmap:"always"`
	}
	route := func(who string, err error) []a2e.Route {
		return []a2e.Route{a2e.NewRoute("demo/who/req", func(context.Context, *a2e.Call, *ask) (*whoResponse, error) { return &whoResponse{Who: who}, err })}
	}
	var around []string
	var mu sync.Mutex
	middleware := func(name string) a2e.Middleware {
		return func(next a2e.Handler) a2e.Handler {
			return a2e.HandlerFunc(func(ctx context.Context, call *a2e.Call) (any, error) {
				mu.Lock()
				around = append(around, name)
				mu.Unlock()
				return next.ServeA2E(ctx, call)
			})
		}
	}
	host := func(exclusive bool) *a2e.Client {
		var meta a2e.Members
		require.NoError(t, meta.Set("region", "north"))
		h := a2etest.NewHost(t, &a2e.HostOptions{Middleware: []a2e.Middleware{middleware("outer"), middleware("inner")}})
		h.AddPlugin(&a2e.Plugin{Name: "low", Capability: "demo", Routes: route("low", nil)})
		h.AddPlugin(&a2e.Plugin{Name: "high", Capability: "demo", Priority: 5, Exclusive: exclusive, Metadata: meta, Routes: route("", a2e.ErrNextPlugin)})
		return a2etest.Connect(t, h, &a2e.ClientOptions{Types: []a2e.Type{a2e.TypeOf[whoResponse]("demo/who/resp")}})
	}
	c := host(false)
	got, err := a2e.CallAs[whoResponse](t.Context(), c, "demo/who/req", &ask{}, nil)
	require.NoError(t, err)
	require.Equal(t, "low", got.Who)
	require.Equal(t, []string{"outer", "inner", "outer", "inner"}, around)
	capability, ok := c.Capability("demo")
	require.True(t, ok)
	require.JSONEq(t, `{"name":"high","type":"demo","priority":5,"exclusive":false,"region":"north"}`, string(capability.Metadata))
	_, err = a2e.CallAs[whoResponse](t.Context(), host(true), "demo/who/req", &ask{}, nil)
	require.ErrorIs(t, err, a2e.ErrUnsupported)
	require.Panics(t, func() {
		a2etest.NewHost(t, nil).AddPlugin(&a2e.Plugin{Name: "a"}).AddPlugin(&a2e.Plugin{Name: "a"})
	})
	require.Panics(t, func() {
		a2etest.NewHost(t, nil).AddPlugin(&a2e.Plugin{Name: "a", Types: []a2e.Type{a2e.TypeOf[ask]("ping")}})
	})
}

// The general error of a namespace contains no internal text (A2E-D51), and is logged (A2E-151).
func TestHandlerErrors(t *testing.T) {
	type ask struct {
		How string `json:"how,omitzero" jsonmap:"always"`
	}
	var log bytes.Buffer
	h := a2etest.NewHost(t, &a2e.HostOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	h.AddPlugin(&a2e.Plugin{Name: "demo", Capability: "demo", Routes: []a2e.Route{
		a2e.NewRoute("demo/ask/req", func(_ context.Context, _ *a2e.Call, r *ask) (*ask, error) {
			switch r.How {
			case "panic":
				panic("secret place /etc/x")
			case "error":
				return nil, errors.New("open /etc/secret: no")
			case "wire":
				return nil, a2e.Errorf("my_code", "for you").With("n", 1)
			case "bad":
				return &ask{How: "\xff"}, nil
			}
			return nil, nil
		})}})
	c := a2etest.Connect(t, h, nil)
	for how, want := range map[string]string{"panic": "runtime_error", "error": "runtime_error", "wire": "my_code", "bad": "runtime_error"} {
		_, err := c.Call(t.Context(), "demo/ask/req", &ask{How: how}, nil)
		var e *a2e.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, want, string(e.Code))
		require.True(t, e.Remote)
		require.Equal(t, "demo", e.Capability)
		require.NotContains(t, e.Error()+string(e.Details), "/etc")
	}
	require.Contains(t, log.String(), "/etc/secret")
	m, err := c.Call(t.Context(), "demo/ask/req", &ask{}, nil)
	require.NoError(t, err)
	require.Equal(t, "demo/ask/resp", m.Type)
}

// Requests on one object never overlap, and later requests wait for them (A2E-031, A2E-D27). The
// number of waiting requests is bounded.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type step struct {
			EpisodeID string `json:"episode_id,omitzero" jsonmap:"always"`
			Ms        int64  `json:"ms,omitzero" jsonmap:"always"`
		}
		var mu sync.Mutex
		var log []string
		h := a2etest.NewHost(t, &a2e.HostOptions{Limits: a2e.Limits{QueueLimitPerSession: 2}})
		h.AddPlugin(&a2e.Plugin{Name: "demo", Capability: "demo", Routes: []a2e.Route{
			a2e.NewRoute("demo/step/req", func(_ context.Context, call *a2e.Call, r *step) (*struct{}, error) {
				note := func(s string) { mu.Lock(); log = append(log, s+call.Message.ID); mu.Unlock() }
				note("+")
				time.Sleep(time.Duration(r.Ms) * time.Millisecond)
				note("-")
				return nil, nil
			})}})
		r := open(t, h)
		r.shake(`"demo"`)
		for i, line := range []string{`"e","ms":10`, `"e","ms":10`, `"f","ms":1`, `"g","ms":1`} {
			r.send(message("demo/step/req", fmt.Sprint(i), `,"episode_id":`+line))
		}
		require.Equal(t, a2e.ReasonOverloaded, wireError(t, r.next()).Reason)
		for range 3 {
			r.next()
		}
		synctest.Wait()
		require.Equal(t, []string{"+0", "-0"}, log[:2])
		require.ElementsMatch(t, []string{"+1", "+2"}, log[2:4], "both start as soon as the first is answered")
	})
}

// The host sends requests to its agent (A2E-127, A2E-128, A2E-D39); an unanswered request ends with
// the session.
func TestHostRequests(t *testing.T) {
	answers := make(chan *a2e.Message, 4)
	failed := make(chan error, 4)
	type ask struct{}
	h := a2etest.NewHost(t, nil)
	h.AddPlugin(&a2e.Plugin{Name: "demo", Capability: "demo", Routes: []a2e.Route{
		a2e.NewRoute("demo/back/req", func(ctx context.Context, call *a2e.Call, _ *ask) (*ask, error) {
			m, err := call.Session.Call(ctx, "mcp/root/list/req", nil)
			answers <- m
			failed <- err
			_, err = call.Session.Call(ctx, "demo/unknown/req", nil)
			failed <- err
			_, err = call.Session.Call(ctx, "mcp/sample/req", nil)
			failed <- err
			return nil, call.Session.Send(ctx, "demo/note/push", &a2e.EventBody{Kind: "x"})
		})}})
	c := a2etest.Connect(t, h, nil)
	pushed := make(chan *a2e.Message, 1)
	remove := c.OnPush("demo/note/push", func(m *a2e.Message) { pushed <- m })
	_, err := c.Call(t.Context(), "demo/back/req", &ask{}, nil)
	require.NoError(t, err)
	require.Equal(t, "mcp/root/list/resp", (<-answers).Type)
	require.NoError(t, <-failed)
	require.ErrorIs(t, <-failed, a2e.ErrUnsupported)
	require.NoError(t, <-failed)
	require.Equal(t, "demo/note/push", (<-pushed).Type)
	remove()

	c.Handle("demo/unknown/req", func(context.Context, *a2e.Message) (any, error) { return nil, errors.New("no") })
	c.Handle("mcp/root/list/req", func(context.Context, *a2e.Message) (any, error) { panic("on purpose") })
	c.Handle("mcp/sample/req", nil)
	any := make(chan *a2e.Message, 1)
	removeAny := c.OnMessage(func(m *a2e.Message) { any <- m })
	_, err = c.Call(t.Context(), "demo/back/req", &ask{}, nil)
	require.NoError(t, err)
	<-answers
	require.ErrorIs(t, <-failed, a2e.ErrRuntime)
	require.ErrorIs(t, <-failed, a2e.ErrRuntime)
	require.Equal(t, "demo/note/push", (<-any).Type)
	removeAny()
}

// A host that shuts down drains first (A2E-D35) and takes no new sessions.
func TestHostShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type ask struct{}
		h := a2etest.NewHost(t, nil)
		h.AddPlugin(&a2e.Plugin{Name: "demo", Capability: "demo", Routes: []a2e.Route{
			a2e.NewRoute("demo/slow/req", func(ctx context.Context, _ *a2e.Call, _ *ask) (*ask, error) {
				select {
				case <-time.After(3 * time.Second):
				case <-ctx.Done():
				}
				return nil, nil
			})}})
		c := a2etest.Connect(t, h, nil)
		var call sync.WaitGroup
		call.Go(func() {
			_, err := c.Call(t.Context(), "demo/slow/req", &ask{}, nil)
			require.NoError(t, err)
		})
		synctest.Wait()
		require.NoError(t, h.Shutdown(t.Context()))
		call.Wait()
		_, b := a2e.Pipe()
		require.ErrorIs(t, h.Serve(t.Context(), b), a2e.ErrClosed)
		<-c.Done()

		h2 := a2etest.NewHost(t, nil)
		h2.AddPlugin(&a2e.Plugin{Name: "demo", Capability: "demo", Routes: []a2e.Route{
			a2e.NewRoute("demo/slow/req", func(ctx context.Context, _ *a2e.Call, _ *ask) (*ask, error) { <-ctx.Done(); return nil, nil })}})
		c = a2etest.Connect(t, h2, nil)
		call.Go(func() {
			_, err := c.Call(t.Context(), "demo/slow/req", &ask{}, nil)
			require.ErrorIs(t, err, a2e.ErrTimeout)
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, h2.Shutdown(ctx), context.DeadlineExceeded)
		call.Wait()
		require.NoError(t, h2.Close())
	})
}

// A shutdown without a drain is complete if no request is in flight.
func TestShutdownWithoutDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started := make(chan struct{})
		plugin := &a2e.Plugin{Name: "demo", Capability: "demo", Routes: []a2e.Route{
			a2e.NewRoute("demo/wait/req", func(ctx context.Context, _ *a2e.Call, _ *noteRequest) (*noteResponse, error) {
				close(started)
				<-ctx.Done()
				return nil, nil
			})}}
		for _, agents := range []int{0, 1, 2} {
			h := a2etest.NewHost(t, &a2e.HostOptions{Timing: a2e.Timing{DrainTimeout: -1}}, plugin)
			var call sync.WaitGroup
			for n := range agents {
				c := a2etest.Connect(t, h, nil)
				if n > 0 {
					call.Go(func() {
						_, err := c.Call(t.Context(), "demo/wait/req", &noteRequest{}, nil)
						require.ErrorIs(t, err, a2e.ErrTimeout)
					})
					<-started
				}
			}
			start := time.Now()
			err := h.Shutdown(t.Context())
			if agents < 2 {
				require.NoError(t, err, agents)
			} else {
				require.ErrorIs(t, err, context.DeadlineExceeded)
			}
			require.Zero(t, time.Since(start))
			call.Wait()
		}
	})
}

// The authenticator judges, and may take its time (A2E-D22, A2E-150).
func TestAuthenticator(t *testing.T) {
	h := a2etest.NewHost(t, &a2e.HostOptions{Auth: a2e.Auth{Authenticator: a2e.AuthenticatorFunc(func(_ context.Context, r *a2e.HandshakeRequest) (*a2e.Principal, error) {
		switch r.AuthToken {
		case "panic":
			panic("on purpose")
		case "good":
			return &a2e.Principal{ID: "ann"}, nil
		}
		return nil, errors.New("who are you")
	})}})
	who := make(chan *a2e.Principal, 1)
	h.AddPlugin(&a2e.Plugin{Name: "demo", Capability: "demo", Routes: []a2e.Route{
		a2e.NewRoute("demo/who/req", func(_ context.Context, call *a2e.Call, _ *struct{}) (*struct{}, error) {
			who <- call.Session.Principal()
			return nil, nil
		})}})
	c := a2etest.Connect(t, h, &a2e.ClientOptions{Token: "good"})
	_, err := c.Call(t.Context(), "demo/who/req", &struct{}{}, nil)
	require.NoError(t, err)
	require.Equal(t, "ann", (<-who).ID)
	for _, token := range []string{"bad", "panic"} {
		agent, host := a2e.Pipe()
		serve(t, h, host)
		c := a2etest.Must(a2e.NewClient(agent, &a2e.ClientOptions{Token: token}))
		_, err := c.Connect(t.Context())
		var refused *a2e.HandshakeError
		require.ErrorAs(t, err, &refused)
		require.Equal(t, a2e.RejectAuthFailed, refused.Reason)
		_, err = c.Connect(t.Context())
		require.ErrorIs(t, err, a2e.ErrClosed)
	}
}

// Audit records are logged through slog, whose handler may rotate files (A2E-146), and a failing
// function fails no request (A2E-144, A2E-145, A2E-147).
func TestAuditLog(t *testing.T) {
	var out bytes.Buffer
	h := a2etest.NewHost(t, &a2e.HostOptions{Audit: a2e.AuditLog(slog.New(slog.NewJSONHandler(&out, nil))), AuditSessionID: "host-1"},
		a2etest.Must(tools.NewSet(nil)).Plugin())
	c := a2etest.Connect(t, h, nil)
	_, err := c.Call(t.Context(), "tool/list/req", &tools.ListRequest{}, nil)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.NoError(t, h.Close())
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 2)
	var line struct {
		A2E struct {
			Seq                               int
			Session, Operation, Outcome, Code string
		}
	}
	require.NoError(t, json.Unmarshal([]byte(lines[1]), &line))
	record := line.A2E
	require.Equal(t, 2, record.Seq)
	require.Equal(t, "host-1", record.Session)
	require.Equal(t, "tool/list/req", record.Operation)
	require.Equal(t, "ok", record.Outcome)
	h = a2etest.NewHost(t, &a2e.HostOptions{Audit: func(context.Context, *a2e.AuditRecord) { panic("full") }},
		a2etest.Must(tools.NewSet(nil)).Plugin())
	c = a2etest.Connect(t, h, nil)
	_, err = c.Call(t.Context(), "tool/list/req", &tools.ListRequest{}, nil)
	require.NoError(t, err)
}

// A push function that ends its goroutine keeps no later message back.
func TestPushFunctionEndsGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := a2etest.NewHost(t, nil, &a2e.Plugin{Name: "demo", Capability: "demo", Routes: []a2e.Route{
			a2e.NewRoute("demo/push/req", func(ctx context.Context, call *a2e.Call, _ *struct{}) (*struct{}, error) {
				for range 3 {
					require.NoError(t, call.Session.Send(ctx, "demo/push", nil))
				}
				return nil, nil
			})}})
		c := a2etest.Connect(t, h, &a2e.ClientOptions{Capabilities: []string{"demo"}})
		pushed := 0
		c.OnPush("demo/push", func(*a2e.Message) {
			pushed++
			runtime.Goexit()
		})
		_, err := c.Call(t.Context(), "demo/push/req", nil, nil)
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, 3, pushed)
	})
}

// A function for events, or the body of a loop over Stream, that panics or ends its goroutine cancels its call, and
// Shutdown does not wait for it.
func TestPanicForEventCancelsCall(t *testing.T) {
	type demo struct {
		Streaming bool `json:"streaming"`
	}
	for name, ending := range map[string]func(){"panic": func() { panic("event") }, "exit": runtime.Goexit} {
		for _, isStream := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				stopped := make(chan error, 1)
				h := a2etest.NewHost(t, nil)
				h.AddPlugin(&a2e.Plugin{Name: "demo", Capability: "demo", Routes: []a2e.Route{
					a2e.NewRoute("demo/wait/req", func(ctx context.Context, call *a2e.Call, _ *demo) (*struct{}, error) {
						require.NoError(t, call.Emit("log", nil))
						<-ctx.Done()
						stopped <- context.Cause(ctx)
						return nil, nil
					})}})
				c := a2etest.Connect(t, h, &a2e.ClientOptions{Capabilities: []string{"demo"}})
				done := make(chan struct{})
				go func() {
					defer close(done)
					defer func() { _ = recover() }()
					if isStream {
						for range c.Stream(t.Context(), "demo/wait/req", &demo{true}, nil) {
							ending()
						}
						return
					}
					_, _ = c.Call(t.Context(), "demo/wait/req", &demo{true}, &a2e.CallOptions{OnEvent: func(a2e.Event) { ending() }})
				}()
				<-done
				start := time.Now()
				require.ErrorIs(t, <-stopped, context.Canceled, name)
				require.NoError(t, c.Shutdown(t.Context()))
				require.Zero(t, time.Since(start))
			})
		}
	}
}

// An inline handler that ends the goroutine of its session fails its call, and ends the session.
func TestExitOfInlineHandlerEndsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := a2etest.NewHost(t, nil)
		r := a2e.NewRoute("demo/exit/req", func(context.Context, *a2e.Call, *struct{}) (*struct{}, error) {
			runtime.Goexit()
			return nil, nil
		})
		r.Inline = true
		h.AddPlugin(&a2e.Plugin{Name: "demo", Capability: "demo", Routes: []a2e.Route{r}})
		c := a2etest.Connect(t, h, nil)
		start := time.Now()
		_, err := c.Call(t.Context(), "demo/exit/req", nil, nil)
		require.ErrorIs(t, err, a2e.ErrRuntime)
		_, err = c.Call(t.Context(), "demo/exit/req", nil, nil)
		require.ErrorIs(t, err, a2e.ErrClosed)
		require.Zero(t, time.Since(start))
		require.Empty(t, h.Sessions())
	})
}

// The cancel extension stops the work on the host, if both ends have it.
func TestCancelExtension(t *testing.T) {
	started, stopped := make(chan struct{}), make(chan error, 1)
	h := a2etest.NewHost(t, nil)
	h.AddPlugin(&a2e.Plugin{Name: "demo", Capability: "demo", Routes: []a2e.Route{
		a2e.NewRoute("demo/wait/req", func(ctx context.Context, _ *a2e.Call, _ *struct{}) (*struct{}, error) {
			close(started)
			<-ctx.Done()
			stopped <- context.Cause(ctx)
			return nil, nil
		})}})
	c := a2etest.Connect(t, h, &a2e.ClientOptions{Capabilities: []string{"demo"}})
	require.Equal(t, []string{"cancel", "limits"}, c.PeerInfo().Features)
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	go func() { <-started; cancel(enough) }()
	_, err := c.Call(ctx, "demo/wait/req", &struct{}{}, nil)
	require.ErrorIs(t, err, enough)
	require.ErrorIs(t, <-stopped, context.Canceled)
}

// A host handles events too: those of its types and, through the fallback, all others (A2E-D16).
func TestEventsFromAgents(t *testing.T) {
	got := make(chan string, 3)
	h := a2etest.NewHost(t, &a2e.HostOptions{Fallback: a2e.HandlerFunc(func(_ context.Context, call *a2e.Call) (any, error) {
		got <- call.Message.Type
		return nil, nil
	})})
	h.AddPlugin(&a2e.Plugin{Name: "demo", Capability: "demo", Routes: []a2e.Route{
		a2e.NewEventRoute("demo/note/event", func(_ context.Context, call *a2e.Call, e *a2e.EventBody) error {
			got <- e.Kind + call.CorrelationID()
			return errors.New("not sent")
		})}})
	c := a2etest.Connect(t, h, nil)
	require.NoError(t, c.Send(t.Context(), "demo/note/event", &a2e.EventBody{Kind: "mine"}))
	require.Contains(t, <-got, "mine")
	require.NoError(t, c.Send(t.Context(), "other/note", nil))
	require.Equal(t, "other/note", <-got)
}
