// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/once"
	"github.com/fivewire/fivewire/internal/sim"
)

// A group is keys that name the same work, and its policy.
type group struct {
	keys   []once.Key
	policy once.Policy
}

var groups = []group{
	{[]once.Key{{ID: "a"}}, once.AtMostOnce},
	{[]once.Key{{ID: "b"}}, once.Repeat},
	{[]once.Key{{ID: "c1", Aliases: []string{"c"}}, {ID: "c2", Aliases: []string{"c"}}, {ID: "c"}}, once.AtMostOnce},
	{[]once.Key{{ID: "d1", Aliases: []string{"d"}}, {ID: "d2", Aliases: []string{"d"}}, {ID: "d"}}, once.Repeat},
	{[]once.Key{{ID: "e1", Aliases: []string{"e2"}}, {ID: "e2", Aliases: []string{"e1"}}}, once.Repeat},
}

// A caller is one instance of a node.
type caller struct {
	epoch
	*once.Table
}

func (k *caller) Close() {
	_ = k.Table.Close()
	if k.Lease != nil {
		k.epoch.Close()
	}
}

// A keyed value is the model of the profile: the runs of each group and the outcome that callers got.
type keyed struct {
	w     *sim.World
	nodes []*sim.Node
	peeks bool // each attempt looks for its claim from another node

	mu       sync.Mutex // guards all below
	runs     [][]*attempt
	outcomes []string
}

// An attempt is one call of user code.
type attempt struct {
	caller      *caller
	tenure      tenure
	isEnded     bool
	isForgotten bool
}

var (
	errWork     = errors.New("work")
	errOverload = errors.New("overload")
)

// playOnce lets three nodes call keyed work of five groups.
func playOnce(w *sim.World) { playKeyed(w, false) }

// playPeek is playOnce, and each attempt looks for its claim from another node.
func playPeek(w *sim.World) { playKeyed(w, true) }

func playKeyed(w *sim.World, peeks bool) {
	m := &keyed{w: w, peeks: peeks, runs: make([][]*attempt, len(groups)), outcomes: make([]string, len(groups))}
	m.nodes = startNodes(w, 3, func(v *sim.View) (sim.Instance, error) {
		e, err := acquire(v)
		if err != nil {
			return nil, err
		}
		return &caller{e, once.New(v.Store, e.Lease, once.Options{Prefix: prefix, Logger: quiet})}, nil
	})
	w.Play(40*time.Second, 4, 4*time.Second, func(c *sim.Client) {
		k, ok := pick[*caller](c.Rand, m.nodes)
		if ok {
			m.call(c, k, c.IntN(len(groups)), c.IntN(3))
		}
	})
	w.Settle()
	for i := range groups {
		for j := range groups[i].keys {
			m.callLast(i, j)
		}
	}
	if peeks && isChosen(w) {
		m.playPinned()
	}
}

func (m *keyed) call(c *sim.Client, k *caller, group, key int) {
	limits := []time.Duration{20 * time.Millisecond, 500 * time.Millisecond, 20 * time.Second}
	ctx, cancel := context.WithTimeout(context.Background(), 1+time.Duration(c.Int64N(int64(limits[c.IntN(3)]))))
	defer cancel()
	delay := time.Duration(c.Int64N(int64([]time.Duration{1, 100 * time.Millisecond, 30 * time.Second}[c.IntN(3)])))
	honors, end := c.IntN(2) == 0, c.IntN(10)
	g := groups[group]
	var replayed bool
	data, err := m.w.Call(c.ID, fmt.Sprint("do ", group), func() (answer string, err error) {
		var data []byte
		data, replayed, err = k.Do(ctx, g.keys[key%len(g.keys)], g.policy,
			func(ctx context.Context, claim once.Claim) (once.Result, error) {
				a := m.begin(k, group)
				if a == nil {
					return once.Result{}, errWork
				}
				if m.peeks {
					m.peek(ctx, a, group, key, claim)
				}
				var done <-chan struct{}
				if honors {
					done = ctx.Done()
				}
				t := time.NewTimer(delay)
				defer t.Stop()
				select {
				case <-t.C:
				case <-done:
				}
				return m.end(a, group, end, honors && ctx.Err() != nil)
			})
		return string(data), err
	})
	if !k.IsCrashed() {
		m.check(group, data, replayed, err, k.Node.Name())
	}
}

// begin notes the beginning of user code and holds it to O1 and O2.
func (m *keyed) begin(k *caller, group int) *attempt {
	m.mu.Lock()
	defer m.mu.Unlock()
	if k.IsCrashed() {
		return nil
	}
	for i, other := range m.runs[group] {
		switch {
		case groups[group].policy == once.AtMostOnce && !other.isForgotten:
			m.w.Failf("O1", k.Node.Name(), "group %d: run %d and another one", group, i)
		case groups[group].policy == once.Repeat && !other.isEnded && (other.caller == k || other.tenure.isHeld(m.w)):
			m.w.Failf("O2", k.Node.Name(), "group %d: run %d has not ended", group, i)
		}
	}
	a := &attempt{caller: k, tenure: k.tenure()}
	m.runs[group] = append(m.runs[group], a)
	return a
}

// peek requires that another instance finds the claim of an attempt that runs: O6.
func (m *keyed) peek(ctx context.Context, a *attempt, group, key int, want once.Claim) {
	keys, other := groups[group].keys, m.nodes[(group+key)%len(m.nodes)].Instance()
	k, ok := other.(*caller)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	state, claim, err := k.Peek(ctx, keys[key%len(keys)])
	if err != nil || !a.tenure.isHeld(m.w) || !k.tenure().isHeld(m.w) {
		return
	}
	isOther := (claim.Token != want.Token || claim.Attempt != want.Attempt) && len(keys) == 1 // a further id may have a claim that is being released
	if state != once.StateRunning || isOther {
		m.w.Failf("O6", k.Node.Name(), "group %d: state %d and claim %v, want %v", group, state, claim, want)
	}
}

// end notes the end of user code and returns its result.
func (m *keyed) end(a *attempt, group, end int, isCut bool) (once.Result, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a.isEnded = true
	a.isForgotten = !a.caller.IsCrashed() && !isCut && (end == 1 || end == 2)
	data := fmt.Appendf(nil, "run %d", len(m.runs[group]))
	switch {
	case isCut || end == 0:
		return once.Result{Data: data}, errWork
	case end == 1:
		return once.Result{Data: []byte("forget"), Forget: true}, nil
	case end == 2:
		return once.Result{Forget: true}, errOverload
	}
	return once.Result{Data: data}, nil
}

// check holds an answer to O3 and O5.
func (m *keyed) check(group int, data string, replayed bool, err error, node string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case (err == nil || errors.Is(err, once.ErrFailed)) && !strings.HasPrefix(data, "forget"):
		got := fmt.Sprintf("%s, error %v", data, err)
		want := cmp.Or(m.outcomes[group], got)
		m.outcomes[group] = want
		if got != want {
			m.w.Failf("O3", node, "group %d has outcomes %q and %q", group, want, got)
		}
	case err == nil && replayed:
		m.w.Failf("O3", node, "group %d: forgotten outcome %q replayed", group, data)
	case errors.Is(err, once.ErrReused) || errors.Is(err, once.ErrNotRetained) || errors.Is(err, once.ErrBusy):
		m.w.Failf("O5", node, "group %d: %v", group, err)
	}
}

// callLast requires an outcome of a key after all faults: O5.
func (m *keyed) callLast(group, key int) {
	k, ok := m.nodes[key%len(m.nodes)].Instance().(*caller)
	if !ok {
		m.w.Failf("O5", "", "node %d does not start", key)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	data, replayed, err := k.Do(ctx, groups[group].keys[key], groups[group].policy,
		func(context.Context, once.Claim) (once.Result, error) {
			a := m.begin(k, group)
			if a == nil {
				return once.Result{}, errWork
			}
			return m.end(a, group, 9, false)
		})
	m.check(group, string(data), replayed, err, k.Node.Name())
	isLost := groups[group].policy == once.AtMostOnce && errors.Is(err, once.ErrLost)
	if err != nil && !errors.Is(err, once.ErrFailed) && !isLost && !errors.Is(err, lease.ErrLost) {
		m.w.Failf("O5", k.Node.Name(), "group %d: last call: %v", group, err)
	}
}

// playMemory lets clients of several principals call keyed work whose outcomes are in memory only, with bounds that
// they exceed: O4. Neither the bounds nor the outcomes refuse other work: O5.
func playMemory(w *sim.World) {
	const maxBytes, maxCount, totalBytes, totalCount, nodeName = 4000, 20, 10_000, 50, "n0"
	node := w.Node(nodeName, func(v *sim.View) (sim.Instance, error) {
		return &caller{epoch{View: v}, once.New(nil, nil, once.Options{MaxBytes: maxBytes, MaxCount: maxCount,
			TotalBytes: totalBytes, TotalCount: totalCount, Logger: quiet})}, nil
	})
	empty := once.New(nil, nil, once.Options{MaxCount: 1, TotalCount: 1, Logger: quiet})
	_, _, _ = empty.Do(context.Background(), once.Key{ID: "a"}, once.AtMostOnce,
		func(context.Context, once.Claim) (once.Result, error) { return once.Result{}, nil })
	each := empty.Size() // of an outcome without data
	_ = empty.Close()
	w.Play(time.Minute, 4, time.Second, func(c *sim.Client) {
		k, ok := node.Instance().(*caller)
		if !ok {
			return
		}
		key := once.Key{Principal: fmt.Sprint(c.IntN(6)), ID: fmt.Sprint(c.IntN(100))}
		size, delay := c.IntN(1000), time.Duration(c.Int64N(int64(3*time.Second)))
		_, err := w.Call(c.ID, "do", func() (string, error) {
			_, _, err := k.Do(context.Background(), key, once.AtMostOnce, func(ctx context.Context, _ once.Claim) (once.Result, error) {
				return once.Result{Data: make([]byte, size)}, w.Sleep(ctx, delay)
			})
			return "", err
		})
		if size, limit := k.Size(), int64(totalBytes+totalCount*each); size > limit {
			w.Failf("O4", nodeName, "%d bytes of outcomes, want at most %d", size, limit)
		}
		if err != nil && !errors.Is(err, once.ErrNotRetained) && !k.IsCrashed() {
			w.Failf("O5", nodeName, "call: %v", err)
		}
	})
}

// playPinned lets work run until its claim is renewed, while others pin the claim and wait for it: O1 and O3.
// Shutdown waits for the work, too.
func (m *keyed) playPinned() {
	var tables [3]*once.Table
	for i, n := range m.nodes {
		k, ok := n.Instance().(*caller)
		if !ok {
			m.w.Failf("O5", n.Name(), "node does not start")
			return
		}
		tables[i] = once.New(k.Store, k.Lease, once.Options{Prefix: "pinned/", Retention: 30 * time.Minute, Logger: quiet})
		defer tables[i].Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Hour)
	defer cancel()
	kept, lost := once.Key{ID: "a", Aliases: []string{"b"}}, once.Key{ID: "c"}
	var wg sync.WaitGroup
	defer wg.Wait()
	work := func(k once.Key, result once.Result) {
		isRunning := make(chan struct{})
		wg.Go(func() {
			_, _, err := tables[0].Do(ctx, k, once.AtMostOnce, func(ctx context.Context, _ once.Claim) (once.Result, error) {
				close(isRunning)
				return result, m.w.Sleep(ctx, 50*time.Minute)
			})
			m.require("work of "+k.ID, err)
		})
		select {
		case <-isRunning:
		case <-ctx.Done():
		}
	}
	work(kept, once.Result{Data: []byte("kept")})
	work(lost, once.Result{Forget: true})
	for _, k := range []once.Key{{ID: "b", Pin: true}, {ID: "c", Pin: true}} {
		if state, _, err := tables[1].Peek(ctx, k); m.require("peek", err) && state != once.StateRunning {
			m.w.Failf("O6", "n1", "claim of %s has state %d while its work runs", k.ID, state)
		}
	}
	for _, t := range []*once.Table{tables[0], tables[2]} {
		wg.Go(func() {
			state, _, data, err := t.Wait(ctx, kept)
			if m.require("wait", err) && (state != once.StateDone || string(data) != "kept") {
				m.w.Failf("O3", "", "state %d and outcome %q after the wait", state, data)
			}
		})
	}
	_ = m.w.Sleep(ctx, time.Minute)
	m.require("shutdown", tables[0].Shutdown(ctx))
	for _, k := range []once.Key{kept, lost} {
		_, _, err := tables[1].Do(ctx, k, once.AtMostOnce, func(context.Context, once.Claim) (once.Result, error) {
			m.w.Failf("O1", "n1", "pinned work %s runs again", k.ID)
			return once.Result{}, nil
		})
		if isLost := errors.Is(err, once.ErrLost); isLost != (k.ID == lost.ID) {
			m.w.Failf("O3", "n1", "outcome of %s after the shutdown: %v", k.ID, err)
		}
	}
	if _, _, err := tables[0].Do(ctx, kept, once.AtMostOnce, nil); !errors.Is(err, once.ErrClosed) {
		m.w.Failf("O5", "n0", "call after the shutdown: %v", err)
	}
}

// require reports an error, unless a lease was lost.
func (m *keyed) require(what string, err error) bool {
	if err != nil && !errors.Is(err, lease.ErrLost) {
		m.w.Failf("O5", "", "%s: %v", what, err)
	}
	return err == nil
}
