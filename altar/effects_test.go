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
		require.LessOrEqual(t, bytes, int64(256), name)
	}
}
