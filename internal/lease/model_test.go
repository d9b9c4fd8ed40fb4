// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package lease_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
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
	"github.com/fivewire/fivewire/store"
)

var (
	errTaken   = errors.New("record changed")
	errRunning = errors.New("earlier work runs here")
)

// A cluster is several processes with one store. Its records are "owner state".
type cluster struct {
	*store.Memory
	choose   func(n int) int // 0 to n-1
	isFaulty atomic.Bool
	rules    []fault.Rule
	nextID   int

	mu     sync.Mutex
	faults []string
	runs   map[string]int // by id and owner

	procs  []*process
	former []*process
}

// A process runs the work of its records.
type process struct {
	c       *cluster
	name    string
	plan    *fault.Plan
	db      store.Store
	lease   *lease.Lease
	stop    context.CancelFunc
	base    context.Context
	mu      sync.Mutex
	running map[string]lease.Owner
}

func (c *cluster) fail(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, fmt.Sprintf(format, args...))
}

// Update checks L2 below all injected faults: no owner is replaced that has a lease.
func (c *cluster) Update(
	ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration,
) (store.Revision, error) {
	c.mu.Lock()
	before, errBefore := c.Memory.Get(context.Background(), key)
	after, err := c.Memory.Update(ctx, key, value, rev, ttl)
	c.mu.Unlock()
	if err != nil || errBefore != nil || !strings.HasPrefix(key, "record/") || bytes.Equal(before.Value, value) {
		return after, err
	}
	from, stateBefore := parse(before)
	to, _ := parse(store.Entry{Value: value})
	if stateBefore != "unfinished" {
		c.fail("L2: %s changed after its end", key)
	}
	if from != to && c.isAlive(from) {
		c.fail("L2: %s taken from the live owner %s", key, from)
	}
	return after, nil
}

func (c *cluster) isAlive(owner lease.Owner) bool {
	name, _, _ := strings.Cut(string(owner), "@")
	e, err := c.Get(context.Background(), "lease/"+name)
	if err == nil {
		e, err = store.Content(e)
	}
	return err == nil && string(e.Value) == string(owner)
}

func parse(e store.Entry) (lease.Owner, string) {
	if content, err := store.Content(e); err == nil {
		e = content
	}
	owner, state, _ := strings.Cut(string(e.Value), " ")
	return lease.Owner(owner), state
}

func (c *cluster) start(name string) {
	rules := make([]fault.Rule, len(c.rules))
	for i, r := range c.rules {
		r.When = func(_, _ string) bool { return c.isFaulty.Load() }
		rules[i] = r
	}
	p := &process{c: c, name: name, plan: &fault.Plan{Seed: uint64(c.choose(1 << 30)), Rules: rules},
		running: map[string]lease.Owner{}}
	p.db = fault.Store(c, p.plan)
	p.base, p.stop = context.WithCancel(context.Background())
	ctx, cancel := context.WithTimeout(p.base, time.Minute)
	defer cancel()
	for p.lease == nil && ctx.Err() == nil {
		p.lease, _ = lease.Acquire(ctx, p.db, lease.Options{InstanceID: name, Logger: slog.New(slog.DiscardHandler)})
	}
	if p.lease == nil {
		p.plan.Close() // too many faults
		return
	}
	p.lease.Adopt("k", p.adopt)
	c.procs = append(c.procs, p)
}

// end ends a process; with isCrash the store does not notice.
func (c *cluster) end(i int, isCrash bool) {
	p := c.procs[i]
	c.procs = append(c.procs[:i], c.procs[i+1:]...)
	c.former = append(c.former, p)
	p.stop()
	if isCrash {
		p.plan.Crash()
	}
	p.mu.Lock()
	clear(p.running)
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	go func() {
		defer cancel()
		_ = p.lease.Release(ctx)
	}()
}

// until repeats f until it has no error or the epoch ends.
func until(ctx context.Context, f func(ctx context.Context) error) bool {
	for ctx.Err() == nil {
		if err := f(ctx); err == nil {
			return true
		} else if errors.Is(err, errTaken) {
			return false
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return false
}

func (p *process) create(id string) {
	epoch := p.lease.Context()
	ctx, cancel := context.WithTimeout(epoch, time.Duration(1+p.c.choose(10))*time.Second)
	owner, err := p.lease.Start(ctx, "k", id)
	go func() {
		defer cancel()
		if err != nil {
			return
		}
		_, err = store.Modify(ctx, p.db, "record/"+id, 0, func(_ store.Entry, found bool) ([]byte, error) {
			if found {
				return nil, errTaken
			}
			return []byte(string(owner) + " unfinished"), nil
		})
		switch {
		case err == nil:
			p.run(epoch, id, owner)
		case errors.Is(err, store.ErrUnknown):
			p.finish(epoch, id, owner, true)
		default:
			_ = p.lease.Finish(epoch, owner, "k", id)
		}
	}()
}

func (p *process) run(epoch context.Context, id string, owner lease.Owner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if epoch.Err() != nil || p.base.Err() != nil {
		return
	}
	p.c.mu.Lock()
	p.c.runs[id+string(owner)]++
	n := p.c.runs[id+string(owner)]
	p.c.mu.Unlock()
	if n > 1 {
		p.c.fail("L4: %s runs %d times under %s", id, n, owner)
	}
	p.running[id] = owner
	context.AfterFunc(epoch, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.running[id] == owner {
			delete(p.running, id)
		}
	})
}

// finish ends the work of a record, or prevents its creation.
func (p *process) finish(epoch context.Context, id string, owner lease.Owner, isDoubt bool) {
	isEnded := until(epoch, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		_, err := store.Modify(ctx, p.db, "record/"+id, 0, func(old store.Entry, found bool) ([]byte, error) {
			holder, state := parse(old)
			switch {
			case !found && isDoubt:
			case holder == owner && state == "ended":
				return nil, store.ErrUnchanged
			case holder != owner:
				return nil, errTaken
			}
			return []byte(string(owner) + " ended"), nil
		})
		return err
	})
	p.mu.Lock()
	if p.running[id] == owner {
		delete(p.running, id)
	}
	p.mu.Unlock()
	if isEnded {
		_ = p.lease.Finish(epoch, owner, "k", id)
	}
}

func (p *process) adopt(ctx context.Context, id string, from, to lease.Owner) (found lease.Found, err error) {
	limited, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err = store.Modify(limited, p.db, "record/"+id, 0, func(old store.Entry, isPresent bool) ([]byte, error) {
		owner, state := parse(old)
		isAlive, err := p.lease.Alive(limited, owner)
		p.mu.Lock()
		running := p.running[id]
		p.mu.Unlock()
		switch {
		case !isPresent:
			found = lease.Absent
		case state == "ended":
			found = lease.Ended
		case err != nil:
			return nil, err
		case owner == to && running == "":
			found = lease.Taken
		case isAlive:
			found = lease.Held
		case running != "":
			return nil, errRunning
		default:
			found = lease.Taken
			return []byte(string(to) + " unfinished"), nil
		}
		return nil, store.ErrUnchanged
	})
	if err == nil && found == lease.Taken {
		p.run(ctx, id, to)
	}
	return found, err
}

// step makes one random step.
func (c *cluster) step() {
	var p *process
	if len(c.procs) > 0 {
		p = c.procs[c.choose(len(c.procs))]
	}
	n := c.choose(100)
	switch {
	case p == nil:
		c.start("")
	case n < 20:
		c.nextID++
		p.create(fmt.Sprint(c.nextID))
	case n < 60:
		p.mu.Lock()
		for id, owner := range p.running {
			go p.finish(p.lease.Context(), id, owner, false)
			break
		}
		p.mu.Unlock()
	case n < 62:
		p.plan.Pause()
		time.AfterFunc(time.Duration(c.choose(20))*time.Second, p.plan.Resume)
	case n < 63:
		c.end(c.choose(len(c.procs)), true)
	case n < 64:
		c.end(c.choose(len(c.procs)), false)
	case n < 66 && len(c.procs) < 4:
		c.start(fmt.Sprint(c.choose(3)))
	case n < 68:
		c.start("")
	case n < 70:
		c.isFaulty.Store(!c.isFaulty.Load())
	default:
		time.Sleep(time.Duration(c.choose(2000)) * time.Millisecond)
	}
	for len(c.procs) > 4 {
		c.end(0, true)
	}
}

// check compares records with index entries, after all goroutines have stopped.
func (c *cluster) check(isQuiet bool) {
	synctest.Wait()
	indexed := map[string][]lease.Owner{}
	for e, err := range c.List(context.Background(), "work/") {
		if err == nil {
			parts := strings.Split(e.Key, "/")
			indexed[parts[3]] = append(indexed[parts[3]], lease.Owner(parts[1]))
		}
	}
	for e := range c.List(context.Background(), "record/") {
		id := strings.TrimPrefix(e.Key, "record/")
		owner, state := parse(e)
		isUnfinished := state == "unfinished"
		if isUnfinished && len(indexed[id]) == 0 {
			c.fail("L1: record %s of %s has no index entry", id, owner)
		}
		if !isQuiet {
			continue
		}
		if isUnfinished && (!c.isAlive(owner) || !slices.Contains(indexed[id], owner) || !c.isRunning(id, owner)) {
			c.fail("L3: record %s of %s does not run, entries %v", id, owner, indexed[id])
		}
		for _, other := range indexed[id] {
			if !c.isAlive(other) { // an entry that has landed late stays while its epoch lives
				c.fail("record %s of %s has an entry of the failed %s", id, owner, other)
			}
		}
	}
}

func (c *cluster) isRunning(id string, owner lease.Owner) bool {
	for _, p := range c.procs {
		p.mu.Lock()
		isRunning := p.running[id] == owner
		p.mu.Unlock()
		if isRunning {
			return true
		}
	}
	return false
}

// simulate runs a cluster in a bubble and returns the broken invariants.
func simulate(t *testing.T, steps int, choose func(n int) int) (broken []string) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{Memory: store.NewMemory(), choose: choose, runs: map[string]int{}}
		for _, kind := range []fault.Action{fault.ErrorBefore, fault.ErrorAfter, fault.LandLater, fault.Hang,
			fault.Conflict, fault.Delay} {
			if c.choose(2) == 0 {
				c.rules = append(c.rules, fault.Rule{Action: kind, Probability: 0.2 * float64(1+c.choose(3)) / 3})
			}
		}
		c.start("")
		for i := range steps {
			c.step()
			if i%50 == 0 {
				c.check(false)
			}
			if len(c.faults) > 0 {
				break
			}
		}
		if len(c.faults) == 0 {
			c.isFaulty.Store(false)
			for _, p := range c.procs {
				p.plan.Resume()
			}
			c.start("")
			time.Sleep(15 * time.Minute) // late landings, and entries without a record expire
			c.check(true)
		}
		for len(c.procs) > 0 {
			c.end(0, false)
		}
		time.Sleep(10 * time.Minute)
		for _, p := range c.former {
			p.plan.Close()
		}
		broken = c.faults
	})
	return broken
}

func TestLeaseKeepsInvariantsUnderFaults(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		choices := rapid.SliceOfN(rapid.IntRange(0, 1<<30), 1, 500).Draw(rt, "choices")
		steps, next := len(choices)/2, -1
		broken := simulate(t, steps, func(n int) int {
			next++
			return choices[next%len(choices)] % n
		})
		if len(broken) > 0 {
			rt.Fatalf("broken invariants: %s", strings.Join(broken, "\n"))
		}
	})
}

func TestLeaseKeepsInvariantsInLongRun(t *testing.T) {
	steps := 1000
	if os.Getenv("FIVEWIRE_LONG") != "" {
		steps = 10_000
	}
	if broken := simulate(t, steps, rand.New(rand.NewPCG(0, 0)).IntN); len(broken) > 0 {
		t.Fatalf("broken invariants: %s", strings.Join(broken, "\n"))
	}
}
