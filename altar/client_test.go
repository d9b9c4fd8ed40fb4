// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fivewire/fivewire/altar/internal/transport"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/wsconn"
	"github.com/fivewire/fivewire/store"
	"github.com/stretchr/testify/require"
)

// A scripted is the connection of a client whose other end is a function of a
// test.
type scripted struct {
	sent   func(m Message) // may block
	in     chan Message
	once   sync.Once
	closed chan struct{}
}

func newScripted(sent func(m Message)) *scripted {
	return &scripted{sent: sent, in: make(chan Message, 16), closed: make(chan struct{})}
}

func (s *scripted) Send(m Message) error {
	s.sent(m)
	return nil
}

func (s *scripted) Receive() (Message, error) {
	select {
	case m := <-s.in:
		return m, nil
	case <-s.closed:
		return nil, io.EOF
	}
}

func (s *scripted) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

// A Host that takes connections only to drop them is not asked without a pause,
// and calls do not wait for it longer than for one that takes none.
func TestClientOfDroppingHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dials := 0
		c := must(NewClient(func(context.Context) (Conn, error) {
			dials++
			conn := newScripted(func(Message) {})
			return conn, conn.Close()
		}, nil))
		defer func() { require.NoError(t, c.Close()) }()
		for range 2 {
			dials = 0
			start := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			_, err := c.Session("s").Call(ctx, "tool", nil, nil)
			cancel()
			require.ErrorIs(t, err, ErrDisconnected)
			require.ErrorIs(t, err, io.EOF, "why the last connection was lost")
			require.InDelta(t, 25, time.Since(start).Seconds(), 1)
			require.Less(t, dials, 20)
			synctest.Wait()
		}
	})
}

// A first connection that a Host refuses since it shuts down, or that fails otherwise, is dialed again for calls and
// other requests, unless that would end alike (ALT-D45, ALT-D46).
func TestClientDialsAgain(t *testing.T) {
	refused := errors.New("connection refused")
	for name, failure := range map[string]error{"draining": remote(errDraining()), "refused": refused} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dials := 0
				c := must(NewClient(func(context.Context) (Conn, error) {
					if dials++; dials%3 != 0 {
						return nil, failure
					}
					var conn *scripted
					conn = newScripted(func(m Message) {
						switch m := m.(type) {
						case *ToolCall:
							conn.in <- &ToolResult{InvocationID: m.InvocationID, Payload: []byte("1")}
						case *CreateSession:
							conn.in <- &SessionCreated{SessionID: "s", header: m.header}
						}
					})
					return conn, nil
				}, nil))
				defer func() { require.NoError(t, c.Close()) }()
				_, err := c.Session("s").Call(t.Context(), "tool", nil, nil)
				require.NoError(t, err)
				require.Equal(t, 3, dials)
				c.mu.Lock()
				l := c.link
				c.mu.Unlock()
				l.close()
				synctest.Wait()
				_, err = c.CreateSession(t.Context(), nil)
				require.NoError(t, err)
				require.Equal(t, 6, dials)
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		failure := refused
		c := must(NewClient(func(context.Context) (Conn, error) { return nil, failure }, nil))
		defer func() { require.NoError(t, c.Close()) }()
		start := time.Now()
		_, err := c.Session("s").Call(t.Context(), "tool", nil, nil)
		require.ErrorIs(t, err, refused)
		require.InDelta(t, 25, time.Since(start).Seconds(), 1)
		start = time.Now()
		failure = errUnauthenticated()
		require.ErrorIs(t, c.Ping(t.Context()), ReasonUnauthenticated)
		require.Zero(t, time.Since(start))
	})
}

// A request without an answer is repeated if the Host closed the connection because it shut down: it did not take the
// request (ALT-D45).
func TestRequestAfterDrain(t *testing.T) {
	for code, wants := range map[int]error{wsconn.CodeShutdown: nil, wsconn.CodeNormal: ErrDisconnected} {
		conns := 0
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			conn, err := wsconn.Accept(w, r, &wsconn.AcceptOptions{Options: transport.WebSocketOptions(1<<20, 1<<20)})
			if err != nil {
				return
			}
			conns++
			frame, err := conn.Read(r.Context())
			if err != nil {
				return
			}
			m, _ := DecodeMessage(frame, len(frame))
			if conns == 2 {
				answer, _ := appendMessage(nil, &SessionCreated{SessionID: "s", TTLSeconds: 60, header: *m.head()}, true)
				_ = conn.Write(r.Context(), answer)
				_, _ = conn.Read(r.Context())
			}
			conn.Close(code, "")
		}))
		c := must(NewClient(func(ctx context.Context) (Conn, error) { return DialWebSocket(ctx, "ws"+srv.URL[4:], nil) }, nil))
		_, err := c.CreateSession(t.Context(), nil)
		require.ErrorIs(t, err, wants)
		require.NoError(t, c.Close())
		srv.Close()
	}
}

// A connection that is lost at the moment at which it is made is made again.
func TestClientLosesNewConnection(t *testing.T) {
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			var dials atomic.Int32
			c := must(NewClient(func(context.Context) (Conn, error) {
				n := dials.Add(1)
				var conn *scripted
				conn = newScripted(func(m Message) {
					if call, ok := m.(*ToolCall); ok && n == 5 {
						conn.in <- &ToolResult{InvocationID: call.InvocationID}
					}
				})
				if n < 5 {
					_ = conn.Close()
				}
				return conn, nil
			}, nil))
			defer func() { require.NoError(t, c.Close()) }()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := c.Session("s").Call(ctx, "tool", nil, nil)
			require.NoError(t, err, "dialled %d times", dials.Load())
		})
	}
}

// A call that waits for a Host that is silent after a new connection has its full
// time to find another one.
func TestClientLosesSilentConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dials := 0
		c := must(NewClient(func(context.Context) (Conn, error) {
			dials++
			n := dials
			var conn *scripted
			conn = newScripted(func(m Message) {
				if call, ok := m.(*ToolCall); ok && n == 3 {
					conn.in <- &ToolResult{InvocationID: call.InvocationID}
				}
			})
			if n < 3 {
				time.AfterFunc(time.Minute, func() { _ = conn.Close() })
			}
			return conn, nil
		}, &ClientOptions{Heartbeat: -1}))
		defer func() { require.NoError(t, c.Close()) }()
		start := time.Now()
		_, err := c.Session("s").Call(t.Context(), "tool", nil, nil)
		require.NoError(t, err)
		require.Equal(t, 2*time.Minute, time.Since(start))
	})
}

// ALT-D32: a call that is cancelled while it waits to be repeated over a new
// connection does not run after all.
func TestClientCancelsRepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		last := map[string]string{} // by invocation id
		gate := make(chan struct{})
		conns := make(chan *scripted, 2)
		first := true
		c := must(NewClient(func(context.Context) (Conn, error) {
			blocked := !first
			first = false
			conn := newScripted(func(m Message) {
				if blocked {
					<-gate
				}
				mu.Lock()
				defer mu.Unlock()
				switch m := m.(type) {
				case *ToolCall:
					last[m.InvocationID] = typeOf(m)
				case *CancelCall:
					last[m.InvocationID] = typeOf(m)
				}
			})
			conns <- conn
			return conn, nil
		}, nil))
		defer func() { require.NoError(t, c.Close()) }()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		const calls = 2100 // the last ones have to wait
		for i := range calls {
			wg.Go(func() {
				_, err := c.Session("s").Call(ctx, "tool", nil, &CallOptions{InvocationID: fmt.Sprint(i)})
				require.ErrorIs(t, err, context.Canceled)
			})
		}
		synctest.Wait()
		require.Len(t, last, calls)
		clear(last)
		require.NoError(t, (<-conns).Close())
		<-conns
		synctest.Wait()
		cancel()
		wg.Wait()
		close(gate)
		synctest.Wait()
		require.Len(t, last, calls)
		for id, typ := range last {
			require.Equal(t, "CancelCall", typ, id)
		}
	})
}

// A stream that has ended is not sent again after the loss of the connection, though its reader has not taken all of it.
func TestClientRepeatsNoEndedStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		var conn *scripted
		c := must(NewClient(func(context.Context) (Conn, error) {
			conn = newScripted(func(m Message) {
				if _, isCall := m.(*ToolCall); isCall { // the others are credits
					calls++
				}
			})
			return conn, nil
		}, &ClientOptions{Heartbeat: -1}))
		defer func() { require.NoError(t, c.Close()) }()
		read, proceed := 0, make(chan struct{})
		go func() {
			for _, err := range c.Session("s").Stream(t.Context(), "tool", nil, &CallOptions{InvocationID: "i"}) {
				require.NoError(t, err)
				read++
				<-proceed
			}
		}()
		synctest.Wait()
		for id := range int64(3) {
			conn.in <- &StreamChunk{InvocationID: "i", ChunkID: id, Payload: []byte("1"), IsFinal: id == 2}
		}
		synctest.Wait()
		require.NoError(t, conn.Close())
		time.Sleep(time.Minute)
		close(proceed)
		synctest.Wait()
		require.Equal(t, 3, read)
		require.Equal(t, 1, calls)
	})
}

// Changes to the options after a call has returned do not reach the tool, which may still run.
func TestClientKeepsMetadata(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, goOn, seen := make(chan struct{}), make(chan struct{}), make(chan string, 1)
		rt := must(NewRuntime("r1", nil))
		rt.Handle("get", HandlerFunc(func(_ context.Context, call *ToolCall) (any, error) {
			close(began)
			<-goOn
			seen <- call.Metadata["k"]
			return nil, nil
		}))
		s := start(t, directTransport, nil, rt)
		sess, err := s.c.CreateSession(t.Context(), nil)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		meta := map[string]string{"k": "before"}
		done := make(chan error, 1)
		go func() {
			_, err := sess.Call(ctx, "get", map[string]string{"key": "k"}, &CallOptions{Metadata: meta})
			done <- err
		}()
		<-began
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		meta["k"] = "after"
		close(goOn)
		require.Equal(t, "before", <-seen)
	})
}

// The same for a queued message.
func TestClientKeepsSessionParams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		var sent *CreateSession
		conn := newScripted(func(m Message) {
			<-goOn
			if m, ok := m.(*CreateSession); ok {
				sent = m
			}
		})
		c := must(NewClient(func(context.Context) (Conn, error) { return conn, nil }, nil))
		defer func() { require.NoError(t, c.Close()) }()
		ctx, cancel := context.WithCancel(t.Context())
		p := &CreateSessionParams{Metadata: map[string]string{"k": "before"}, SecurityContext: &SecurityContext{Claims: map[string]string{"k": "before"}}}
		done := make(chan error, 1)
		go func() {
			_, err := c.CreateSession(ctx, p)
			done <- err
		}()
		synctest.Wait()
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		p.Metadata["k"], p.SecurityContext.Claims["k"], p.SecurityContext.TenantID = "after", "after", "after"
		close(goOn)
		synctest.Wait()
		require.Equal(t, map[string]string{"k": "before"}, sent.Metadata)
		require.Equal(t, &SecurityContext{Claims: map[string]string{"k": "before"}}, sent.SecurityContext)
	})
}

// If each Host that a client reaches shuts down, a request fails after ReconnectTimeout, and Close ends it at once. The
// client does not dial without pauses (ALT-D45).
func TestClientOfDrainingHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dials := 0
		c := must(NewClient(func(context.Context) (Conn, error) {
			dials++
			var conn *scripted
			conn = newScripted(func(m Message) {
				switch m := m.(type) {
				case *ToolCall:
					conn.in <- &Ping{}
					conn.in <- &ToolResult{InvocationID: m.InvocationID, Error: errDraining()}
				case *CreateSession:
					conn.in <- &ErrorMessage{Err: errDraining(), header: m.header}
				}
			})
			return conn, nil
		}, nil))
		call := func() error {
			_, err := c.Session("s").Call(t.Context(), "t", nil, nil)
			return err
		}
		create := func() error {
			_, err := c.CreateSession(t.Context(), nil)
			return err
		}
		for _, f := range []func() error{call, create} {
			start := time.Now()
			dials = 0
			require.ErrorIs(t, f(), ReasonDraining)
			require.Equal(t, 25*time.Second, time.Since(start))
			require.Less(t, dials, 20)
		}
		var failed error
		var wg sync.WaitGroup
		wg.Go(func() { failed = call() })
		time.Sleep(time.Second)
		start := time.Now()
		require.NoError(t, c.Close())
		wg.Wait()
		require.ErrorIs(t, failed, ErrClosed)
		require.Less(t, time.Since(start), time.Second)
	})
}

// A client whose Host shuts down has its next calls at another Host behind the same name. Its running calls end at the
// first Host, and then their connection (ALT-D45).
func TestClientRetiresDrainingHost(t *testing.T) {
	for _, tr := range transports {
		t.Run(tr.name, func(t *testing.T) {
			db := store.NewMemory()
			running, release := make(chan struct{}), make(chan struct{})
			slow := must(NewRuntime("slow", nil))
			AddTool(slow, "wait", func(context.Context, waitIn) (string, error) {
				close(running)
				<-release
				return "waited", nil
			})
			opts := func(id string) *HostOptions {
				return &HostOptions{ID: id, Persistence: Persistence{Store: db}, Timing: Timing{CallTimeout: time.Minute}}
			}
			first := start(t, tr.dial, opts("first"), slow)
			second := start(t, tr.dial, opts("second"), testRuntime("quick", nil))
			var name atomic.Pointer[system]
			name.Store(first)
			c := must(NewClient(func(ctx context.Context) (Conn, error) { return name.Load().dial(testUser)(ctx) }, nil))
			t.Cleanup(func() { require.NoError(t, c.Close()) })
			sess, err := c.CreateSession(t.Context(), nil)
			require.NoError(t, err)

			var got string
			var failed, drained error
			var calls, shutdown sync.WaitGroup
			calls.Go(func() { got, failed = CallAs[string](t.Context(), sess, "wait", waitIn{}, nil) })
			<-running
			shutdown.Go(func() { drained = first.h.Shutdown(t.Context()) })
			require.Eventually(t, func() bool { return first.h.Ready() != nil }, time.Minute, time.Millisecond)
			if tr.name == "websocket" {
				_, err := first.dial(testUser)(t.Context())
				refused, ok := errors.AsType[*httpx.Error](err)
				require.True(t, ok, "%v", err)
				require.Equal(t, http.StatusServiceUnavailable, refused.Status)
			}
			name.Store(second)
			from, err := CallAs[string](t.Context(), sess, "get", map[string]string{"key": "k"}, nil)
			require.NoError(t, err)
			require.Equal(t, "quick", from)
			other, err := c.CreateSession(t.Context(), nil)
			require.NoError(t, err)
			require.NoError(t, other.Destroy(t.Context()))
			close(release)
			calls.Wait()
			require.NoError(t, failed)
			require.Equal(t, "waited", got)
			shutdown.Wait()
			require.NoError(t, drained)
			require.Eventually(t, func() bool {
				c.mu.Lock()
				defer c.mu.Unlock()
				return len(c.links) == 1
			}, time.Minute, time.Millisecond)
		})
	}
}

// A tool that fails like a Host that shuts down ends its call at once: its client neither dials again nor repeats the
// call. The second Runtime sends no metadata with its results.
func TestToolErrorIsNotDraining(t *testing.T) {
	for _, tr := range transports {
		t.Run(tr.name, func(t *testing.T) {
			rt := must(NewRuntime("r1", nil))
			var runs, dials atomic.Int64
			rt.Handle("get", HandlerFunc(func(context.Context, *ToolCall) (any, error) {
				runs.Add(1)
				return nil, errDraining()
			}))
			s := start(t, tr.dial, nil, rt)
			dial := s.dial(testUser)
			c := must(NewClient(func(ctx context.Context) (Conn, error) {
				dials.Add(1)
				return dial(ctx)
			}, nil))
			t.Cleanup(func() { require.NoError(t, c.Close()) })
			sess, err := c.CreateSession(t.Context(), nil)
			require.NoError(t, err)
			raw, err := s.dial(testService)(t.Context())
			require.NoError(t, err)
			t.Cleanup(func() { _ = raw.Close() })
			require.NoError(t, raw.Send(&AnnounceRuntime{RuntimeID: "raw", ProtocolVersion: ProtocolVersion}))
			_, err = raw.Receive()
			require.NoError(t, err)
			require.NoError(t, raw.Send(&FulfillTools{SessionID: "*", ToolNames: []string{"get"}}))
			var served sync.WaitGroup
			defer served.Wait()
			served.Go(func() {
				for {
					m, err := raw.Receive()
					if call, ok := m.(*ToolCall); ok {
						runs.Add(1)
						err = raw.Send(&ToolResult{InvocationID: call.InvocationID, Error: errDraining()})
					}
					if err != nil {
						return
					}
				}
			})
			require.Eventually(t, func() bool {
				tools, err := sess.ListTools(t.Context())
				return err == nil && len(tools) == 1 && len(tools[0].Runtimes) == 2
			}, time.Minute, time.Millisecond)
			began := dials.Load()
			for i, tool := range []string{"r1/get", "raw/get", "r1/get", "raw/get"} {
				_, err := sess.Call(t.Context(), tool, map[string]string{"key": "k"}, nil)
				require.ErrorIs(t, err, ReasonDraining)
				require.EqualValues(t, i+1, runs.Load())
				c.mu.Lock()
				require.Len(t, c.links, 1)
				c.mu.Unlock()
			}
			require.Equal(t, began, dials.Load())
			require.NoError(t, raw.Close())
		})
	}
}

// A call whose context has ended is not dispatched, on any transport.
func TestCallWithEndedContextIsNotDispatched(t *testing.T) {
	for _, tr := range transports {
		t.Run(tr.name, func(t *testing.T) {
			s := start(t, tr.dial, nil, testRuntime("r1", nil))
			sess, err := s.c.CreateSession(t.Context(), nil)
			require.NoError(t, err)
			canceled, cancel := context.WithCancel(t.Context())
			cancel()
			for range 10 {
				_, err = sess.Call(canceled, "fail", nil, nil)
				require.ErrorIs(t, err, context.Canceled)
			}
			_, err = sess.Call(t.Context(), "math/add", addIn{1, 2}, nil)
			require.NoError(t, err)
			require.Equal(t, uint64(1), s.h.Stats().Dispatched)
		})
	}
}

// The error of a request whose context has ended is the cause of that, wherever the request waits.
func TestClientReturnsCauseOfContext(t *testing.T) {
	cause := errors.New("the user has left")
	requests := map[string]func(ctx context.Context, s *Session) error{
		"ping": func(ctx context.Context, s *Session) error { return s.c.Ping(ctx) },
		"list": func(ctx context.Context, s *Session) error { _, err := s.ListTools(ctx); return err },
		"call": func(ctx context.Context, s *Session) error { _, err := s.Call(ctx, "tool", nil, nil); return err },
		"stream": func(ctx context.Context, s *Session) error {
			for _, err := range s.Stream(ctx, "tool", nil, nil) {
				return err
			}
			return nil
		},
	}
	dialers := map[string]func(ctx context.Context, h *Host) (Conn, error){
		"silent":    func(context.Context, *Host) (Conn, error) { return newScripted(func(Message) {}), nil },
		"no answer": func(ctx context.Context, _ *Host) (Conn, error) { <-ctx.Done(); return nil, ctx.Err() },
		"refused":   func(context.Context, *Host) (Conn, error) { return nil, errors.New("connection refused") },
		"direct":    func(_ context.Context, h *Host) (Conn, error) { return h.Dial(testUser) },
	}
	for where, dial := range dialers {
		for what, request := range requests {
			for _, delay := range []time.Duration{0, time.Second} {
				if where == "direct" && delay > 0 {
					continue // it answers at once
				}
				synctest.Test(t, func(t *testing.T) {
					h := testHost(t, nil)
					c := must(NewClient(func(ctx context.Context) (Conn, error) { return dial(ctx, h) }, nil))
					defer func() { require.NoError(t, c.Close()) }()
					ctx, cancel := context.WithCancelCause(t.Context())
					time.AfterFunc(delay, func() { cancel(cause) })
					if delay == 0 {
						cancel(cause)
					}
					require.ErrorIs(t, request(ctx, c.Session("s")), cause, "%s, %s", where, what)
				})
			}
		}
	}
}

// The longest durations are no bound.
func TestLongestDurations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, pipeTransport, nil, testRuntime("r1", nil))
		sess, err := s.c.CreateSession(t.Context(), &CreateSessionParams{TTL: math.MaxInt64})
		require.NoError(t, err)
		require.Equal(t, 24*time.Hour, sess.TTL())
		_, err = sess.Call(t.Context(), "wait", waitIn{50_000}, &CallOptions{Timeout: math.MaxInt64})
		require.NoError(t, err)
		sess, err = s.c.CreateSession(t.Context(), &CreateSessionParams{TTL: 1500 * time.Millisecond})
		require.NoError(t, err)
		require.Equal(t, 2*time.Second, sess.TTL())
	})
}
