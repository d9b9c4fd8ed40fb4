// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// The table "Host side of a connection": every state with every kind of event.
// The answer is a type, with its reason where it is an error; "" means that there
// is none; "closed" follows where the Host closes.
func TestConnectionCells(t *testing.T) {
	const announce = `{"type":"AnnounceRuntime","runtime_id":"x","protocol_version":"1.0.0"}`
	events := map[string]string{
		"announce":            announce,
		"announce, bad field": `{"type":"AnnounceRuntime","runtime_id":"x/y","protocol_version":"1.0.0"}`,
		"announce, refused":   `{"type":"AnnounceRuntime","runtime_id":"x","protocol_version":"7.0.0"}`,
		"fulfil":              `{"type":"FulfillTools","session_id":"*","tool_names":[]}`,
		"create":              `{"type":"CreateSession"}`,
		"destroy":             `{"type":"DestroySession","session_id":"none"}`,
		"list":                `{"type":"ListTools","session_id":"none"}`,
		"call":                `{"type":"ToolCall","invocation_id":"i","session_id":"none","tool_name":"t"}`,
		"cancel":              `{"type":"CancelCall","invocation_id":"i","session_id":"none"}`,
		"result":              `{"type":"ToolResult","invocation_id":"i","status":"success"}`,
		"chunk":               `{"type":"StreamChunk","invocation_id":"i","chunk_id":0,"payload":1}`,
		"answer":              `{"type":"SessionCreated","session_id":"s","ttl_seconds":1}`,
		"request fulfilment":  `{"type":"RequestFulfillment","session_id":"s"}`,
		"ping":                `{"type":"Ping"}`,
		"malformed":           `{"type":`,
		"unknown type":        `{"type":"Gossip"}`,
	}
	setup := map[string]string{"new": "", "client": `{"type":"ListTools","session_id":"none"}`, "runtime": announce}
	want := map[string]map[string]string{
		"new": {
			"announce": "AcknowledgeRuntime", "announce, bad field": "Error invalid_value", "announce, refused": "Error unsupported_version closed",
			"fulfil": "Error not_announced", "create": "SessionCreated", "destroy": "Error unknown_session", "list": "Error unknown_session",
			"call": "ToolResult unknown_session", "cancel": "", "result": "", "chunk": "", "answer": "", "request fulfilment": "Error wrong_direction",
			"ping": "Pong", "malformed": "Error malformed_json", "unknown type": "Error unknown_type",
		},
		"client": {
			"announce": "Error wrong_role", "announce, bad field": "Error invalid_value", "announce, refused": "Error wrong_role",
			"fulfil": "Error wrong_role", "create": "SessionCreated", "destroy": "Error unknown_session", "list": "Error unknown_session",
			"call": "ToolResult unknown_session", "cancel": "", "result": "", "chunk": "", "answer": "", "request fulfilment": "Error wrong_direction",
			"ping": "Pong", "malformed": "Error malformed_json", "unknown type": "Error unknown_type",
		},
		"runtime": {
			"announce": "Error already_announced", "announce, bad field": "Error invalid_value", "announce, refused": "Error already_announced",
			"fulfil": "AcknowledgeFulfillment", "create": "Error wrong_role", "destroy": "Error wrong_role", "list": "Error wrong_role",
			"call": "ToolResult wrong_role", "cancel": "", "result": "", "chunk": "", "answer": "", "request fulfilment": "Error wrong_direction",
			"ping": "Pong", "malformed": "Error malformed_json", "unknown type": "Error unknown_type",
		},
	}
	for state, first := range setup {
		for event, line := range events {
			t.Run(state+"/"+event, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h := testHost(t, nil)
					near, far := net.Pipe()
					go func() { _ = h.Serve(context.Background(), NewStreamConn(far, nil), testService) }()
					var got []string
					closed := false
					go func() {
						for c := NewStreamConn(near, nil); ; {
							m, err := c.Receive()
							if err != nil {
								closed = true
								return
							}
							s := typeOf(m)
							switch m := m.(type) {
							case *ErrorMessage:
								s += " " + string(m.Err.Reason())
							case *ToolResult:
								s += " " + string(m.Error.Reason())
							}
							got = append(got, s)
						}
					}()
					if first != "" {
						_, _ = io.WriteString(near, first+"\n")
						synctest.Wait()
						require.Len(t, got, 1)
						got = nil
					}
					_, _ = io.WriteString(near, line+"\n")
					synctest.Wait()
					answer := ""
					if len(got) > 0 {
						answer = got[0]
					}
					if closed {
						answer += " closed"
					}
					require.LessOrEqual(t, len(got), 1)
					require.Equal(t, want[state][event], answer)
					require.NoError(t, near.Close()) // any, transport closed
					synctest.Wait()
					require.Zero(t, h.Stats().Connections)
					require.Empty(t, h.runtimeIDs())
				})
			})
		}
	}
}

// The cells of the table "Call (Host)", one subtest each. Vectors check the responses in detail.
func TestCallCells(t *testing.T) {
	type fixture struct {
		h    *Host
		r, c *wire
	}
	// begin brings a call into a state.
	begin := func(t *testing.T, state string, tool string) *fixture {
		f := &fixture{h: testHost(t, nil)}
		f.r = connect(t, f.h, testService)
		f.r.send(&AnnounceRuntime{RuntimeID: "r1", ProtocolVersion: "1.0.0", Capabilities: []string{capStreaming, capCancellation}})
		next[*AcknowledgeRuntime](f.r)
		f.c = connect(t, f.h, testUser)
		f.c.session("s")
		next[*RequestFulfillment](f.r)
		fulfil := func() {
			f.r.send(&FulfillTools{SessionID: "s", ToolNames: []string{"math/add", "count"}})
			next[*AcknowledgeFulfillment](f.r)
		}
		if state != "held" {
			fulfil()
		}
		call := add("i", "s")
		if tool == "count" {
			call = &ToolCall{InvocationID: "i", SessionID: "s", ToolName: "count", Parameters: json.RawMessage(`{"n":1}`)}
		}
		f.c.send(call)
		if state != "held" {
			next[*ToolCall](f.r)
		}
		if state == "done" {
			f.r.send(&ToolResult{InvocationID: "i", Payload: json.RawMessage("3")})
			next[*ToolResult](f.c)
		}
		return f
	}
	result := &ToolResult{InvocationID: "i", Payload: json.RawMessage("3")}
	failed := func(t *testing.T, f *fixture, reason Reason) {
		t.Helper()
		require.ErrorIs(t, next[*ToolResult](f.c).Error, reason)
		require.Zero(t, f.h.Stats().InFlight)
	}
	cells := []struct {
		state, event, tool string
		do                 func(t *testing.T, f *fixture)
	}{
		{"held", "candidate appears", "", func(t *testing.T, f *fixture) {
			f.r.send(&FulfillTools{SessionID: "s", ToolNames: []string{"math/add"}})
			next[*AcknowledgeFulfillment](f.r)
			next[*ToolCall](f.r)
		}},
		{"held", "nothing outstanding", "", func(t *testing.T, f *fixture) {
			f.r.send(&FulfillTools{SessionID: "s"})
			failed(t, f, ReasonNotFulfilled)
		}},
		{"held", "1000 ms", "", func(t *testing.T, f *fixture) {
			time.Sleep(time.Second)
			failed(t, f, ReasonNotFulfilled)
		}},
		{"held", "CancelCall", "", func(t *testing.T, f *fixture) {
			f.c.send(&CancelCall{InvocationID: "i", SessionID: "s"})
			failed(t, f, ReasonCancelled)
		}},
		{"held", "session over", "", func(t *testing.T, f *fixture) {
			f.c.send(&DestroySession{SessionID: "s"})
			failed(t, f, reasonSessionDestroyed)
		}},
		{"held", "repeat", "", func(t *testing.T, f *fixture) {
			d := connect(t, f.h, testUser)
			d.send(add("i", "s"))
			time.Sleep(time.Second)
			require.ErrorIs(t, next[*ToolResult](d).Error, ReasonNotFulfilled)
			failed(t, f, ReasonNotFulfilled)
		}},
		{"running", "ToolResult from its Runtime", "", func(t *testing.T, f *fixture) {
			f.r.send(result)
			require.Nil(t, next[*ToolResult](f.c).Error)
		}},
		{"running", "ToolResult from another Runtime", "", func(t *testing.T, f *fixture) {
			other := attachRuntime(t, f.h, testService, "r2", "math/add")
			other.send(result)
			require.Equal(t, 1, f.h.Stats().InFlight)
		}},
		{"running", "chunk in order", "count", func(t *testing.T, f *fixture) {
			f.r.send(&StreamChunk{InvocationID: "i", Payload: json.RawMessage("1")})
			require.False(t, next[*StreamChunk](f.c).IsFinal)
			f.r.send(&StreamChunk{InvocationID: "i", ChunkID: 1, IsFinal: true})
			require.True(t, next[*StreamChunk](f.c).IsFinal)
			require.Zero(t, f.h.Stats().InFlight)
		}},
		{"running", "chunk ahead, chunk old", "count", func(t *testing.T, f *fixture) {
			f.r.send(&StreamChunk{InvocationID: "i", ChunkID: 1, Payload: json.RawMessage("1")})
			f.r.send(&StreamChunk{InvocationID: "i", Payload: json.RawMessage("0")})
			f.r.send(&StreamChunk{InvocationID: "i", Payload: json.RawMessage("0")})
			require.Equal(t, int64(0), next[*StreamChunk](f.c).ChunkID)
			require.Equal(t, int64(1), next[*StreamChunk](f.c).ChunkID)
			require.Equal(t, uint64(1), f.h.Stats().Dropped)
		}},
		{"running", "limit reached", "", func(t *testing.T, f *fixture) {
			time.Sleep(30 * time.Second)
			failed(t, f, ReasonDeadline)
			require.Equal(t, "timeout", next[*CancelCall](f.r).Reason)
		}},
		{"running", "its Runtime disconnects", "", func(t *testing.T, f *fixture) {
			require.NoError(t, f.r.conn.Close())
			failed(t, f, ReasonDisconnected)
		}},
		{"running", "last client gone for 30 s", "count", func(t *testing.T, f *fixture) {
			require.NoError(t, f.c.conn.Close())
			for i := range int64(4) { // the stream is active
				time.Sleep(9 * time.Second)
				f.r.send(&StreamChunk{InvocationID: "i", ChunkID: i, Payload: json.RawMessage("1")})
			}
			require.Equal(t, "client_gone", next[*CancelCall](f.r).Reason)
			require.Zero(t, f.h.Stats().InFlight)
		}},
		{"running", "CancelCall", "", func(t *testing.T, f *fixture) {
			f.c.send(&CancelCall{InvocationID: "i", SessionID: "s"})
			failed(t, f, ReasonCancelled)
			require.Equal(t, "cancelled", next[*CancelCall](f.r).Reason)
		}},
		{"running", "session over", "", func(t *testing.T, f *fixture) {
			f.c.send(&DestroySession{SessionID: "s"})
			failed(t, f, reasonSessionDestroyed)
		}},
		{"running", "repeat", "", func(t *testing.T, f *fixture) {
			f.c.send(add("i", "s"))
			d := connect(t, f.h, testUser)
			d.send(add("i", "s"))
			f.r.send(result)
			next[*ToolResult](d)
			next[*ToolResult](f.c)
			require.Equal(t, uint64(1), f.h.Stats().Dispatched)
		}},
		{"done", "repeat within 300 s", "", func(t *testing.T, f *fixture) {
			time.Sleep(299 * time.Second)
			f.c.send(add("i", "s"))
			require.Equal(t, "3", string(next[*ToolResult](f.c).Payload))
			require.Equal(t, uint64(1), f.h.Stats().Dispatched)
		}},
		{"done", "any Runtime message", "", func(t *testing.T, f *fixture) {
			f.r.send(result)
			f.r.send(&StreamChunk{InvocationID: "i", Payload: json.RawMessage("0")})
			require.Equal(t, uint64(2), f.h.Stats().Dropped)
		}},
		{"done", "300 s", "", func(t *testing.T, f *fixture) {
			time.Sleep(300 * time.Second)
			require.Zero(t, f.h.Stats().StoredResults)
			f.c.send(add("i", "s"))
			next[*ToolCall](f.r)
		}},
		{"done", "session over", "", func(t *testing.T, f *fixture) {
			f.c.send(&DestroySession{SessionID: "s"})
			next[*SessionDestroyed](f.c)
			f.c.session("t")
			f.c.send(add("i", "t"))
			require.ErrorIs(t, next[*ToolResult](f.c).Error, ReasonNotFulfilled, "the id is free")
		}},
	}
	for _, cell := range cells {
		t.Run(fmt.Sprintf("%s/%s", cell.state, cell.event), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { cell.do(t, begin(t, cell.state, cell.tool)) })
		})
	}
}

// A level that the specification does not have is refused, and not taken for the highest one.
func TestUnknownLevel(t *testing.T) {
	for _, level := range []int{-1, 3} {
		_, err := NewRuntime("r1", &RuntimeOptions{Level: level})
		require.ErrorContains(t, err, "invalid Level")
		_, err = newHost(&Manifest{}, AuthorizerFunc(AllowAll), &HostOptions{Level: level})
		require.ErrorContains(t, err, "invalid Level")
	}
}

// ALT-020: a Runtime of level 1 offers no streams.
func TestRuntimeLevel1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, pipeTransport, nil, testRuntime("r1", &RuntimeOptions{Level: 1}))
		sess := newSession(t, s)
		tools, err := sess.ListTools(t.Context())
		require.NoError(t, err)
		require.Len(t, tools, 4)
		for _, tool := range tools {
			require.False(t, tool.Streaming)
		}
	})
}

// The behavior of a Runtime after a refusal, and above its limit of concurrent calls.
func TestRuntimeLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, pipeTransport, nil, testRuntime("r1", &RuntimeOptions{MaxConcurrent: 1, QueueLimit: 1}))
		sess := newSession(t, s)
		errs := make(chan error, 3)
		for range 3 {
			go func() {
				_, err := sess.Call(t.Context(), "wait", waitIn{1000}, nil)
				errs <- err
			}()
			synctest.Wait()
		}
		require.ErrorIs(t, <-errs, ReasonOverloaded, "there is no room to wait")
		start := time.Now()
		require.NoError(t, <-errs)
		require.NoError(t, <-errs)
		require.Equal(t, 2*time.Second, time.Since(start), "one after the other")
	})
	synctest.Test(t, func(t *testing.T) {
		s := start(t, pipeTransport, nil)
		err := testRuntime("r1", &RuntimeOptions{ProtocolVersion: "3.0.0"}).RunWithReconnect(t.Context(), s.dial(testService))
		require.ErrorIs(t, err, reasonUnsupportedVersion)
	})
	_, err := NewRuntime("not an id", nil)
	require.ErrorContains(t, err, `invalid id "not an id"`)
	_, err = NewClient(nil, nil)
	require.ErrorContains(t, err, "missing Dialer")
	require.Panics(t, func() { testRuntime("r1", nil).Handle("fail", nil) })
	require.Panics(t, func() { must(NewRuntime("r1", nil)).Handle("a b", nil) })
}

// A result that is too large or invalid JSON becomes an error (ALT-D09).
func TestUnsendableResults(t *testing.T) {
	rt := must(NewRuntime("r1", &RuntimeOptions{MaxMessage: 2000}))
	var result any
	rt.Handle("get", HandlerFunc(func(context.Context, *ToolCall) (any, error) { return result, nil }))
	s := start(t, pipeTransport, nil, rt)
	sess, err := s.c.CreateSession(t.Context(), nil)
	require.NoError(t, err)
	for _, tt := range []struct {
		result any
		is     error
	}{
		{make([]byte, 3000), reasonMessageTooLarge}, {func() {}, ErrInternal}, {map[string]any{"x": nan()}, ErrInternal}, {json.RawMessage(`{`), ErrInternal},
	} {
		result = tt.result
		_, err := sess.Call(t.Context(), "get", map[string]string{"key": "k"}, nil)
		require.ErrorIs(t, err, tt.is)
	}
	result = &Error{}
	_, err = sess.Call(t.Context(), "get", map[string]any{"key": nan()}, nil)
	require.Error(t, err)
	var e *Error
	require.NotErrorAs(t, err, &e, "a fault of this side")
}

func nan() float64 { zero := 0.0; return zero / zero }
