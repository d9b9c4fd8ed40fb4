// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/store"
)

// An op is one call of a handler.
type op struct {
	kind string // step, await, item, sleep
	name string
}

// A model is the journal of one run: the results of the calls, and the recorded entries.
type model struct {
	results map[string]string // of names with their occurrence
	inputs  []string
	items   map[string]int // numbers, by key
	counts  map[string]int // of items, by kind
	uses    map[string]int // of names, in one run of the handler
	calls   int            // of step functions
}

func newModel() *model {
	return &model{results: map[string]string{}, items: map[string]int{}, counts: map[string]int{}}
}

// use returns the next occurrence of a name.
func (m *model) use(name string) string {
	m.uses[name]++
	return fmt.Sprint(name, "#", m.uses[name])
}

// step returns the result of a step, which runs at most once.
func (m *model) step(name string) string {
	key := m.use(name)
	if m.results[key] == "" {
		m.calls++
		m.results[key] = fmt.Sprint("run ", m.calls)
	}
	return m.results[key]
}

// await returns the next input, or nothing if the run has to wait.
func (m *model) await() string {
	n := m.uses["await"]
	if n >= len(m.inputs) {
		return ""
	}
	m.uses["await"]++
	return m.inputs[n]
}

// emit returns the number of an item, and whether the call added it.
func (m *model) emit(kind, id, data string) (n int, first bool) {
	key := kind + "/" + id
	if id == "" {
		key = m.use(kind + " " + data)
	}
	if m.items[key] == 0 {
		m.counts[kind]++
		m.items[key] = m.counts[kind]
		first = true
	}
	return m.items[key], first
}

// play runs the program for a number of calls and compares each with the model.
func (m *model) play(t require.TestingT, r *Run, program []op, isFailing bool) {
	m.uses = map[string]int{}
	ctx := r.Context()
	for i, o := range program {
		switch o.kind {
		case "step":
			before, isRun := m.calls, false
			want := m.step(o.name)
			if isFailing && m.calls > before {
				_, err := r.Step(ctx, o.name, func(context.Context, string) ([]byte, error) { return nil, errEnded })
				require.ErrorIs(t, err, errEnded)
			}
			data, err := r.Step(ctx, o.name, func(context.Context, string) ([]byte, error) {
				isRun = true
				return []byte(want), nil
			})
			require.NoError(t, err)
			require.Equal(t, want, string(data), "J1: result of step %d", i)
			require.Equal(t, m.calls > before, isRun, "J4: run of step %d", i)
		case "await":
			want := m.await()
			short, cancel := context.WithTimeout(ctx, time.Second)
			data, err := r.Await(short)
			cancel()
			require.Equal(t, want == "", errors.Is(err, context.DeadlineExceeded), "call %d: %v", i, err)
			require.Equal(t, want, string(data), "J1, J2: input of call %d", i)
		case "item":
			id := o.name[1:]
			wantN, wantFirst := m.emit("k", id, o.name)
			n, first, err := r.Emit(ctx, "k", id, []byte(o.name))
			require.NoError(t, err)
			require.Equal(t, fmt.Sprint(wantN, wantFirst), fmt.Sprint(n, first), "J1, J3: item of call %d", i)
		case "sleep":
			require.NoError(t, r.Sleep(ctx, "sleep "+o.name, time.Minute))
		}
	}
}

func TestRunKeepsInvariants(t *testing.T) {
	ops := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) op {
		kind := rapid.SampledFrom([]string{"step", "await", "item", "sleep"}).Draw(t, "kind")
		return op{kind, rapid.SampledFrom([]string{"a", "b", "ca"}).Draw(t, "name")}
	}), 1, 20)
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(bubble{t}, func(t *rapid.T) {
			db := store.NewMemory()
			processes := []*process{newProcess(t, db, nil), newProcess(t, db, nil)}
			defer processes[0].crash()
			defer processes[1].crash()
			m, program := newModel(), ops.Draw(t, "program")
			owner := func(context.Context) (lease.Owner, error) { return "", nil }
			for range rapid.IntRange(1, 6).Draw(t, "runs") {
				p := processes[rapid.IntRange(0, 1).Draw(t, "process")]
				for range rapid.IntRange(0, 2).Draw(t, "inputs") {
					id := fmt.Sprint(rapid.IntRange(0, 9).Draw(t, "id"))
					first, err := p.Deliver(context.Background(), "1", id, []byte("input "+id), owner)
					require.NoError(t, err)
					isKnown := false
					for _, input := range m.inputs {
						isKnown = isKnown || input == "input "+id
					}
					require.Equal(t, !isKnown, first)
					if first {
						m.inputs = append(m.inputs, "input "+id)
					}
				}
				r, err := p.Open(p.lease.Context(), "1", RunOptions{})
				require.NoError(t, err)
				length := rapid.IntRange(0, len(program)).Draw(t, "length")
				m.play(t, r, program[:length], rapid.Bool().Draw(t, "fail"))
				r.Close()
			}
			requireItems(t, processes[0], m)
		})
	})
}

// requireItems compares the inputs and the items of the run with the model.
func requireItems(t require.TestingT, p *process, m *model) {
	items, inputs := 0, []string(nil)
	for item, err := range p.Read(context.Background(), "1") {
		require.NoError(t, err)
		if item.Kind == "" {
			inputs = append(inputs, string(item.Data))
			continue
		}
		items++
		require.Equal(t, items, item.N)
	}
	require.Equal(t, m.inputs, inputs, "J2: inputs")
	require.Equal(t, len(m.items), items, "J3: items")
}

// bubble is a testing.T for rapid inside a bubble, where Deadline must not be called.
type bubble struct{ *testing.T }
