// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/store"
)

// A simulation is processes on one store, their works, and the results of the calls of the handlers.
type simulation struct {
	t         *testing.T
	db        store.Store
	choose    *rand.Rand
	kinds     []fault.Action
	isFaulty  atomic.Bool
	processes []*process
	created   int
	inputs    int
	plans     uint64

	mu        sync.Mutex
	delivered map[string][]string // acknowledged inputs, by id of the work
	consumed  map[string][]string // inputs, by id
	results   map[string]string   // of calls, by id and number
	returned  map[string]bool     // results of steps
	counts    map[string]int
	violation error
}

func newSimulation(t *testing.T, seed uint64, kinds []fault.Action) *simulation {
	s := &simulation{
		t: t, db: store.NewMemory(), choose: rand.New(rand.NewPCG(seed, 0)), kinds: kinds,
		delivered: map[string][]string{}, results: map[string]string{}, returned: map[string]bool{},
		consumed: map[string][]string{}, counts: map[string]int{},
	}
	for range 3 {
		s.processes = append(s.processes, s.start())
	}
	return s
}

func (s *simulation) start() *process {
	var rules []fault.Rule
	for _, kind := range s.kinds {
		rules = append(rules, fault.Rule{
			Action: kind, Probability: 0.1, Delay: 3 * time.Second,
			When: func(_, _ string) bool { return s.isFaulty.Load() },
		})
	}
	s.plans++
	p := &process{starts: map[string]int{}, parked: map[string]int{}, handler: s.handle}
	p.plan = &fault.Plan{Seed: s.plans, Rules: rules}
	if s.choose.IntN(3) == 0 {
		p.o.ParkAfter = 5 * time.Second
	}
	isFaulty := s.isFaulty.Swap(false)
	p.start(s.t, s.db, 0)
	s.isFaulty.Store(isFaulty)
	return p
}

// require notes the first violation.
func (s *simulation) require(ok bool, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !ok && s.violation == nil {
		s.violation = fmt.Errorf(format, args...)
	}
}

func (s *simulation) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
}

// handle runs the program of an id: up to 12 calls.
func (s *simulation) handle(ctx context.Context, p *process, r *Run) (string, error) {
	n, _ := strconv.ParseUint(r.id, 10, 64)
	program := rand.New(rand.NewPCG(n, 1))
	var results []string
	for i := range 1 + program.IntN(12) {
		result, err := s.call(ctx, r, i, program)
		if err != nil {
			s.require(ctx.Err() != nil || errors.Is(err, store.ErrClosed), "%s: call %d: %v", r.id, i, err)
			return "", err
		}
		key := fmt.Sprint(r.id, " ", i)
		s.mu.Lock()
		if old, isKnown := s.results[key]; isKnown && old != result && s.violation == nil {
			s.violation = fmt.Errorf("J1: call %s has results %q and %q", key, old, result)
		}
		s.results[key] = result
		s.mu.Unlock()
		results = append(results, result)
	}
	s.requireInputs(ctx, p, r)
	return strings.Join(results, " "), nil
}

// requireInputs holds the run at its end to J2.
func (s *simulation) requireInputs(ctx context.Context, p *process, r *Run) {
	s.mu.Lock()
	acknowledged, consumed := slices.Clone(s.delivered[r.id]), s.consumed[r.id]
	s.mu.Unlock()
	var inputs []string
	for item, err := range p.Read(ctx, r.id) {
		if err != nil {
			return
		}
		if item.Kind == "" {
			inputs = append(inputs, item.ID)
		}
	}
	for _, input := range acknowledged {
		s.require(slices.Contains(inputs, input), "J2: %s of %s is lost", input, r.id)
	}
	for i, input := range consumed {
		s.require(inputs[i] == input, "J2: input %d of %s is %s, consumed %s", i, r.id, inputs[i], input)
	}
}

// call makes one call of a program.
func (s *simulation) call(ctx context.Context, r *Run, i int, program *rand.Rand) (string, error) {
	name, length := fmt.Sprint(program.IntN(3)), time.Duration(program.IntN(20))*time.Second
	switch program.IntN(5) {
	case 0:
		data, err := r.Await(ctx)
		s.mu.Lock()
		defer s.mu.Unlock()
		if err == nil && !slices.Contains(s.consumed[r.id], string(data)) {
			s.consumed[r.id] = append(s.consumed[r.id], string(data))
		}
		return string(data), err
	case 1:
		n, first, err := r.Emit(ctx, "k", "", []byte(name))
		if err == nil && first {
			s.count("emit")
		}
		return fmt.Sprint(n), err
	case 2:
		n, _, err := r.Emit(ctx, "k", name, nil)
		return fmt.Sprint(n), err
	case 3:
		s.count("sleep")
		return "", r.Sleep(ctx, name, length)
	}
	key := fmt.Sprint(r.id, " ", i)
	data, err := r.Step(ctx, name, func(ctx context.Context, stepID string) ([]byte, error) {
		s.mu.Lock()
		if s.returned[key] && s.violation == nil {
			s.violation = fmt.Errorf("J4: step %s runs again", key)
		}
		s.mu.Unlock()
		s.count("step")
		select {
		case <-time.After(length):
			return []byte(stepID), nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	})
	if err == nil {
		s.mu.Lock()
		s.returned[key] = true
		s.mu.Unlock()
	}
	return string(data), err
}

// step makes one random step.
func (s *simulation) step() {
	i := s.choose.IntN(len(s.processes))
	p := s.processes[i]
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+s.choose.IntN(20))*time.Second)
	defer cancel()
	switch n := s.choose.IntN(200); {
	case n < 10:
		s.created++
		id := fmt.Sprint(s.created)
		p.wg.Go(func() { _ = p.create(context.Background(), id) })
	case n < 100:
		s.deliver(ctx, p, fmt.Sprint(max(1, s.created-s.choose.IntN(10))))
	case n < 160:
		time.Sleep(time.Duration(s.choose.IntN(1000)) * time.Millisecond)
	case n < 170:
		s.isFaulty.Store(!s.isFaulty.Load())
	case n < 176:
		p.plan.Pause()
	case n < 198:
		p.plan.Resume()
	case n < 199:
		p.crash()
		s.processes[i] = s.start()
		s.count("crash")
	default:
		p.plan.Resume()
		p.Park()
		done := make(chan struct{})
		go func() {
			p.wg.Wait()
			close(done)
		}()
		select {
		case <-done:
		case <-ctx.Done():
		}
		_ = p.lease.Release(ctx)
		p.plan.Close()
		s.processes[i] = s.start()
		s.count("shutdown")
	}
}

func (s *simulation) deliver(ctx context.Context, p *process, id string) {
	s.inputs++
	input := fmt.Sprint("input ", s.inputs)
	_, err := p.deliver(ctx, id, input, input)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.delivered[id] = append(s.delivered[id], input)
	}
}

// close repairs everything, and requires that each work ends.
func (s *simulation) close() {
	s.isFaulty.Store(false)
	for _, p := range s.processes {
		p.plan.Resume()
	}
	ctx := context.Background()
	isEnded := false
	for round := 0; !isEnded; round++ {
		time.Sleep(2 * time.Minute)
		isEnded = true
		for id := range s.created {
			w, err := s.processes[0].get(ctx, fmt.Sprint(id+1))
			if errors.Is(err, store.ErrNotFound) || w.Owner == "" {
				continue
			}
			require.NoError(s.t, err)
			require.Less(s.t, round, 19, "work %d does not end: %+v", id+1, w)
			isEnded = false
			s.deliver(ctx, s.processes[0], fmt.Sprint(id+1))
		}
	}
}

// check holds the journals to J1 and J3. The results of the works are in the store.
func (s *simulation) check() {
	p, ctx := s.processes[0], context.Background()
	for id := range s.created {
		id := fmt.Sprint(id + 1)
		w, err := p.get(ctx, id)
		if err != nil {
			continue
		}
		s.count("end")
		n, _ := strconv.ParseUint(id, 10, 64)
		program := rand.New(rand.NewPCG(n, 1))
		var results []string
		for i := range 1 + program.IntN(12) {
			results = append(results, s.results[fmt.Sprint(id, " ", i)])
		}
		require.Equal(s.t, strings.Join(results, " "), w.Result, "J1: result of work %s", id)
		ids, numbers := map[string]bool{}, 0
		for item, err := range p.Read(ctx, id) {
			require.NoError(s.t, err)
			if item.Kind == "" {
				continue
			}
			numbers++
			require.Equal(s.t, numbers, item.N)
			require.False(s.t, item.ID != "" && ids[item.ID], "J3: item %s of %s is visible twice", item.ID, id)
			ids[item.ID] = true
		}
	}
}

func TestSimulationKeepsInvariants(t *testing.T) {
	for name, kinds := range map[string][]fault.Action{
		"no faults":    nil,
		"error before": {fault.ErrorBefore},
		"error after":  {fault.ErrorAfter},
		"late landing": {fault.LandLater},
		"hang":         {fault.Hang},
		"storm":        {fault.ErrorBefore, fault.ErrorAfter, fault.LandLater, fault.Hang, fault.Conflict, fault.Delay},
	} {
		steps := 1000
		if race.Enabled {
			steps = 400
		}
		if os.Getenv("FIVEWIRE_LONG") != "" {
			steps = 10_000
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSimulation(t, 1, kinds)
				for range steps {
					s.step()
					if s.violation != nil {
						break
					}
				}
				require.NoError(t, s.violation)
				s.close()
				s.check()
				t.Log(s.counts)
				for _, p := range s.processes {
					p.crash()
				}
				time.Sleep(2 * time.Minute)
			})
		})
	}
}
