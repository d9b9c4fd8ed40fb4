// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/altar/internal/form"
)

// Results and stream chunks of a Runtime must match HostOptions.ResultTypes.
func TestReturns(t *testing.T) {
	for _, over := range []network{{"direct", directTransport}, {"pipe", pipeTransport}} {
		t.Run(over.name, func(t *testing.T) {
			rt := testRuntime("r1", nil)
			rt.names["fail"].tool = HandlerFunc(func(context.Context, *ToolCall) (any, error) {
				return map[string]any{"id": 1, "secret": "x"}, nil
			})
			rt.names["get"].tool = HandlerFunc(func(context.Context, *ToolCall) (any, error) {
				return map[string]any{"id": 1}, nil
			})
			rt.names["count"].stream = StreamHandlerFunc(func(_ context.Context, call *ToolCall, out *ChunkWriter) error {
				return errors.Join(out.Send(1), out.Send("two"), out.Send(3))
			})
			id := Parameter{Type: "object", Properties: []Parameter{{Name: "id", Type: "integer", Required: true}}}
			s := start(t, over.dial, &HostOptions{ResultTypes: map[string]Parameter{
				"math/add": {Type: "integer"}, "fail": id, "get": id, "count": {Type: "integer"}}}, rt)
			sess, err := s.c.CreateSession(t.Context(), nil)
			require.NoError(t, err)
			_, err = CallAs[int64](t.Context(), sess, "math/add", addIn{1, 2}, nil)
			require.NoError(t, err)
			_, err = sess.Call(t.Context(), "get", map[string]string{"key": "k"}, nil)
			require.NoError(t, err)
			_, err = sess.Call(t.Context(), "fail", nil, nil)
			require.ErrorIs(t, err, reasonInvalidResult)
			var got []string
			for payload, err := range sess.Stream(t.Context(), "count", countIn{1}, nil) {
				if err != nil {
					require.ErrorIs(t, err, reasonInvalidResult)
					got = append(got, "error")
					break
				}
				got = append(got, string(payload))
			}
			require.Equal(t, []string{"1", "error"}, got)
			_, err = sess.Call(t.Context(), "wait", waitIn{1}, nil) // without a result type
			require.NoError(t, err)
		})
	}
	m, err := DecodeManifest([]byte(testManifest))
	require.NoError(t, err)
	_, err = newHost(m, AuthorizerFunc(AllowAll), &HostOptions{ResultTypes: map[string]Parameter{"fail": {Type: "any"}}})
	require.ErrorContains(t, err, "result type of fail")
}

// The same for results from another Host.
func TestReturnsRemote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, HostOptions{}, "a", "b")
		m.hosts["a"].manifest.Load().byName["math/add"].returns = &field{base: form.KindString}
		m.attach(t, "b", testRuntime("rb", nil))
		sess, err := m.client(t, "a").CreateSession(t.Context(), nil)
		require.NoError(t, err)
		_, err = CallAs[int64](t.Context(), sess, "math/add", addIn{1, 2}, nil)
		require.ErrorIs(t, err, reasonInvalidResult)
		m.empty(t)
	})
}

// ALT-142: a Runtime that fails one call after the other gets none for a while,
// and then one that shows whether it is well again.
func TestTripped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := testHost(t, &HostOptions{Limits: Limits{BreakerThreshold: 3}, Timing: Timing{BreakerCooldown: time.Minute, CallTimeout: time.Second}})
		sick := attachRuntime(t, h, testService, "sick", "math/add")
		well := attachRuntime(t, h, testService, "well", "math/add")
		w := connect(t, h, testUser)
		w.session("s")
		var mu sync.Mutex
		got := map[string]int{}
		var fails bool
		serve := func(rt *wire, name string) {
			for {
				m, err := rt.conn.Receive()
				if err != nil {
					return
				}
				call, ok := m.(*ToolCall)
				if !ok {
					continue
				}
				mu.Lock()
				got[name]++
				bad := fails && name == "sick"
				mu.Unlock()
				if !bad {
					_ = rt.conn.Send(&ToolResult{InvocationID: call.InvocationID, Payload: json.RawMessage("1")})
				}
			}
		}
		go serve(sick, "sick")
		go serve(well, "well")
		n := 0
		one := func(tool string) *Error {
			n++
			w.send(&ToolCall{InvocationID: fmt.Sprint(n), SessionID: "s", ToolName: tool, Parameters: json.RawMessage(`{"a":1,"b":2}`)})
			return next[*ToolResult](w).Error
		}
		count := func(calls int) (sickly int) {
			mu.Lock()
			before := got["sick"]
			mu.Unlock()
			for range calls {
				_ = one("math/add")
			}
			mu.Lock()
			defer mu.Unlock()
			return got["sick"] - before
		}
		require.Equal(t, 5, count(10))
		mu.Lock()
		fails = true
		mu.Unlock()
		require.Equal(t, 3, count(20), "three failures, then nothing")
		require.ErrorIs(t, one("sick/math/add"), ErrExecutionTimeout, "who names it gets it")
		time.Sleep(time.Minute)
		require.Equal(t, 1, count(20), "one to see")
		mu.Lock()
		fails = false
		mu.Unlock()
		time.Sleep(time.Minute)
		require.GreaterOrEqual(t, count(20), 9, "it is well again")

		// Without another Runtime the calls are sent: a failing one is no reason to refuse them.
		require.NoError(t, well.conn.Close())
		mu.Lock()
		fails = true
		mu.Unlock()
		for range 5 {
			require.ErrorIs(t, one("math/add"), ErrExecutionTimeout)
		}
	})
}

// The first middleware and the first interceptor are the outermost (ALT-D48).
func TestMiddlewareFirstIsOutermost(t *testing.T) {
	var mu sync.Mutex
	var seen []string
	note := func(s string) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, s)
	}
	layer := func(name string) func(Handler) Handler {
		return func(next Handler) Handler {
			return HandlerFunc(func(ctx context.Context, call *ToolCall) (any, error) {
				note(name + " " + call.ToolName)
				return next.ServeALTAR(ctx, call)
			})
		}
	}
	stream := func(next StreamHandler) StreamHandler {
		return StreamHandlerFunc(func(ctx context.Context, call *ToolCall, out *ChunkWriter) error {
			note("stream " + call.ToolName)
			return next.ServeALTARStream(ctx, call, out)
		})
	}
	rt := must(NewRuntime("r1", &RuntimeOptions{
		Middleware:       []Middleware{layer("outer"), layer("inner")},
		StreamMiddleware: []StreamMiddleware{stream},
	}))
	AddTool(rt, "math/add", func(_ context.Context, in addIn) (int64, error) { return in.A + in.B, nil })
	AddStreamTool(rt, "count", func(_ context.Context, in countIn, out *ChunkWriter) error { return out.Send(in.N) })
	s := start(t, directTransport, nil, rt)
	trace := func(name string) Interceptor {
		return func(next CallFunc) CallFunc {
			return func(ctx context.Context, s *Session, tool string, params any, opts *CallOptions) (*Result, error) {
				note(name + " " + tool)
				return next(ctx, s, tool, params, opts)
			}
		}
	}
	c := must(NewClient(s.dial(testUser), &ClientOptions{Interceptors: []Interceptor{trace("first"), trace("second")}}))
	defer func() { require.NoError(t, c.Close()) }()
	sess, err := c.CreateSession(t.Context(), nil)
	require.NoError(t, err)
	_, err = CallAs[int64](t.Context(), sess, "math/add", addIn{1, 2}, nil)
	require.NoError(t, err)
	for _, err := range StreamAs[int64](t.Context(), sess, "count", countIn{7}, nil) {
		require.NoError(t, err)
	}
	require.Equal(t, []string{"first math/add", "second math/add", "outer r1/math/add", "inner r1/math/add", "stream r1/count"}, seen)

	// A second loop over a stream does not make the call again.
	payloads := StreamAs[int64](t.Context(), sess, "count", countIn{7}, nil)
	for _, err := range payloads {
		require.NoError(t, err)
	}
	for _, err := range payloads {
		require.ErrorIs(t, err, errStreamUsed)
	}
	require.Len(t, seen, 6)
}

// ALT-003, ALT-008: what a call took can be measured.
func TestAuditMeasures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var done []*AuditRecord
		m := newMesh(t, HostOptions{Audit: func(_ context.Context, e *AuditRecord) {
			mu.Lock()
			defer mu.Unlock()
			if e.Operation == "call.done" {
				done = append(done, e)
			}
		}}, "a")
		m.attach(t, "a", testRuntime("ra", nil))
		sess, err := m.client(t, "a").CreateSession(t.Context(), nil)
		require.NoError(t, err)
		_, err = CallAs[string](t.Context(), sess, "wait", waitIn{1500}, nil)
		require.NoError(t, err)
		for _, err := range StreamAs[int64](t.Context(), sess, "count", countIn{5}, nil) {
			require.NoError(t, err)
		}
		for n := range StreamAs[int64](t.Context(), sess, "count", countIn{1000}, nil) {
			if n == 20 {
				break
			}
		}
		for n := range StreamAs[int64](t.Context(), sess, "count", countIn{1000}, nil) {
			if n == 20 {
				require.NoError(t, sess.Destroy(t.Context()))
			}
		}
		synctest.Wait() // the hook is called after the response is sent
		mu.Lock()
		defer mu.Unlock()
		require.Len(t, done, 4)
		require.Equal(t, 1500*time.Millisecond, done[0].Duration)
		require.Equal(t, int64(6), done[1].Chunks)
		for _, canceled := range done[2:] {
			require.Equal(t, "canceled", canceled.Outcome)
			require.Greater(t, canceled.Chunks, int64(20))
		}
	})
}
