// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/altar/internal/transport"
	"github.com/fivewire/fivewire/internal/kit"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/store"
)

// usage returns the use of one resource in one scope.
func usage(h *Host, resource, scope string) Usage {
	for _, u := range h.Usage() {
		if u.Resource == resource && u.Scope == scope {
			return u
		}
	}
	return Usage{}
}

var testOther = &Principal{ID: "other", Tenant: "acme"}

// newTextHost returns a Host with one contract "echo" that has a parameter text.
func newTextHost(t *testing.T, limits Limits) *Host {
	t.Helper()
	m := &Manifest{Contracts: []*Contract{{Name: "echo", Parameters: []Parameter{{Name: "text", Type: "string"}}}}}
	h := must(newHost(m, AuthorizerFunc(AllowAll), &HostOptions{Limits: limits}))
	t.Cleanup(func() { _ = h.Close() })
	return h
}

func textCall(id, session string, n int) *ToolCall {
	return &ToolCall{InvocationID: id, SessionID: session, ToolName: "echo", Parameters: json.RawMessage(`{"text":"` + strings.Repeat("x", n) + `"}`)}
}

func TestEndedLargeCallsRefuseNothing(t *testing.T) {
	h := newTextHost(t, Limits{})
	r := attachRuntime(t, h, testService, "r1", "echo")
	c, other := connect(t, h, testUser), connect(t, h, testOther)
	c.session("s")
	other.session("t")
	before := kit.Heap()
	calls := 180 // 540 MiB
	if race.Enabled {
		calls = 50
	}
	for i := range calls {
		c.send(textCall(fmt.Sprint(i), "s", 3<<20))
		next[*ToolCall](r)
		r.send(&ToolResult{InvocationID: fmt.Sprint(i), Payload: json.RawMessage("1")})
		require.Nil(t, next[*ToolResult](c).Error, i)
	}
	require.Less(t, kit.Heap()-before, int64(16<<20))
	require.Zero(t, usage(h, "memory", "all").Used)
	other.send(textCall("o", "t", 10))
	next[*ToolCall](r)
	c.send(textCall("0", "s", 3<<20))
	require.JSONEq(t, "1", string(next[*ToolResult](c).Payload), "a repeat gets the outcome")
	c.send(textCall("1", "s", 5))
	require.ErrorIs(t, next[*ToolResult](c).Error, reasonInvocationIDReused)
}

func TestEndedSmallCallsRefuseNothing(t *testing.T) {
	const limit = 64 << 10
	h := newTextHost(t, Limits{MaxStoredResults: limit})
	r := attachRuntime(t, h, testService, "r1", "echo")
	c, other := connect(t, h, testUser), connect(t, h, testOther)
	c.session("s")
	other.session("t")
	other.send(textCall("mine", "t", 1))
	next[*ToolCall](r)
	r.send(&ToolResult{InvocationID: "mine", Payload: json.RawMessage("7")})
	next[*ToolResult](other)
	for i := range 20_000 {
		id := fmt.Sprint(i)
		c.send(textCall(id, "s", 1))
		next[*ToolCall](r)
		r.send(&ToolResult{InvocationID: id, Payload: json.RawMessage("1")})
		require.Nil(t, next[*ToolResult](c).Error, i)
	}
	require.LessOrEqual(t, h.outcomes.records.Bytes(), int64(limit))
	require.LessOrEqual(t, h.outcomes.len(), limit/16)
	other.send(textCall("mine", "t", 1))
	require.JSONEq(t, "7", string(next[*ToolResult](other).Payload), "another principal keeps its outcomes")
}

// The repeat of a collected stream holds no memory after its answer.
func TestRepeatsOfCollectedStreamsHoldNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, pipeTransport, nil, testRuntime("r1", nil))
		sess, err := s.c.CreateSession(t.Context(), nil)
		require.NoError(t, err)
		for range 3 {
			r, err := sess.Call(t.Context(), "count", countIn{5}, &CallOptions{InvocationID: "i1"})
			require.NoError(t, err)
			require.JSONEq(t, "[0,1,2,3,4]", string(r.Payload))
			synctest.Wait()
			require.Zero(t, usage(s.h, "memory", "all").Used)
		}
	})
}

// A frame counts as memory of its principal while it arrives. Without memory it is refused, and its rest is skipped.
func TestMemoryOfArrivingFrames(t *testing.T) {
	const limit = 1 << 20
	text := `{"type":"ToolCall","invocation_id":"i1","session_id":"s","tool_name":"echo","parameters":{"text":"`
	half := strings.Repeat("x", limit/4)
	ping := func(padding int) string {
		return `{"type":"Ping","request_id":"p","pad":"` + strings.Repeat("x", padding) + `"}`
	}
	for name, dial := range map[string]func(t *testing.T, ts *httptest.Server, h *Host) (write func(text string, isLast bool), read func() []byte, end func() error){
		"stream": func(t *testing.T, _ *httptest.Server, h *Host) (func(string, bool), func() []byte, func() error) {
			near, far := net.Pipe()
			go func() { _ = h.Serve(t.Context(), NewStreamConn(far, nil), testUser) }()
			frames := transport.NewReader(near, 0)
			return func(text string, isLast bool) {
					if isLast {
						text += "\n"
					}
					_, err := near.Write([]byte(text))
					require.NoError(t, err)
				}, func() []byte {
					frame, err := frames.Read()
					require.NoError(t, err)
					return frame
				}, near.Close
		},
		"WebSocket": func(t *testing.T, ts *httptest.Server, _ *Host) (func(string, bool), func() []byte, func() error) {
			c, _, err := websocket.Dial(t.Context(), ts.URL+WebSocketPath,
				&websocket.DialOptions{HTTPClient: ts.Client(), HTTPHeader: keyOf(testUser), Subprotocols: []string{transport.Subprotocol}})
			require.NoError(t, err)
			var w io.WriteCloser
			return func(text string, isLast bool) {
					if w == nil {
						w, err = c.Writer(t.Context(), websocket.MessageText)
						require.NoError(t, err)
					}
					_, err := io.WriteString(w, text)
					require.NoError(t, err)
					if isLast {
						require.NoError(t, w.Close())
						w = nil
					}
				}, func() []byte {
					_, frame, err := c.Read(t.Context())
					require.NoError(t, err)
					return frame
				}, c.CloseNow
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := testHost(t, &HostOptions{Auth: Auth{Authenticator: keys()}, Limits: Limits{MaxMemoryPerPrincipal: limit}})
			write, read, end := dial(t, server(t, h), h)
			used := func() int64 { return usage(h, "memory", "all").Used }
			write(text+half+half, false)
			require.Eventually(t, func() bool { return used() >= limit/4 }, 10*time.Second, time.Millisecond)
			write(half+half+half+`"}}`, true)
			require.Contains(t, string(read()), `"invocation_id":"i1"`)
			require.Eventually(t, func() bool { return used() == 0 }, 10*time.Second, time.Millisecond)
			write(ping(limit/4), true)
			require.Contains(t, string(read()), "Pong")
			write(`{"pad":"`+strings.Repeat("x", limit)+`"}`, true)
			answer := string(read())
			require.Contains(t, answer, string(ReasonOverloaded))
			require.Contains(t, answer, "MaxMemoryPerPrincipal")
			write(ping(0), true)
			require.Contains(t, string(read()), "Pong")
			write(text+half, false)
			require.Eventually(t, func() bool { return used() > 0 }, 10*time.Second, time.Millisecond)
			require.NoError(t, end())
			require.Eventually(t, func() bool { return used() == 0 }, 10*time.Second, time.Millisecond)
		})
	}
}

// A Runtime that does not read the refusals of its fulfilments waits for the bytes of its queue.
func TestUnreadRefusalsOfFulfillmentsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTextHost(t, Limits{MaxRuntimeQueue: 1 << 20})
		r := attachRuntime(t, h, testService, "r1", "echo")
		var sent atomic.Int32
		go func() {
			names := make([]string, 1000)
			for i := range names {
				names[i] = fmt.Sprint(i, strings.Repeat("x", 500))
			}
			for range 100 {
				_ = r.conn.Send(&FulfillTools{SessionID: allSessions, ToolNames: names})
				sent.Add(1)
			}
		}()
		synctest.Wait()
		require.Less(t, sent.Load(), int32(10))
		require.NoError(t, r.conn.Close())
	})
}

// A connection that joins a running call holds nothing of its repeat.
func TestRepeatsHoldNoParameters(t *testing.T) {
	h := newTextHost(t, Limits{})
	r := attachRuntime(t, h, testService, "r1", "echo")
	first := connect(t, h, testUser)
	first.session("s")
	first.send(textCall("i", "s", 3<<20))
	next[*ToolCall](r)
	before := kit.Heap()
	var others []*wire
	for range 10 {
		c := connect(t, h, testUser)
		m := textCall("i", "s", 3<<20)
		m.Metadata = map[string]string{"note": strings.Repeat("x", 1<<20)}
		c.send(m)
		others = append(others, c)
	}
	require.Less(t, kit.Heap()-before, int64(3<<20))
	r.send(&ToolResult{InvocationID: "i", Payload: json.RawMessage("1")})
	for _, c := range others {
		require.Equal(t, json.RawMessage("1"), next[*ToolResult](c).Payload)
	}
}

// Without memory, the chunks that are kept for repeats are dropped, and no stream ends.
func TestChunksForRepeatsAreDroppedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := testRuntime("r1", nil)
		rt.names["count"].stream = StreamHandlerFunc(func(_ context.Context, _ *ToolCall, out *ChunkWriter) error {
			for range 200 {
				if err := out.Send(strings.Repeat("x", 10_000)); err != nil {
					return err
				}
			}
			return nil
		})
		s := start(t, pipeTransport, &HostOptions{Limits: Limits{MaxMemoryPerSession: 1 << 20}}, rt)
		n := 0
		for _, err := range newSession(t, s).Stream(t.Context(), "count", countIn{1}, nil) {
			require.NoError(t, err, n)
			n++
		}
		require.Equal(t, 200, n)
		synctest.Wait()
		require.Zero(t, usage(s.h, "memory", "all").Used)
	})
}

// A message keeps no unknown fields in memory.
func TestUnknownFieldsAreNotKept(t *testing.T) {
	for _, tr := range transports {
		if tr.name != "pipe" && tr.name != "websocket" {
			continue
		}
		t.Run(tr.name, func(t *testing.T) {
			h := testHost(t, &HostOptions{Auth: Auth{Authenticator: keys()}})
			open := func(id *Principal) (conn Conn, send func(format string, a ...any)) {
				conn = must(tr.dial(t, h)(id)(t.Context()))
				t.Cleanup(func() { _ = conn.Close() })
				return conn, func(format string, a ...any) {
					_, err := conn.(frameConn).Write(fmt.Appendf(nil, format+"\n", a...))
					require.NoError(t, err)
				}
			}
			runtime, answer := open(testService)
			answer(`{"type":"AnnounceRuntime","runtime_id":"r1","protocol_version":"1.0.0","capabilities":["streaming"]}`)
			answer(`{"type":"FulfillTools","session_id":"*","tool_names":["get","count"]}`)
			received := func(conn Conn, typ string) {
				for {
					m, err := conn.Receive()
					require.NoError(t, err)
					if typeOf(m) == typ {
						return
					}
				}
			}
			received(runtime, "AcknowledgeFulfillment")
			client, send := open(testUser)
			send(`{"type":"CreateSession","session_id":"s"}`)
			send(`{"type":"ToolCall","invocation_id":"stream","session_id":"s","tool_name":"count","parameters":{"n":1}}`)
			received(runtime, "ToolCall")
			unknown, text := strings.Repeat("x", 256<<10), strings.Repeat("y", 300)
			before := kit.Heap()
			for i := range 10 {
				for _, id := range []string{"ended", "running"} {
					send(`{"type":"ToolCall","invocation_id":"%s%d","session_id":"s","tool_name":"get","parameters":{"key":%q},"unknown":%q}`, id, i, text, unknown)
					received(runtime, "ToolCall")
				}
				answer(`{"type":"ToolResult","invocation_id":"ended%d","status":"success","payload":%q,"unknown":%q}`, i, text, unknown)
				received(client, "ToolResult")
				answer(`{"type":"StreamChunk","invocation_id":"stream","chunk_id":%d,"payload":%q,"unknown":%q}`, i, text, unknown)
				received(client, "StreamChunk")
			}
			require.Less(t, kit.Heap()-before, int64(3<<19))
			require.Equal(t, 11, h.Stats().InFlight)
		})
	}
}

// The metadata of calls counts like their parameters.
func TestMetadataOfCallsIsBounded(t *testing.T) {
	h := newTextHost(t, Limits{})
	r := attachRuntime(t, h, testService, "r1", "echo")
	c := connect(t, h, testUser)
	c.session("s")
	running := 0
	for ; running < 20; running++ {
		m := textCall(fmt.Sprint(running), "s", 1)
		m.Metadata = map[string]string{"note": strings.Repeat("x", 3<<20)}
		c.send(m)
		if h.Stats().InFlight == running {
			break
		}
		next[*ToolCall](r)
	}
	require.Equal(t, 5, running)
	err := next[*ToolResult](c).Error
	require.ErrorIs(t, err, ReasonOverloaded)
	require.Equal(t, "MaxMemoryPerSession", err.StringDetail("limit"))
	for i := range running {
		r.send(&ToolResult{InvocationID: fmt.Sprint(i), Payload: json.RawMessage("1")})
		next[*ToolResult](c)
	}
	require.Zero(t, usage(h, "memory", "all").Used)
}

// The metadata of a session counts until its end, also after a restart of the Host.
func TestMetadataOfSessionsIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := store.NewMemory()
		opts := HostOptions{Limits: Limits{MaxMemoryPerPrincipal: 16 << 20, MaxItemsPerPrincipal: 100}}
		first := live(t, st, "h1", nil, opts)
		c := connect(t, first.h, testUser)
		create := func(i int) Message {
			c.send(&CreateSession{SessionID: fmt.Sprint("s", i), Metadata: map[string]string{"note": strings.Repeat("x", 3<<20)}})
			m, err := c.conn.Receive()
			require.NoError(t, err)
			return m
		}
		for i := range 5 {
			require.IsType(t, &SessionCreated{}, create(i))
		}
		refused, ok := create(5).(*ErrorMessage)
		require.True(t, ok)
		require.ErrorIs(t, refused.Err, ReasonOverloaded)
		require.Equal(t, "MaxMemoryPerPrincipal", refused.Err.StringDetail("limit"))
		require.Equal(t, int64(5), usage(first.h, "items", "all").Used)
		c.send(&DestroySession{SessionID: "s4"})
		next[*SessionDestroyed](c)
		require.IsType(t, &SessionCreated{}, create(6))
		first.die()

		opts.Limits.MaxMemoryPerPrincipal = 4 << 20
		second := live(t, st, "h1", nil, opts)
		c = connect(t, second.h, testUser)
		c.send(&ListTools{SessionID: "s0"})
		next[*ToolList](c)
		c.send(&ListTools{SessionID: "s1"})
		refused = next[*ErrorMessage](c)
		require.ErrorIs(t, refused.Err, ReasonOverloaded)
		require.Equal(t, "MaxMemoryPerPrincipal", refused.Err.StringDetail("limit"))
	})
}

func TestRunningCallsAreBoundedByMemory(t *testing.T) {
	h := newTextHost(t, Limits{})
	r := attachRuntime(t, h, testService, "r1", "echo")
	c, other := connect(t, h, testUser), connect(t, h, testOther)
	c.session("s")
	other.session("t")
	running := 0
	for i := range 20 {
		c.send(textCall(fmt.Sprint(i), "s", 3<<20))
		if h.Stats().InFlight == running {
			break
		}
		running++
		next[*ToolCall](r)
	}
	err := next[*ToolResult](c).Error
	require.ErrorIs(t, err, ReasonOverloaded)
	require.ErrorIs(t, err, ErrRuntimeUnavailable)
	require.Equal(t, []string{"memory", "session", "MaxMemoryPerSession"},
		[]string{err.StringDetail("resource"), err.StringDetail("scope"), err.StringDetail("limit")})
	require.Contains(t, string(err.Details), "retry_after_ms")
	require.Equal(t, 5, running, "calls of 3 MiB within 16 MiB")
	other.send(textCall("o", "t", 3<<20))
	require.Equal(t, "o", next[*ToolCall](r).InvocationID, "another principal is served")
	c.send(&DestroySession{SessionID: "s"})
	other.send(&DestroySession{SessionID: "t"})
	for h.Stats().InFlight > 0 {
		time.Sleep(time.Millisecond)
	}
	require.Zero(t, usage(h, "memory", "all").Used)
	require.Zero(t, usage(h, "work", "all").Used)
}

func TestSessionsLeaveBoundedTombstones(t *testing.T) {
	h := newTextHost(t, Limits{})
	c := connect(t, h, testUser)
	before, sessions := kit.Heap(), 20_000
	switch {
	case race.Enabled:
		sessions = 11_000
	case os.Getenv("FIVEWIRE_LONG") != "":
		sessions = 300_000
	}
	for range sessions {
		c.send(&CreateSession{})
		c.send(&DestroySession{SessionID: next[*SessionCreated](c).SessionID})
		next[*SessionDestroyed](c)
	}
	require.Zero(t, h.endedIDs.list.Len(), "generated ids do not return")
	require.Less(t, kit.Heap()-before, int64(1<<20))
	for i := range sessions {
		c.session(fmt.Sprint("mine", i))
		c.send(&DestroySession{SessionID: fmt.Sprint("mine", i)})
		next[*SessionDestroyed](c)
	}
	require.Equal(t, 10_000, h.endedIDs.list.Len())
	last := fmt.Sprint("mine", sessions-1)
	c.send(&CreateSession{SessionID: last})
	require.NotEqual(t, last, next[*SessionCreated](c).SessionID, "the last ones are remembered")
	require.Zero(t, usage(h, "items", "session").Used)
}

// The ids of Runtimes that have left are bounded; the oldest ones are free again (ALT-D16).
func TestRuntimesLeaveBoundedIDs(t *testing.T) {
	h := newTextHost(t, Limits{})
	for i := range maxAbsent + 50 {
		w := attachRuntime(t, h, testService, fmt.Sprint("r", i), "echo")
		require.NoError(t, w.conn.Close())
	}
	require.Eventually(t, func() bool { return h.Stats().Runtimes == 0 }, time.Minute, time.Millisecond)
	h.lockAll()
	require.Len(t, h.fleet.owners, maxAbsent)
	h.unlockAll()
	for id, isTaken := range map[string]bool{"r0": false, fmt.Sprint("r", maxAbsent+49): true} {
		w := connect(t, h, testUser)
		_ = w.conn.Send(&AnnounceRuntime{RuntimeID: id, ProtocolVersion: ProtocolVersion}) // a refusal closes the connection
		m, err := w.conn.Receive()
		require.NoError(t, err)
		_, isRefused := m.(*ErrorMessage)
		require.Equal(t, isTaken, isRefused, id)
	}
}

// The messages to a Runtime that does not read are bounded in bytes; calls go to the next one.
func TestRuntimeThatDoesNotReadIsOverloaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTextHost(t, Limits{MaxMemoryPerSession: -1, MaxMemoryPerPrincipal: -1, MaxMemory: -1})
		conn := newScripted(func(Message) { select {} })
		conn.sent = func(m Message) {
			if typeOf(m) == "ToolCall" {
				<-conn.closed
			}
		}
		served := make(chan error, 1)
		go func() { served <- h.Serve(context.Background(), conn, testService) }()
		conn.in <- &AnnounceRuntime{RuntimeID: "r1", ProtocolVersion: "1.0.0"}
		conn.in <- &FulfillTools{SessionID: allSessions, ToolNames: []string{"echo"}}
		synctest.Wait()
		c := connect(t, h, testUser)
		c.session("s")
		accepted := 0
		for i := range 140 {
			c.send(textCall(fmt.Sprint(i), "s", 3<<20))
			synctest.Wait()
			if h.Stats().InFlight == accepted {
				require.ErrorIs(t, next[*ToolResult](c).Error, ReasonOverloaded)
				break
			}
			accepted++
		}
		require.LessOrEqual(t, accepted, 5, "calls of 3 MiB")
		next := attachRuntime(t, h, testService, "r2", "echo")
		c.send(textCall("last", "s", 3<<20))
		synctest.Wait()
		require.Equal(t, accepted+1, h.Stats().InFlight)
		_ = next
		_ = conn.Close()
		<-served
	})
}

// A client that does not read gets no further requests accepted.
func TestClientThatDoesNotReadIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTextHost(t, Limits{})
		conn := newScripted(nil)
		var answers []Message
		open := make(chan struct{})
		conn.sent = func(m Message) {
			<-open
			answers = append(answers, m)
		}
		served := make(chan error, 1)
		go func() { served <- h.Serve(context.Background(), conn, testUser) }()
		for range 450 {
			conn.in <- &CreateSession{}
		}
		time.Sleep(2 * time.Second)
		close(open)
		synctest.Wait()
		require.Len(t, answers, 450)
		refused := 0
		for _, m := range answers {
			if e, ok := m.(*ErrorMessage); ok {
				require.ErrorIs(t, e.Err, ReasonOverloaded)
				refused++
			}
		}
		require.Greater(t, refused, 50)
		require.Equal(t, 450-refused, h.Stats().Sessions)
		_ = conn.Close()
		<-served
	})
}

func TestRequestRateRefusesRequests(t *testing.T) {
	h := newTextHost(t, Limits{RequestRate: 0.001, RequestBurst: 1})
	c, other := connect(t, h, testUser), connect(t, h, testOther)
	c.session("s")
	c.send(&CreateSession{})
	err := next[*ErrorMessage](c).Err
	require.ErrorIs(t, err, ReasonOverloaded)
	require.Equal(t, "RequestRate", err.StringDetail("limit"))
	other.session("t")
}

// ALT-D38: the calls of all principals together have a bound by default. At the bound the principal with
// most calls is refused, and one below its share is not.
func TestCallsOfAllPrincipalsAreBounded(t *testing.T) {
	require.Equal(t, int64(65_536), usage(testHost(t, nil), "work", "all").Limit)
	synctest.Test(t, func(t *testing.T) {
		h := testHost(t, &HostOptions{Limits: Limits{MaxConcurrent: 4}})
		rt := connect(t, h, testService)
		rt.announce("r", "math/add")
		greedy, modest := connect(t, h, testUser), connect(t, h, testOther)
		greedy.session("s")
		modest.session("t")
		for i := range 6 {
			greedy.send(add(fmt.Sprint("i", i), "s"))
		}
		refused := next[*ToolResult](greedy)
		require.ErrorIs(t, refused.Error, ReasonOverloaded)
		synctest.Wait()
		running := h.Stats().InFlight
		require.LessOrEqual(t, running, 4)
		modest.send(add("j", "t"))
		synctest.Wait()
		require.Equal(t, running+1, h.Stats().InFlight, "another principal is served")
	})
}

// A refusal names the tool, and the option that bounds the calls at a Runtime (ALT-D35).
func TestRefusalsNameToolAndOption(t *testing.T) {
	for option, limits := range map[string]Limits{
		"MaxConcurrentPerRuntime": {MaxConcurrentPerRuntime: 1}, "RuntimeQueueLimit": {RuntimeQueueLimit: 1}, "MaxConcurrentPerSession": {MaxConcurrentPerSession: 1},
	} {
		h := testHost(t, &HostOptions{Limits: limits})
		attachRuntime(t, h, testService, "r1", "math/add")
		w := connect(t, h, testUser)
		w.session("s")
		w.send(add("first", "s")) // the Runtime does not read it
		w.send(add("second", "s"))
		err := next[*ToolResult](w).Error
		require.ErrorIs(t, err, ReasonOverloaded)
		require.Contains(t, err.Message, option)
		var details struct {
			Limit string `json:"limit"`
			Retry int    `json:"retry_after_ms"`
		}
		require.NoError(t, json.Unmarshal(err.Details, &details))
		require.Equal(t, option, details.Limit)
		require.Positive(t, details.Retry)
		w.send(&ToolCall{InvocationID: "third", SessionID: "s", ToolName: "get", Parameters: json.RawMessage(`{"key":"k"}`)})
		if err := next[*ToolResult](w).Error; errors.Is(err, ReasonNotFulfilled) {
			require.Contains(t, err.Message, "the tool get")
		}
		w.send(&ToolCall{InvocationID: "fourth", SessionID: "s", ToolName: "none"})
		require.Contains(t, next[*ToolResult](w).Error.Message, "the name none")
	}
}
