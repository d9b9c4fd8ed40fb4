// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
)

// desk is a server with some handlers, served over real sockets.
type desk struct {
	*accp.Server
	ts     *httptest.Server
	client *http.Client

	mu       sync.Mutex
	failures int           // how often req:flaky fails yet
	code     accp.Code     // with which code
	began    chan struct{} // gets one for every req:slow that runs
	ended    chan error    // gets what ended the context of a req:slow
}

func newDesk(t testing.TB, opts *accp.ServerOptions) *desk {
	t.Helper()
	s, err := accp.NewServer("server", opts)
	require.NoError(t, err)
	d := &desk{Server: s, code: accp.ErrToolExecFailed, began: make(chan struct{}, 10000), ended: make(chan error, 10000)}
	s.HandleFunc("req", "echo", func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error { return w.SendResult(m.Params) })
	s.HandleFunc("req", "flaky", func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.failures > 0 {
			d.failures--
			return d.code
		}
		return w.SendResult(accp.Params{text("cid", m.Chain()), text("mid", m.Meta.MID)})
	})
	s.HandleFunc("req", "slow", func(ctx context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		d.began <- struct{}{}
		<-ctx.Done()
		d.ended <- context.Cause(ctx)
		return ctx.Err()
	})
	s.HandleFunc("req", "count", func(ctx context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		v, _ := m.Params.Get("n")
		n, _ := v.Int()
		for i := range n {
			if err := w.Send(chunk(m.Op, i, n, accp.Int(i))); err != nil {
				return err
			}
		}
		return nil
	})
	s.HandleFunc("req", "cut", func(ctx context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		return w.Send(chunk(m.Op, 0, 2, accp.Int(0)))
	})
	s.HandleFunc("req", "panic", func(context.Context, *accp.ReplyWriter, *accp.Message) error { panic("secret") })
	s.HandleFunc("req", "secret", func(context.Context, *accp.ReplyWriter, *accp.Message) error {
		return fmt.Errorf("opening /etc/shadow: %w", errors.New("denied"))
	})
	d.ts = httptest.NewServer(s)
	d.client = &http.Client{Transport: &http.Transport{}}
	t.Cleanup(func() {
		require.NoError(t, s.Close(context.Background()))
		d.client.CloseIdleConnections()
		d.ts.Close()
	})
	return d
}

// until waits for what other goroutines bring about. How long that takes is the
// machine's affair; what never comes is ended by the time limit of the run.
func until(ok func() bool) {
	for !ok() {
		time.Sleep(time.Millisecond)
	}
}

func chunk(op string, i, n int64, v accp.Value) *accp.Message {
	return msg(accp.IntentStream, op, accp.Param{Key: "chunk_index", Value: accp.Int(i)},
		accp.Param{Key: "total_chunks", Value: accp.Int(n)}, accp.Param{Key: "data", Value: v},
		accp.Param{Key: "is_final", Value: accp.Bool(i == n-1)}, text("schema", accp.SchemaStream))
}

func (d *desk) dial(t testing.TB, opts *accp.DialOptions) *accp.Conn {
	t.Helper()
	if opts == nil {
		opts = &accp.DialOptions{}
	}
	o := *opts
	if o.HTTPClient == nil {
		o.HTTPClient = d.client
	}
	c, err := accp.Dial(t.Context(), "ws"+strings.TrimPrefix(d.ts.URL, "http")+accp.WebSocketPath, "client", &o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func (d *desk) http(t testing.TB, opts *accp.ClientOptions) *accp.Client {
	t.Helper()
	if opts == nil {
		opts = &accp.ClientOptions{}
	}
	o := *opts
	if o.HTTPClient == nil {
		o.HTTPClient = d.client
	}
	c, err := accp.NewClient(d.ts.URL+accp.FramesPath, "client", &o)
	require.NoError(t, err)
	return c
}

// A caller is what both bindings offer (ACCP-160: frames do not depend on the
// transport).
type caller interface {
	Call(context.Context, *accp.Message) (*accp.Message, error)
	Do(context.Context, *accp.Message) iter.Seq2[*accp.Message, error]
	Stream(context.Context, *accp.Message) iter.Seq2[accp.Value, error]
	Sync(context.Context, accp.Params) error
	Session() *accp.Session
}

// both runs a test over HTTP (ACCP-153) and over WebSocket (ACCP-157).
func both(t *testing.T, d *desk, f func(t *testing.T, c caller)) {
	t.Run("http", func(t *testing.T) { f(t, d.http(t, nil)) })
	t.Run("websocket", func(t *testing.T) { f(t, d.dial(t, nil)) })
}

func collect(seq iter.Seq2[accp.Value, error]) (list []int64, err error) {
	for v, err := range seq {
		if err != nil {
			return list, err
		}
		n, _ := v.Int()
		list = append(list, n)
	}
	return list, nil
}

// The same exchanges over both bindings give the same (ACCP-160, ACCP-071, ACCP-072,
// ACCP-073, ACCP-079, ACCP-081, ACCP-082).
func TestCalls(t *testing.T) {
	d := newDesk(t, nil)
	both(t, d, func(t *testing.T, c caller) {
		ctx := t.Context()
		m, err := c.Call(ctx, msg("req", "echo", text("k", "a b|c")))
		require.NoError(t, err)
		require.Equal(t, accp.IntentDone, m.Intent)
		require.Equal(t, "a b|c", m.Params.Text("k"))
		require.NotEmpty(t, m.Meta.CID, "every answer names its chain (ACCP-041)")
		require.Equal(t, c.Session().ID(), m.Meta.SID)

		for _, intent := range []accp.Intent{"done", "wait", "esc", "comp", "end", "stream"} {
			q := msg(intent, "work")
			m, err = c.Call(ctx, q)
			require.NoError(t, err, intent)
			require.Equal(t, accp.IntentAck, m.Intent, intent)
			require.Equal(t, "work", m.Op)
		}
		m, err = c.Call(ctx, msg("ping", "heartbeat"))
		require.NoError(t, err)
		require.Equal(t, accp.IntentPong, m.Intent, "ACCP-D50")

		_, err = c.Call(ctx, msg("req", "nothing"))
		var e *accp.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, accp.ErrInvalidIntent, e.Code)
		require.True(t, e.Remote)

		list, err := collect(c.Stream(ctx, msg("req", "count", accp.Param{Key: "n", Value: accp.Int(500)})))
		require.NoError(t, err)
		require.Len(t, list, 500)
		for i, n := range list {
			require.EqualValues(t, i, n)
		}
		m, err = c.Call(ctx, msg("req", "echo"))
		require.NoError(t, err)
		require.Equal(t, accp.IntentDone, m.Intent)
	})
}

// What goes wrong in a handler is an internal error to the peer and nothing more,
// and the session goes on.
func TestHandlerFailures(t *testing.T) {
	d := newDesk(t, nil)
	run := func(t *testing.T, c caller) {
		for _, op := range []string{"panic", "secret"} {
			_, err := c.Call(t.Context(), msg("req", op))
			require.ErrorIs(t, err, accp.ErrInternal, op)
			require.NotContains(t, err.Error(), "secret")
			require.NotContains(t, err.Error(), "shadow")
		}
		_, err := c.Call(t.Context(), msg("req", "echo"))
		require.NoError(t, err)
	}
	t.Run("http", func(t *testing.T) { run(t, d.http(t, &accp.ClientOptions{Tries: 1})) })
	t.Run("websocket", func(t *testing.T) { run(t, d.dial(t, &accp.DialOptions{Tries: 1})) })
}

// A stream that stops before its final chunk is never a finished one (ACCP-148).
func TestTruncatedStream(t *testing.T) {
	d := newDesk(t, nil)
	list, err := collect(d.http(t, nil).Stream(t.Context(), msg("req", "cut")))
	require.ErrorIs(t, err, accp.ErrTruncated)
	require.Equal(t, []int64{0}, list)
	list, err = collect(d.dial(t, &accp.DialOptions{Timeout: 2 * time.Second, Tries: 1}).Stream(t.Context(), msg("req", "cut")))
	require.ErrorIs(t, err, accp.ErrTimeout)
	require.Equal(t, []int64{0}, list)
}

// A failure that passes is tried again, in the chain of the first try with a new
// message id (ACCP-068, ACCP-D29); a final one is not.
func TestRetries(t *testing.T) {
	d := newDesk(t, nil)
	set := func(n int, code accp.Code) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.failures, d.code = n, code
	}
	left := func() int {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.failures
	}
	both(t, d, func(t *testing.T, c caller) {
		set(1, accp.ErrToolExecFailed)
		m, err := c.Call(t.Context(), msg("req", "flaky"))
		require.NoError(t, err)
		require.NotEqual(t, m.Params.Text("cid"), m.Params.Text("mid"), "the chain is that of the first try, the id a new one")
		require.Equal(t, m.Params.Text("cid"), m.Meta.CID)

		set(10, accp.ErrPolicyDenied)
		_, err = c.Call(t.Context(), msg("req", "flaky"))
		require.ErrorIs(t, err, accp.ErrPolicyDenied)
		require.Equal(t, 9, left(), "a final code is not tried again")

		// ACCP-144, ACCP-170: a transaction is sent again only if it has an id.
		set(10, accp.ErrToolExecFailed)
		_, err = c.Call(t.Context(), msg("req", "flaky", text("schema", "TX"), text("account", "a")))
		require.ErrorIs(t, err, accp.ErrToolExecFailed)
		require.Equal(t, 9, left())
		set(1, accp.ErrToolExecFailed)
		m, err = c.Call(t.Context(), msg("req", "flaky", text("schema", "TX"), text("txn", "t1")))
		require.NoError(t, err)
		require.NotEqual(t, m.Params.Text("cid"), m.Params.Text("mid"))

		// Never past the time to live.
		set(10, accp.ErrToolExecFailed)
		q := msg("req", "flaky")
		q.Meta = &accp.Meta{TTL: accp.NewOptionalInt(1), CID: "chain1"}
		_, err = c.Call(t.Context(), q)
		require.Error(t, err) // of the tool, or, on a machine that stands still, of the time to live
		require.GreaterOrEqual(t, left(), 8, "a third try would come after 1.5 s")

		// The end of the context ends the waiting.
		set(10, accp.ErrToolExecFailed)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err = c.Call(ctx, msg("req", "flaky"))
		require.ErrorIs(t, err, accp.ErrTimeout)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

// The end of a call's context ends the work on the other side (ACCP-069).
func TestContextEndsWork(t *testing.T) {
	d := newDesk(t, nil)
	both(t, d, func(t *testing.T, c caller) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := c.Call(ctx, msg("req", "slow"))
			done <- err
		}()
		<-d.began
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		require.Error(t, <-d.ended)
		_, err := c.Call(t.Context(), msg("req", "echo"))
		require.NoError(t, err)
	})
}

// A cancel frame ends the calls of its chain on both sides, also the one that runs
// (ACCP-069, ACCP-080, ACCP-D28).
func TestCancelFrameEndsCall(t *testing.T) {
	d := newDesk(t, nil)
	both(t, d, func(t *testing.T, c caller) {
		q := msg("req", "slow")
		q.Meta = &accp.Meta{CID: "work1"}
		done := make(chan error)
		go func() {
			_, err := c.Call(t.Context(), q)
			done <- err
		}()
		<-d.began
		stop := msg("cancel", "slow")
		stop.Meta = &accp.Meta{CID: "work1"}
		_, err := c.Call(t.Context(), stop)
		require.NoError(t, err)
		require.ErrorIs(t, <-done, accp.ErrCancelled)
		require.Error(t, <-d.ended)
		_, err = c.Call(t.Context(), q)
		require.ErrorIs(t, err, accp.ErrCancelled, "a chain that ended stays so")
	})
}

// Leaving a stream early ends it at the sender.
func TestLeavingAStream(t *testing.T) {
	ended := make(chan error, 2)
	d := newDesk(t, nil)
	d.HandleFunc("req", "endless", func(ctx context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		for i := int64(0); ; i++ {
			if err := w.Send(chunk(m.Op, i, 1<<40, accp.Int(i))); err != nil || ctx.Err() != nil {
				ended <- err
				return err
			}
			time.Sleep(time.Millisecond)
		}
	})
	both(t, d, func(t *testing.T, c caller) {
		n := 0
		for _, err := range c.Stream(t.Context(), msg("req", "endless")) {
			require.NoError(t, err)
			if n++; n == 5 {
				break
			}
		}
		<-ended
	})
}

// A message above the token limits travels in parts and is answered once.
func TestPartsTravel(t *testing.T) {
	d := newDesk(t, nil)
	both(t, d, func(t *testing.T, c caller) {
		for _, cid := range []string{"", "chain1"} {
			m := msg("req", "echo")
			for i := range 60 {
				m.Params = append(m.Params, text(fmt.Sprintf("note%02d", i), "some words about the task at hand"))
			}
			if cid != "" {
				m.Meta = &accp.Meta{CID: cid}
			}
			var got []*accp.Message
			for r, err := range c.Do(t.Context(), m) {
				require.NoError(t, err)
				got = append(got, r)
			}
			require.Len(t, got, 1)
			require.True(t, got[0].Params.Equal(m.Params))
			m.Intent = "done" // answered by ack, as the parts are
			m.Meta = nil
			got = nil
			for r, err := range c.Do(t.Context(), m) {
				require.NoError(t, err)
				got = append(got, r)
			}
			require.Len(t, got, 1)
			require.Equal(t, accp.IntentAck, got[0].Intent)
		}
		require.NotZero(t, c.Session().Stats().Sent)
	})
}

// Registries are exchanged over both bindings (ACCP-113, ACCP-158).
func TestHelloOverBindings(t *testing.T) {
	d := newDesk(t, nil)
	schema := accp.Schema{Name: "note", Code: "NO", Version: 1, Fields: []string{"text"}, Abbr: map[string]string{"t": "text"}}
	c := d.http(t, &accp.ClientOptions{SessionID: "h1", MaxConcurrent: 2})
	synced, err := c.SyncRegistry(t.Context())
	require.NoError(t, err)
	require.True(t, synced)
	_, err = c.Session().Register(schema)
	require.NoError(t, err)
	synced, err = c.SyncRegistry(t.Context())
	require.NoError(t, err)
	require.True(t, synced)
	s, ok := d.Session("h1")
	require.True(t, ok)
	require.Equal(t, []string{"NO"}, s.Registry().Codes())
	other, ok := d.Session("h1_2")
	require.True(t, ok)
	require.Empty(t, other.Registry().Codes(), "what a peer sends is valid for its session only")
	m, err := c.Call(t.Context(), msg("req", "echo", text("schema", "NO"), text("text", "x")))
	require.NoError(t, err)
	require.Equal(t, "x", m.Params.Text("text"))

	r := accp.NewRegistry()
	require.NoError(t, r.Register(schema))
	conn := d.dial(t, &accp.DialOptions{SessionID: "w1", Session: accp.SessionOptions{Registry: r}})
	until(func() bool {
		s, ok := d.Session("w1")
		return ok && len(s.Registry().Codes()) == 1
	})
	m, err = conn.Call(t.Context(), msg("req", "echo", text("schema", "note"), text("text", "x")))
	require.NoError(t, err)
	require.Equal(t, "NO", m.Schema())
}

// Deltas over both bindings; a peer that lost its state is sent all of it (ACCP-098,
// ACCP-099, ACCP-D46).
func TestSyncOverBindings(t *testing.T) {
	d := newDesk(t, nil)
	both(t, d, func(t *testing.T, c caller) {
		state := accp.Params{text("phase", "plan"), {Key: "n", Value: accp.Int(1)}}
		require.NoError(t, c.Sync(t.Context(), state))
		require.NoError(t, c.Sync(t.Context(), state), "nothing to send")
		state = state.Set("n", accp.Int(2))
		require.NoError(t, c.Sync(t.Context(), state))
		s, ok := d.Session(c.Session().ID())
		require.True(t, ok)
		v, got := s.State()
		require.EqualValues(t, 2, v)
		require.True(t, got.Equal(state))

		// The other side changes its state meanwhile, so the next version is stale.
		_, err := s.Sync(t.Context(), state.Set("n", accp.Int(9)))
		require.NoError(t, err)
		state = accp.Params{text("phase", "done")}
		require.NoError(t, c.Sync(t.Context(), state))
		_, got = s.State()
		require.True(t, got.Equal(state))
	})
	require.Error(t, d.http(t, &accp.ClientOptions{MaxConcurrent: 2}).Sync(t.Context(), nil))
}

// Calls run side by side over one connection, and over HTTP in sessions of their
// own.
func TestLoad(t *testing.T) {
	d := newDesk(t, nil)
	run := func(t *testing.T, c caller, workers int) {
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				for i := range 25 {
					want := fmt.Sprint(w, "-", i)
					m, err := c.Call(t.Context(), msg("req", "echo", text("k", want)))
					if err != nil || m.Params.Text("k") != want {
						t.Errorf("%s: %v %v", want, m, err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	t.Run("http", func(t *testing.T) { run(t, d.http(t, nil), 8) })
	t.Run("http parallel", func(t *testing.T) { run(t, d.http(t, &accp.ClientOptions{MaxConcurrent: 8}), 8) })
	t.Run("websocket", func(t *testing.T) { run(t, d.dial(t, nil), 32) })
	t.Run("connections", func(t *testing.T) {
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() { run(t, d.dial(t, nil), 4) })
		}
		wg.Wait()
	})
	t.Run("flood", func(t *testing.T) { // far more in flight than the queues hold
		c := d.dial(t, nil)
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() {
				if _, err := c.Call(t.Context(), msg("done", "work", text("note", strings.Repeat("x", 300)))); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
}

// An exchange waits for its turn only as long as it may, and a call inside a loop
// does not wait for ever.
func TestTurns(t *testing.T) {
	d := newDesk(t, nil)
	c := d.http(t, &accp.ClientOptions{Timeout: time.Second, Tries: 1})
	for _, err := range c.Do(t.Context(), msg("req", "echo")) {
		require.NoError(t, err)
		_, err := c.Call(t.Context(), msg("req", "echo"))
		require.ErrorIs(t, err, accp.ErrTimeout)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = c.Call(ctx, msg("req", "echo"))
		require.ErrorIs(t, err, context.Canceled)
	}
	c = d.http(t, &accp.ClientOptions{MaxConcurrent: 2})
	for _, err := range c.Do(t.Context(), msg("req", "echo")) {
		require.NoError(t, err)
		_, err := c.Call(t.Context(), msg("req", "echo"))
		require.NoError(t, err)
	}
}

func TestConstructorsRefuse(t *testing.T) {
	for _, u := range []string{"", "ftp://x", "/path", "http://", "::"} {
		_, err := accp.NewClient(u, "a", nil)
		require.Error(t, err, u)
	}
	_, err := accp.NewClient("http://localhost", "no name", nil)
	require.ErrorIs(t, err, accp.ErrParse)
	_, err = accp.NewServer("", nil)
	require.ErrorIs(t, err, accp.ErrParse)
	_, err = accp.NewSession("", "", nil)
	require.ErrorIs(t, err, accp.ErrParse)
	_, err = accp.Dial(t.Context(), "ws://localhost", "no name", nil)
	require.ErrorIs(t, err, accp.ErrParse)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	_, err = accp.Dial(t.Context(), "ws://"+l.Addr().String(), "a", nil)
	require.ErrorIs(t, err, accp.ErrTimeout)
	s, err := accp.NewServer("a", nil)
	require.NoError(t, err)
	h := accp.HandlerFunc(func(context.Context, *accp.ReplyWriter, *accp.Message) error { return nil })
	s.Handle("req", "x", h)
	require.PanicsWithValue(t, "accp: handler for req:x registered twice", func() { s.Handle("req", "x", h) })
	require.NoError(t, s.Close(t.Context()))
	require.NoError(t, s.Close(t.Context()))
}
