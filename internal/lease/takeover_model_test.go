// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package lease_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// A rule says when a survivor deletes the entry of a failed owner without an adoption.
type rule struct{ absent, otherDead bool }

const (
	none      = -1
	processes = 3 // 0 creates the record, the others adopt
)

// A phase is the next step of a process.
type phase int

const (
	idle phase = iota
	writeEntry
	readRecord
	changeOwner
	deleteOld
	dropOwn
)

// A world is one state: a record, its index entries, the leases, and the processes. A process
// whose lease has expired continues: it was paused.
type world struct {
	record  int // owner, or none
	entries [processes]bool
	alive   [processes]bool
	phase   [processes]phase
	old     [processes]int // owner of the adopted entry
	read    [processes]int // owner that was read
}

// next returns the states after one step of a process, with the names of the steps.
func (w world) next(p int, r rule) map[string]world {
	steps := map[string]world{}
	step := func(name string, next phase, change func(w *world)) {
		after := w
		after.phase[p] = next
		change(&after)
		steps[fmt.Sprintf("%d %s", p, name)] = after
	}
	old, read := w.old[p], w.read[p]
	if w.alive[p] && p < processes-1 { // one never fails
		step("expires", w.phase[p], func(w *world) { w.alive[p] = false })
	}
	switch {
	case p == 0 && w.phase[p] == writeEntry:
		step("writes its entry", changeOwner, func(w *world) { w.entries[p] = true })
	case p == 0 && w.phase[p] == changeOwner:
		step("creates the record", idle, func(w *world) { w.record = p })
	case w.phase[p] == idle && p > 0 && w.alive[p]:
		for q := range processes {
			if w.entries[q] && !w.alive[q] {
				step(fmt.Sprintf("lists %d", q), writeEntry, func(w *world) { w.old[p] = q })
			}
		}
	case w.phase[p] == writeEntry:
		step("writes its entry", readRecord, func(w *world) { w.entries[p] = true })
	case w.phase[p] == readRecord && w.record == none && r.absent:
		step("finds no record", deleteOld, func(w *world) { w.read[p] = none })
	case w.phase[p] == readRecord && w.record == none:
		step("finds no record", dropOwn, func(w *world) { w.read[p] = none })
	case w.phase[p] == readRecord && (w.alive[w.record] || w.record == p || r.otherDead && w.record != old):
		step("finds another owner", deleteOld, func(w *world) { w.read[p] = w.record })
	case w.phase[p] == readRecord:
		step("finds a failed owner", changeOwner, func(w *world) { w.read[p] = w.record })
	case w.phase[p] == changeOwner && w.record == read:
		step("changes the owner", deleteOld, func(w *world) { w.record, w.read[p] = p, p })
	case w.phase[p] == changeOwner:
		step("loses the change", readRecord, func(w *world) {})
	case w.phase[p] == deleteOld && read == p:
		step("deletes the old entry", idle, func(w *world) { w.entries[old] = false })
	case w.phase[p] == deleteOld:
		step("deletes the old entry", dropOwn, func(w *world) { w.entries[old] = false })
	case w.phase[p] == dropOwn:
		step("deletes its entry", idle, func(w *world) { w.entries[p] = false })
	}
	return steps
}

// isLost reports whether no process has a step left and none will find the record.
func (w world) isLost() bool {
	if w.record == none || w.phase != [processes]phase{} {
		return false
	}
	for q := range processes {
		if w.entries[q] && (!w.alive[q] || w.record == q) {
			return false
		}
	}
	return true
}

// explore visits all states and returns a shortest trace to a lost record.
func explore(r rule) (trace []string, states int) {
	type visit struct {
		step   string
		before *visit
		state  world
	}
	start := world{record: none, alive: [processes]bool{true, true, true}, phase: [processes]phase{0: writeEntry}}
	queue, seen := []*visit{{state: start}}, map[world]bool{start: true}
	for ; len(queue) > 0; queue = queue[1:] {
		v := queue[0]
		if v.state.isLost() {
			for ; v.before != nil; v = v.before {
				trace = append(trace, v.step)
			}
			slices.Reverse(trace)
			return trace, len(seen)
		}
		for p := range processes {
			for name, after := range v.state.next(p, r) {
				if !seen[after] {
					seen[after] = true
					queue = append(queue, &visit{name, v, after})
				}
			}
		}
	}
	return nil, len(seen)
}

func TestTakeOverModelLosesNothing(t *testing.T) {
	trace, states := explore(rule{})
	require.Empty(t, trace)
	require.Greater(t, states, 100, "states")
}

func TestTakeOverModelLosesWorkWithoutRecord(t *testing.T) {
	trace, _ := explore(rule{absent: true})
	require.NotEmpty(t, trace, "trace to a lost record")
	t.Logf("%d steps: %q", len(trace), trace)
}

func TestTakeOverModelLosesWorkOfAnotherFailedOwner(t *testing.T) {
	trace, _ := explore(rule{otherDead: true})
	require.NotEmpty(t, trace, "trace to a lost record")
	t.Logf("%d steps: %q", len(trace), trace)
}
