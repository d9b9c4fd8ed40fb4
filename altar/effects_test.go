// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/altar/internal/core"
	"github.com/fivewire/fivewire/internal/race"
)

// A result that is kept as text comes back as it was.
func TestKeptResults(t *testing.T) {
	raw := func(s string) json.RawMessage { return json.RawMessage(s) }
	details := &Error{Code: ErrExecutionFailed, Message: "disk \"full\"", Details: raw(`{"reason":"x"}`), Remote: true}
	for name, m := range map[string]*ToolResult{
		"success":  {Payload: raw("3")},
		"null":     {Payload: raw("null")},
		"absent":   {},
		"metadata": {Payload: raw(`"` + strings.Repeat("x", 200) + `"`), RuntimeMetadata: raw(`{"a":1}`)},
		"error":    {Error: details},
		"own":      {Error: &Error{Code: ErrInternal}, RuntimeMetadata: raw(`{}`)},
	} {
		text, ok := hostMessages{}.Keep([]byte("before")[:0], m)
		require.True(t, ok, name)
		require.Equal(t, m, hostMessages{}.Kept(&core.Call{}, string(text)), name)
	}
	_, ok := hostMessages{}.Keep(nil, &ToolResult{Payload: raw(strings.Repeat("1", maxKept+1))})
	require.False(t, ok)
	_, ok = hostMessages{}.Keep(nil, &ToolResult{Error: &Error{Message: strings.Repeat("x", maxKept+1)}})
	require.False(t, ok)
}

// A record of a small result takes at most twice its counted size (ALT-D22).
func TestRecordsAreSmall(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector needs memory")
	}
	const n = 50_000
	for name, answer := range map[string]*ToolResult{
		"success": {Payload: json.RawMessage("3")},
		"error":   {Error: &Error{Code: ErrExecutionFailed, Message: "disk full"}},
	} {
		h := testHost(t, nil)
		r, w := attachRuntime(t, h, testService, "r1", "math/add"), connect(t, h, testUser)
		w.session("s")
		bytes := heapOf(n, func() {
			for i := range n {
				id := fmt.Sprintf("%036d", i)
				w.send(add(id, "s"))
				next[*ToolCall](r)
				own := *answer
				own.InvocationID = id
				r.send(&own)
				next[*ToolResult](w)
			}
		})
		t.Logf("%s: %d bytes", name, bytes)
		require.Equal(t, n, h.Stats().StoredResults)
		require.LessOrEqual(t, bytes, int64(224), name)
	}
}

// The chunks of a stream that are kept for repeats take little more than their counted size.
func TestChunksAreSmall(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector needs memory")
	}
	for _, chunks := range []int64{1, 10, 5000} {
		h := testHost(t, nil)
		r, w := attachRuntime(t, h, testService, "r1", "count"), connect(t, h, testUser)
		w.session("s")
		stream := func(i int64) *ToolCall {
			return &ToolCall{InvocationID: fmt.Sprintf("%036d", i), SessionID: "s", ToolName: "count", Parameters: json.RawMessage(`{"n":1}`)}
		}
		chunk := func(i, n int64) *StreamChunk {
			return &StreamChunk{InvocationID: fmt.Sprintf("%036d", i), ChunkID: n, Payload: json.RawMessage(fmt.Sprint(n)), IsFinal: n == chunks-1}
		}
		streams := 50_000 / chunks
		bytes := heapOf(1, func() {
			for i := range streams {
				w.send(stream(i))
				next[*ToolCall](r)
				for n := range chunks {
					r.send(chunk(i, n))
					require.Equal(t, n, next[*StreamChunk](w).ChunkID)
				}
			}
		})
		counted := streams * (128 + chunks*64)
		t.Logf("%d of a stream: %d bytes, counted %d", chunks, bytes/streams, counted/streams)
		require.LessOrEqual(t, bytes, 2*counted)
		other := connect(t, h, testUser) // the first connection has an answer
		other.send(stream(3))
		for n := range chunks {
			require.Equal(t, chunk(3, n), next[*StreamChunk](other))
		}
	}
}

// The error of a Runtime counts like a payload: large ones fill no memory beyond the budget of records (ALT-D22).
func TestLargeErrorsCount(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector needs memory")
	}
	h := testHost(t, &HostOptions{Limits: Limits{MaxStoredResults: 1 << 20}})
	r, w := attachRuntime(t, h, testService, "r1", "count", "math/add"), connect(t, h, testUser)
	w.session("s")
	failure := func() *Error {
		return &Error{Code: ErrExecutionFailed, Message: "disk full", Details: json.RawMessage(`{"log":"` + strings.Repeat("x", 64<<10) + `"}`)}
	}
	bytes := heapOf(1, func() {
		for i := range 100 {
			id := fmt.Sprint("add", i)
			w.send(add(id, "s"))
			next[*ToolCall](r)
			r.send(&ToolResult{InvocationID: id, Error: failure()})
			require.ErrorIs(t, next[*ToolResult](w).Error, ErrExecutionFailed)
			id = fmt.Sprint("count", i)
			w.send(&ToolCall{InvocationID: id, SessionID: "s", ToolName: "count", Parameters: json.RawMessage(`{"n":1}`)})
			next[*ToolCall](r)
			r.send(&StreamChunk{InvocationID: id, Payload: json.RawMessage("1")})
			next[*StreamChunk](w)
			r.send(&StreamChunk{InvocationID: id, ChunkID: 1, Error: failure(), IsFinal: true})
			require.ErrorIs(t, next[*StreamChunk](w).Error, ErrExecutionFailed)
		}
	})
	require.Less(t, bytes, int64(3<<20))
}
