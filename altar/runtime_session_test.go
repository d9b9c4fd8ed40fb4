// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// ALT-D22: once a call is answered its id is free for other sessions, and the Runtime
// takes the next call of that id for a new one, also while it is still busy with
// having answered the first.
func TestRuntimeTakesIDAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var once sync.Once
		answered, ran := make(chan struct{}), make(chan string, 2)
		rt := must(NewRuntime("r1", nil))
		rt.Handle("math/add", HandlerFunc(func(_ context.Context, call *ToolCall) (any, error) {
			ran <- call.SessionID
			return 3, nil
		}))
		s := start(t, directTransport, &HostOptions{Audit: func(_ context.Context, e *AuditRecord) {
			if e.Operation == "call.done" { // the Runtime releases the id with its own response
				once.Do(func() { <-answered })
			}
		}}, rt)
		w := connect(t, s.h, testUser)
		for _, session := range []string{"s1", "s2"} {
			w.session(session)
		}
		synctest.Wait()
		w.send(add("i", "s1"))
		require.Equal(t, json.RawMessage("3"), next[*ToolResult](w).Payload)
		w.send(add("i", "s2"))
		require.Equal(t, "s1", <-ran)
		require.Equal(t, "s2", <-ran)
		close(answered)
		require.Equal(t, json.RawMessage("3"), next[*ToolResult](w).Payload)
	})
}

// The same for a tool that still runs after its final chunk.
func TestRuntimeTakesIDAgainAfterChunk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		var runs atomic.Int32
		rt := must(NewRuntime("r1", nil))
		rt.HandleStream("count", StreamHandlerFunc(func(_ context.Context, _ *ToolCall, out *ChunkWriter) error {
			defer runs.Add(-1)
			runs.Add(1)
			err := out.SendLast(1)
			<-goOn
			return err
		}))
		s := start(t, pipeTransport, nil, rt)
		w := connect(t, s.h, testUser)
		for _, session := range []string{"s1", "s2", "s3"} {
			w.session(session)
			w.send(&ToolCall{InvocationID: "i", SessionID: session, ToolName: "count", Parameters: json.RawMessage(`{"n":1}`)})
			synctest.Wait()
			require.True(t, next[*StreamChunk](w).IsFinal, session)
		}
		require.Equal(t, int32(3), runs.Load())
		close(goOn)
		synctest.Wait()
		require.Zero(t, runs.Load())
	})
}

type panics struct{}

func (panics) MarshalJSON() ([]byte, error) { panic("a secret") }

// ALT-D34: a tool that ends its goroutine, as a failed assertion of a test does, fails at once.
func TestToolEndsItsGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := must(NewRuntime("r1", &RuntimeOptions{MaxConcurrent: 1}))
		rt.Handle("fail", HandlerFunc(func(context.Context, *ToolCall) (any, error) { runtime.Goexit(); return nil, nil }))
		rt.HandleStream("count", StreamHandlerFunc(func(_ context.Context, _ *ToolCall, out *ChunkWriter) error {
			_ = out.Send(0)
			runtime.Goexit()
			return nil
		}))
		s := start(t, directTransport, nil, rt)
		sess, err := s.c.CreateSession(t.Context(), nil)
		require.NoError(t, err)
		begin := time.Now()
		for tool, params := range map[string]string{"fail": `{}`, "count": `{"n":1}`} {
			for range 2 {
				_, err := sess.Call(t.Context(), tool, json.RawMessage(params), nil)
				require.ErrorIs(t, err, reasonPanic, tool)
			}
		}
		require.Zero(t, time.Since(begin))
	})
}

func TestLargestMaxConcurrentIsNoQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := must(NewRuntime("r1", &RuntimeOptions{MaxConcurrent: math.MaxInt}))
		rt.Handle("get", HandlerFunc(func(context.Context, *ToolCall) (any, error) { return "v", nil }))
		s := start(t, directTransport, nil, rt)
		sess, err := s.c.CreateSession(t.Context(), nil)
		require.NoError(t, err)
		_, err = sess.Call(t.Context(), "get", json.RawMessage(`{"key":"k"}`), nil)
		require.NoError(t, err)
	})
}

// ALT-D34: a panic in a method of the returned value is a panic of the tool.
func TestToolReturnsPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := must(NewRuntime("r1", nil))
		rt.Handle("get", HandlerFunc(func(context.Context, *ToolCall) (any, error) { return panics{}, nil }))
		rt.Handle("fail", HandlerFunc(func(context.Context, *ToolCall) (any, error) { return nil, (*Error)(nil) }))
		rt.HandleStream("count", StreamHandlerFunc(func(_ context.Context, _ *ToolCall, out *ChunkWriter) error {
			if err := out.Send(0); err != nil {
				return err
			}
			return (*Error)(nil)
		}))
		s := start(t, directTransport, nil, rt)
		sess, err := s.c.CreateSession(t.Context(), nil)
		require.NoError(t, err)
		for tool, params := range map[string]string{"get": `{"key":"k"}`, "fail": `{}`, "count": `{"n":1}`} {
			_, err := sess.Call(t.Context(), tool, json.RawMessage(params), nil)
			require.ErrorIs(t, err, reasonPanic, tool)
			require.NotContains(t, err.Error(), "secret")
		}
	})
}

// A tool may use the buffer of a chunk again as soon as Send has returned, on every transport.
func TestToolReusesBufferOfChunks(t *testing.T) {
	for _, tr := range transports {
		t.Run(tr.name, func(t *testing.T) {
			rt := must(NewRuntime("r1", nil))
			rt.HandleStream("count", StreamHandlerFunc(func(_ context.Context, _ *ToolCall, out *ChunkWriter) error {
				var buf []byte
				for i := range 50 {
					buf = fmt.Appendf(buf[:0], `"%0100d"`, i)
					if err := out.Send(json.RawMessage(buf)); err != nil {
						return err
					}
				}
				return nil
			}))
			s := start(t, tr.dial, nil, rt)
			sess, err := s.c.CreateSession(t.Context(), nil)
			require.NoError(t, err)
			for range 2 { // the second one reads the chunks that are kept for repeats
				n := 0
				for c, err := range sess.Stream(t.Context(), "count", countIn{50}, &CallOptions{InvocationID: "i"}) {
					require.NoError(t, err)
					require.Equal(t, fmt.Sprintf(`"%0100d"`, n), string(c))
					n++
				}
				require.Equal(t, 50, n)
			}
		})
	}
}
