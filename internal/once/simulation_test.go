// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package once_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/once"
	"github.com/fivewire/fivewire/store"
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

// The operations of a step.
const (
	opCall = iota
	opPin
	opWait
	opPause
	opResume
	opCrash
)

// A step is one random operation at a process.
type step struct {
	op, process, group, key int
	limit                   time.Duration // of the call, or of a wait
	work                    work
}

// Work is what the user code of a call does.
type work struct {
	delay time.Duration
	honor bool // its context
	end   int  // 0 to 5
	isNow bool // with NoWait
}

// The ends of work; more are successes.
const (
	endError = 1 + iota
	endPanic
	endForget
	endTemporary
	endRetry // under Repeat
)

func drawSteps(t *rapid.T, count int) []step {
	millis := func(limit int) time.Duration {
		return time.Duration(rapid.IntRange(0, limit).Draw(t, "ms")) * time.Millisecond
	}
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
		return step{
			op:      rapid.SampledFrom([]int{opCall, opCall, opCall, opPin, opWait, opPause, opResume, opCrash}).Draw(t, "op"),
			process: rapid.IntRange(0, 2).Draw(t, "process"),
			group:   rapid.IntRange(0, len(groups)-1).Draw(t, "group"),
			key:     rapid.IntRange(0, 2).Draw(t, "key"),
			limit:   millis(rapid.SampledFrom([]int{20, 500, 20_000}).Draw(t, "scale")),
			work: work{
				delay: millis(rapid.SampledFrom([]int{0, 100, 30_000}).Draw(t, "scale")),
				honor: rapid.Bool().Draw(t, "honor"), end: rapid.IntRange(0, 9).Draw(t, "end"), isNow: rapid.Bool().Draw(t, "now"),
			},
		}
	}), count, count).Draw(t, "steps")
}

// A simulation runs steps and checks the invariants.
type simulation struct {
	t       *testing.T
	table   *once.Table // in memory, shared by the nodes; or nil
	shared  store.Store
	rates   []float64 // of faults, by kind
	plans   uint64
	isQuiet atomic.Bool // no more faults
	nodes   [3]*node
	wg      sync.WaitGroup

	mu        sync.Mutex // guards all below
	runs      [][]*run   // by group
	outcomes  []string   // by group, as given to callers
	pinned    []pin      // by group, the last one
	violation error
}

// A node is a process.
type node struct {
	*process
	isCrashed bool // guarded by simulation.mu
}

// A run is one call of user code.
type run struct {
	node        *node
	epoch       context.Context // of the lease
	token       string          // of the claim
	isEnded     bool
	isForgotten bool
	isRetried   bool
}

var (
	errWork     = errors.New("work")
	errOverload = errors.New("overload")
)

func (s *simulation) start(i int) {
	if s.table != nil {
		s.nodes[i] = &node{process: &process{Table: s.table}}
		return
	}
	var rules []fault.Rule
	for i, action := range []fault.Action{
		fault.ErrorBefore, fault.ErrorAfter, fault.LandLater, fault.Hang, fault.Conflict, fault.Delay,
	} {
		if rate := s.rates[i]; rate > 0 {
			rules = append(rules, fault.Rule{
				Action: action, Probability: rate, Delay: 3 * time.Second,
				When: func(_, _ string) bool { return !s.isQuiet.Load() },
			})
		}
	}
	s.plans++
	s.nodes[i] = &node{process: startProcess(s.t, s.shared, 15*time.Second, &fault.Plan{Seed: s.plans, Rules: rules})}
}

func (s *simulation) crash(n *node) {
	s.mu.Lock()
	n.isCrashed = true
	s.mu.Unlock()
	n.crash()
}

// play runs the steps, and then requires that each key has an answer.
func (s *simulation) play(steps []step) {
	s.runs, s.outcomes = make([][]*run, len(groups)), make([]string, len(groups))
	s.pinned = make([]pin, len(groups))
	for i := range s.nodes {
		s.start(i)
	}
	for _, st := range steps {
		n := s.nodes[st.process]
		switch {
		case st.op == opCall:
			s.wg.Go(func() { s.call(n, st, false) })
			synctest.Wait()
		case st.op == opPin:
			s.wg.Go(func() { s.pin(n, st) })
			synctest.Wait()
		case st.op == opWait:
			time.Sleep(st.limit)
		case s.table != nil:
		case st.op == opPause:
			n.plan.Pause()
		case st.op == opResume:
			n.plan.Resume()
		case st.op == opCrash:
			s.crash(n)
			s.start(st.process)
		}
	}
	s.isQuiet.Store(true)
	for _, n := range s.nodes {
		if n.plan != nil {
			n.plan.Resume()
		}
	}
	s.wg.Wait()
	time.Sleep(2 * time.Minute)
	for i := range groups {
		for j := range groups[i].keys {
			s.call(s.nodes[j], step{group: i, key: j, limit: time.Minute}, true)
		}
	}
}

// call makes one call and checks its results. isLast means that it must have an outcome.
func (s *simulation) call(n *node, st step, isLast bool) {
	g := groups[st.group]
	ctx, cancel := context.WithTimeout(context.Background(), st.limit)
	defer cancel()
	k := g.keys[st.key%len(g.keys)]
	k.NoWait = st.work.isNow && !isLast
	data, replayed, err := n.Do(ctx, k, g.policy, func(ctx context.Context, c once.Claim) (once.Result, error) {
		return s.work(ctx, n, st, c)
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case n.isCrashed:
	case k.NoWait && errors.Is(err, once.ErrBusy):
	case (err == nil || errors.Is(err, once.ErrFailed)) && !strings.HasPrefix(string(data), "forget") && !strings.HasPrefix(string(data), "state"):
		got := fmt.Sprintf("%s, error %v", data, err)
		want := cmp.Or(s.outcomes[st.group], got)
		s.outcomes[st.group] = want
		s.require(got == want, "O3: group %d has outcomes %q and %q", st.group, want, got)
	case err == nil:
		s.require(!replayed, "group %d: %q replayed", st.group, data)
	case isLast:
		s.require(g.policy == once.AtMostOnce && errors.Is(err, once.ErrLost), "group %d: last call: %v", st.group, err)
	default:
		_, isExpected := errors.AsType[*guard.PanicError](err) // under Repeat, at the end of the lease
		for _, e := range []error{
			context.DeadlineExceeded, lease.ErrLost, lease.ErrClosed, once.ErrLost, errOverload, errWork,
		} {
			isExpected = isExpected || errors.Is(err, e)
		}
		s.require(isExpected, "O5: group %d: %v", st.group, err)
	}
}

// A pin is a claim that was pinned by an id.
type pin struct{ id, token string }

// permits reports whether a run may follow a pin. A pinned claim that has not run may have given way to that of another
// id with the same alias, and then no call with its own id runs.
func (p pin) permits(id, token string, earlier []*run) bool {
	hasRun := slices.ContainsFunc(earlier, func(r *run) bool { return r.token == p.token })
	return p.token == "" || p.token == token || !hasRun && p.id != id
}

// pin pins the claim of a key under AtMostOnce: no other one runs.
func (s *simulation) pin(n *node, st step) {
	ctx, cancel := context.WithTimeout(context.Background(), st.limit)
	defer cancel()
	g := groups[st.group]
	k := g.keys[st.key%len(g.keys)]
	k.Pin = g.policy == once.AtMostOnce
	state, c, err := n.Peek(ctx, k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if k.Pin && !n.isCrashed && err == nil && state == once.StateRunning {
		s.pinned[st.group] = pin{k.ID, c.Token}
	}
}

func (s *simulation) work(ctx context.Context, n *node, st step, c once.Claim) (once.Result, error) {
	r := &run{node: n, epoch: context.Background(), token: c.Token}
	if n.lease != nil {
		r.epoch = n.lease.Context()
	}
	s.mu.Lock()
	if n.isCrashed {
		s.mu.Unlock()
		return once.Result{}, errWork
	}
	for i, other := range s.runs[st.group] {
		if groups[st.group].policy == once.AtMostOnce {
			s.require(other.isForgotten, "O1: group %d: run %d and another one", st.group, i)
			id := groups[st.group].keys[st.key%len(groups[st.group].keys)].ID
			s.require(s.pinned[st.group].permits(id, c.Token, s.runs[st.group]), "O1: group %d: a run after that of a pinned claim", st.group)
			continue
		}
		isFenced := other.node.isCrashed || other.node != n && other.epoch.Err() != nil
		s.require(other.isEnded || isFenced, "O2: group %d: run %d has not ended", st.group, i)
	}
	s.runs[st.group] = append(s.runs[st.group], r)
	number := len(s.runs[st.group])
	s.require(c.Redelivered == (c.Attempt > 1), "claim %+v", c)
	s.checkState(st.group, number, c)
	s.mu.Unlock()
	done := ctx.Done()
	if !st.work.honor {
		done = nil
	}
	isCut := false
	select {
	case <-time.After(st.work.delay):
	case <-done:
		isCut = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r.isEnded = true
	r.isForgotten = !n.isCrashed && !isCut && (st.work.end == endForget || st.work.end == endTemporary)
	data := fmt.Appendf(nil, "run %d", number)
	switch {
	case isCut || st.work.end == endError:
		return once.Result{Data: data}, errWork
	case st.work.end == endPanic:
		panic(fmt.Sprintf("run %d", number))
	case st.work.end == endForget:
		return once.Result{Data: []byte("forget"), Forget: true}, nil
	case st.work.end == endTemporary:
		return once.Result{Forget: true}, errOverload
	case st.work.end == endRetry && groups[st.group].policy == once.Repeat:
		r.isRetried = true
		return once.Result{Data: fmt.Appendf(nil, "state %d", number), Retry: true}, nil
	}
	return once.Result{Data: data}, nil
}

// checkState checks the state of a claim: that of an earlier run which was to be tried again, and of the last one if the
// claim was kept. s.mu must be held.
func (s *simulation) checkState(group, number int, c once.Claim) {
	from := 0
	if c.State != nil {
		_, err := fmt.Sscanf(string(c.State), "state %d", &from)
		s.require(err == nil && from < number && s.runs[group][from-1].isRetried, "group %d: state %q of run %d", group, c.State, number)
	}
	last := number - 1
	for last > 0 && s.runs[group][last-1].isForgotten {
		last-- // a claim in doubt may outlive it
	}
	s.require(!c.Kept || from == last, "group %d: run %d continues run %d with the state of %d", group, number, last, from)
}

// require notes the first violation. s.mu must be held.
func (s *simulation) require(ok bool, format string, args ...any) {
	if !ok && s.violation == nil {
		s.violation = fmt.Errorf(format, args...)
	}
}

// simulate checks 100 random sequences of 100 steps.
func simulate(t *testing.T, isDurable bool) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := drawSteps(rt, 100)
		rates := rapid.SliceOfN(rapid.SampledFrom([]float64{0, 0, 0.1, 0.5, 0.9}), 6, 6).Draw(rt, "rates")
		var violation error
		synctest.Test(t, func(t *testing.T) {
			s := &simulation{t: t, rates: rates, shared: store.NewMemory()}
			if !isDurable {
				s.table = newMemory(t, once.Options{Retention: 24 * time.Hour})
			}
			s.play(steps)
			violation = s.violation
		})
		if violation != nil {
			rt.Fatal(violation)
		}
	})
}

func TestSimulationInMemoryKeepsInvariants(t *testing.T) { simulate(t, false) }

func TestSimulationOfInstancesKeepsInvariants(t *testing.T) { simulate(t, true) }
