// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/sse"
)

// Texts that share memory do not change when more are read.
func TestSharedTexts(t *testing.T) {
	var in bytes.Buffer
	text := func(i int) string { return strings.Repeat(fmt.Sprintf("é%d", i), i%90) }
	for i := range 1000 {
		b, err := sse.AppendEvent(nil, wire.EventChunk, "", wire.AppendText(nil, "chat-1", text(i)))
		require.NoError(t, err)
		in.Write(b)
	}
	r := newStreamReader(&in, 0, nil)
	var all []*ChatEvent
	for range 1000 {
		ev, err := r.Next()
		require.NoError(t, err)
		all = append(all, ev)
	}
	for i, ev := range all {
		require.Equal(t, text(i), ev.Text)
		require.Equal(t, RoleAgent, ev.Message.Role)
	}
}

// The memory of a result that a middleware received is not reused: the middleware may keep the
// result and return it again.
func TestMiddlewareKeepsResult(t *testing.T) {
	var kept any
	s := MustServer(&ServerOptions{Middleware: []Middleware{func(next Handler) Handler {
		return HandlerFunc(func(ctx context.Context, call *Call) (any, error) {
			if kept != nil && call.Method == MethodTaskInfo {
				return kept, nil
			}
			res, err := next.ServeARC(ctx, call)
			if call.Method == MethodTaskInfo {
				kept = res
			}
			return res, err
		})
	}}})
	defer s.Close()
	s.HandleTasks("a-01", TaskHandlerFunc(func(ctx context.Context, _ *TaskRun) error {
		<-ctx.Done()
		return nil
	}))
	ask := func(method, params string) string {
		a := s.ServeMessage(t.Context(), &ServerRequest{Data: fmt.Appendf(nil,
			`{"arc":"1.0","id":"1","method":%q,"requestAgent":"x","targetAgent":"a-01","params":%s}`, method, params)}, nil)
		require.Nil(t, a.Error)
		return string(a.Data)
	}
	create := func() string {
		res, err := DecodeResponse([]byte(ask(MethodTaskCreate, `{"initialMessage":{"role":"user","parts":[{"type":"TextPart","content":"x"}]}}`)), "")
		require.NoError(t, err)
		got, err := DecodeResult(MethodTaskCreate, res.Result)
		require.NoError(t, err)
		return got.Task.ID
	}
	first := ask(MethodTaskInfo, fmt.Sprintf(`{"taskId":%q}`, create()))
	for range 10 {
		create() // uses memory
		require.Equal(t, first, ask(MethodTaskInfo, `{"taskId":"another"}`))
	}
}
