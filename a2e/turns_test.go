// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
)

// A call that waits for a place in the host, and a later call of its session, do not wait for each other (A2E-D27).
func TestPlacesInTheOrderOfCalls(t *testing.T) {
	h := a2etest.NewHost(t, &a2e.HostOptions{Limits: a2e.Limits{MaxConcurrent: 1}}, repeating())
	c := a2etest.Connect(t, h, nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 500 {
				if _, err := c.Call(ctx, "demo/ask/req", &recorder{}, nil); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// inline returns a plugin with an inline route, whose answer has n bytes.
func inline(n int, f func()) *a2e.Plugin {
	p := answering(func(context.Context, *a2e.Call, *recorder) (*recorder, error) {
		f()
		return &recorder{How: strings.Repeat("x", n)}, nil
	})
	p.Routes[0].Inline = true
	return p
}

// The reader of the connection calls an inline handler, unless a request before it waits.
func TestInline(t *testing.T) {
	var places []string
	h := a2etest.NewHost(t, nil, inline(1, func() {
		place := "worker"
		if strings.Contains(string(debug.Stack()), "(*Session).feed") {
			place = "reader"
		}
		places = append(places, place)
	}))
	c := a2etest.Connect(t, h, nil)
	for range 3 {
		_, err := c.Call(t.Context(), "demo/ask/req", &recorder{}, nil)
		require.NoError(t, err)
	}
	require.Equal(t, []string{"reader", "reader", "reader"}, places)
}

// A host reads on while the answers of inline handlers wait for an agent that does not read (A2E-D56).
func TestInlineAnswersDoNotStopTheReader(t *testing.T) {
	h := a2etest.NewHost(t, nil, inline(1<<20, func() {}))
	own, other := a2e.Pipe()
	served := make(chan error, 1)
	go func() { served <- h.Serve(t.Context(), other) }()
	const calls = 20
	send := func(line string) {
		_, err := io.WriteString(own, line+"\n")
		require.NoError(t, err)
	}
	send(message("handshake/req", "h", `,"agent_id":"t","agent_caps":["demo"]`))
	for i := range calls {
		send(message("demo/ask/req", fmt.Sprint("r", i), `,"padding":"`+strings.Repeat("x", 128<<10)+`"`))
	}
	send(message("ping", "p", ""))
	in := bufio.NewReaderSize(own, 2<<20)
	count := map[string]int{}
	for range calls + 2 {
		line, err := in.ReadSlice('\n')
		require.NoError(t, err)
		for _, kind := range []string{`"handshake/resp"`, `"pong"`, `"demo/ask/resp"`} {
			if strings.Contains(string(line[:min(len(line), 500)]), kind) {
				count[kind]++
			}
		}
	}
	require.Equal(t, map[string]int{`"handshake/resp"`: 1, `"pong"`: 1, `"demo/ask/resp"`: calls}, count)
	require.NoError(t, own.Close())
	require.NoError(t, <-served)
}
