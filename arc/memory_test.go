// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

// What is read in pieces takes no more memory than the limit, and one byte.
func TestReadLimited(t *testing.T) {
	const limit = 10_000
	for _, n := range []int{0, 1, 511, 512, 513, limit - 1, limit, limit + 1, 5 * limit} {
		for _, room := range [][]byte{nil, make([]byte, 0, 100), make([]byte, 0, 3*limit)} {
			in := bytes.Repeat([]byte("0123456789"), n/10+1)[:n]
			got, err := readLimited(room, iotest.HalfReader(bytes.NewReader(in)), limit)
			if n > limit {
				require.ErrorIs(t, err, ErrTooLarge)
				in = in[:limit]
			} else {
				require.NoError(t, err)
			}
			require.True(t, bytes.Equal(in, got), "%d bytes", n)
			require.LessOrEqual(t, cap(got), max(limit+1, cap(room)))
		}
	}
	_, err := readLimited(nil, io.MultiReader(strings.NewReader("x"), iotest.ErrReader(io.ErrClosedPipe)), limit)
	require.ErrorIs(t, err, io.ErrClosedPipe)
}

// Texts that share memory do not change when more are read.
func TestSharedTexts(t *testing.T) {
	var in bytes.Buffer
	text := func(i int) string { return strings.Repeat(fmt.Sprintf("é%d", i), i%90) }
	var enc StreamEncoder
	for i := range 1000 {
		b, err := enc.AppendChunk(nil, "chat-1", "", AgentText(text(i)))
		require.NoError(t, err)
		in.Write(b)
	}
	r := NewStreamReader(&in, nil)
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

// The memory of a result is used again only where nobody else has seen it: a
// middleware may keep what a handler answered, and answer with it again.
func TestMiddlewareKeepsResult(t *testing.T) {
	var kept any
	s := NewServer(&ServerOptions{Middleware: []Middleware{func(next Handler) Handler {
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
