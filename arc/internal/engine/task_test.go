// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/lease"
)

// table is that of the reference: for each state the actions, with the next state and the events before STATUS_CHANGE.
// A dash stands for the same state.
const table = `
SUBMITTED start WORKING TASK_STARTED
SUBMITTED fail FAILED TASK_FAILED
SUBMITTED cancel CANCELED TASK_CANCELED
SUBMITTED message - NEW_MESSAGE
SUBMITTED artifact - NEW_ARTIFACT
WORKING require_input INPUT_REQUIRED TASK_PAUSED
WORKING complete COMPLETED TASK_COMPLETED
WORKING fail FAILED TASK_FAILED
WORKING cancel CANCELED TASK_CANCELED
WORKING message - NEW_MESSAGE
WORKING artifact - NEW_ARTIFACT
INPUT_REQUIRED send WORKING NEW_MESSAGE,TASK_RESUMED
INPUT_REQUIRED resume WORKING TASK_RESUMED
INPUT_REQUIRED fail FAILED TASK_FAILED
INPUT_REQUIRED cancel CANCELED TASK_CANCELED
INPUT_REQUIRED message - NEW_MESSAGE
INPUT_REQUIRED artifact - NEW_ARTIFACT`

// A model counts what has happened to a task by the list of accepted actions.
type model struct {
	rows     map[string][]string // by state and action: next state, events
	accepted []Action
	events   int
}

func newModel() *model {
	m := &model{rows: map[string][]string{}}
	for _, line := range strings.Split(strings.TrimSpace(table), "\n") {
		f := strings.Fields(line)
		to, events := f[2], strings.Split(f[3], ",")
		if to == "-" {
			to = f[0]
		} else {
			events = append(events, "STATUS_CHANGE")
		}
		m.rows[f[0]+" "+f[1]] = append([]string{to}, events...)
	}
	return m
}

func (m *model) count(actions ...Action) (n int) {
	for _, a := range m.accepted {
		for _, b := range actions {
			if a == b {
				n++
			}
		}
	}
	return n
}

var actions = []Action{Start, RequireInput, Resume, Complete, Fail, AddMessage, AddArtifact, Send, Cancel}

const begin = Moment(1_000_000)

const itemSize = 10

var wide = Bounds{Bytes: 1 << 20, Items: 1000}

// Every sequence of six actions moves a task as the table, and keeps the counts.
func TestStepFollowsTable(t *testing.T) {
	m := newModel()
	var walk func(task Task, depth int)
	walk = func(task Task, depth int) {
		if depth == 6 {
			return
		}
		for _, action := range actions {
			at := begin + Moment(depth+1)
			next, emit, err := task.Step(&Change{Action: action, At: at, Size: itemSize, Reason: "why", By: "who", Required: "what"}, wide)
			row, isAllowed := m.rows[task.Status+" "+string(action)]
			if !isAllowed {
				if !errors.Is(err, ErrState) || next != task || emit != nil {
					t.Fatalf("%s in %s: %+v, %v", action, task.Status, next, err)
				}
				continue
			}
			m.accepted = append(m.accepted, action)
			m.events += len(row) - 1
			if err != nil || next.Status != row[0] || fmt.Sprint(emit) != fmt.Sprint(row[1:]) {
				t.Fatalf("%v: %+v, %v, %v", m.accepted, next, emit, err)
			}
			m.check(t, task, next, at)
			walk(next, depth+1)
			m.accepted = m.accepted[:len(m.accepted)-1]
			m.events -= len(row) - 1
		}
	}
	walk(Task{Status: submitted, Created: begin, Updated: begin, Messages: 1, Events: 1}, 0)
}

// check holds a task to the accepted actions.
func (m *model) check(t *testing.T, old, task Task, at Moment) {
	messages, artifacts := m.count(AddMessage, Send), m.count(AddArtifact)
	isFinal := task.Status == completed || task.Status == failed || task.Status == canceled
	isMoved := task.Status != old.Status
	for what, ok := range map[string]bool{
		"messages":  task.Messages == 1+messages,
		"artifacts": task.Artifacts == artifacts,
		"inputs":    task.Inputs == m.count(Send),
		"bytes":     task.Bytes == int64(itemSize*(messages+artifacts)),
		"events":    task.Events == uint64(1+m.events),
		"updated":   (task.Updated == at),
		"moved":     isMoved == (task.Moved == at),
		"previous":  !isMoved || task.Previous == old.Status,
		"ended":     isFinal == (task.Ended != 0) && isFinal == (task.Reason == "why" && task.CanceledBy == "who"),
		"required":  (task.Status == inputRequired) == (task.Required == "what"),
		"journaled": task.IsJournaled == (m.count(RequireInput) > 0),
		"created":   task.Created == begin,
	} {
		if !ok {
			t.Fatalf("%v: %s: %+v", m.accepted, what, task)
		}
	}
}

// A run of a former owner changes nothing. Only an input makes its process the owner.
func TestStepIsFenced(t *testing.T) {
	task := Task{Status: working, Owner: "b"}
	for _, action := range actions {
		next, _, err := task.Step(&Change{Action: action, Owner: "a"}, wide)
		require.ErrorIs(t, err, ErrOwner, action)
		require.Equal(t, task, next)
	}
	next, _, err := task.Step(&Change{Action: AddMessage, Owner: "b", Claimant: "c"}, wide)
	require.NoError(t, err)
	require.Equal(t, lease.Owner("b"), next.Owner)
	task.Status, task.IsParked = inputRequired, true
	next, _, err = task.Step(&Change{Action: Send, Claimant: "c"}, wide)
	require.NoError(t, err)
	require.Equal(t, lease.Owner("c"), next.Owner)
	require.False(t, next.IsParked)
	next, _, err = task.Step(&Change{Action: Send}, wide)
	require.NoError(t, err)
	require.Equal(t, lease.Owner("b"), next.Owner)
}

// A full task refuses items and nothing else.
func TestStepBoundsContent(t *testing.T) {
	task := Task{Status: inputRequired, Messages: 2, Artifacts: 1, Bytes: 90}
	for _, tt := range []struct {
		bounds Bounds
		limit  int64
	}{{Bounds{Bytes: 99, Items: 9}, 99}, {Bounds{Bytes: 999, Items: 3}, 3}} {
		for _, action := range []Action{AddMessage, AddArtifact, Send} {
			next, _, err := task.Step(&Change{Action: action, Size: itemSize}, tt.bounds)
			var full *FullError
			require.ErrorAs(t, err, &full)
			require.Equal(t, tt.limit, full.Limit)
			require.Equal(t, task, next)
			_, _, err = task.Step(&Change{Action: action, Size: itemSize}, Bounds{Bytes: 100, Items: 4})
			require.NoError(t, err)
		}
		_, _, err := task.Step(&Change{Action: Cancel}, tt.bounds)
		require.NoError(t, err)
	}
}

// A task of a failed process waits, runs or fails (ARC-D74, ARC-D76).
func TestAdoptFate(t *testing.T) {
	for _, tt := range []struct {
		status      string
		isJournaled bool
		policy      Policy
		want        Fate
	}{
		{submitted, false, Policy{}, Runs},
		{submitted, false, Policy{AlwaysFail: true}, Runs},
		{working, false, Policy{}, Interrupted},
		{working, true, Policy{}, Runs},
		{working, true, Policy{AlwaysFail: true}, Interrupted},
		{working, false, Policy{AlwaysRerun: true}, Runs},
		{inputRequired, true, Policy{}, Waits},
		{inputRequired, true, Policy{AlwaysFail: true}, Waits},
	} {
		task, fate := Task{Status: tt.status, IsJournaled: tt.isJournaled, Owner: "a"}.Adopt("b", tt.policy)
		require.Equal(t, tt.want, fate, tt)
		require.Equal(t, lease.Owner("b"), task.Owner)
		require.Equal(t, fate == Waits, task.IsParked, tt)
	}
}
