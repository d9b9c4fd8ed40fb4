// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/altar/internal/core"
	"github.com/fivewire/fivewire/internal/testkit"
	"github.com/fivewire/fivewire/store"
)

// A mesh connects Hosts in memory. It is the [cluster.Network] of all of them.
type mesh struct {
	hosts map[string]*Host

	mu      sync.Mutex
	joined  map[string]*meshHost
	streams map[net.Conn]string // open ends, with the Host that has accepted the stream
	joins   int
	hinder  func(n int)                         // called by the n-th Join
	wrap    func(c net.Conn) io.ReadWriteCloser // of the streams that are opened; nil: none
}

type meshHost struct {
	peers  func(ids []string)
	accept func(from string, s io.ReadWriteCloser)
}

// newMesh starts Hosts of these names; they are closed with the test.
func newMesh(t *testing.T, opts HostOptions, names ...string) *mesh {
	m := &mesh{hosts: make(map[string]*Host), joined: make(map[string]*meshHost), streams: make(map[net.Conn]string)}
	for _, name := range names {
		m.add(t, opts, name)
	}
	synctest.Wait()
	return m
}

// add starts a Host. With a store it is not in the mesh, but reaches the others by the store.
func (m *mesh) add(t *testing.T, opts HostOptions, name string) {
	opts.ID = name
	if opts.Persistence.Store == nil {
		opts.Cluster = m
	}
	h := testHost(t, &opts)
	m.hosts[name] = h
}

// Join implements [cluster.Network].
func (m *mesh) Join(ctx context.Context, id string, peers func(ids []string), accept func(from string, s io.ReadWriteCloser)) error {
	m.mu.Lock()
	m.joins++
	n, hinder := m.joins, m.hinder
	m.mu.Unlock()
	if hinder != nil {
		hinder(n)
	}
	m.mu.Lock()
	m.joined[id] = &meshHost{peers, accept}
	m.tellLocked()
	m.mu.Unlock()
	<-ctx.Done()
	m.remove(id)
	return nil
}

func (m *mesh) remove(id string) {
	m.mu.Lock()
	delete(m.joined, id)
	m.tellLocked()
	m.mu.Unlock()
	m.cut(id)
}

// tellLocked calls the functions of all Hosts. m.mu must be held.
func (m *mesh) tellLocked() {
	ids := slices.Sorted(maps.Keys(m.joined))
	for id, h := range m.joined {
		h.peers(slices.DeleteFunc(slices.Clone(ids), func(o string) bool { return o == id }))
	}
}

// Open implements [cluster.Network].
func (m *mesh) Open(_ context.Context, from, to string) (io.ReadWriteCloser, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.joined[to]
	if h == nil {
		return nil, errors.New("mesh: no such Host")
	}
	near, far := net.Pipe()
	m.streams[near], m.streams[far] = to, to
	h.accept(from, far)
	if m.wrap != nil {
		return m.wrap(near), nil
	}
	return near, nil
}

// cut closes the streams that a Host has accepted.
func (m *mesh) cut(to string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for c, id := range m.streams {
		if id == to {
			_ = c.Close()
			delete(m.streams, c)
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
		require.Zero(t, h.drain.count(), name)
		require.Zero(t, h.Stats().InFlight, name)
		requireNoIDs(t, h)
	}
}

// requireNoIDs fails if an invocation id is in use.
func requireNoIDs(t *testing.T, h *Host) {
	t.Helper()
	for i := range h.ids.parts {
		p := &h.ids.parts[i]
		p.mu.Lock()
		require.Empty(t, p.byID)
		p.mu.Unlock()
	}
}

// A Host in an apart network has no other Hosts.
type apart struct{}

func (apart) Join(ctx context.Context, _ string, _ func([]string), _ func(string, io.ReadWriteCloser)) error {
	<-ctx.Done()
	return nil
}

func (apart) Open(context.Context, string, string) (io.ReadWriteCloser, error) {
	return nil, errors.New("no other Host")
}

// overEach runs a test with Hosts in a mesh, and with Hosts that share a store.
func overEach(t *testing.T, f func(t *testing.T, persistence Persistence)) {
	for _, name := range []string{"mesh", "store"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var p Persistence
				if name == "store" {
					p.Store = store.NewMemory()
				}
				f(t, p)
			})
		})
	}
}

// A client of one Host calls, lists, streams and cancels the tools of a Runtime
// that is connected to another.
func TestRemoteCalls(t *testing.T) {
	overEach(t, func(t *testing.T, persistence Persistence) {
		m := newMesh(t, HostOptions{Persistence: persistence}, "a", "b")
		cancelled := make(chan error, 1)
		rt := testRuntime("r1", nil)
		rt.names["wait"].tool = HandlerFunc(func(ctx context.Context, _ *ToolCall) (any, error) {
			<-ctx.Done()
			cancelled <- ctx.Err()
			return nil, ctx.Err()
		})
		m.attach(t, "b", rt)
		destroyed := watchSessions(t, m.hosts["b"])
		ctx := t.Context()
		sess, err := m.client(t, "a").CreateSession(ctx, &CreateSessionParams{ID: "s"})
		require.NoError(t, err)

		sum, err := CallAs[int64](ctx, sess, "math/add", addIn{1, 2}, nil)
		require.NoError(t, err)
		require.Equal(t, int64(3), sum)
		_, err = CallAs[int64](ctx, sess, "r1/math/add", addIn{1, 2}, nil)
		require.NoError(t, err)
		_, err = CallAs[int64](ctx, sess, "r2/math/add", addIn{1, 2}, nil)
		require.ErrorIs(t, err, ReasonNotFulfilled)
		_, err = CallAs[int64](ctx, sess, "fail", nil, nil)
		require.ErrorIs(t, err, ErrExecutionFailed)

		tools, err := sess.ListTools(ctx)
		require.NoError(t, err)
		require.Len(t, tools, 6)
		require.Equal(t, []string{"r1"}, tools[0].Runtimes)

		var got []int64
		for n, err := range StreamAs[int64](ctx, sess, "count", countIn{40}, nil) {
			require.NoError(t, err)
			got = append(got, n)
		}
		require.Len(t, got, 40)

		short, stop := context.WithCancel(ctx)
		time.AfterFunc(time.Second, stop)
		_, err = CallAs[string](short, sess, "wait", waitIn{1}, nil)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, <-cancelled, context.Canceled)

		_, err = sess.Call(ctx, "wait", json.RawMessage(`{"ms":1}`), &CallOptions{Timeout: time.Second})
		require.ErrorIs(t, err, ErrExecutionTimeout)
		<-cancelled

		require.Empty(t, m.hosts["b"].sessionIDs(), "the session is no client's over there")
		if persistence.Store == nil { // otherwise it is a session of both Hosts
			thief := connect(t, m.hosts["b"], testUser)
			thief.send(add("i", "s"))
			require.ErrorIs(t, next[*ToolResult](thief).Error, ReasonUnknownSession)
		}
		require.Equal(t, 1, m.hosts["a"].Stats().Sessions)
		require.Zero(t, m.hosts["b"].Stats().Sessions)

		require.NoError(t, sess.Destroy(ctx))
		synctest.Wait()
		require.Equal(t, []string{"s"}, *destroyed, "the Runtime learns of the end of the session")
		m.empty(t)
	})
}

// A call for which a local Runtime exists is never forwarded, and calls are distributed over all
// Hosts that offer a tool.
func TestRemoteRouting(t *testing.T) {
	overEach(t, func(t *testing.T, persistence Persistence) {
		m := newMesh(t, HostOptions{Persistence: persistence}, "a", "b", "c")
		stop := m.attach(t, "a", testRuntime("ra", nil))
		m.attach(t, "b", testRuntime("rb", nil))
		m.attach(t, "c", testRuntime("rc", nil))
		sess, err := m.client(t, "a").CreateSession(t.Context(), nil)
		require.NoError(t, err)
		synctest.Wait() // ra has announced its tools
		who := func() string {
			id, err := CallAs[string](t.Context(), sess, "get", map[string]string{"key": "k"}, nil)
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
	overEach(t, func(t *testing.T, persistence Persistence) {
		m := newMesh(t, HostOptions{Persistence: persistence, Limits: Limits{MaxConcurrentPerRuntime: 1}}, "a", "b", "c")
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

// watchSessions connects a Runtime, and returns the ids of the sessions whose end is reported to it.
func watchSessions(t *testing.T, h *Host) *[]string {
	rt := attachRuntime(t, h, testService, "watcher", "get")
	ids := new([]string)
	go func() {
		for m, err := rt.conn.Receive(); err == nil; m, err = rt.conn.Receive() {
			if m, ok := m.(*SessionDestroyed); ok {
				*ids = append(*ids, m.SessionID)
			}
		}
	}()
	return ids
}

// ALT-D24: a call whose fate at another Host is unknown fails, unless its contract
// says that it may run twice.
func TestRemoteLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, HostOptions{}, "a", "b", "c")
		m.attach(t, "b", testRuntime("rb", nil))
		sess, err := m.client(t, "a").CreateSession(t.Context(), nil)
		require.NoError(t, err)
		errs := make(chan error, 2)
		call := func(tool string, params any) {
			go func() {
				_, err := sess.Call(t.Context(), tool, params, nil)
				errs <- err
			}()
			synctest.Wait()
		}
		call("rb/wait", waitIn{100_000})
		m.cut("b")
		require.ErrorIs(t, <-errs, ReasonDisconnected)
		synctest.Wait()
		require.Zero(t, m.hosts["b"].Stats().InFlight, "the other Host has cancelled the call")

		time.Sleep(time.Minute) // the stream is opened again
		slow := testRuntime("slow", nil)
		slow.names["get"].tool = HandlerFunc(func(ctx context.Context, _ *ToolCall) (any, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		stop := m.attach(t, "c", slow)
		call("slow/get", map[string]string{"key": "k"})
		m.cut("c")
		require.ErrorIs(t, <-errs, ReasonDisconnected, "it is pinned")
		time.Sleep(time.Minute)
		for range 2 { // one of them goes to the slow Runtime
			call("get", map[string]string{"key": "k"})
		}
		m.cut("c")
		require.NoError(t, <-errs)
		require.NoError(t, <-errs)

		// The Runtime of the other Host disconnects.
		time.Sleep(time.Minute)
		call("slow/wait", waitIn{100_000})
		m.hosts["c"].lockAll()
		rc := m.hosts["c"].fleet.order[0]
		m.hosts["c"].unlockAll()
		rc.cut()
		require.ErrorIs(t, <-errs, ReasonDisconnected)
		stop()
		m.empty(t)
	})
}

// A Host that shuts down ends the calls that others have forwarded, and gets no further calls.
func TestRemoteShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, HostOptions{}, "a", "b", "c")
		m.attach(t, "b", testRuntime("rb", nil))
		sess, err := m.client(t, "a").CreateSession(t.Context(), nil)
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() {
			_, err := CallAs[string](t.Context(), sess, "wait", waitIn{2_000}, nil)
			done <- err
		}()
		synctest.Wait()
		m.attach(t, "c", testRuntime("rc", nil))
		go func() { _ = m.hosts["b"].Shutdown(t.Context()) }()
		synctest.Wait()
		for range 4 {
			id, err := CallAs[string](t.Context(), sess, "get", map[string]string{"key": "k"}, nil)
			require.NoError(t, err)
			require.Equal(t, "rc", id)
		}
		require.NoError(t, <-done)
		m.empty(t)
	})
}

// A late stream gives data to its reader a moment after it has read them.
type lateStream struct{ io.ReadWriteCloser }

func (s lateStream) Read(b []byte) (int, error) {
	n, err := s.ReadWriteCloser.Read(b)
	time.Sleep(10 * time.Millisecond)
	return n, err
}

// The result of a Host that shuts down is received although the network reports its departure first. A Host that
// departs and leaves its stream open, or one that did not shut down, is lost.
func TestResultOfDepartedHost(t *testing.T) {
	for _, how := range []string{"shuts down", "hangs in its shutdown", "fails"} {
		synctest.Test(t, func(t *testing.T) {
			m := newMesh(t, HostOptions{})
			m.wrap = func(c net.Conn) io.ReadWriteCloser {
				if m.streams[c] == "b" {
					return lateStream{c}
				}
				return c
			}
			m.add(t, HostOptions{}, "a")
			m.add(t, HostOptions{}, "b")
			m.attach(t, "b", testRuntime("rb", nil))
			sess, err := m.client(t, "a").CreateSession(t.Context(), nil)
			require.NoError(t, err)
			time.Sleep(time.Second)
			done := make(chan error, 1)
			go func() {
				_, err := CallAs[string](t.Context(), sess, "wait", waitIn{3_000}, nil)
				done <- err
			}()
			time.Sleep(time.Second)
			start, want := time.Now(), time.Duration(0)
			if how == "shuts down" {
				require.NoError(t, m.hosts["b"].Shutdown(t.Context()))
				require.NoError(t, <-done)
				m.empty(t)
				return
			}
			if how == "hangs in its shutdown" {
				want = departTime
				go func() { _ = m.hosts["b"].Shutdown(t.Context()) }()
				time.Sleep(100 * time.Millisecond)
				start = time.Now()
			}
			m.mu.Lock()
			delete(m.joined, "b")
			m.tellLocked()
			m.mu.Unlock()
			require.ErrorIs(t, <-done, ReasonDisconnected)
			require.Equal(t, want, time.Since(start))
			m.empty(t)
		})
	}
}

// Chunks, grants and cancellations pass between Hosts as they do between a Host and a Runtime: a reader that stops
// holds the tool, and no other call (ALT-D37).
func TestRemoteStreamWaitsForItsReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, HostOptions{}, "a", "b")
		var sent atomic.Int64
		rt := testRuntime("rb", nil)
		rt.names["count"].stream = StreamHandlerFunc(func(_ context.Context, _ *ToolCall, out *ChunkWriter) error {
			for i := 0; ; i++ {
				if err := out.Send(i); err != nil {
					return err
				}
				sent.Add(1)
			}
		})
		m.attach(t, "b", rt)
		sess, err := m.client(t, "a").CreateSession(t.Context(), nil)
		require.NoError(t, err)
		n := int64(0)
		for _, err := range StreamAs[int64](t.Context(), sess, "count", countIn{1}, nil) {
			require.NoError(t, err)
			if n++; n%100 == 0 {
				synctest.Wait()
				require.LessOrEqual(t, sent.Load(), n+3*64+2, "client, Host and Host hold 64 chunks each")
				_, err := CallAs[int64](t.Context(), sess, "math/add", addIn{1, 2}, nil)
				require.NoError(t, err)
			}
			if n == 1000 {
				break
			}
		}
		m.empty(t)
	})
}

// A Host with a Runtime that fulfils session by session offers it, too.
func TestRemoteRuntimeThatIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, HostOptions{}, "a", "b")
		m.attach(t, "b", testRuntime("rb", &RuntimeOptions{DisableStanding: true}))
		sess, err := m.client(t, "a").CreateSession(t.Context(), nil)
		require.NoError(t, err)
		sum, err := CallAs[int64](t.Context(), sess, "math/add", addIn{1, 2}, nil)
		require.NoError(t, err)
		require.Equal(t, int64(3), sum)
		m.empty(t)
	})
}

// A session whose calls ran at another Host ends although the stream to that Host is closed.
func TestSessionEndsAfterLossOfHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, HostOptions{}, "a", "b")
		m.attach(t, "b", testRuntime("rb", nil))
		sess, err := m.client(t, "a").CreateSession(t.Context(), nil)
		require.NoError(t, err)
		_, err = sess.Call(t.Context(), "math/add", addIn{1, 2}, nil)
		require.NoError(t, err)
		require.NoError(t, m.hosts["b"].Close())
		synctest.Wait()
		require.NoError(t, sess.Destroy(t.Context()))
	})
}

// A call that is too large for the stream to another Host ends at once.
func TestCallTooLargeForOtherHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, HostOptions{Limits: Limits{MaxMessage: 1000}}, "a", "b")
		m.attach(t, "b", testRuntime("rb", nil))
		sess, err := m.client(t, "a").CreateSession(t.Context(), nil)
		require.NoError(t, err)
		begin := time.Now()
		_, err = sess.Call(t.Context(), "get", map[string]string{"key": strings.Repeat("x", 100<<10)}, nil)
		require.ErrorIs(t, err, reasonMessageTooLarge)
		require.Equal(t, begin, time.Now())
		_, err = sess.Call(t.Context(), "math/add", addIn{1, 2}, nil)
		require.NoError(t, err)
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
	require.NotEqual(t, m.hosts["b"].manifest.Load().byName["math/add"].digest, later.Contracts[0].digest())
	require.NoError(t, m.hosts["b"].ReplaceManifest(later))
	synctest.Wait()
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
		sum, err := CallAs[int64](t.Context(), s, "math/add", addIn{1, 2}, nil)
		require.NoError(t, err)
		require.Equal(t, int64(3), sum)
		require.Equal(t, time.Second, time.Since(start))
	})
}

// A call waits for a Runtime that is at no Host for a moment: the Host that it was connected to shuts down, and it goes
// to another one (ALT-D24, ALT-D45).
func TestCallWaitsForRuntimeOfOtherHost(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, h *Host){
		"shutdown": func(t *testing.T, h *Host) { require.NoError(t, h.Shutdown(t.Context())) },
		"close":    func(t *testing.T, h *Host) { require.NoError(t, h.Close()) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMesh(t, HostOptions{}, "a", "b", "c")
				m.attach(t, "b", testRuntime("r", nil))
				s, err := m.client(t, "a").CreateSession(t.Context(), nil)
				require.NoError(t, err)
				end(t, m.hosts["b"])
				synctest.Wait()
				var stop func()
				start := time.Now()
				var wg sync.WaitGroup
				wg.Go(func() {
					time.Sleep(4 * time.Second)
					stop = m.attach(t, "c", testRuntime("r", nil))
				})
				for _, tool := range []string{"math/add", "r/math/add"} {
					wg.Go(func() {
						_, err := CallAs[int64](t.Context(), s, tool, addIn{1, 2}, nil)
						require.NoError(t, err)
						require.Equal(t, 4*time.Second, time.Since(start))
					})
				}
				wg.Wait()
				stop()
				synctest.Wait()
				start = time.Now()
				_, err = CallAs[int64](t.Context(), s, "math/add", addIn{1, 2}, nil)
				require.ErrorIs(t, err, ReasonRuntimeDown)
				require.Equal(t, 5*time.Second, time.Since(start))
				time.Sleep(24 * time.Hour)
				_, err = CallAs[int64](t.Context(), s, "math/add", addIn{1, 2}, nil)
				require.ErrorIs(t, err, ReasonUnknownSession)
				s, err = m.client(t, "a").CreateSession(t.Context(), nil)
				require.NoError(t, err)
				_, err = CallAs[int64](t.Context(), s, "math/add", addIn{1, 2}, nil)
				require.ErrorIs(t, err, ReasonNotFulfilled, "it is forgotten")
				m.empty(t)
			})
		})
	}
}

// A scriptedPeer is another Host whose side of a stream is the test.
type scriptedPeer struct {
	id   string
	t    *testing.T
	conn *wireConn
}

// join enters a scripted Host in a mesh, and returns it once a Host has opened its stream.
func (m *mesh) join(t *testing.T, id string) *scriptedPeer {
	p := &scriptedPeer{id: id, t: t}
	m.mu.Lock()
	m.joined[id] = &meshHost{func([]string) {}, func(_ string, s io.ReadWriteCloser) {
		p.conn = NewStreamConn(s, nil).(*wireConn)
		p.conn.decode.isPeer = true
	}}
	m.tellLocked()
	m.mu.Unlock()
	t.Cleanup(func() { m.remove(id) })
	synctest.Wait()
	return p
}

func (p *scriptedPeer) send(m Message) { require.NoError(p.t, p.conn.Send(m)) }

// offer offers a Runtime with math/add, or none.
func (p *scriptedPeer) offer(h *Host, ids ...string) {
	o := &hostOffers{Offers: []hostOffer{}}
	for _, id := range ids {
		o.Offers = append(o.Offers, hostOffer{id, []string{"math/add"}, []string{h.manifest.Load().byName["math/add"].digest}})
	}
	p.send(o)
}

func (p *scriptedPeer) next() Message {
	m, err := p.conn.Receive()
	require.NoError(p.t, err)
	return m
}

// A Host offers its Runtimes in several messages, so that their number is not bounded by MaxMessage (ALT-D39).
func TestOffersLargerThanMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const contracts, runtimes = 300, 4 // about 100 KB, of the 72 that a message has
		m := newMesh(t, HostOptions{Limits: Limits{MaxMessage: 8 << 10}}, "a", "b")
		list := make([]string, contracts)
		for i := range list {
			list[i] = fmt.Sprintf(`{"name":"c%d","description":"","parameters":[]}`, i)
		}
		for _, h := range m.hosts {
			manifest, err := DecodeManifest([]byte(`{"version":"1.0.0","contracts":[` + strings.Join(list, ",") + `]}`))
			require.NoError(t, err)
			require.NoError(t, h.ReplaceManifest(manifest))
		}
		var stops []func()
		for n := range runtimes {
			rt := must(NewRuntime(fmt.Sprint("r", n), nil))
			for i := range contracts {
				rt.Handle(fmt.Sprint("c", i), HandlerFunc(func(context.Context, *ToolCall) (any, error) { return n, nil }))
			}
			stops = append(stops, m.attach(t, "a", rt))
		}
		offered := func() (pairs int) {
			synctest.Wait()
			h := m.hosts["b"]
			h.lockAll()
			defer h.unlockAll()
			for _, hc := range h.peers.byID["a"].runtimes {
				pairs += len(hc.matched)
			}
			return pairs
		}
		require.Equal(t, contracts*runtimes, offered())
		s, err := m.client(t, "b").CreateSession(t.Context(), nil)
		require.NoError(t, err)
		stops[0]()
		require.Equal(t, contracts*(runtimes-1), offered())
		for _, name := range []string{"c0", "c299"} {
			_, err = CallAs[int](t.Context(), s, name, struct{}{}, nil)
			require.NoError(t, err)
		}
		m.empty(t)
	})
}

// Changes while an offer waits for a slow Host make one offer, which precedes the refusal of a call.
func TestOffersToSlowHostAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, HostOptions{}, "a")
		near, err := m.Open(t.Context(), "x", "a")
		require.NoError(t, err)
		p := &scriptedPeer{id: "x", t: t, conn: NewStreamConn(near, nil).(*wireConn)}
		p.conn.decode.isPeer = true
		requireOffer := func(runtimes int) {
			t.Helper()
			synctest.Wait()
			require.Len(t, p.next().(*hostOffers).Offers, runtimes)
		}
		requireOffer(0)
		stop := m.attach(t, "a", testRuntime("r", nil))
		for i := range 9 {
			m.attach(t, "a", testRuntime(fmt.Sprint("r", i), nil))
		}
		requireOffer(1)
		requireOffer(10)

		m.attach(t, "a", testRuntime("late", nil))
		stop()
		call := &ToolCall{InvocationID: "i", SessionID: "s", ToolName: "math/add", Parameters: json.RawMessage(`{"a":1,"b":2}`), header: header{RequestID: "i"}}
		p.send(&forwardedCall{Principal: "user", Tenant: "acme", Runtime: "r", Contract: "math/add", call: call})
		requireOffer(11)
		requireOffer(10)
		require.Equal(t, "i", p.next().(*ErrorMessage).RequestID)
		require.NoError(t, near.Close())
	})
}

// A message with offers of the longest names has at most 64 KiB.
func TestOffersOfLongestNames(t *testing.T) {
	m := &hostOffers{}
	for range 250 {
		m.Offers = append(m.Offers, hostOffer{strings.Repeat("r", maxIdentifier), []string{strings.Repeat("c", maxContractName)}, []string{strings.Repeat("d", 64)}})
	}
	var all []hostOffer
	parts := m.split()
	require.Len(t, parts, 3)
	for i, part := range parts {
		text, err := AppendMessage(nil, part)
		require.NoError(t, err)
		require.LessOrEqual(t, len(text), 64<<10)
		require.Equal(t, i < 2, part.HasMore)
		all = append(all, part.Offers...)
	}
	require.Equal(t, m.Offers, all)
}

// A call that another Host refuses since its Runtime has just left waits for that Runtime.
func TestRefusedCallWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, HostOptions{}, "a")
		p := m.join(t, "x")
		p.offer(m.hosts["a"], "r")
		synctest.Wait()
		s, err := m.client(t, "a").CreateSession(t.Context(), nil)
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() {
			_, err := CallAs[int64](t.Context(), s, "math/add", addIn{1, 2}, nil)
			done <- err
		}()
		first := p.next().(*forwardedCall)
		p.offer(m.hosts["a"])
		p.send(&ErrorMessage{Err: Errorf(ErrToolNotFound, ReasonNotFulfilled, "the Runtime has left"), header: header{RequestID: first.call.InvocationID}})
		time.Sleep(time.Second)
		p.offer(m.hosts["a"], "r")
		second := p.next().(*forwardedCall)
		require.Equal(t, first.call.InvocationID, second.call.InvocationID)
		p.send(&ToolResult{InvocationID: second.call.InvocationID, Payload: json.RawMessage("3")})
		require.NoError(t, <-done)
		m.empty(t)
	})
}

// A call of a lost Host is not given to another Runtime of that Host.
func TestFailoverLeavesLostHost(t *testing.T) {
	for range 10 { // the order of the Runtimes is random
		synctest.Test(t, func(t *testing.T) {
			m := newMesh(t, HostOptions{}, "a", "b", "c")
			for _, id := range []string{"r1", "r2"} {
				rt := testRuntime(id, nil)
				rt.names["get"].tool = HandlerFunc(func(ctx context.Context, _ *ToolCall) (any, error) {
					<-ctx.Done()
					return nil, ctx.Err()
				})
				m.attach(t, "b", rt)
			}
			s, err := m.client(t, "a").CreateSession(t.Context(), nil)
			require.NoError(t, err)
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() {
					id, err := CallAs[string](t.Context(), s, "get", map[string]string{"key": "k"}, nil)
					require.NoError(t, err)
					require.Equal(t, "rc", id)
				})
			}
			synctest.Wait()
			m.attach(t, "c", testRuntime("rc", nil))
			m.cut("b")
			wg.Wait()
		})
	}
}

// A slowStream is one whose Close waits.
type slowStream struct {
	net.Conn
	closing chan struct{}
}

func (s *slowStream) Close() error {
	<-s.closing
	return s.Conn.Close()
}

// The calls of a lost Host end though closing its stream takes long.
func TestLostHostIsNotAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, HostOptions{}, "a")
		closing := make(chan struct{})
		m.wrap = func(c net.Conn) io.ReadWriteCloser { return &slowStream{c, closing} }
		p := m.join(t, "x")
		p.offer(m.hosts["a"], "r")
		synctest.Wait()
		s, err := m.client(t, "a").CreateSession(t.Context(), nil)
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() {
			_, err := CallAs[int64](t.Context(), s, "math/add", addIn{1, 2}, nil)
			done <- err
		}()
		p.next()
		start := time.Now()
		m.mu.Lock()
		delete(m.joined, "x")
		m.tellLocked()
		m.mu.Unlock()
		require.ErrorIs(t, <-done, ReasonDisconnected)
		require.Zero(t, time.Since(start))
		close(closing)
		m.empty(t)
	})
}

// A Host refuses a forwarded call at once if its Runtime has left: the other Host knows where the Runtime is next.
func TestForwardedCallDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, HostOptions{}, "a")
		stop := m.attach(t, "a", testRuntime("r", nil))
		near, err := m.Open(t.Context(), "x", "a")
		require.NoError(t, err)
		p := &scriptedPeer{id: "x", t: t, conn: NewStreamConn(near, nil).(*wireConn)}
		p.conn.decode.isPeer = true
		require.Len(t, p.next().(*hostOffers).Offers, 1)
		go stop()
		require.Empty(t, p.next().(*hostOffers).Offers)
		start := time.Now()
		call := &ToolCall{InvocationID: "i", SessionID: "s", ToolName: "math/add", Parameters: json.RawMessage(`{"a":1,"b":2}`), header: header{RequestID: "i"}}
		p.send(&forwardedCall{Principal: "user", Tenant: "acme", Runtime: "r", Contract: "math/add", call: call})
		require.Equal(t, "i", p.next().(*ErrorMessage).RequestID)
		require.Zero(t, time.Since(start))
		m.empty(t)
		require.NoError(t, near.Close())
	})
}

// A network that a Host cannot join is tried again.
func TestNetworkIsJoinedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := HostOptions{Logger: slog.New(slog.DiscardHandler)}
		m := newMesh(t, opts, "b")
		m.attach(t, "b", testRuntime("rb", nil))
		m.hinder = func(n int) {
			if n < 4 {
				panic("no network")
			}
		}
		m.add(t, opts, "a")
		s, err := m.client(t, "a").CreateSession(t.Context(), nil)
		require.NoError(t, err)
		time.Sleep(time.Minute)
		_, err = CallAs[int64](t.Context(), s, "math/add", addIn{1, 2}, nil)
		require.NoError(t, err)
	})
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

// A Host forgets the Runtimes that have left another Host once their calls have ended.
func TestDepartedRuntimesOfOtherHostAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, HostOptions{}, "a", "b")
		sess, err := m.client(t, "a").CreateSession(t.Context(), nil)
		require.NoError(t, err)
		requireRuntimes := func(want ...string) {
			t.Helper()
			synctest.Wait()
			a := m.hosts["a"]
			a.lockAll()
			defer a.unlockAll()
			require.ElementsMatch(t, want, slices.Collect(maps.Keys(a.peers.byID["b"].runtimes)))
		}
		var left []weak.Pointer[hostConn]
		for i := range 20 {
			id := fmt.Sprint("r", i)
			stop := m.attach(t, "b", testRuntime(id, nil))
			_, err := CallAs[int64](t.Context(), sess, "math/add", addIn{1, 2}, nil)
			require.NoError(t, err)
			left = append(left, weak.Make(m.hosts["a"].peers.byID["b"].runtimes[id]))
			stop()
		}
		requireRuntimes()
		runtime.GC()
		left = slices.DeleteFunc(left, func(hc weak.Pointer[hostConn]) bool { return hc.Value() == nil })
		require.Less(t, len(left), 5, "those of the last calls may be in memory")

		stop := m.attach(t, "b", testRuntime("busy", nil))
		var call sync.WaitGroup
		call.Go(func() {
			_, err := CallAs[string](t.Context(), sess, "wait", waitIn{2000}, nil)
			require.NoError(t, err)
		})
		synctest.Wait()
		call.Go(stop)
		requireRuntimes("busy")
		call.Wait()
		m.attach(t, "b", testRuntime("last", nil))
		requireRuntimes("last")
	})
}

// The offers of many Runtimes cost as much for each of them as those of a few.
func TestOffersOfManyRuntimes(t *testing.T) {
	testkit.RequireLess(t, 10, 20, 1000, func(runtimes int) time.Duration {
		m := &Manifest{}
		for i := range runtimes {
			m.Contracts = append(m.Contracts, &Contract{Name: fmt.Sprint("tool", i)})
		}
		h, err := newHost(m, AuthorizerFunc(AllowAll), nil)
		require.NoError(t, err)
		defer func() { require.NoError(t, h.Close()) }()
		reg := &core.Registry{}
		for i := range runtimes {
			hc := &hostConn{h: h}
			h.newRuntime(hc, fmt.Sprint("r", i), false)
			h.fleet.order = append(h.fleet.order, hc)
			reg = reg.With(&hc.runtime, []string{m.Contracts[i].Name}, false)
		}
		start := time.Now()
		require.Len(t, h.offers(reg), runtimes)
		return time.Since(start) / time.Duration(runtimes)
	})
}

// Offers that repeat earlier ones change no fulfilment.
func TestRepeatedOffersChangeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, HostOptions{}, "a")
		h, p := m.hosts["a"], m.join(t, "x")
		connect(t, h, testUser).session("s")
		offered := func(ids ...string) *core.Registry {
			p.offer(h, ids...)
			synctest.Wait()
			sh := h.shardOf("s")
			h.lock(sh)
			defer h.unlock(sh)
			return sh.core.Find("s").Registry()
		}
		reg := offered("r1", "r2")
		require.Equal(t, []string{"r1", "r2"}, reg.Connected("math/add"))
		require.Same(t, reg, offered("r1", "r2"))
		require.Equal(t, []string{"r2", "r3"}, offered("r2", "r3").Connected("math/add"))
		require.Equal(t, []string{"r2", "r3", "r1"}, offered("r1", "r2", "r3").Connected("math/add"))
	})
}
