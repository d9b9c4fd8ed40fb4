// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/once"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/store"
)

// The jobs of a failed process continue elsewhere within a lease and a third, without a call.
func testSurvivorsTakeOver(t *testing.T, c *cluster) {
	first, second, third := c.start(), c.start(), c.start()
	n := c.many(300, 10)
	var ids []string
	for i := range n {
		ids = append(ids, c.submit(first, fmt.Sprint(i), "gate"))
	}
	c.wait(c.limit(c.ttl), "start of the jobs", func() bool { return c.countRuns() == n })
	first.crash()
	c.wait(c.limit(c.ttl*4/3), "take-over", func() bool { return c.countRuns() == 2*n })
	require.Equal(t, n, second.count()+third.count(), "jobs of the survivors")
	c.openGate()
	for _, id := range ids {
		c.requireEnd(second, id, "open", "")
	}
	c.wait(c.limit(c.ttl), "notifications", func() bool { return c.countPosts("hook/gate") >= n })
	time.Sleep(c.ttl)
	require.Equal(t, n, c.countPosts("hook/gate"), "notifications")
}

// A meter counts the calls of a store.
type meter struct {
	store.Store
	calls, entries, waits atomic.Int64
}

func (m *meter) Get(ctx context.Context, key string) (store.Entry, error) {
	m.calls.Add(1)
	return m.Store.Get(ctx, key)
}

func (m *meter) Update(ctx context.Context, key string, value []byte, rev store.Revision,
	ttl time.Duration) (store.Revision, error) {
	m.calls.Add(1)
	return m.Store.Update(ctx, key, value, rev, ttl)
}

func (m *meter) Read(ctx context.Context, stream string, after uint64, limit int) ([]store.Record, error) {
	m.calls.Add(1)
	return m.Store.Read(ctx, stream, after, limit)
}

func (m *meter) Wait(ctx context.Context, stream string, after uint64) error {
	m.waits.Add(1)
	defer m.waits.Add(-1)
	return m.Store.Wait(ctx, stream, after)
}

func (m *meter) List(ctx context.Context, prefix string) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		m.calls.Add(1)
		for e, err := range m.Store.List(ctx, prefix) {
			m.entries.Add(1)
			if !yield(e, err) {
				return
			}
		}
	}
}

// cost returns the calls and the listed entries of ten leases, and the calls of Wait in progress.
func (c *cluster) cost(m *meter) (calls, entries, waits int64) {
	m.calls.Store(0)
	m.entries.Store(0)
	time.Sleep(10 * c.ttl)
	return m.calls.Load(), m.entries.Load(), m.waits.Load()
}

// Finished jobs, running jobs and parked jobs cost an idle process nothing.
func testIdleCostIsConstant(t *testing.T, c *cluster) {
	if !c.isVirtual {
		t.Skip("counts the calls of a store without delays")
	}
	n := 10_000
	if race.Enabled {
		n = 2000
	}
	m := &meter{Store: store.Sub(c.open(t), c.prefix)}
	p := c.startOn(m)
	calls, entries, waits := c.cost(m)
	require.EqualValues(t, 1, waits, "calls of Wait in progress")
	for _, kind := range []string{"none", "gate", "echo"} {
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for j := range n / 8 {
					err := p.create(p.lease.Context(), fmt.Sprint(kind, "-", i, "-", j), record{Kind: kind})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		time.Sleep(c.ttl) // until notifications are sent
		moreCalls, moreEntries, moreWaits := c.cost(m)
		require.InDelta(t, calls, moreCalls, 60, "calls with %d jobs of kind %s", n, kind)
		require.InDelta(t, entries, moreEntries, 10, "listed entries with %d jobs of kind %s", n, kind)
		require.Equal(t, waits, moreWaits, "calls of Wait in progress with %d jobs of kind %s", n, kind)
	}
	c.openGate()
}

// Inputs reach the process that runs the job, in order and once, from any process.
func testInputReachesOwner(t *testing.T, c *cluster) {
	p := []*process{c.start(), c.start(), c.start()}
	for round := range c.many(30, 3) {
		id := c.submit(p[0], fmt.Sprint("key ", round), "echo")
		for i, input := range []string{"a", "a", "b", "a"} {
			time.Sleep(c.ttl / 100)
			require.NoError(t, p[(round+i)%3].input(t.Context(), id, input, input))
		}
		start := time.Now()
		c.requireEnd(p[1], id, "a b", "")
		require.Less(t, time.Since(start), c.limit(c.ttl/2), "time from the input to the end")
	}
}

// An acknowledged input reaches its job although processes fail.
func testInputSurvivesCrash(t *testing.T, c *cluster) {
	other := c.start()
	for round := range c.many(30, 3) {
		owner := c.start()
		id := c.submit(owner, fmt.Sprint("key ", round), "echo")
		for i, input := range []string{"a", "b"} {
			if i == round%2 {
				time.Sleep(time.Duration(round) * time.Millisecond)
			}
			sender := []*process{owner, other}[(round+i)%2]
			err := sender.input(t.Context(), id, input, input)
			if i == round%2 {
				owner.crash()
			}
			for err != nil { // the sender has failed
				err = other.input(t.Context(), id, input, input)
			}
		}
		require.NoError(t, other.input(t.Context(), id, "a", "a"), "repeated input")
		c.requireEnd(other, id, "a b", "")
	}
}

// A job that waits holds no shutdown, and the next process has it without a handler.
func testWaitSurvivesDeployment(t *testing.T, c *cluster) {
	first := c.start()
	waiting := c.submit(first, "1", "echo")
	fragile := c.submit(first, "2", "items")
	require.NoError(t, first.input(t.Context(), waiting, "a", "a"))
	c.wait(c.limit(c.ttl), "items", func() bool { return c.countItems(first, fragile)["artifact"] == 21 })
	time.Sleep(c.ttl)
	require.Zero(t, first.count(), "places of jobs that wait")
	last := first
	for range 3 {
		start := time.Now()
		require.NoError(t, last.shutdown(t.Context()))
		require.Less(t, time.Since(start), c.limit(0), "time of the shutdown")
		last = c.start(func(o *options) { o.noRerun["echo"] = true })
		require.NoError(t, last.lease.WaitRecovered(t.Context()))
		require.Zero(t, last.count())
	}
	require.NoError(t, last.input(t.Context(), waiting, "b", "b"))
	require.NoError(t, last.input(t.Context(), fragile, "b", "b"))
	c.requireEnd(last, waiting, "a b", "")
	c.requireEnd(last, fragile, "20", "")
}

func testRerunDoublesNoItem(t *testing.T, c *cluster) {
	first, second := c.start(), c.start()
	id := c.submit(first, "1", "items")
	want := map[string]int{"artifact": 21, "progress": 3}
	c.wait(c.limit(c.ttl), "items", func() bool { return c.countItems(first, id)["artifact"] == 21 })
	first.crash()
	require.NoError(t, second.input(t.Context(), id, "a", "a"))
	c.requireEnd(second, id, "20", "")
	want[""] = 1 // the input
	require.Equal(t, want, c.countItems(second, id))
}

// A store that is away and a process that is stopped for longer than a lease end nothing. Work that must not be
// repeated ends with an error.
func testOutageEndsNoProcess(t *testing.T, c *cluster) {
	for i, outage := range []struct{ begin, end func(p *process) }{
		{func(*process) { c.isDown.Store(true) }, func(*process) { c.isDown.Store(false) }},
		{func(p *process) { p.plan.Pause() }, func(p *process) { p.plan.Resume() }},
	} {
		c.closeGate()
		p := c.start()
		before := p.lease.Owner()
		var ids []string
		for _, kind := range []string{"gate", "echo", "fragile"} {
			ids = append(ids, c.submit(p, fmt.Sprint(kind, i), kind))
		}
		c.wait(c.limit(c.ttl), "start of the jobs", func() bool { return c.countRuns() == 2 })
		k := once.Key{Principal: "user", Scope: "call", ID: fmt.Sprint(i)}
		lost := make(chan error, 1)
		go func() {
			_, _, err := p.calls.Do(context.Background(), k, once.AtMostOnce,
				func(ctx context.Context, _ once.Claim) (once.Result, error) {
					<-ctx.Done()
					return once.Result{}, context.Cause(ctx)
				})
			lost <- err
		}()
		time.Sleep(c.ttl / 10)
		outage.begin(p)
		time.Sleep(c.ttl * 4 / 3)
		outage.end(p)
		require.ErrorIs(t, <-lost, lease.ErrLost, "call during the outage")
		c.wait(c.limit(2*c.ttl), "second run of the job", func() bool { return c.countRuns() == 3 })
		require.NotEqual(t, before, p.lease.Owner())
		c.openGate()
		require.NoError(t, p.input(t.Context(), ids[1], "a", "a"))
		require.NoError(t, p.input(t.Context(), ids[1], "b", "b"))
		c.requireEnd(p, ids[0], "open", "")
		c.requireEnd(p, ids[1], "a b", "")
		c.requireEnd(p, ids[2], "", errInterrupted.Error())
		c.requireEnd(p, c.submit(p, fmt.Sprint("later", i), "none"), "none", "")
		require.NoError(t, p.shutdown(t.Context()))
	}
}

// A message for a session reaches the process that holds it, in order and once.
func testSessionGetsMessages(t *testing.T, c *cluster) {
	p := []*process{c.start(patient), c.start(patient), c.start(patient)}
	n := c.many(100, 20)
	for i := range p {
		require.NoError(t, p[i].open(t.Context(), fmt.Sprint("s", i)))
	}
	var wg sync.WaitGroup
	for i := range p {
		wg.Go(func() {
			for j := range n {
				err := p[i].send(t.Context(), fmt.Sprint("s", (i+1)%3), fmt.Sprint(j), "")
				if err == nil && j%10 == 0 {
					err = p[i].send(t.Context(), fmt.Sprint("s", (i+1)%3), fmt.Sprint(j), "") // repeated
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for i := range p {
		session := fmt.Sprint("s", i)
		c.wait(c.limit(c.ttl), "messages", func() bool { return c.countMessages(session) >= n })
		c.requireSequence(session, n)
	}
}

// requireSequence requires the messages 0 to n-1.
func (c *cluster) requireSequence(session string, n int) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	var want []string
	for i := range n {
		want = append(want, fmt.Sprint(i))
	}
	require.Equal(c.t, want, c.messages[session], "messages of %s", session)
}

// The messages for a session whose process has failed reach the next one.
func testSessionMoves(t *testing.T, c *cluster) {
	holder, sender := c.start(), c.start()
	require.NoError(t, holder.open(t.Context(), "s"))
	for i := range 30 {
		if i == 10 {
			c.wait(c.limit(c.ttl), "messages", func() bool { return c.countMessages("s") == 10 })
			time.Sleep(c.ttl / 10)
			holder.crash()
		}
		if i == 20 {
			c.wait(c.limit(2*c.ttl), "messages", func() bool { return c.countMessages("s") == 20 })
			holder = c.start()
			require.NoError(t, sender.shutdown(t.Context()))
			sender = holder
		}
		require.NoError(t, sender.send(t.Context(), "s", fmt.Sprint(i), ""))
	}
	c.wait(c.limit(2*c.ttl), "messages", func() bool { return c.countMessages("s") >= 30 })
	c.requireSequence("s", 30)
}

var errAway = errors.New("store away")
