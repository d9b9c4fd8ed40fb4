// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/race"
)

// TestAllocs bounds the allocations of a call in client, Host and Runtime together, in one process
// and over two byte streams.
func TestAllocs(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	c, err := DecodeContract([]byte(benchContract))
	require.NoError(t, err)
	v, err := newValidator(c, validation{})
	require.NoError(t, err)
	buf, in := make([]byte, 0, 1024), []byte(benchParams)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if _, err := v.Append(buf, in); err != nil {
			panic(err)
		}
	}), "parameters that fit")

	for _, tt := range []struct {
		transport
		call, stream float64
	}{
		{transport{"direct", directTransport}, 8, 135},
		{transport{"mem", pipeTransport}, 27, 550},
	} {
		rt := testRuntime("r1", nil)
		rt.names["math/add"].tool = HandlerFunc(func(_ context.Context, call *ToolCall) (any, error) { return call.Parameters, nil })
		s := start(t, tt.dial, &HostOptions{Persistence: Persistence{ResultTTL: time.Second}, Timing: Timing{CallTimeout: time.Hour}}, rt)
		sess, err := s.c.CreateSession(t.Context(), nil)
		require.NoError(t, err)
		params := json.RawMessage(`{"a":1,"b":2}`)
		allocs := testing.AllocsPerRun(5000, func() {
			if _, err := sess.Call(t.Context(), "math/add", params, nil); err != nil {
				panic(err)
			}
		})
		t.Logf("a call over %s: %v", tt.name, allocs)
		require.LessOrEqual(t, allocs, tt.call, "a call over %s", tt.name)
		allocs = testing.AllocsPerRun(50, func() {
			n := 0
			for _, err := range sess.Stream(t.Context(), "count", countIn{100}, nil) {
				if err != nil {
					panic(err)
				}
				n++
			}
			if n != 100 {
				panic(n)
			}
		})
		t.Logf("a stream of 100 over %s: %v", tt.name, allocs)
		require.LessOrEqual(t, allocs, tt.stream, "a stream of 100 over %s", tt.name)
	}
}
