// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Principals take turns, whatever the priority; the tasks of one start by priority and then by age.
func TestPlacesTakeTurns(t *testing.T) {
	p := NewPlaces(Limits{Running: 1, RunningPerPrincipal: 1, Waiting: 5, WaitingPerPrincipal: 4})
	require.True(t, p.Enter("a"))
	name := map[*Ticket]string{}
	wait := func(text string, priority int) *Refusal {
		ticket := &Ticket{Principal: text[:1], Priority: priority}
		name[ticket] = text
		return p.Wait(ticket, false)
	}
	for text, priority := range map[string]int{"a1": 3} {
		require.Nil(t, wait(text, priority))
	}
	require.Nil(t, wait("a2", 1))
	require.Nil(t, wait("a3", 2))
	require.Nil(t, wait("a4", 2))
	require.Equal(t, &Refusal{"principal", 4}, wait("a5", 9))
	require.Nil(t, wait("b1", 0))
	require.Equal(t, &Refusal{"all", 5}, wait("c1", 9))
	require.False(t, p.Enter("c"))
	var order []string
	for last := "a"; ; {
		next := p.Leave(last)
		if next == nil {
			break
		}
		order, last = append(order, name[next]), next.Principal
	}
	require.Equal(t, []string{"a1", "b1", "a3", "a4", "a2"}, order)
	require.Empty(t, p.principals)
	require.Zero(t, p.running+p.waiting+len(p.turns))
}

// A principal at its own bound does not hold up others.
func TestPlacesSkipPrincipalAtItsBound(t *testing.T) {
	p := NewPlaces(Limits{Running: 3, RunningPerPrincipal: 2, Waiting: 9, WaitingPerPrincipal: 9})
	require.True(t, p.Enter("a"))
	require.True(t, p.Enter("a"))
	require.False(t, p.Enter("a"))
	require.Nil(t, p.Wait(&Ticket{Principal: "a"}, false))
	require.True(t, p.Enter("b"))
	b := &Ticket{Principal: "b"}
	require.Nil(t, p.Wait(b, false))
	require.Same(t, b, p.Leave("b"))
	require.Nil(t, p.Leave("b"), "a has its two places")
	require.NotNil(t, p.Leave("a"))
}

// Accepted work precedes new work of all principals and is never refused.
func TestPlacesStartAcceptedWorkFirst(t *testing.T) {
	p := NewPlaces(Limits{Running: 1, RunningPerPrincipal: 1, Waiting: 1, WaitingPerPrincipal: 1})
	require.True(t, p.Enter("a"))
	require.Nil(t, p.Wait(&Ticket{Principal: "b", Priority: 9}, false))
	first, second := &Ticket{Principal: "c"}, &Ticket{Principal: "c"}
	require.Nil(t, p.Wait(first, true))
	require.Nil(t, p.Wait(second, true))
	require.Same(t, first, p.Leave("a"))
	require.True(t, p.Remove(second))
	require.Equal(t, "b", p.Leave("c").Principal)
}

// Resumed tasks run without a place, up to as many again. While they run, no new task starts.
func TestPlacesBoundResumedTasks(t *testing.T) {
	p := NewPlaces(Limits{Running: 1, RunningPerPrincipal: 1, Waiting: 2, WaitingPerPrincipal: 2})
	require.True(t, p.Enter("a"))
	w := &Ticket{Principal: "a"}
	require.Nil(t, p.Wait(w, false))
	require.Nil(t, p.Resume("a", true))
	require.Equal(t, &Refusal{"principal", 2}, p.Resume("a", true))
	require.Nil(t, p.Resume("a", false))
	require.Nil(t, p.Leave("a"))
	require.Nil(t, p.Leave("a"))
	require.Same(t, w, p.Leave("a"))
	require.False(t, p.Remove(w))
}
