// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/profile"
	"github.com/fivewire/fivewire/internal/wsconn"
	"github.com/fivewire/fivewire/store"
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
	causes   chan error    // gets what ended the context of a req:slow
}

func newDesk(t testing.TB, opts *accp.ServerOptions) *desk {
	t.Helper()
	var o accp.ServerOptions
	if opts != nil {
		o = *opts
	}
	o.Auth.AllowAnonymous = true
	s, err := accp.NewServer("server", &o)
	require.NoError(t, err)
	d := &desk{Server: s, code: accp.ErrToolExecFailed, began: make(chan struct{}, 10000), causes: make(chan error, 10000)}
	s.Handle("req", "echo", accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error { return w.SendResult(m.Params) }))
	s.Handle("req", "flaky", accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.failures > 0 {
			d.failures--
			return d.code
		}
		return w.SendResult(accp.Params{text("cid", m.Chain()), text("mid", m.Meta.MID)})
	}))

	s.Handle("req", "slow", accp.HandlerFunc(func(ctx context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		d.began <- struct{}{}
		<-ctx.Done()
		d.causes <- context.Cause(ctx)
		return ctx.Err()
	}))

	s.Handle("req", "count", accp.HandlerFunc(func(ctx context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		v, _ := m.Params.Get("n")
		n, _ := v.Int()
		for i := range n {
			if err := w.Send(chunk(m.Op, i, n, accp.Int(i))); err != nil {
				return err
			}
		}
		return nil
	}))

	s.Handle("req", "cut", accp.HandlerFunc(func(ctx context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		return w.Send(chunk(m.Op, 0, 2, accp.Int(0)))
	}))

	s.Handle("req", "panic", accp.HandlerFunc(func(context.Context, *accp.ReplyWriter, *accp.Message) error { panic("hidden words") }))
	s.Handle("req", "secret", accp.HandlerFunc(func(context.Context, *accp.ReplyWriter, *accp.Message) error {
		return fmt.Errorf("opening /etc/shadow: %w", errors.New("denied"))
	}))

	d.ts = httptest.NewServer(s)
	d.client = &http.Client{Transport: &http.Transport{}}
	t.Cleanup(func() {
		require.NoError(t, s.Shutdown(context.Background()))
		d.client.CloseIdleConnections()
		d.ts.Close()
	})
	return d
}

// until waits for other goroutines without a deadline; the time limit of the test run ends it.
func until(ok func() bool) {
	for !ok() {
		time.Sleep(time.Millisecond)
	}
}

func chunk(op string, i, n int64, v accp.Value) *accp.Message {
	return msg(accp.IntentStream, op, accp.Param{Key: "chunk_index", Value: accp.Int(i)},
		accp.Param{Key: "total_chunks", Value: accp.Int(n)}, accp.Param{Key: "data", Value: v},
		accp.Param{Key: "is_final", Value: accp.Bool(i == n-1)}, text("schema", profile.SchemaStream))
}

func (d *desk) dial(t testing.TB, opts *accp.ClientOptions) *accp.Client {
	t.Helper()
	if opts == nil {
		opts = &accp.ClientOptions{}
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
	Call(context.Context, *accp.Message, *accp.CallOptions) (*accp.Message, error)
	Replies(context.Context, *accp.Message, *accp.CallOptions) iter.Seq2[*accp.Message, error]
	Stream(context.Context, *accp.Message, *accp.CallOptions) iter.Seq2[accp.Value, error]
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
		m, err := c.Call(ctx, msg("req", "echo", text("k", "a b|c")), nil)
		require.NoError(t, err)
		require.Equal(t, accp.IntentDone, m.Intent)
		require.Equal(t, "a b|c", m.Params.Text("k"))
		require.NotEmpty(t, m.Meta.CID, "every answer names its chain (ACCP-041)")
		require.Equal(t, c.Session().ID(), m.Meta.SID)

		for _, intent := range []accp.Intent{"done", "wait", "esc", "comp", "end", "stream"} {
			q := msg(intent, "work")
			m, err = c.Call(ctx, q, nil)
			require.NoError(t, err, intent)
			require.Equal(t, accp.IntentAck, m.Intent, intent)
			require.Equal(t, "work", m.Op)
		}
		m, err = c.Call(ctx, msg("ping", "heartbeat"), nil)
		require.NoError(t, err)
		require.Equal(t, accp.Intent("pong"), m.Intent, "ACCP-D50")

		_, err = c.Call(ctx, msg("req", "nothing"), nil)
		var e *accp.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, accp.ErrInvalidIntent, e.Code)
		require.True(t, e.Remote)

		values := c.Stream(ctx, msg("req", "count", accp.Param{Key: "n", Value: accp.Int(500)}), nil)
		list, err := collect(values)
		_, errAgain := collect(values)
		require.ErrorContains(t, errAgain, "ranged over once only", "the message is not sent again")
		require.NoError(t, err)
		require.Len(t, list, 500)
		for i, n := range list {
			require.EqualValues(t, i, n)
		}
		m, err = c.Call(ctx, msg("req", "echo"), nil)
		require.NoError(t, err)
		require.Equal(t, accp.IntentDone, m.Intent)
	})
}

// A failure of a handler is an internal error for the peer, and the session continues.
func TestHandlerFailures(t *testing.T) {
	d := newDesk(t, nil)
	run := func(t *testing.T, c caller) {
		for _, op := range []string{"panic", "secret"} {
			_, err := c.Call(t.Context(), msg("req", op), nil)
			require.ErrorIs(t, err, accp.ErrInternal, op)
			require.NotContains(t, err.Error(), "hidden")
			require.NotContains(t, err.Error(), "shadow")
		}
		_, err := c.Call(t.Context(), msg("req", "echo"), nil)
		require.NoError(t, err)
	}
	t.Run("http", func(t *testing.T) { run(t, d.http(t, &accp.ClientOptions{Retry: &accp.RetryPolicy{MaxAttempts: -1}})) })
	t.Run("websocket", func(t *testing.T) { run(t, d.dial(t, &accp.ClientOptions{Retry: &accp.RetryPolicy{MaxAttempts: -1}})) })
}

// A stream that stops before its final chunk is never a finished one (ACCP-148).
func TestTruncatedStream(t *testing.T) {
	d := newDesk(t, nil)
	for _, c := range []caller{d.http(t, nil), d.dial(t, nil)} {
		list, err := collect(c.Stream(t.Context(), msg("req", "cut"), nil))
		require.ErrorIs(t, err, accp.ErrTruncated, "%T", c)
		require.ErrorIs(t, err, accp.ErrSequenceGap, "the server ends the stream")
		require.Equal(t, []int64{0}, list)
	}
}

// Only a handler that leaves a stream open to a waiting peer is completed by an end.
func TestStreamsWithoutEnd(t *testing.T) {
	d := newDesk(t, nil)
	d.Handle("req", "backwards", accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		return errors.Join(w.Send(chunk(m.Op, 1, 2, accp.Int(1))), w.Send(chunk(m.Op, 0, 2, accp.Int(0))))
	}))
	d.Handle("req", "pause", accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		return errors.Join(w.Send(chunk(m.Op, 0, 2, accp.Int(0))), w.Send(msg("wait", m.Op)))
	}))
	for op, want := range map[string][]accp.Intent{"backwards": {"stream", "stream"}, "pause": {"stream", "wait"}} {
		var intents []accp.Intent
		for m, err := range d.http(t, nil).Replies(t.Context(), msg("req", op), nil) {
			require.NoError(t, err)
			intents = append(intents, m.Intent)
		}
		require.Equal(t, want, intents, op)
	}

	// A handler that its client has left has no outcome, so a repetition runs it.
	runs := 0
	d.Handle("req", "left", accp.HandlerFunc(func(ctx context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		runs++
		err := w.Send(chunk(m.Op, 0, 2, accp.Int(0)))
		if runs == 1 {
			<-ctx.Done()
			return nil
		}
		return errors.Join(err, w.Send(chunk(m.Op, 1, 2, accp.Int(1))))
	}))
	c, m := d.http(t, &accp.ClientOptions{SessionID: "s"}), msg("req", "left")
	m.Meta = &accp.Meta{CID: "c"}
	for _, err := range c.Replies(t.Context(), m, nil) {
		require.NoError(t, err)
		break
	}
	m.Meta.Ext = accp.Params{{Key: "try", Value: accp.Int(2)}}
	list, err := collect(c.Stream(t.Context(), m, nil))
	require.NoError(t, err)
	require.Equal(t, []int64{0, 1}, list)
	require.Equal(t, 2, runs)
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
	repeatable := &accp.CallOptions{Idempotent: true}
	both(t, d, func(t *testing.T, c caller) {
		// A handler that failed is not run again unasked, whatever its id (ACCP-144, ACCP-170).
		for _, m := range []*accp.Message{msg("req", "flaky"), msg("req", "flaky", text("schema", "TX"), text("txn", "t1"))} {
			for _, code := range []accp.Code{accp.ErrToolExecFailed, accp.ErrInternal, accp.ErrTimeout} {
				set(10, code)
				_, err := c.Call(t.Context(), m, nil)
				require.ErrorIs(t, err, code)
				require.Equal(t, 9, left())
			}
		}
		set(10, accp.ErrInternal)
		for _, key := range []string{"txn", "transaction_id"} {
			_, err := c.Call(t.Context(), msg("req", "flaky", text("schema", "TX"), text(key, "")), repeatable)
			require.ErrorIs(t, err, accp.ErrInvalidType, "an empty id makes all transactions one")
		}
		require.Equal(t, 10, left(), "no handler ran")
		set(1, accp.ErrToolExecFailed)
		m, err := c.Call(t.Context(), msg("req", "flaky"), repeatable)
		require.NoError(t, err)
		require.NotEqual(t, m.Params.Text("cid"), m.Params.Text("mid"), "the chain is that of the first try, the id a new one")
		require.Equal(t, m.Params.Text("cid"), m.Meta.CID)

		set(10, accp.ErrPolicyDenied)
		_, err = c.Call(t.Context(), msg("req", "flaky"), repeatable)
		require.ErrorIs(t, err, accp.ErrPolicyDenied)
		require.Equal(t, 9, left(), "a final code is not tried again")

		// Never past the time to live.
		set(10, accp.ErrToolExecFailed)
		q := msg("req", "flaky")
		q.Meta = &accp.Meta{TTL: accp.NewOptionalInt(1), CID: "chain1"}
		_, err = c.Call(t.Context(), q, repeatable)
		require.Error(t, err) // of the tool, or, on a stalled machine, of the time to live
		require.GreaterOrEqual(t, left(), 7)

		// The end of the context ends the waiting.
		set(10, accp.ErrToolExecFailed)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err = c.Call(ctx, msg("req", "flaky"), repeatable)
		require.Error(t, err)
	})
}

// The end of a call's context ends the work on the other side (ACCP-069).
func TestContextEndsWork(t *testing.T) {
	d := newDesk(t, nil)
	both(t, d, func(t *testing.T, c caller) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := c.Call(ctx, msg("req", "slow"), nil)
			done <- err
		}()
		<-d.began
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		require.Error(t, <-d.causes)
		_, err := c.Call(t.Context(), msg("req", "echo"), nil)
		require.NoError(t, err)
	})
}

// A cancel frame ends the calls of its chain on both sides, including a running one (ACCP-069,
// ACCP-080, ACCP-D28).
func TestCancelFrameEndsCall(t *testing.T) {
	d := newDesk(t, nil)
	both(t, d, func(t *testing.T, c caller) {
		q := msg("req", "slow")
		q.Meta = &accp.Meta{CID: "work1"}
		done := make(chan error)
		go func() {
			_, err := c.Call(t.Context(), q, nil)
			done <- err
		}()
		<-d.began
		stop := msg("cancel", "slow")
		stop.Meta = &accp.Meta{CID: "work1"}
		_, err := c.Call(t.Context(), stop, nil)
		require.NoError(t, err)
		require.ErrorIs(t, <-done, accp.ErrCancelled)
		require.Error(t, <-d.causes)
		_, err = c.Call(t.Context(), q, nil)
		require.ErrorIs(t, err, accp.ErrCancelled, "a chain that ended stays so")
	})
}

// Leaving a stream early ends it at the sender.
func TestLeavingAStream(t *testing.T) {
	sendErrs := make(chan error, 2)
	d := newDesk(t, nil)
	d.Handle("req", "endless", accp.HandlerFunc(func(ctx context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		for i := int64(0); ; i++ {
			if err := w.Send(chunk(m.Op, i, 1<<40, accp.Int(i))); err != nil || ctx.Err() != nil {
				sendErrs <- err
				return err
			}
			time.Sleep(time.Millisecond)
		}
	}))

	both(t, d, func(t *testing.T, c caller) {
		n := 0
		for _, err := range c.Stream(t.Context(), msg("req", "endless"), nil) {
			require.NoError(t, err)
			if n++; n == 5 {
				break
			}
		}
		<-sendErrs
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
			for r, err := range c.Replies(t.Context(), m, nil) {
				require.NoError(t, err)
				got = append(got, r)
			}
			require.Len(t, got, 1)
			require.True(t, got[0].Params.Equal(m.Params))
			m.Intent = "done" // answered by ack, as the parts are
			m.Meta = nil
			got = nil
			for r, err := range c.Replies(t.Context(), m, nil) {
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
	err = c.Session().Registry().Register(schema)
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
	m, err := c.Call(t.Context(), msg("req", "echo", text("schema", "NO"), text("text", "x")), nil)
	require.NoError(t, err)
	require.Equal(t, "x", m.Params.Text("text"))

	r := accp.NewRegistry()
	require.NoError(t, r.Register(schema))
	conn := d.dial(t, &accp.ClientOptions{SessionID: "w1", Session: accp.SessionOptions{Registry: r}})
	until(func() bool {
		s, ok := d.Session("w1")
		return ok && len(s.Registry().Codes()) == 1
	})
	m, err = conn.Call(t.Context(), msg("req", "echo", text("schema", "note"), text("text", "x")), nil)
	require.NoError(t, err)
	require.Equal(t, "NO", m.Schema())

	// A connection that is open exchanges again, also at the same time as others.
	for _, code := range []string{"NP", "NQ"} {
		schema.Name, schema.Code = "note_"+code, code
		require.NoError(t, conn.Session().Registry().Register(schema))
		var syncs sync.WaitGroup
		for range 3 {
			syncs.Go(func() {
				isSynced, err := conn.SyncRegistry(t.Context())
				assert.NoError(t, err)
				assert.True(t, isSynced)
			})
		}
		syncs.Wait()
		s, ok = d.Session("w1")
		require.True(t, ok)
		require.Equal(t, conn.Session().Registry().Hash(), s.Registry().Hash())
	}
	fresh, err := accp.NewClient("ws"+strings.TrimPrefix(d.ts.URL, "http")+accp.WebSocketPath, "client",
		&accp.ClientOptions{HTTPClient: d.client, Session: accp.SessionOptions{Registry: r}})
	require.NoError(t, err)
	defer fresh.Close()
	synced, err = fresh.SyncRegistry(t.Context())
	require.NoError(t, err)
	require.True(t, synced)
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

		// The other side changes its state concurrently, so the next version is stale.
		_, err := s.Sync(t.Context(), state.Set("n", accp.Int(9)))
		require.NoError(t, err)
		state = accp.Params{text("phase", "done")}
		require.NoError(t, c.Sync(t.Context(), state))
		_, got = s.State()
		require.True(t, got.Equal(state))
	})
	require.Error(t, d.http(t, &accp.ClientOptions{MaxConcurrent: 2}).Sync(t.Context(), nil))
}

// A registered handler never answers the query of the shared state, so Sync converges despite one for all
// queries (ACCP-D46).
func TestSyncDespiteQueryHandlers(t *testing.T) {
	d := newDesk(t, nil)
	var calls atomic.Int64
	for _, op := range []string{profile.OpState, ""} {
		d.Handle(accp.IntentQry, op, accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, _ *accp.Message) error {
			calls.Add(1)
			return w.SendResult(nil)
		}))
	}
	both(t, d, func(t *testing.T, c caller) {
		require.NoError(t, c.Sync(t.Context(), accp.Params{text("phase", "plan")}))
		s, ok := d.Session(c.Session().ID())
		require.True(t, ok)
		_, err := s.Sync(t.Context(), accp.Params{text("phase", "review")})
		require.NoError(t, err)
		require.NoError(t, c.Sync(t.Context(), accp.Params{text("phase", "done")}))
		_, got := s.State()
		require.Equal(t, "done", got.Text("phase"))
		require.Zero(t, calls.Load())
		_, err = c.Call(t.Context(), msg(accp.IntentQry, "other"), nil)
		require.NoError(t, err)
		require.EqualValues(t, 1, calls.Swap(0))
	})
}

// Calls run concurrently over one connection, and over HTTP in separate sessions.
func TestLoad(t *testing.T) {
	d := newDesk(t, nil)
	run := func(t *testing.T, c caller, workers int) {
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				for i := range 25 {
					want := fmt.Sprint(w, "-", i)
					m, err := c.Call(t.Context(), msg("req", "echo", text("k", want)), nil)
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
				if _, err := c.Call(t.Context(), msg("done", "work", text("note", strings.Repeat("x", 300))), nil); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
}

// An exchange waits for a session for a bounded time, and a call inside a loop does not deadlock.
func TestTurns(t *testing.T) {
	d := newDesk(t, nil)
	c := d.http(t, &accp.ClientOptions{Timing: accp.ClientTiming{Timeout: time.Second}, Retry: &accp.RetryPolicy{MaxAttempts: -1}})
	for _, err := range c.Replies(t.Context(), msg("req", "echo"), nil) {
		require.NoError(t, err)
		_, err := c.Call(t.Context(), msg("req", "echo"), nil)
		require.ErrorIs(t, err, accp.ErrTimeout)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = c.Call(ctx, msg("req", "echo"), nil)
		require.ErrorIs(t, err, context.Canceled)
	}
	c = d.http(t, &accp.ClientOptions{MaxConcurrent: 2})
	for _, err := range c.Replies(t.Context(), msg("req", "echo"), nil) {
		require.NoError(t, err)
		_, err := c.Call(t.Context(), msg("req", "echo"), nil)
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
	_, err = accp.NewServer("", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}})
	require.ErrorIs(t, err, accp.ErrParse)
	_, err = accp.NewSession("", "", nil)
	require.ErrorIs(t, err, accp.ErrParse)
	_, err = accp.Dial(t.Context(), "ws://localhost", "no name", nil)
	require.ErrorIs(t, err, accp.ErrParse)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	_, err = accp.Dial(t.Context(), "ws://"+l.Addr().String(), "a", nil)
	require.ErrorIs(t, err, accp.ErrUnreachable)
	s, err := accp.NewServer("a", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}})
	require.NoError(t, err)
	h := accp.HandlerFunc(func(context.Context, *accp.ReplyWriter, *accp.Message) error { return nil })
	s.Handle("req", "x", h)
	require.PanicsWithValue(t, "accp: handler for req:x registered twice", func() { s.Handle("req", "x", h) })
	require.NoError(t, s.Shutdown(t.Context()))
	require.NoError(t, s.Shutdown(t.Context()))
}

// A request whose answers are lost runs once, and the error reports whether it may have run (ACCP-D29,
// ACCP-D78).
func TestLostRequestsRunOnce(t *testing.T) {
	d := newDesk(t, nil)
	runs := atomic.Int64{}
	d.Handle("req", "tally", accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, _ *accp.Message) error {
		return w.SendResult(accp.Params{{Key: "n", Value: accp.Int(runs.Add(1))}})
	}))
	line := &losing{RoundTripper: d.client.Transport}
	c := d.http(t, &accp.ClientOptions{HTTPClient: &http.Client{Transport: line}})
	call := func(lose int64, isLate bool) (*accp.Message, *accp.CallError) {
		line.late.Store(isLate)
		line.lose.Store(lose)
		m, err := c.Call(t.Context(), msg("req", "tally"), nil)
		var failed *accp.CallError
		if err != nil {
			require.ErrorAs(t, err, &failed)
		}
		return m, failed
	}
	_, err := call(2, false) // the greeting is the first request
	require.Nil(t, err, "the frame is sent again")
	require.EqualValues(t, 1, runs.Load())
	_, err = call(1, true)
	if err != nil {
		require.True(t, err.MayHaveRun)
		require.Equal(t, "tally", err.Op)
	}
	require.EqualValues(t, 2, runs.Load(), "the answer was lost, and the request ran")

	d.Handle("req", "transaction", accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, _ *accp.Message) error {
		return w.SendResult(accp.Params{{Key: "n", Value: accp.Int(runs.Add(1))}})
	}))
	line.lose.Store(1)
	m, terr := c.Call(t.Context(), msg("req", "transaction", text("schema", "TX"), text("transaction_id", "t1")), nil)
	require.NoError(t, terr, "the server invites to repeat a transaction, whose outcome it knows")
	n, _ := m.Params.Get("n")
	require.Equal(t, accp.Int(3), n)
}

// The receipt of an announcement is not that of the message behind it, which is answered by an ack (ACCP-D70).
func TestMessageAfterAnAnnouncement(t *testing.T) {
	d := newDesk(t, nil)
	handled := atomic.Int64{}
	d.Handle("sync", "memory", accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		handled.Add(1)
		return w.Send(&accp.Message{Intent: accp.IntentAck, Op: m.Op})
	}))
	for _, c := range []*accp.Client{d.dial(t, nil), d.http(t, nil)} {
		handled.Store(0)
		_, err := c.Call(t.Context(), msg("req", "echo", text("k", "v")), nil)
		require.NoError(t, err)
		id := c.Session().Checkpoints()[0].ID
		m, err := c.Call(t.Context(), msg("sync", "memory", accp.Param{Key: "ref", Value: accp.Ref("warm." + id)}), nil)
		require.NoError(t, err)
		require.Equal(t, "memory", m.Op)
		require.EqualValues(t, 1, handled.Load())
	}
}

// An agent that connects again replaces its earlier connection, and its next call opens a lost one,
// also with numbers behind those of the session (ACCP-D24, ACCP-D56, ACCP-D74, ACCP-D75).
func TestAgentConnectsAgain(t *testing.T) {
	d := newDesk(t, nil)
	open := func() *accp.Client { return d.dial(t, &accp.ClientOptions{SessionID: "again"}) }
	first := open()
	for range 5 {
		_, err := first.Call(t.Context(), msg("req", "echo"), nil)
		require.NoError(t, err)
	}
	second := open() // without the memory of the first
	<-first.Done()
	require.Equal(t, wsconn.CodeReplaced, accp.CloseCode(first.Err()))
	_, err := second.Call(t.Context(), msg("req", "echo"), nil)
	require.NoError(t, err)
	_, err = first.Call(t.Context(), msg("req", "echo"), nil)
	require.ErrorIs(t, err, accp.ErrUnreachable, "it was replaced for good")
	second.Cut()
	<-second.Done()
	_, err = second.Call(t.Context(), msg("req", "echo"), nil)
	require.NoError(t, err)
}

// Clients of one session stream at the same time over HTTP. The numbers between the chunks of an answer went to the
// other client (ACCP-D24).
func TestStreamsOfOneSessionAlternate(t *testing.T) {
	d := newDesk(t, nil)
	const n = 20
	turns := map[string]chan struct{}{"a": make(chan struct{}, 1), "b": make(chan struct{}, 1)}
	next := map[string]string{"a": "b", "b": "a"}
	for op := range turns {
		d.Handle("req", op, accp.HandlerFunc(func(ctx context.Context, w *accp.ReplyWriter, _ *accp.Message) error {
			for i := range int64(n) {
				select {
				case <-turns[op]:
				case <-ctx.Done():
					return ctx.Err()
				}
				if err := w.Send(chunk(op, i, n, accp.Int(i))); err != nil {
					return err
				}
				turns[next[op]] <- struct{}{}
			}
			return nil
		}))
	}
	turns["a"] <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	result := make(chan error, len(turns))
	for op := range turns {
		c, err := accp.NewClient(d.ts.URL+accp.FramesPath, "client_"+op, &accp.ClientOptions{HTTPClient: d.client, SessionID: "both"})
		require.NoError(t, err)
		go func() {
			list, err := collect(c.Stream(ctx, msg("req", op), nil))
			if err == nil && len(list) != n {
				err = fmt.Errorf("%d chunks", len(list))
			}
			result <- err
		}()
	}
	for range turns {
		require.NoError(t, <-result)
	}
}

// A call that runs when the connection is cut ends with its result, and a stream continues without a missing
// or repeated chunk; each handler runs once (ACCP-D75).
func TestCallsSurviveTheLossOfTheirConnection(t *testing.T) {
	d := newDesk(t, nil)
	ran, proceed := make(chan string, 10), make(chan struct{})
	d.Handle("req", "work", accp.HandlerFunc(func(ctx context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		ran <- m.Op
		select {
		case <-proceed:
			return w.SendResult(accp.Params{text("result", "ready")})
		case <-ctx.Done():
			return ctx.Err()
		}
	}))
	d.Handle("req", "tail", accp.HandlerFunc(func(ctx context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		ran <- m.Op
		for i := range int64(20) {
			if i == 10 {
				select {
				case <-proceed:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			if err := w.Send(chunk(m.Op, i, 20, accp.Int(i))); err != nil {
				return err
			}
		}
		return nil
	}))
	returned := make(chan struct{}, 10)
	c := d.dial(t, &accp.ClientOptions{OnReconnect: func(context.Context) { returned <- struct{}{} }})
	result := make(chan error, 2)
	go func() {
		m, err := c.Call(t.Context(), msg("req", "work"), nil)
		if err == nil && m.Params.Text("result") != "ready" {
			err = fmt.Errorf("result %v", m.Params)
		}
		result <- err
	}()
	half := make(chan struct{})
	go func() {
		next := int64(0)
		for v, err := range c.Stream(t.Context(), msg("req", "tail"), nil) {
			n, _ := v.Int()
			if err == nil && n != next {
				err = fmt.Errorf("chunk %d after %d", n, next-1)
			}
			if err != nil {
				result <- err
				return
			}
			if next++; next == 5 {
				close(half)
			}
		}
		if next != 20 {
			result <- fmt.Errorf("%d chunks", next)
			return
		}
		result <- nil
	}()
	<-ran
	<-ran
	<-half
	c.Cut()
	<-returned // by itself
	start := time.Now()
	close(proceed)
	require.NoError(t, <-result)
	require.NoError(t, <-result)
	require.Less(t, time.Since(start), 2*time.Second)
	require.Empty(t, ran, "no handler runs twice")
}

// A repeated request receives the messages of the running handler in their order, from the first one on, over both
// transports. The handler runs once (ACCP-D72).
func TestRepeatsFollowTheRunningHandler(t *testing.T) {
	d := newDesk(t, nil)
	proceed, runs := make(chan struct{}), atomic.Int32{}
	d.Handle("req", "tail", accp.HandlerFunc(func(ctx context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		runs.Add(1)
		for i := range int64(6) {
			if i > 1 {
				select {
				case <-proceed:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			if err := w.Send(chunk(m.Op, i, 6, accp.Int(i))); err != nil {
				return err
			}
		}
		return nil
	}))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()

	returned := make(chan struct{}, 1)
	c := d.dial(t, &accp.ClientOptions{OnReconnect: func(context.Context) { returned <- struct{}{} }})
	next := int64(0)
	for v, err := range c.Stream(ctx, msg("req", "tail"), nil) {
		require.NoError(t, err)
		n, _ := v.Int()
		require.Equal(t, next, n)
		next++
		switch {
		case next == 2:
			c.Cut()
			<-returned
			fallthrough
		case next > 2 && next < 6:
			proceed <- struct{}{} // the next chunk only after the arrival of this chunk
		}
	}
	require.EqualValues(t, 6, next)
	require.EqualValues(t, 1, runs.Load())

	send := func(seq int64, meta string) *accp.Scanner {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, d.ts.URL+accp.FramesPath, strings.NewReader(string(frame("req:tail{}", seq, "sid:http", "cid:c", meta))))
		require.NoError(t, err)
		r.Header.Set("Content-Type", accp.MediaType)
		res, err := d.client.Do(r)
		require.NoError(t, err)
		t.Cleanup(func() { _ = res.Body.Close() })
		require.Equal(t, http.StatusOK, res.StatusCode)
		return accp.NewScanner(res.Body, 1<<16)
	}
	first := send(1, "x:1")
	read := func(s *accp.Scanner, want int) {
		f, err := s.Next()
		require.NoError(t, err)
		require.Contains(t, string(f), fmt.Sprintf("d:%d|", want))
	}
	read(first, 0)
	read(first, 1)
	repeat := send(4, "try:2")
	read(repeat, 0)
	for i := 1; i < 6; i++ {
		if i > 1 {
			proceed <- struct{}{}
			read(first, i)
		}
		read(repeat, i)
	}
	_, err := repeat.Next()
	require.ErrorIs(t, err, io.EOF)
	require.EqualValues(t, 2, runs.Load())
}

// A repeated request receives the messages of a handler that runs in another process while they are sent, and the
// handler runs once. After the end the outcome is the same (ACCP-D72).
func TestRepeatsFollowAHandlerInAnotherProcess(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	proceed, runs := make(chan struct{}), atomic.Int32{}
	db := store.NewMemory()
	var servers [2]*desk
	for i := range servers {
		servers[i] = newDesk(t, &accp.ServerOptions{Persistence: accp.Persistence{Store: db}})
		servers[i].Handle("req", "tail", accp.HandlerFunc(func(ctx context.Context, w *accp.ReplyWriter, m *accp.Message) error {
			runs.Add(1)
			for i := range int64(4) {
				if i > 0 {
					select {
					case <-proceed:
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				if err := w.Send(chunk(m.Op, i, 4, accp.Int(i))); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	send := func(server int, seq int64, meta string) *accp.Scanner {
		body := string(frame("req:tail{schema:TX|transaction_id:t1}", seq, "sid:shared", "cid:c", meta))
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, servers[server].ts.URL+accp.FramesPath, strings.NewReader(body))
		require.NoError(t, err)
		r.Header.Set("Content-Type", accp.MediaType)
		res, err := servers[server].client.Do(r)
		require.NoError(t, err)
		t.Cleanup(func() { _ = res.Body.Close() })
		require.Equal(t, http.StatusOK, res.StatusCode)
		return accp.NewScanner(res.Body, 1<<16)
	}
	read := func(s *accp.Scanner, want int) {
		t.Helper()
		f, err := s.Next()
		require.NoError(t, err)
		require.Contains(t, string(f), fmt.Sprintf("d:%d|", want))
	}
	end := func(s *accp.Scanner) {
		t.Helper()
		_, err := s.Next()
		require.ErrorIs(t, err, io.EOF)
	}
	first := send(0, 1, "x:1")
	read(first, 0)
	repeats := []*accp.Scanner{send(1, 3, "try:2"), send(1, 4, "x:2")}
	for i := range 4 {
		if i > 0 {
			proceed <- struct{}{} // the next chunk only after the arrival of this chunk
			read(first, i)
		}
		for _, r := range repeats {
			read(r, i)
		}
	}
	end(first)
	for _, r := range repeats {
		end(r)
	}
	later := send(1, 5, "try:3")
	for i := range 4 {
		read(later, i)
	}
	end(later)
	require.EqualValues(t, 1, runs.Load())
}

// A repeated transaction follows no handler with other params, and no answer that is too long for an
// outcome.
func TestRepeatsThatDoNotFollow(t *testing.T) {
	s := newUserServer(t, accp.ServerOptions{})
	proceed, began := make(chan struct{}), make(chan struct{}, 1)
	long := strings.Repeat("x", 30000)
	s.Handle("req", "transaction", accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		for i := range int64(50) {
			if err := w.Send(chunk(m.Op, i, 50, accp.String(long))); err != nil {
				return err
			}
			if i == 0 || i == 40 {
				began <- struct{}{}
				<-proceed
			}
		}
		return nil
	}))
	call := func(sid, amount string) string {
		return s.postFrame("payer", frame("req:transaction{amt:"+amount+"|schema:TX|txn:t1}", 1, "sid:"+sid)).Body.String()
	}
	answer := make(chan string, 2)
	go func() { answer <- call("s1", "1.0") }()
	<-began
	other := call("s2", "2.0")
	require.Contains(t, other, "code:E3002", "other params")
	require.NotContains(t, other, "stream:")
	proceed <- struct{}{}
	<-began
	go func() { answer <- call("s3", "1.0") }()
	close(proceed)
	all := <-answer + <-answer
	require.Equal(t, 50, strings.Count(all, "stream:transaction"), "chunks of the first call")
	require.Equal(t, 1, strings.Count(all, "code:E3002"))
}

// A handler whose client has returned continues after the window (ACCP-D75).
func TestHandlersContinueForReturnedClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}, Timing: accp.Timing{ResumeWindow: 2 * time.Second}})
		require.NoError(t, err)
		s.Handle("req", "long", accp.HandlerFunc(func(ctx context.Context, w *accp.ReplyWriter, _ *accp.Message) error {
			select {
			case <-time.After(20 * time.Second):
				return w.SendResult(nil)
			case <-ctx.Done():
				return ctx.Err()
			}
		}))
		p := newPipe()
		stop := p.serve(s)
		c, err := accp.Dial(t.Context(), "ws://localhost"+accp.WebSocketPath, "client", &accp.ClientOptions{HTTPClient: p.client()})
		require.NoError(t, err)
		result := make(chan error, 1)
		go func() {
			_, err := c.Call(t.Context(), msg("req", "long"), nil)
			result <- err
		}()
		synctest.Wait()
		start := time.Now()
		c.Cut()
		require.NoError(t, <-result)
		require.Less(t, time.Since(start), 21*time.Second, "one run")
		require.NoError(t, c.Close())
		require.NoError(t, s.Close())
		stop()
	})
}

// A handler whose client does not return ends after the window, and at once if the client has closed the
// connection or the window is negative.
func TestHandlersEndWithoutTheirClient(t *testing.T) {
	cut := func(p *pipe, c *accp.Client) {
		_ = p.Close() // the client cannot return
		c.Cut()
	}
	for name, tt := range map[string]struct {
		window time.Duration
		part   func(p *pipe, c *accp.Client)
		want   time.Duration
	}{
		"default": {0, cut, 10 * time.Second},
		"short":   {time.Second, cut, time.Second},
		"off":     {-1, cut, 0},
		"closed":  {0, func(_ *pipe, c *accp.Client) { _ = c.Close() }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, err := accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}, Timing: accp.Timing{ResumeWindow: tt.window}})
				require.NoError(t, err)
				endTime := make(chan time.Time, 1)
				s.Handle("req", "slow", accp.HandlerFunc(func(ctx context.Context, _ *accp.ReplyWriter, _ *accp.Message) error {
					<-ctx.Done()
					endTime <- time.Now()
					return ctx.Err()
				}))
				p := newPipe()
				stop := p.serve(s)
				c, err := accp.Dial(t.Context(), "ws://localhost"+accp.WebSocketPath, "client", &accp.ClientOptions{HTTPClient: p.client()})
				require.NoError(t, err)
				go func() { _, _ = c.Call(t.Context(), msg("req", "slow"), nil) }()
				synctest.Wait()
				start := time.Now()
				tt.part(p, c)
				require.InDelta(t, tt.want, (<-endTime).Sub(start), float64(time.Second/2))
				_ = c.Close()
				require.NoError(t, s.Close())
				stop()
			})
		})
	}
}

// A call that is cancelled, or whose client is closed, after its frame was sent may have run, over both bindings. One
// that sends nothing has not (ACCP-D78).
func TestEndedCallsMayHaveRun(t *testing.T) {
	d := newDesk(t, nil)
	for name, open := range map[string]func() *accp.Client{
		"http": func() *accp.Client { return d.http(t, nil) }, "websocket": func() *accp.Client { return d.dial(t, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			c, done := open(), make(chan error, 1)
			call := func() {
				m := msg("req", "slow")
				m.Meta = &accp.Meta{CID: "c1"}
				_, err := c.Call(t.Context(), m, nil)
				done <- err
			}
			check := func(want error, mayHaveRun bool) {
				var failed *accp.CallError
				err := <-done
				require.ErrorIs(t, err, want)
				require.ErrorAs(t, err, &failed)
				require.Equal(t, mayHaveRun, failed.MayHaveRun)
			}
			go call()
			<-d.began
			require.NoError(t, c.Close())
			check(accp.ErrClosed, true)
			call()
			check(accp.ErrClosed, false)

			c = open()
			go call()
			<-d.began
			m := msg("cancel", "slow")
			m.Meta = &accp.Meta{CID: "c1"}
			_, err := c.Call(t.Context(), m, nil)
			require.NoError(t, err)
			check(accp.ErrCancelled, true)
			call()
			check(accp.ErrCancelled, false)
			require.NoError(t, c.Close())
		})
	}
}

// An answer that the session of the client refuses ends its call with the reason, over both bindings.
func TestRefusedAnswersEndCalls(t *testing.T) {
	d := newDesk(t, nil)
	d.Handle("req", "refer", accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, _ *accp.Message) error {
		return w.SendResult(accp.Params{{Key: "value", Value: accp.Ref("warm.none")}})
	}))
	both(t, d, func(t *testing.T, c caller) {
		_, err := c.Call(t.Context(), msg("req", "refer"), &accp.CallOptions{Timeout: time.Hour})
		require.ErrorIs(t, err, accp.ErrRefNotFound)
		_, err = c.Call(t.Context(), msg("req", "echo"), nil)
		require.NoError(t, err)
	})
}
