// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/altar/internal/cluster"
)

// A mesh connects Hosts in memory, as a message broker would. It is a [Cluster]
// for each of them.
type mesh struct {
	mu      sync.Mutex
	hosts   map[string]*Host
	offers  map[string][]cluster.Offer
	changed chan struct{} // closed and replaced when offers changes

	// cut reports before each message whether the connection is lost.
	cut           func(call *cluster.Call, n int) bool
	joins         atomic.Int64 // how often a lost call was joined again
	keep          bool         // join lost calls
	endedSessions []string     // sessions over

	hook   func(h *Host) // called in each method of a Cluster
	called []string      // these methods
}

// calls runs the hook in a method of a Cluster.
func (e *meshEnd) calls(method string) {
	e.m.mu.Lock()
	h, hook := e.m.hosts[e.id], e.m.hook
	e.m.called = append(e.m.called, method)
	e.m.mu.Unlock()
	if hook != nil && h != nil {
		hook(h)
	}
}

type meshEnd struct {
	m  *mesh
	id string
}

// newMesh starts Hosts of these names; they are closed with the test.
func newMesh(t *testing.T, opts HostOptions, names ...string) *mesh {
	m := &mesh{hosts: make(map[string]*Host), offers: make(map[string][]cluster.Offer), changed: make(chan struct{})}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { stop(); wg.Wait() })
	for _, name := range names {
		o := opts
		o.ID, o.Cluster = name, &meshEnd{m, name}
		h := testHost(t, &o)
		m.mu.Lock()
		m.hosts[name] = h
		m.mu.Unlock()
		wg.Go(func() {
			for offers := range h.runtimeOffers(ctx) {
				m.mu.Lock()
				m.offers[name] = offers
				close(m.changed)
				m.changed = make(chan struct{})
				m.mu.Unlock()
			}
		})
	}
	return m
}

func (e *meshEnd) Offers(ctx context.Context) iter.Seq[[]cluster.Offer] {
	return func(yield func([]cluster.Offer) bool) {
		for ctx.Err() == nil {
			e.calls("Offers")
			list, changed := e.m.all()
			if !yield(list) {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
	}
}

// all returns the offers of all Hosts, and a channel that is closed when they change.
func (m *mesh) all() (list []cluster.Offer, changed chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(m.offers)) {
		list = append(list, m.offers[name]...)
	}
	return list, m.changed
}

func (e *meshEnd) Forward(ctx context.Context, to cluster.Offer, call *cluster.Call) iter.Seq2[Message, error] {
	return func(yield func(Message, error) bool) {
		e.calls("Forward")
		e.m.mu.Lock()
		h, cut, keep := e.m.hosts[to.HostID], e.m.cut, e.m.keep
		e.m.mu.Unlock()
		own := *call
		n := 0
		for {
			lost := false
			line, end := context.WithCancel(ctx)
			for m, err := range h.serveForwarded(line, &own) {
				if cut != nil && cut(&own, n) {
					lost = true
					break
				}
				n++
				if c, ok := m.(*StreamChunk); ok {
					own.ResumeFrom = c.ChunkID + 1
				}
				if !yield(m, err) || err != nil {
					end()
					return
				}
			}
			end()
			switch {
			case !lost:
				return
			case !keep:
				yield(nil, errors.New("the line is cut"))
				return
			}
			own.Join = true
			e.m.joins.Add(1)
		}
	}
}

func (e *meshEnd) SessionEnded(id, reason string) {
	e.calls("SessionEnded")
	e.m.mu.Lock()
	defer e.m.mu.Unlock()
	e.m.endedSessions = append(e.m.endedSessions, id+" "+reason)
	for name, h := range e.m.hosts {
		if name != e.id {
			go h.endForwardedSession(id, reason)
		}
	}
}

// attach connects a Runtime to a Host of the mesh until the test ends, or stop.
func (m *mesh) attach(t *testing.T, host string, rt *Runtime) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	conn, err := m.hosts[host].Dial(testService)
	require.NoError(t, err)
	go func() {
		defer close(done)
		_ = rt.Run(ctx, conn)
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	synctest.Wait()
	return stop
}

func (m *mesh) client(t *testing.T, host string) *Client {
	c := must(NewClient(func(context.Context) (Conn, error) { return m.hosts[host].Dial(testUser) }, nil))
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func (m *mesh) empty(t *testing.T) {
	t.Helper()
	synctest.Wait()
	for name, h := range m.hosts {
		h.lock()
		require.Zero(t, h.sessions.Calls(), name)
		require.Zero(t, h.stats.InFlight, name)
		h.unlock()
	}
}

// A client of one Host calls, lists, streams and cancels the tools of a Runtime
// that is connected to another.
func TestRemoteCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, HostOptions{}, "a", "b")
		cancelled := make(chan error, 1)
		rt := testRuntime("r1", nil)
		rt.names["wait"].tool = HandlerFunc(func(ctx context.Context, _ *ToolCall) (any, error) {
			<-ctx.Done()
			cancelled <- ctx.Err()
			return nil, ctx.Err()
		})
		m.attach(t, "b", rt)
		ctx := t.Context()
		sess, err := m.client(t, "a").CreateSession(ctx, &CreateSessionParams{ID: "s"})
		require.NoError(t, err)

		sum, err := CallAs[int64](ctx, sess, "math/add", addIn{1, 2})
		require.NoError(t, err)
		require.Equal(t, int64(3), sum)
		_, err = CallAs[int64](ctx, sess, "r1/math/add", addIn{1, 2})
		require.NoError(t, err)
		_, err = CallAs[int64](ctx, sess, "r2/math/add", addIn{1, 2})
		require.ErrorIs(t, err, ReasonNotFulfilled)
		_, err = CallAs[int64](ctx, sess, "fail", nil)
		require.ErrorIs(t, err, ErrExecutionFailed)

		tools, err := sess.ListTools(ctx)
		require.NoError(t, err)
		require.Len(t, tools, 6)
		require.Equal(t, []string{"r1"}, tools[0].Runtimes)

		var got []int64
		for n, err := range StreamAs[int64](ctx, sess, "count", countIn{40}) {
			require.NoError(t, err)
			got = append(got, n)
		}
		require.Len(t, got, 40)

		short, stop := context.WithCancel(ctx)
		time.AfterFunc(time.Second, stop)
		_, err = CallAs[string](short, sess, "wait", waitIn{1})
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, <-cancelled, context.Canceled)

		_, err = sess.Call(ctx, "wait", json.RawMessage(`{"ms":1}`), &CallOptions{Timeout: time.Second})
		require.ErrorIs(t, err, ErrExecutionTimeout)
		<-cancelled

		require.Empty(t, m.hosts["b"].sessionIDs(), "the session is no client's over there")
		thief := connect(t, m.hosts["b"], testUser)
		thief.send(add("i", "s"))
		require.ErrorIs(t, next[*ToolResult](thief).Error, ReasonUnknownSession)
		require.Equal(t, 1, m.hosts["a"].Stats().Sessions)
		require.Zero(t, m.hosts["b"].Stats().Sessions)

		require.NoError(t, sess.Destroy(ctx))
		synctest.Wait()
		require.Equal(t, []string{"s destroyed"}, m.endedSessions)
		require.Equal(t, 1, m.hosts["b"].sessions.Len(), "only what it asks its Runtimes in is left")
		m.empty(t)
	})
}

// A call for which a local Runtime exists is never forwarded, and calls are distributed over all
// Hosts that offer a tool.
func TestRemoteRouting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, HostOptions{}, "a", "b", "c")
		stop := m.attach(t, "a", testRuntime("ra", nil))
		m.attach(t, "b", testRuntime("rb", nil))
		m.attach(t, "c", testRuntime("rc", nil))
		sess, err := m.client(t, "a").CreateSession(t.Context(), nil)
		require.NoError(t, err)
		synctest.Wait() // ra has announced its tools
		who := func() string {
			id, err := CallAs[string](t.Context(), sess, "get", map[string]string{"key": "k"})
			require.NoError(t, err)
			return id
		}
		require.Equal(t, []string{"ra", "ra"}, []string{who(), who()})
		require.Zero(t, m.hosts["b"].Stats().Dispatched+m.hosts["c"].Stats().Dispatched)
		stop()
		synctest.Wait()
		require.ElementsMatch(t, []string{"rb", "rc"}, []string{who(), who()})
		m.empty(t)
	})
}

// A Host that refuses a call has not run it: another one gets it. If all refuse,
// the client learns why, and nothing is recorded.
func TestRemoteRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, HostOptions{Limits: Limits{MaxConcurrentPerRuntime: 1}}, "a", "b", "c")
		m.attach(t, "b", testRuntime("rb", nil))
		m.attach(t, "c", testRuntime("rc", nil))
		w := connect(t, m.hosts["a"], testUser)
		w.session("s")
		wait := func(id string) *ToolCall {
			return &ToolCall{InvocationID: id, SessionID: "s", ToolName: "wait", Parameters: json.RawMessage(`{"ms":1000}`)}
		}
		for i := range 3 {
			w.send(wait(fmt.Sprintf("i%d", i)))
			synctest.Wait()
		}
		r := next[*ToolResult](w)
		require.Equal(t, "i2", r.InvocationID)
		require.ErrorIs(t, r.Error, ReasonOverloaded)
		require.Nil(t, next[*ToolResult](w).Error)
		require.Nil(t, next[*ToolResult](w).Error)
		w.send(wait("i2")) // it is new
		require.Nil(t, next[*ToolResult](w).Error)
		require.Equal(t, uint64(3), m.hosts["b"].Stats().Succeeded+m.hosts["c"].Stats().Succeeded)
		m.empty(t)
	})
}

// ALT-D24: a call whose fate at another Host is unknown fails, unless its contract
// says that it may run twice.
func TestRemoteLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, HostOptions{}, "a", "b", "c")
		stop := m.attach(t, "b", testRuntime("rb", nil))
		var lost atomic.Int64
		m.cut = func(call *cluster.Call, n int) bool { return call.RuntimeID == "rb" && lost.Add(1) > 0 }
		sess, err := m.client(t, "a").CreateSession(t.Context(), nil)
		require.NoError(t, err)
		_, err = CallAs[int64](t.Context(), sess, "math/add", addIn{1, 2})
		require.ErrorIs(t, err, ReasonDisconnected)
		_, err = CallAs[string](t.Context(), sess, "get", map[string]string{"key": "k"})
		require.ErrorIs(t, err, ReasonDisconnected, "nobody else")

		m.attach(t, "c", testRuntime("rc", nil))
		for range 2 {
			id, err := CallAs[string](t.Context(), sess, "get", map[string]string{"key": "k"})
			require.NoError(t, err)
			require.Equal(t, "rc", id)
		}

		// The Runtime of the other Host disconnects.
		m.cut = nil
		errs := make(chan error, 1)
		go func() {
			_, err := sess.Call(t.Context(), "rb/wait", json.RawMessage(`{"ms":100000}`), nil)
			errs <- err
		}()
		synctest.Wait()
		b := m.hosts["b"]
		b.lock()
		rb := b.order[0]
		b.unlock()
		rb.cut()
		require.ErrorIs(t, <-errs, ReasonDisconnected)
		stop()
		m.empty(t)
	})
}

// A Cluster that lost its connection joins the call: the call runs once, and its stream continues
// at the next chunk.
func TestRemoteJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, HostOptions{}, "a", "b")
		m.attach(t, "b", testRuntime("rb", nil))
		m.keep = true
		cuts := 0
		m.cut = func(_ *cluster.Call, n int) bool {
			if n == 3*cuts+1 && cuts < 5 {
				cuts++
				return true
			}
			return false
		}
		sess, err := m.client(t, "a").CreateSession(t.Context(), nil)
		require.NoError(t, err)
		var got []int64
		for n, err := range StreamAs[int64](t.Context(), sess, "count", countIn{20}) {
			require.NoError(t, err)
			got = append(got, n)
		}
		require.Equal(t, []int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19}, got)
		require.Equal(t, int64(5), m.joins.Load())
		require.Equal(t, uint64(1), m.hosts["b"].Stats().Dispatched)
		m.empty(t)
	})
}

// Joining starts nothing.
func TestServeForwardedJoinsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, HostOptions{}, "a", "b")
		m.attach(t, "b", testRuntime("rb", nil))
		call := &cluster.Call{HostID: "a", RuntimeID: "rb", Contract: "math/add", InvocationID: "i", SessionID: "s",
			SessionTTL: time.Minute, Principal: "user", Parameters: json.RawMessage(`{"a":1,"b":2}`), Timeout: time.Second, Join: true}
		one := func() (Message, error) {
			for m, err := range m.hosts["b"].serveForwarded(t.Context(), call) {
				return m, err
			}
			return nil, nil
		}
		_, err := one()
		var refused *Error
		require.False(t, errors.As(err, &refused), "%v", err)
		require.Error(t, err)
		call.Join = false
		r, err := one()
		require.NoError(t, err)
		require.Equal(t, json.RawMessage("3"), r.(*ToolResult).Payload)
		call.Join = true
		r, err = one()
		require.NoError(t, err)
		require.Equal(t, json.RawMessage("3"), r.(*ToolResult).Payload)
		require.Equal(t, uint64(1), m.hosts["b"].Stats().Dispatched)

		call.Join, call.InvocationID = false, "i2"
		for _, broken := range []func(c *cluster.Call){
			func(c *cluster.Call) { c.Parameters = json.RawMessage(`{"a":1}`) },
			func(c *cluster.Call) { c.Contract = "nothing" },
			func(c *cluster.Call) { c.RuntimeID = "other" },
			func(c *cluster.Call) { c.Principal = "somebody" },
			func(c *cluster.Call) { c.SessionID = "x\n" },
			func(c *cluster.Call) { c.SessionTTL, c.SessionID = 0, "s2" },
			func(c *cluster.Call) { c.InvocationID = "" },
			func(c *cluster.Call) { c.Parameters = json.RawMessage(`{`) },
		} {
			own := *call
			broken(&own)
			for _, err := range m.hosts["b"].serveForwarded(t.Context(), &own) {
				require.ErrorAs(t, err, &refused, "%+v", own)
			}
		}
		require.Equal(t, uint64(1), m.hosts["b"].Stats().Dispatched)
		require.NoError(t, m.hosts["b"].Close())
		for _, err := range m.hosts["b"].serveForwarded(t.Context(), call) {
			require.ErrorAs(t, err, &refused)
		}
	})
}

// ALT-D24: another attempt at a call is not confused with one that was never answered
// here.
func TestServeForwardedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, HostOptions{}, "a", "b")
		h := m.hosts["b"]
		silent, well := attachRuntime(t, h, testService, "r1", "get"), attachRuntime(t, h, testService, "r2", "get")
		call := &cluster.Call{HostID: "a", RuntimeID: "r1", Contract: "get", InvocationID: "i", SessionID: "s",
			SessionTTL: time.Hour, Parameters: json.RawMessage(`{"key":"k"}`), Timeout: time.Second}
		for r, err := range h.serveForwarded(t.Context(), call) {
			require.NoError(t, err)
			require.ErrorIs(t, r.(*ToolResult).Error, ErrExecutionTimeout)
		}
		repeat := *call
		repeat.RuntimeID, repeat.Attempt = "r2", 1
		go func() {
			m, err := well.conn.Receive()
			for err == nil && typeOf(m) != "ToolCall" {
				m, err = well.conn.Receive()
			}
			_ = silent.conn.Send(&ToolResult{InvocationID: "i", Payload: json.RawMessage("1")}) // too late
			_ = well.conn.Send(&ToolResult{InvocationID: "i", Payload: json.RawMessage("2")})
		}()
		for r, err := range h.serveForwarded(t.Context(), &repeat) {
			require.NoError(t, err)
			require.Nil(t, r.(*ToolResult).Error)
			require.Equal(t, json.RawMessage("2"), r.(*ToolResult).Payload)
		}
		m.empty(t)
	})
}

// ALT-D22: a late second attempt does not affect a call of another session that reuses the id of
// the answered first attempt.
func TestServeForwardedAgainElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, HostOptions{}, "a", "b")
		h := m.hosts["b"]
		rt := attachRuntime(t, h, testService, "r1", "get")
		call := &cluster.Call{HostID: "a", RuntimeID: "r1", Contract: "get", InvocationID: "i", SessionID: "s",
			SessionTTL: time.Hour, Parameters: json.RawMessage(`{"key":"k"}`), Timeout: time.Second}
		for r, err := range h.serveForwarded(t.Context(), call) {
			require.NoError(t, err)
			require.ErrorIs(t, r.(*ToolResult).Error, ErrExecutionTimeout)
		}
		rt.send(&ToolResult{InvocationID: "i", Payload: json.RawMessage("1")})
		w := connect(t, h, testUser)
		w.session("own")
		w.send(&ToolCall{InvocationID: "i", SessionID: "own", ToolName: "get", Parameters: json.RawMessage(`{"key":"k"}`)})
		repeat := *call
		repeat.Attempt = 1
		for _, err := range h.serveForwarded(t.Context(), &repeat) {
			require.ErrorIs(t, err, reasonInvocationIDInUse)
		}
		rt.send(&ToolResult{InvocationID: "i", Payload: json.RawMessage("2")})
		require.Equal(t, json.RawMessage("2"), next[*ToolResult](w).Payload)
	})
}

// A Host that goes away leaves its calls at the other for a while; then they are
// cancelled (ALT-D33).
func TestServeForwardedLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, HostOptions{}, "a", "b")
		m.attach(t, "b", testRuntime("rb", nil))
		ctx, lose := context.WithCancel(t.Context())
		call := &cluster.Call{HostID: "a", RuntimeID: "rb", Contract: "wait", InvocationID: "i", SessionID: "s",
			SessionTTL: time.Hour, Parameters: json.RawMessage(`{"ms":100000}`), Timeout: time.Minute}
		time.AfterFunc(time.Second, lose)
		for _, err := range m.hosts["b"].serveForwarded(ctx, call) {
			require.ErrorIs(t, err, context.Canceled)
		}
		require.Equal(t, 1, m.hosts["b"].Stats().InFlight)
		time.Sleep(31 * time.Second)
		m.empty(t)
	})
}

// ALT-D39: a Host does not use the offer of a Host with another contract of that name, and logs it once.
func TestOffersOfOtherContracts(t *testing.T) { synctest.Test(t, testOffersOfOtherContracts) }

func testOffersOfOtherContracts(t *testing.T) {
	logged := &countedLog{Handler: slog.DiscardHandler, text: "altar: offer of another contract not used"}
	m := newMesh(t, HostOptions{Logger: slog.New(logged)}, "a", "b")
	m.attach(t, "b", testRuntime("rb", nil))
	c := connect(t, m.hosts["a"], testUser)
	c.session("s")
	c.send(add("i", "s"))
	require.Equal(t, "3", string(next[*ToolResult](c).Payload))
	later, err := DecodeManifest([]byte(strings.Replace(testManifest, `"type":"integer"`, `"type":"float"`, 1)))
	require.NoError(t, err)
	require.NotEqual(t, m.hosts["b"].manifest.byName["math/add"].digest, later.Contracts[0].digest())
	require.NoError(t, m.hosts["b"].ReplaceManifest(later))
	synctest.Wait()
	list, _ := m.all()
	require.Len(t, list, 1)
	require.Equal(t, later.Contracts[0].digest(), list[0].Digests[slices.Index(list[0].Contracts, "math/add")])
	for i := range 3 {
		c.send(add(fmt.Sprint("j", i), "s"))
		require.ErrorIs(t, next[*ToolResult](c).Error, ReasonNotFulfilled)
		c.send(&ListTools{SessionID: "s"})
		for _, tool := range next[*ToolList](c).Tools {
			require.NotEqual(t, "math/add", tool.Name)
		}
	}
	require.Equal(t, int64(1), logged.n.Load())
}

// Each method of a Cluster may call its Host.
func TestClusterCallsItsHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, HostOptions{}, "a", "b")
		m.mu.Lock()
		m.hook = func(h *Host) {
			h.Stats()
			h.sessionIDs()
			require.NoError(t, h.Ready())
		}
		m.mu.Unlock()
		m.attach(t, "b", testRuntime("rb", nil))
		s, err := m.client(t, "a").CreateSession(t.Context(), nil)
		require.NoError(t, err)
		_, err = CallAs[int64](t.Context(), s, "math/add", addIn{1, 2})
		require.NoError(t, err)
		_, err = s.ListTools(t.Context())
		require.NoError(t, err)
		require.NoError(t, s.Destroy(t.Context()))
		synctest.Wait()
		m.mu.Lock()
		defer m.mu.Unlock()
		require.Subset(t, m.called, []string{"Offers", "Forward", "SessionEnded"})
	})
}

// A call that waits for a lost Runtime goes to the Host to which the Runtime has moved (ALT-D24, ALT-D39).
func TestHeldCallFollowsItsRuntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, HostOptions{}, "a", "b")
		detach := m.attach(t, "a", testRuntime("r", nil))
		s, err := m.client(t, "a").CreateSession(t.Context(), nil)
		require.NoError(t, err)
		detach()
		time.AfterFunc(time.Second, func() { m.attach(t, "b", testRuntime("r", nil)) })
		start := time.Now()
		sum, err := CallAs[int64](t.Context(), s, "math/add", addIn{1, 2})
		require.NoError(t, err)
		require.Equal(t, int64(3), sum)
		require.Equal(t, time.Second, time.Since(start))
	})
}

// A Cluster whose offers end or panic is called again.
func TestOffersAreRequestedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, HostOptions{Logger: slog.New(slog.DiscardHandler)}, "b")
		m.attach(t, "b", testRuntime("rb", nil))
		c := &brokenCluster{meshEnd: meshEnd{m, "a"}}
		h := testHost(t, &HostOptions{ID: "a", Cluster: c, Logger: slog.New(slog.DiscardHandler)})
		m.mu.Lock()
		m.hosts["a"] = h
		m.mu.Unlock()
		s, err := m.client(t, "a").CreateSession(t.Context(), nil)
		require.NoError(t, err)
		time.Sleep(2*offersRetry + time.Millisecond)
		_, err = CallAs[int64](t.Context(), s, "math/add", addIn{1, 2})
		require.NoError(t, err)
		require.Equal(t, int64(3), c.n.Load())
	})
}

// A brokenCluster has offers at the third attempt.
type brokenCluster struct {
	meshEnd
	n atomic.Int64
}

func (c *brokenCluster) Offers(ctx context.Context) iter.Seq[[]cluster.Offer] {
	switch c.n.Add(1) {
	case 1:
		panic("no offers")
	case 2:
		return func(func([]cluster.Offer) bool) {}
	}
	return c.meshEnd.Offers(ctx)
}

// A countedLog counts the records with a text.
type countedLog struct {
	slog.Handler
	text string
	n    atomic.Int64
}

func (l *countedLog) Enabled(context.Context, slog.Level) bool { return true }

func (l *countedLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message == l.text {
		l.n.Add(1)
	}
	return nil
}
