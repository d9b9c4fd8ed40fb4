// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A plug is a Dialer whose connections can be pulled.
type plug struct {
	dial Dialer

	mu   sync.Mutex
	last Conn
	n    int
}

func (p *plug) Dial(ctx context.Context) (Conn, error) {
	c, err := p.dial(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = c
	p.n++
	return c, err
}

func (p *plug) pull() {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.last.Close()
}

func (p *plug) dials() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.n
}

func runPlugged(t *testing.T, s *system, rt *Runtime) *plug {
	p := &plug{dial: s.dial(testService)}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	s.stop, s.done = append(s.stop, stop), append(s.done, done)
	go func() { done <- rt.RunWithReconnect(ctx, p.Dial); close(done) }()
	synctest.Wait()
	return p
}

func newSession(t *testing.T, s *system) *Session {
	t.Helper()
	sess, err := s.c.CreateSession(t.Context(), nil)
	require.NoError(t, err)
	synctest.Wait()
	return sess
}

// Cell "running, its Runtime disconnects": in mid-call (ALT-142).
func TestRuntimeKilledInCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, pipeTransport, nil)
		p := runPlugged(t, s, testRuntime("r1", nil))
		sess := newSession(t, s)
		go func() {
			time.Sleep(time.Second)
			p.pull()
		}()
		_, err := sess.Call(t.Context(), "wait", waitIn{5000}, nil)
		require.ErrorIs(t, err, ErrRuntimeUnavailable)
		require.ErrorIs(t, err, ReasonDisconnected)
		got, err := CallAs[string](t.Context(), sess, "wait", waitIn{1}, nil)
		require.NoError(t, err)
		require.Equal(t, "waited", got, "the call waits for the Runtime")
		require.Equal(t, 2, p.dials())
	})
}

// ALT-026: in mid-stream the end is in band.
func TestRuntimeKilledInStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, pipeTransport, nil)
		p := runPlugged(t, s, testRuntime("r1", nil))
		sess := newSession(t, s)
		n := 0
		var last error
		for _, err := range sess.Stream(t.Context(), "ticks", nil, nil) {
			if last = err; err != nil {
				continue
			}
			if n++; n == 3 {
				p.pull()
			}
		}
		require.Equal(t, 3, n)
		require.ErrorIs(t, last, ReasonDisconnected)
		require.Zero(t, s.h.Stats().InFlight)
	})
}

// ALT-D24: an idempotent call goes to the other Runtime, once.
func TestFailover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, pipeTransport, nil)
		hang := must(NewRuntime("r1", nil))
		hang.Handle("get", HandlerFunc(func(ctx context.Context, _ *ToolCall) (any, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}))
		p := runPlugged(t, s, hang)
		sess := newSession(t, s) // r1 is the first to fulfil
		s.run(t, testRuntime("r2", nil))
		synctest.Wait()
		go func() {
			time.Sleep(time.Second)
			p.pull()
		}()
		got, err := CallAs[string](t.Context(), sess, "get", map[string]string{"key": "k"}, nil)
		require.NoError(t, err)
		require.Equal(t, "r2", got)
		require.Equal(t, uint64(2), s.h.Stats().Dispatched)
	})
}

// ALT-D33, ALT-D22: the call continues while its client is disconnected, until the client
// reconnects.
func TestClientReconnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, pipeTransport, nil)
		var runs atomic.Int32
		rt := must(NewRuntime("r1", nil))
		AddTool(rt, "wait", func(ctx context.Context, in waitIn) (string, error) {
			runs.Add(1)
			time.Sleep(time.Duration(in.MS) * time.Millisecond)
			return "done", ctx.Err()
		})
		AddStreamTool(rt, "count", func(ctx context.Context, in countIn, out *ChunkWriter) error {
			runs.Add(1)
			for i := range in.N {
				time.Sleep(100 * time.Millisecond)
				if err := out.Send(i); err != nil {
					return err
				}
			}
			return nil
		})
		s.run(t, rt)
		p := &plug{dial: s.dial(testUser)}
		c := must(NewClient(p.Dial, nil))
		defer func() { require.NoError(t, c.Close()) }()
		sess, err := c.CreateSession(t.Context(), nil)
		require.NoError(t, err)
		go func() {
			time.Sleep(time.Second)
			p.pull()
		}()
		got, err := CallAs[string](t.Context(), sess, "wait", waitIn{5000}, nil)
		require.NoError(t, err)
		require.Equal(t, "done", got)

		var numbers []int64
		for n, err := range StreamAs[int64](t.Context(), sess, "count", countIn{20}, nil) {
			require.NoError(t, err)
			numbers = append(numbers, n)
			if n == 5 || n == 11 {
				p.pull()
			}
		}
		require.Len(t, numbers, 20)
		for i, n := range numbers {
			require.Equal(t, int64(i), n, "each once, in order")
		}
		require.Equal(t, int32(2), runs.Load(), "nothing ran twice")
		require.Equal(t, 4, p.dials())
	})
}

// A connection that does not come back ends the call with an error of this side.
func TestClientGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, pipeTransport, nil, testRuntime("r1", nil))
		p := &plug{dial: s.dial(testUser)}
		var down atomic.Bool
		c := must(NewClient(func(ctx context.Context) (Conn, error) {
			if down.Load() {
				return nil, io.ErrClosedPipe
			}
			return p.Dial(ctx)
		}, nil))
		defer func() { require.NoError(t, c.Close()) }()
		sess, err := c.CreateSession(t.Context(), nil)
		require.NoError(t, err)
		go func() {
			time.Sleep(time.Second)
			down.Store(true)
			p.pull()
		}()
		start := time.Now()
		_, err = sess.Call(t.Context(), "wait", waitIn{50_000}, nil)
		require.ErrorIs(t, err, ErrDisconnected)
		require.InDelta(t, 26, time.Since(start).Seconds(), 1)
		var e *Error
		require.NotErrorAs(t, err, &e)
		require.ErrorIs(t, sess.Destroy(t.Context()), io.ErrClosedPipe)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		require.Zero(t, s.h.Stats().InFlight, "client_gone")
		down.Store(false)
		require.NoError(t, sess.Destroy(t.Context()))
	})
}

// After a restart of the Host the session does not exist, and no caller hangs.
func TestHostRestarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var wg sync.WaitGroup
		host := testHost(t, nil)
		dial := func(id *Principal) Dialer {
			return func(context.Context) (Conn, error) {
				mu.Lock()
				h := host
				mu.Unlock()
				near, far := net.Pipe()
				wg.Go(func() { _ = h.Serve(context.Background(), NewStreamConn(far, nil), id) })
				return NewStreamConn(near, nil), nil
			}
		}
		defer wg.Wait()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		rt := testRuntime("r1", nil)
		wg.Go(func() { _ = rt.RunWithReconnect(ctx, dial(testService)) })
		synctest.Wait()
		c := must(NewClient(dial(testUser), nil))
		defer func() { require.NoError(t, c.Close()) }()
		sess, err := c.CreateSession(ctx, nil)
		require.NoError(t, err)
		synctest.Wait()
		go func() {
			time.Sleep(time.Second)
			next := testHost(t, nil)
			mu.Lock()
			old := host
			host = next
			mu.Unlock()
			_ = old.Close()
		}()
		_, err = sess.Call(ctx, "wait", waitIn{5000}, nil)
		if !errors.Is(err, ReasonDisconnected) { // the old Host may still report the end of its Runtime
			require.ErrorIs(t, err, ReasonUnknownSession)
		}
		synctest.Wait() // it has closed
		sess, err = c.CreateSession(ctx, nil)
		require.NoError(t, err)
		time.Sleep(time.Second)
		_, err = sess.Call(ctx, "wait", waitIn{5}, nil)
		require.NoError(t, err)
		stop()
	})
}

// Cell "held, running: session over", by expiry and by DestroySession (ALT-D19).
func TestSessionOverWithCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, pipeTransport, nil, testRuntime("r1", nil))
		for _, destroy := range []bool{true, false} {
			sess, err := s.c.CreateSession(t.Context(), &CreateSessionParams{TTL: 2 * time.Second})
			require.NoError(t, err)
			if destroy {
				go func() {
					time.Sleep(time.Second)
					require.NoError(t, sess.Destroy(t.Context()))
				}()
			}
			_, err = sess.Call(t.Context(), "wait", waitIn{5000}, nil)
			require.ErrorIs(t, err, ErrSessionInvalid)
			if destroy {
				require.ErrorIs(t, err, reasonSessionDestroyed)
			} else {
				require.ErrorIs(t, err, ReasonSessionExpired)
			}
		}
		synctest.Wait()
		st := s.h.Stats()
		require.Zero(t, st.Sessions)
		require.Zero(t, st.InFlight)
	})
}

// ALT-D22: two clients of one principal with the same invocation id: one run, the
// same answer for both.
func TestSameInvocationFromTwoClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, pipeTransport, nil)
		var runs atomic.Int32
		rt := must(NewRuntime("r1", nil))
		AddTool(rt, "wait", func(_ context.Context, in waitIn) (int32, error) {
			time.Sleep(time.Second)
			return runs.Add(1), nil
		})
		s.run(t, rt)
		sess := newSession(t, s)
		other := must(NewClient(s.dial(testUser), nil))
		defer func() { require.NoError(t, other.Close()) }()
		repeat := other.Session(sess.ID())
		var wg sync.WaitGroup
		for _, one := range []*Session{sess, repeat} {
			wg.Go(func() {
				r, err := one.Call(t.Context(), "wait", waitIn{1}, &CallOptions{InvocationID: "i-1"})
				require.NoError(t, err)
				require.Equal(t, "1", string(r.Payload))
			})
		}
		wg.Wait()
		_, err := repeat.Call(t.Context(), "wait", waitIn{2}, &CallOptions{InvocationID: "i-1"})
		require.ErrorIs(t, err, reasonInvocationIDReused)
		time.Sleep(5*time.Minute + time.Second)
		require.Zero(t, s.h.Stats().StoredResults, "outcomes are forgotten")
	})
}

// ALT-D22: the records of calls are dropped in groups, but none of them is replayed after its lifetime.
func TestExpiredRecordIsNotReplayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 64 * time.Second
		s := start(t, pipeTransport, &HostOptions{Persistence: Persistence{ResultTTL: ttl}})
		var runs atomic.Int32
		rt := must(NewRuntime("r1", nil))
		AddTool(rt, "wait", func(context.Context, waitIn) (int32, error) { return runs.Add(1), nil })
		s.run(t, rt)
		sess := newSession(t, s)
		call := func(id, want string) {
			r, err := sess.Call(t.Context(), "wait", waitIn{1}, &CallOptions{InvocationID: id})
			require.NoError(t, err)
			require.Equal(t, want, string(r.Payload))
		}
		call("i-1", "1")
		time.Sleep(10 * time.Millisecond)
		call("i-2", "2")
		time.Sleep(ttl - 5*time.Millisecond)
		call("i-2", "2")
		time.Sleep(10 * time.Millisecond)
		require.Equal(t, 1, s.h.Stats().StoredResults)
		call("i-2", "3")
		time.Sleep(ttl - time.Second)
		call("i-2", "3")
		time.Sleep(ttl / 32)
		require.Zero(t, s.h.Stats().StoredResults)
	})
}

// ALT-020, ALT-D24: a Runtime drains: calls in flight are answered, none is lost.
func TestRuntimeDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, pipeTransport, nil, testRuntime("r1", nil), testRuntime("r2", nil))
		sess := newSession(t, s)
		go func() {
			time.Sleep(time.Second)
			s.stop[0]()
		}()
		for range 2 { // one at each
			got, err := CallAs[string](t.Context(), sess, "wait", waitIn{3000}, nil)
			require.NoError(t, err)
			require.Equal(t, "waited", got)
		}
		require.NoError(t, <-s.done[0])
		require.Equal(t, []string{"r2"}, s.h.runtimeIDs())
		for range 5 {
			_, err := CallAs[string](t.Context(), sess, "wait", waitIn{1}, nil)
			require.NoError(t, err)
		}
	})
}

// A Runtime that cannot finish its calls in time is cut off.
func TestRuntimeDrainTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, pipeTransport, nil, testRuntime("r1", &RuntimeOptions{Timing: RuntimeTiming{DrainTimeout: time.Second}}))
		sess := newSession(t, s)
		go func() {
			time.Sleep(time.Second)
			s.stop[0]()
		}()
		_, err := CallAs[string](t.Context(), sess, "wait", waitIn{30_000}, nil)
		require.ErrorIs(t, err, ReasonDisconnected)
	})
}

// The Host drains: calls in flight end, new ones are refused.
func TestHostShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, pipeTransport, nil, testRuntime("r1", nil))
		sess := newSession(t, s)
		var wg sync.WaitGroup
		wg.Go(func() {
			time.Sleep(time.Second)
			require.NoError(t, s.h.Shutdown(t.Context()))
		})
		wg.Go(func() {
			time.Sleep(2 * time.Second)
			_, err := sess.Call(t.Context(), "math/add", addIn{1, 2}, nil)
			require.ErrorIs(t, err, ReasonDraining)
		})
		got, err := CallAs[string](t.Context(), sess, "wait", waitIn{3000}, nil)
		require.NoError(t, err)
		require.Equal(t, "waited", got)
		wg.Wait()
		_, err = s.h.Dial(testUser)
		require.ErrorIs(t, err, ErrClosed)
	})
	synctest.Test(t, func(t *testing.T) {
		s := start(t, pipeTransport, nil, testRuntime("r1", nil))
		sess := newSession(t, s)
		go func() { _, _ = sess.Call(t.Context(), "wait", waitIn{3000}, nil) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, s.h.Shutdown(ctx), context.DeadlineExceeded)
		require.NoError(t, s.c.Close())
	})
}

// A Host that shuts down answers the requests that it has taken before it closes their connections (ALT-D45).
func TestShutdownAnswersRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		listed, goOn := make(chan struct{}), make(chan struct{})
		m, err := DecodeManifest([]byte(testManifest))
		require.NoError(t, err)
		h, err := newHost(m, AuthorizerFunc(func(_ context.Context, r *AuthorizeRequest) error {
			if r.Contract.Name == "math/add" {
				close(listed)
				<-goOn
			}
			return nil
		}), nil)
		require.NoError(t, err)
		attachRuntime(t, h, testService, "r1", "math/add")
		w := connect(t, h, testUser)
		w.session("s")
		go func() { _ = w.conn.Send(&ListTools{SessionID: "s"}) }() // handled there; the connection may end first
		<-listed
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // the Runtime does not read the end
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- h.Shutdown(ctx) }()
		time.Sleep(time.Second)
		close(goOn)
		require.Len(t, next[*ToolList](w).Tools, 1)
		require.NoError(t, <-done)
	})
}

// ALT-D36: a Runtime that is silent is taken for gone, and one that answers is not.
func TestHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := testHost(t, &HostOptions{Timing: Timing{Heartbeat: time.Second}})
		near, far := net.Pipe()
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() { _ = h.Serve(context.Background(), NewStreamConn(far, nil), testService) })
		conn := NewStreamConn(near, nil)
		var pings atomic.Int32
		wg.Go(func() {
			for {
				m, err := conn.Receive()
				if err != nil {
					return
				}
				if _, ok := m.(*Ping); ok {
					pings.Add(1)
				}
			}
		})
		require.NoError(t, conn.Send(&AnnounceRuntime{RuntimeID: "mute", ProtocolVersion: "1.0.0", Capabilities: []string{capHeartbeat}}))
		synctest.Wait()
		require.Equal(t, []string{"mute"}, h.runtimeIDs())
		time.Sleep(3500 * time.Millisecond)
		require.Empty(t, h.runtimeIDs())
		require.Equal(t, int32(2), pings.Load())
	})
	synctest.Test(t, func(t *testing.T) {
		s := start(t, pipeTransport, &HostOptions{Timing: Timing{Heartbeat: time.Second}}, testRuntime("r1", &RuntimeOptions{Timing: RuntimeTiming{Heartbeat: time.Second}}))
		time.Sleep(time.Minute)
		require.Equal(t, []string{"r1"}, s.h.runtimeIDs())
	})
	synctest.Test(t, func(t *testing.T) { // a silent Host
		near, far := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, far) }()
		err := testRuntime("r1", &RuntimeOptions{Timing: RuntimeTiming{Heartbeat: time.Second}}).Run(t.Context(), NewStreamConn(near, nil))
		require.Error(t, err)
		require.NoError(t, far.Close())
	})
	synctest.Test(t, func(t *testing.T) { // one that never accepts
		near, far := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, far) }()
		err := testRuntime("r1", &RuntimeOptions{Timing: RuntimeTiming{HandshakeTimeout: time.Second}}).Run(t.Context(), NewStreamConn(near, nil))
		require.Error(t, err)
		require.NoError(t, far.Close())
	})
}

// A client that does not read delays its own streams only, and loses them after SlowReaderTimeout
// (ALT-D37).
func TestSlowConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, pipeTransport, &HostOptions{Limits: Limits{ClientQueueLimit: 8},
			Timing: Timing{WriteTimeout: time.Hour, SlowReaderTimeout: 3 * time.Second}}, testRuntime("r1", nil))
		sess := newSession(t, s)
		conn, err := s.dial(testUser)(t.Context())
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		go func() {
			_ = conn.Send(&ToolCall{InvocationID: "slow", SessionID: sess.ID(), ToolName: "ticks"})
			_ = conn.Send(&ToolCall{InvocationID: "other", SessionID: sess.ID(), ToolName: "math/add", Parameters: raw(addIn{1, 2})})
		}()
		n := 0
		for _, err := range sess.Stream(t.Context(), "ticks", nil, nil) {
			require.NoError(t, err)
			if n++; n == 50 {
				break
			}
		}
		// Now it reads: what fitted, then the end in band.
		var got []Message
		for len(got) == 0 || !isSlow(got[len(got)-1]) {
			m, err := conn.Receive()
			require.NoError(t, err)
			got = append(got, m)
		}
		end := got[len(got)-1].(*StreamChunk)
		require.True(t, end.IsFinal)
		require.Less(t, end.ChunkID, int64(40))
		synctest.Wait()
		require.Zero(t, s.h.Stats().InFlight, "cancelled at its Runtime")
	})
}

func isSlow(m Message) bool {
	c, ok := m.(*StreamChunk)
	return ok && c.Error != nil && c.Error.Reason() == reasonSlowConsumer
}

// ALT-D22: what is no longer retained is not run again.
func TestNotRetained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, pipeTransport, &HostOptions{Limits: Limits{MaxStoredChunks: 1000}}, testRuntime("r1", nil))
		sess := newSession(t, s)
		for _, err := range sess.Stream(t.Context(), "count", countIn{100}, &CallOptions{InvocationID: "i"}) {
			require.NoError(t, err)
		}
		for _, err := range sess.Stream(t.Context(), "count", countIn{100}, &CallOptions{InvocationID: "i"}) {
			require.ErrorIs(t, err, ReasonNotRetained)
		}
		_, err := sess.Call(t.Context(), "count", countIn{100}, &CallOptions{InvocationID: "i"})
		require.ErrorIs(t, err, ReasonNotRetained)
		require.Equal(t, uint64(1), s.h.Stats().Dispatched)
	})
}

// ALT-D29: a collected result that does not fit into a message.
func TestCollectedTooLarge(t *testing.T) {
	rt := must(NewRuntime("r1", nil))
	rt.HandleStream("count", StreamHandlerFunc(func(_ context.Context, call *ToolCall, out *ChunkWriter) error {
		for range 10 {
			if err := out.Send(json.RawMessage(`"` + string(make([]byte, 0)) + `xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"`)); err != nil {
				return err
			}
		}
		return nil
	}))
	s := start(t, pipeTransport, &HostOptions{Limits: Limits{MaxMessage: 300}}, rt)
	sess, err := s.c.CreateSession(t.Context(), nil)
	require.NoError(t, err)
	_, err = sess.Call(t.Context(), "count", countIn{1}, nil)
	require.ErrorIs(t, err, reasonMessageTooLarge)
	n := 0
	for _, err := range sess.Stream(t.Context(), "count", countIn{1}, nil) {
		require.NoError(t, err)
		n++
	}
	require.Equal(t, 10, n)
}
