// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"cmp"
	"context"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/store"
)

// pipes is a network in memory with one server per address.
type pipes struct {
	mu        sync.Mutex
	listeners map[string]*pipeListener
}

type pipeListener struct {
	addr  net.TCPAddr
	conns chan net.Conn
	done  chan struct{}
	close func()
}

func (p *pipes) listen() net.Listener {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
	l.addr = net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1 + len(p.listeners)}
	l.close = sync.OnceFunc(func() { close(l.done) })
	p.listeners[l.addr.String()] = l
	return l
}

func (p *pipes) dial(ctx context.Context, _, address string) (net.Conn, error) {
	p.mu.Lock()
	l := p.listeners[address]
	p.mu.Unlock()
	if l == nil {
		return nil, net.ErrClosed
	}
	near, far := net.Pipe()
	select {
	case l.conns <- far:
		return near, nil
	case <-l.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.close()
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &l.addr }

// Calls leave nothing behind: heap, goroutines and files do not grow. The short form takes half a day of virtual
// time, in which ended tasks and results expire; a bounded list of ids, the record of a session, and the ids of
// messages stay longer. The long form takes a minute of real time, or the duration in FIVEWIRE_SOAK; results that stay for
// minutes count in it.
func TestSoak(t *testing.T) {
	isLong := os.Getenv("FIVEWIRE_LONG") != ""
	d, err := time.ParseDuration(cmp.Or(os.Getenv("FIVEWIRE_SOAK"), "1m"))
	require.NoError(t, err)
	for _, p := range endToEnd {
		t.Run(p.name, func(t *testing.T) {
			if isLong {
				soak(t, p.serve(t, environment{Store: store.NewMemory(), retention: 10 * time.Second}), d, 10*time.Millisecond, p.kept+1<<10)
				return
			}
			synctest.Test(t, func(t *testing.T) {
				e := environment{store.NewMemory(), 10 * time.Second, &pipes{listeners: map[string]*pipeListener{}}, 0}
				const pause = 247 * time.Second // no call runs at the moment of a sample
				soak(t, p.serve(t, e), 12*time.Hour, pause, p.kept)
			})
		})
	}
}

// soak makes calls of which each one may leave some bytes, with pauses between those of a caller.
func soak(t *testing.T, connect link, d, pause time.Duration, kept int64) {
	const callers = 8
	calls := make([]func(context.Context) error, callers)
	for i := range calls {
		calls[i] = connect(t)
		require.NoError(t, calls[i](t.Context()))
	}
	// A worker for each caller may stay for the next call, and the line through one step rises half as much again.
	const workers = callers * 3 / 2
	o := fault.Options{Callers: callers, For: d, HeapSlope: callers * kept * int64(time.Minute) / int64(pause), Goroutines: workers}
	fault.Soak(t, o, func(caller int) error {
		time.Sleep(pause)
		return calls[caller](t.Context())
	})
}
