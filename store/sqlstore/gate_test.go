// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sqlstore_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/store/sqlstore"
)

// A gate is a proxy that withholds requests after a number of answers, as if the process of the client was stopped
// then.
type gate struct {
	*proxy
	closed chan struct{} // once requests are withheld

	mu   sync.Mutex
	left int // answers before that; negative without an end; guarded by mu
}

// newGate returns one that is open, and the URL through it.
func newGate(t *testing.T, database string) (*gate, string) {
	t.Helper()
	g := &gate{closed: make(chan struct{}), left: -1}
	var through string
	g.proxy, through = newProxy(t, database, g.pass)
	return g, through
}

func (g *gate) pass(piece []byte, isAnswer bool) (passed []byte, isLast bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case isAnswer && g.left > 0:
		if g.left--; g.left == 0 {
			close(g.closed)
		}
	case !isAnswer && g.left == 0:
		return nil, false
	}
	return piece, false
}

// closeAfter lets so many answers pass.
func (g *gate) closeAfter(answers int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.left = answers; answers == 0 {
		close(g.closed)
	}
}

// TestStoppedInExpire: a process that is stopped or cut off at any moment of an Expire does not keep others from
// appending to the stream.
func TestStoppedInExpire(t *testing.T) {
	d := postgres(t)
	other := d.open(t)
	for n := range 8 {
		for _, ttl := range []time.Duration{0, time.Hour} {
			g, through := newGate(t, d.url)
			s, err := sqlstore.Open(t.Context(), through, &sqlstore.Options{Schema: d.opts.Schema, MaxConns: 1})
			require.NoError(t, err)
			_, err = s.Append(t.Context(), "s", "", nil, 0)
			require.NoError(t, err)
			require.NoError(t, s.Expire(t.Context(), "s", ttl)) // prepares its statements
			g.closeAfter(n)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- s.Expire(ctx, "s", ttl) }()
			select {
			case <-g.closed:
			case <-done:
			}
			appending, stop := context.WithTimeout(t.Context(), 5*time.Second)
			_, err = other.Append(appending, "s", "", nil, 0)
			require.NoError(t, err, fmt.Sprint("after ", n, " answers"))
			stop()
			cancel()
			g.close()
			require.NoError(t, s.Close())
		}
	}
}
