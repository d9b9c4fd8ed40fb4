// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/internal/sim"
)

// A variety has the options of one run.
type variety struct {
	hasRouter    bool
	hasLittle    bool // room for results, chunks and messages
	isSliding    bool // sessions are prolonged by calls
	isOnRequest  bool // Runtimes fulfil their tools for each session
	isBusy       bool // Runtimes run one call at a time
	isDisordered bool // chunks arrive in another order, and a few not at all
	isApart      bool // Hosts do not forward calls
}

func newVariety(seed uint64) variety {
	r := rand.New(rand.NewPCG(seed, 5))
	return variety{
		hasRouter: r.IntN(2) == 0, hasLittle: r.IntN(3) == 0, isSliding: r.IntN(2) == 0, isOnRequest: r.IntN(2) == 0,
		isBusy: r.IntN(3) == 0, isDisordered: r.IntN(3) == 0, isApart: r.IntN(5) > 0,
	}
}

const heartbeat = 4 * time.Second

// adjust sets the options of a Host.
func (v *variety) adjust(o *altar.HostOptions) {
	o.Timing = altar.Timing{Heartbeat: heartbeat, SlidingSessionTTL: v.isSliding, ClientGracePeriod: 8 * time.Second,
		SlowReaderTimeout: 6 * time.Second}
	if v.isApart {
		o.Cluster = apart{}
	}
	if v.hasRouter {
		o.Router = altar.LeastBusyRouter
	}
	if v.hasLittle {
		o.Limits = altar.Limits{MaxStoredResults: 1 << 10, MaxStoredChunks: 256, ClientQueueLimit: 4, MaxClientQueue: 8 << 10,
			MaxConcurrentPerSession: 2, MaxMemoryPerSession: 16 << 10}
	}
}

// A Host in an apart network has no other Hosts.
type apart struct{}

func (apart) Join(ctx context.Context, _ string, _ func([]string), _ func(string, io.ReadWriteCloser)) error {
	<-ctx.Done()
	return nil
}

func (apart) Open(context.Context, string, string) (io.ReadWriteCloser, error) {
	return nil, errors.New("no other Host")
}

// adjustRuntime sets the options of a Runtime.
func (v *variety) adjustRuntime(o *altar.RuntimeOptions) {
	o.DisableStanding = v.isOnRequest
	if v.isBusy {
		o.MaxConcurrent, o.QueueLimit = 1, 1
	}
}

// A disordered connection of a Runtime holds a chunk back until the next one, or loses it.
type disordered struct {
	altar.Conn
	w    *sim.World
	name string

	mu      sync.Mutex
	delayed altar.Message // guarded by mu
}

func (d *disordered) Send(m altar.Message) error {
	chunk, isChunk := m.(*altar.StreamChunk)
	if !isChunk {
		return d.Conn.Send(m)
	}
	d.mu.Lock()
	delayed := d.delayed
	d.delayed = nil
	what := d.w.Draw("chunk", d.name, chunk.InvocationID, fmt.Sprint(chunk.ChunkID)) % 32
	if delayed == nil && !chunk.IsFinal && !d.w.IsCalm() && what < 8 {
		d.delayed = m
		if what == 0 {
			d.delayed = nil // it is lost
		}
		d.mu.Unlock()
		return nil
	}
	d.mu.Unlock()
	err := d.Conn.Send(m)
	if delayed != nil && err == nil {
		err = d.Conn.Send(delayed)
	}
	return err
}

// A watched connection of a Host holds the calls to a Runtime to R1.
type watched struct {
	altar.Conn
	w    *world
	name string

	mu       sync.Mutex
	received time.Duration // guarded by mu
}

func (c *watched) Receive() (altar.Message, error) {
	m, err := c.Conn.Receive()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.received = c.w.Now()
	return m, err
}

func (c *watched) Send(m altar.Message) error {
	c.mu.Lock()
	silent := c.w.Now() - c.received
	c.mu.Unlock()
	if _, isCall := m.(*altar.ToolCall); isCall && silent > 4*heartbeat {
		c.w.Failf("R1", c.name, "a Runtime that has been silent for %v gets a call", silent)
	}
	return c.Conn.Send(m)
}
