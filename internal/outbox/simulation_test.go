// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package outbox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/outbox"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/internal/state"
	"github.com/fivewire/fivewire/store"
)

// A cluster is several processes with one store. Streams o/0 and o/1 belong to objects, which
// call Own.
type cluster struct {
	*store.Memory
	choose   func(n int) int // 0 to n-1
	isFaulty atomic.Bool
	isCalm   atomic.Bool // all attempts succeed
	rules    []fault.Rule
	random   *rand.Rand // of attempts

	procs   []*process
	stopped []*process

	mu       sync.Mutex // guards all below, and random
	broken   []string
	puts     int
	accepted map[string]bool // by stream and id
	isOver   map[string]bool // a verdict stopped it
	sent     map[string]int
	changes  map[string]int // of owners, by stream
	running  map[*attempt]bool
	attempts int
}

type process struct {
	c      *cluster
	plan   *fault.Plan
	lease  *lease.Lease
	outbox *outbox.Outbox
	isDead atomic.Bool
}

type attempt struct {
	p      *process
	stream string
	ctx    context.Context
}

type storedRecord struct {
	Owner lease.Owner
	Mode  string
	Seq   uint64
}

func parse(e store.Entry) (r storedRecord) {
	if content, err := store.Content(e); err == nil {
		_ = json.Unmarshal(content.Value, &r)
	}
	return r
}

func (c *cluster) failLocked(format string, args ...any) {
	c.broken = append(c.broken, fmt.Sprintf(format, args...))
}

func (c *cluster) isBroken() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.broken) > 0
}

// Update counts the changes of owners, below all injected faults.
func (c *cluster) Update(
	ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration,
) (store.Revision, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, errBefore := c.Memory.Get(context.Background(), key)
	after, err := c.Memory.Update(ctx, key, value, rev, ttl)
	if err != nil || errBefore != nil || !strings.HasPrefix(key, "outbox/sender/") {
		return after, err
	}
	from, to := parse(before), parse(store.Entry{Value: value})
	if from.Owner != "" && to.Owner != "" && from.Owner != to.Owner {
		c.changes[key]++
	}
	return after, nil
}

func (c *cluster) start() {
	rules := make([]fault.Rule, len(c.rules))
	for i, r := range c.rules {
		r.When = func(_, _ string) bool { return c.isFaulty.Load() }
		rules[i] = r
	}
	p := &process{c: c, plan: &fault.Plan{Seed: uint64(c.choose(1 << 30)), Rules: rules}}
	db := fault.Store(c, p.plan)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for p.lease == nil && ctx.Err() == nil {
		p.lease, _ = lease.Acquire(ctx, db, lease.Options{Logger: quiet})
	}
	if p.lease == nil {
		p.plan.Close() // too many faults
		return
	}
	p.outbox = outbox.New(db, p.lease, outbox.Options{Logger: quiet})
	p.outbox.Send("k", p.send)
	p.outbox.Send("o", p.send)
	c.procs = append(c.procs, p)
}

// end ends a process; after a crash the store does not notice.
func (c *cluster) end(i int, isCrash bool) {
	p := c.procs[i]
	c.procs = append(c.procs[:i], c.procs[i+1:]...)
	c.stopped = append(c.stopped, p)
	if isCrash {
		p.isDead.Store(true)
		p.plan.Crash()
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+c.choose(5))*time.Second)
	go func() {
		defer cancel()
		_ = p.outbox.Shutdown(ctx)
		p.isDead.Store(true)
		_ = p.lease.Release(ctx)
	}()
}

// send makes one attempt and checks X2 and X3.
func (p *process) send(ctx context.Context, i outbox.Item) outbox.Verdict {
	c, name, a := p.c, i.Stream+" "+i.ID, &attempt{p, i.Stream, ctx}
	c.mu.Lock()
	c.attempts++
	for other := range c.running {
		isHeld := other.ctx.Err() == nil && ctx.Err() == nil && !other.p.isDead.Load() && !p.isDead.Load()
		if other.stream == i.Stream && isHeld {
			c.failLocked("X3: attempt of %s during another one", name)
		}
	}
	e, _ := c.Get(context.Background(), "outbox/sender/"+state.Join(i.Stream))
	last := parse(e).Seq // its Ack may be missing
	records, _ := c.Read(context.Background(), "outbox/items/"+state.Join(i.Stream), 0, 10_000)
	for _, r := range records {
		if last < r.Seq && r.Seq < i.Seq && !c.isOver[i.Stream+" "+r.ID[1:]] && ctx.Err() == nil && !p.isDead.Load() {
			c.failLocked("X2: attempt of %s before the end of %s", name, r.ID[1:])
		}
	}
	c.running[a] = true
	delay, n, obeys := time.Duration(c.random.IntN(1000))*time.Millisecond, c.random.IntN(100), c.random.IntN(4) > 0
	if c.random.IntN(10) == 0 {
		delay *= 20
	}
	c.mu.Unlock()
	if c.isCalm.Load() {
		delay, n = 0, 0
	}
	isCut := false
	select {
	case <-time.After(delay):
	case <-ctx.Done():
		if isCut = obeys; !obeys {
			time.Sleep(delay)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.running, a)
	if isCut || p.isDead.Load() {
		return outbox.Retry(0, context.Cause(ctx))
	}
	if n < 70 {
		c.sent[name]++
	}
	c.isOver[name] = c.isOver[name] || n < 75
	switch {
	case n < 70:
		return outbox.Done()
	case n < 74:
		return outbox.Dead("refused", errDown)
	case n < 75:
		return outbox.Gone(errDown)
	case n < 90:
		return outbox.Retry(time.Duration(n)*100*time.Millisecond, errDown)
	}
	return outbox.Later(time.Duration(n)*50*time.Millisecond, errDown)
}

func (c *cluster) put(p *process, stream string) {
	c.mu.Lock()
	c.puts++
	id := fmt.Sprint(max(1, c.puts-c.choose(3))) // some repeat an earlier one, perhaps in another stream
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+c.choose(20))*time.Second)
	go func() {
		defer cancel()
		if p.outbox.Put(ctx, stream, id, []byte(id)) != nil {
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.accepted[stream+" "+id] = true
	}()
}

// step makes one random step.
func (c *cluster) step() {
	if len(c.procs) == 0 {
		c.start()
		return
	}
	p := c.procs[c.choose(len(c.procs))]
	object := fmt.Sprintf("o/%d", c.choose(2))
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+c.choose(30))*time.Second)
	release := cancel
	switch n := c.choose(100); {
	case n < 40:
		c.put(p, fmt.Sprintf("k/%d", c.choose(4)))
	case n < 50:
		c.put(p, object)
	case n < 54:
		release = func() {}
		go func() { defer cancel(); _ = p.outbox.Own(ctx, object) }()
	case n < 56:
		release = func() {}
		go func() { defer cancel(); _ = p.outbox.Close(ctx, object) }()
	case n < 58:
		p.plan.Pause()
		time.AfterFunc(time.Duration(c.choose(20))*time.Second, p.plan.Resume)
	case n < 59:
		c.end(c.choose(len(c.procs)), true)
	case n < 60:
		c.end(c.choose(len(c.procs)), false)
	case n < 62:
		c.start()
	case n < 64:
		c.isFaulty.Store(!c.isFaulty.Load())
	default:
		time.Sleep(time.Duration(c.choose(2000)) * time.Millisecond)
	}
	release()
	for len(c.procs) > 4 {
		c.end(0, true)
	}
}

// calm ends all faults and lets the processes send what waits.
func (c *cluster) calm() {
	c.isFaulty.Store(false)
	c.isCalm.Store(true)
	for _, p := range c.procs {
		p.plan.Resume()
	}
	c.start()
	time.Sleep(5 * time.Minute) // late landings and take-over
	for i := range 2 {          // objects of failed instances are adopted
		name := fmt.Sprintf("o/%d", i)
		e, _ := c.Get(context.Background(), "outbox/sender/"+state.Join(name))
		p := c.procs[len(c.procs)-1]
		if r := parse(e); r.Mode == "owned" {
			if err := p.outbox.Own(context.Background(), name); err != nil {
				c.failLocked("own: %v", err)
			}
			time.Sleep(time.Minute)
			if err := p.outbox.Close(context.Background(), name); err != nil {
				c.failLocked("close: %v", err)
			}
		}
	}
	time.Sleep(30 * time.Minute) // retries, stopped records and index entries
	synctest.Wait()
}

// check compares the accepted items with their ends.
func (c *cluster) check() {
	c.mu.Lock()
	defer c.mu.Unlock()
	dead := map[string]int{}
	ctx := context.Background()
	for l, err := range c.procs[0].outbox.Dead(ctx) {
		if err != nil {
			c.failLocked("dead letters: %v", err)
		}
		dead[l.Stream+" "+l.ID]++
	}
	for name := range c.accepted {
		if c.sent[name] == 0 && dead[name] == 0 {
			stream, id, _ := strings.Cut(name, " ")
			records, _ := c.Read(ctx, "outbox/items/"+state.Join(stream), 0, 10)
			c.failLocked("X1: item %s of %s neither sent nor dead; %d wait", id, stream, len(records))
		}
	}
	duplicates := map[string]int{}
	for name, n := range c.sent {
		stream, _, _ := strings.Cut(name, " ")
		duplicates[stream] += n - 1
	}
	for stream, n := range duplicates {
		if n > c.changes["outbox/sender/"+state.Join(stream)] {
			c.failLocked("X4: %d duplicates in %s after fewer owner failures", n, stream)
		}
	}
	for e := range c.List(ctx, "outbox/sender/") {
		c.failLocked("record left: %s %+v", e.Key, parse(e))
	}
	for e := range c.List(ctx, "work/") { // one that landed late stays as long as its owner
		owner := lease.Owner(strings.Split(e.Key, "/")[1])
		if !slices.ContainsFunc(c.procs, func(p *process) bool { return p.lease.Owner() == owner }) {
			c.failLocked("entry left: %s", e.Key)
		}
	}
}

// simulate runs a cluster in a bubble and returns the broken invariants.
func simulate(t *testing.T, steps int, seed uint64, choose func(n int) int) (broken []string) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{Memory: store.NewMemory(), choose: choose, random: rand.New(rand.NewPCG(seed, 1)),
			accepted: map[string]bool{}, isOver: map[string]bool{}, sent: map[string]int{},
			changes: map[string]int{}, running: map[*attempt]bool{}}
		for _, kind := range []fault.Action{fault.ErrorBefore, fault.ErrorAfter, fault.LandLater, fault.Hang,
			fault.Conflict, fault.Delay} {
			if c.choose(2) == 0 {
				c.rules = append(c.rules, fault.Rule{Action: kind, Probability: 0.2 * float64(1+c.choose(3)) / 3})
			}
		}
		c.start()
		for range steps {
			c.step()
			if c.isBroken() {
				break
			}
		}
		if !c.isBroken() {
			c.calm()
			c.check()
		}
		n, changes := 0, 0
		for _, v := range c.sent {
			n += v - 1
		}
		for _, v := range c.changes {
			changes += v
		}
		t.Logf("%d puts, %d accepted, %d attempts, %d sent, %d duplicates, %d owner changes",
			c.puts, len(c.accepted), c.attempts, len(c.sent), n, changes)
		for len(c.procs) > 0 {
			c.end(0, false)
		}
		time.Sleep(10 * time.Minute)
		for _, p := range c.stopped {
			p.plan.Close()
		}
		synctest.Wait()
		broken = c.broken
	})
	return broken
}

func TestOutboxKeepsInvariantsUnderFaults(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.IntRange(1, 50).Draw(rt, "steps")
		seed := rapid.Uint64().Draw(rt, "seed")
		broken := simulate(t, steps, seed, func(n int) int { return rapid.IntRange(0, n-1).Draw(rt, "choice") })
		if len(broken) > 0 {
			rt.Fatalf("broken invariants: %s", strings.Join(broken, "\n"))
		}
	})
}

func TestOutboxKeepsInvariantsInLongRuns(t *testing.T) {
	seeds := uint64(8)
	if race.Enabled {
		seeds = 2
	}
	for seed := range seeds {
		random := rand.New(rand.NewPCG(seed, 0))
		if broken := simulate(t, 200, seed, random.IntN); len(broken) > 0 {
			t.Fatalf("seed %d: broken invariants: %s", seed, strings.Join(broken, "\n"))
		}
	}
}
