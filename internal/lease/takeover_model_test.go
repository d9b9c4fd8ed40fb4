// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package lease_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// A rule lists the entries of a failed owner that a survivor deletes without an adoption.
type rule struct{ absent, otherFailed bool }

const (
	idle, writeEntry, readRecord, changeOwner, deleteOld, dropOwn = 0, 1, 2, 3, 4, 5

	none      = -1
	processes = 3 // 0 creates the record, the others adopt
)

// A world is one state: a record, its index entries, the leases, and the processes. A process
// whose lease has expired continues: it was paused.
type world struct {
	record  int // owner, or none
	entries [processes]bool
	leases  [processes]bool
	phase   [processes]int // the next step
	old     [processes]int // owner of the adopted entry
	read    [processes]int // owner that was read
}

// next calls visit with the states after one step of a process, and the names of the steps.
func (w world) next(p int, r rule, visit func(name string, after world)) {
	step := func(name string, phase int, change func(w *world)) {
		after := w
		after.phase[p] = phase
		change(&after)
		visit(fmt.Sprintf("%d %s", p, name), after)
	}
	if w.leases[p] && p < processes-1 { // one never fails
		step("expires", w.phase[p], func(w *world) { w.leases[p] = false })
	}
	switch phase := w.phase[p]; {
	case phase == writeEntry && p == 0:
		step("writes its entry", changeOwner, func(w *world) { w.entries[p] = true })
	case phase == changeOwner && p == 0:
		step("creates the record", idle, func(w *world) { w.record = p })
	case phase == writeEntry:
		step("writes its entry", readRecord, func(w *world) { w.entries[p] = true })
	case phase == readRecord:
		step(fmt.Sprintf("finds owner %d", w.record), w.verdict(p, r), func(w *world) { w.read[p] = w.record })
	case p > 0:
		w.adopt(p, step)
	}
}

// verdict returns the next phase of a process that reads the record.
func (w world) verdict(p int, r rule) int {
	switch owner := w.record; {
	case owner == none && !r.absent:
		return dropOwn
	case owner == none || w.leases[owner] || owner == p || r.otherFailed && owner != w.old[p]:
		return deleteOld
	}
	return changeOwner
}

// adopt makes the other steps of an adoption.
func (w world) adopt(p int, step func(name string, phase int, change func(w *world))) {
	switch phase := w.phase[p]; {
	case phase == idle && w.leases[p]:
		for q := range processes {
			if w.entries[q] && !w.leases[q] {
				step(fmt.Sprintf("lists %d", q), writeEntry, func(w *world) { w.old[p] = q })
			}
		}
	case phase == changeOwner && w.record == w.read[p]:
		step("changes the owner", deleteOld, func(w *world) { w.record, w.read[p] = p, p })
	case phase == changeOwner:
		step("loses the change", readRecord, func(*world) {})
	case phase == deleteOld && w.read[p] == p:
		step("deletes the old entry", idle, func(w *world) { w.entries[w.old[p]] = false })
	case phase == deleteOld:
		step("deletes the old entry", dropOwn, func(w *world) { w.entries[w.old[p]] = false })
	case phase == dropOwn:
		step("deletes its entry", idle, func(w *world) { w.entries[p] = false })
	}
}

// isLost reports whether no process has a step left and none will find the record.
func (w world) isLost() bool {
	for q := range processes {
		if w.phase[q] != idle || w.entries[q] && (!w.leases[q] || w.record == q) {
			return false
		}
	}
	return w.record != none
}

// explore visits all states and returns a shortest trace to a lost record.
func explore(r rule) (trace []string, states int) {
	start := world{record: none, leases: [processes]bool{true, true, true}, phase: [processes]int{writeEntry}}
	queue, before, names := []world{start}, map[world]world{start: {}}, map[world]string{}
	for ; len(queue) > 0; queue = queue[1:] {
		w := queue[0]
		if w.isLost() {
			for ; w != start; w = before[w] {
				trace = append(trace, names[w])
			}
			slices.Reverse(trace)
			break
		}
		for p := range processes {
			w.next(p, r, func(name string, after world) {
				if _, isKnown := before[after]; !isKnown {
					before[after], names[after] = w, name
					queue = append(queue, after)
				}
			})
		}
	}
	return trace, len(before)
}

func TestTakeOverModelLosesNothing(t *testing.T) {
	trace, states := explore(rule{})
	require.Empty(t, trace, "trace to a lost record")
	require.Greater(t, states, 200, "states")
}

func TestTakeOverModelLosesWorkWithoutRecord(t *testing.T) {
	trace, _ := explore(rule{absent: true})
	require.NotEmpty(t, trace, "trace to a lost record")
	t.Logf("%d steps: %q", len(trace), trace)
}

func TestTakeOverModelLosesWorkOfAnotherFailedOwner(t *testing.T) {
	trace, _ := explore(rule{otherFailed: true})
	require.NotEmpty(t, trace, "trace to a lost record")
	t.Logf("%d steps: %q", len(trace), trace)
}
