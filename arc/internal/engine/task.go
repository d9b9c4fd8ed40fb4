// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"errors"

	"github.com/fivewire/fivewire/internal/lease"
)

// A Task is the state of a task without its content.
type Task struct {
	Status   string `json:"status"`
	Previous string `json:"previous,omitempty"` // before the last transition

	Created Moment `json:"created,omitempty"`
	Updated Moment `json:"updated,omitempty"`
	Paused  Moment `json:"paused,omitempty"` // when it last began to wait for input
	Moved   Moment `json:"moved,omitempty"`  // of the last transition
	Ended   Moment `json:"ended,omitempty"`

	Reason     string `json:"reason,omitempty"` // of the end
	CanceledBy string `json:"canceledBy,omitempty"`
	Required   string `json:"required,omitempty"` // the input that the task waits for

	Messages  int    `json:"messages,omitempty"`
	Artifacts int    `json:"artifacts,omitempty"`
	Inputs    int    `json:"inputs,omitempty"` // messages of task.send
	Bytes     int64  `json:"bytes,omitempty"`  // of messages and artifacts
	Events    uint64 `json:"events,omitempty"` // how many there were; numbers the notifications

	Owner       lease.Owner `json:"owner,omitempty"`     // the process that runs it
	IsJournaled bool        `json:"journaled,omitempty"` // the handler has used steps or inputs
	IsParked    bool        `json:"parked,omitempty"`    // the task waits for input without a run
}

// IsFinal reports whether the task has ended.
func (t *Task) IsFinal() bool {
	return t.Status == completed || t.Status == failed || t.Status == canceled
}

// An Action moves a task or adds to it.
type Action string

// The actions. Those of the processor come first.
const (
	Start        Action = "start"
	RequireInput Action = "require_input"
	Resume       Action = "resume"
	Complete     Action = "complete"
	Fail         Action = "fail"
	AddMessage   Action = "message"
	AddArtifact  Action = "artifact"
	Send         Action = "send"   // task.send
	Cancel       Action = "cancel" // task.cancel
)

// The states of tasks.
const (
	submitted     = "SUBMITTED"
	working       = "WORKING"
	inputRequired = "INPUT_REQUIRED"
	completed     = "COMPLETED"
	failed        = "FAILED"
	canceled      = "CANCELED"
)

// A transition is the effect of an action in a state.
type transition struct {
	to   string
	emit []string
}

func moved(to string, events ...string) transition {
	return transition{to, append(events, "STATUS_CHANGE")}
}

// transitions is the whole machine of unfinished tasks. An action without an entry is refused.
var transitions = map[string]map[Action]transition{
	submitted: {
		Start:       moved(working, "TASK_STARTED"),
		Fail:        moved(failed, "TASK_FAILED"),
		Cancel:      moved(canceled, "TASK_CANCELED"),
		AddMessage:  {submitted, []string{"NEW_MESSAGE"}},
		AddArtifact: {submitted, []string{"NEW_ARTIFACT"}},
	},
	working: {
		RequireInput: moved(inputRequired, "TASK_PAUSED"),
		Complete:     moved(completed, "TASK_COMPLETED"),
		Fail:         moved(failed, "TASK_FAILED"),
		Cancel:       moved(canceled, "TASK_CANCELED"),
		AddMessage:   {working, []string{"NEW_MESSAGE"}},
		AddArtifact:  {working, []string{"NEW_ARTIFACT"}},
	},
	inputRequired: {
		Send:        moved(working, "NEW_MESSAGE", "TASK_RESUMED"),
		Resume:      moved(working, "TASK_RESUMED"),
		Fail:        moved(failed, "TASK_FAILED"),
		Cancel:      moved(canceled, "TASK_CANCELED"),
		AddMessage:  {inputRequired, []string{"NEW_MESSAGE"}},
		AddArtifact: {inputRequired, []string{"NEW_ARTIFACT"}},
	},
}

// targets are the states to which actions lead where they are allowed. The other actions do not change it.
var targets = map[Action]string{
	Start: working, Resume: working, Send: working, RequireInput: inputRequired, Complete: completed, Fail: failed, Cancel: canceled,
}

// LeadsTo returns the state to which an action leads where it is allowed.
func (a Action) LeadsTo(from string) string { return cmp.Or(targets[a], from) }

// A Change is something that happens to a task.
type Change struct {
	Action   Action
	At       Moment
	Size     int         // bytes of the message or artifact
	Reason   string      // of the end
	By       string      // the canceling agent
	Required string      // the input that is needed
	Owner    lease.Owner // of the run that requests it, which may have lost the task; else empty
	Claimant lease.Owner // becomes the owner with the input, if the task has no live one; else empty
}

// Bounds are those of the content of a task (ARC-D79).
type Bounds struct {
	Bytes int64
	Items int
}

// The refusals of a change.
var (
	ErrState = errors.New("engine: the state does not allow the change")
	ErrOwner = errors.New("engine: another process owns the task")
)

// A FullError refuses an item over a bound.
type FullError struct{ Limit int64 }

// Error names the reason.
func (e *FullError) Error() string { return "engine: the task is full" }

// Step returns the task after a change, and the names of the events that it emits, which have the next numbers. The
// list is shared and must not be changed. A refused change leaves the task as it is.
func (t Task) Step(c *Change, limit Bounds) (Task, []string, error) {
	if c.Owner != "" && t.Owner != c.Owner {
		return t, nil, ErrOwner
	}
	step, ok := transitions[t.Status][c.Action]
	if !ok {
		return t, nil, ErrState
	}
	next := t
	next.Updated = c.At
	if err := next.add(c, limit); err != nil {
		return t, nil, err
	}
	next.Events += uint64(len(step.emit))
	if step.to != t.Status {
		next.move(step.to, c)
	}
	return next, step.emit, nil
}

// add counts the item of a change.
func (t *Task) add(c *Change, limit Bounds) error {
	switch c.Action {
	case AddMessage, Send:
		t.Messages++
	case AddArtifact:
		t.Artifacts++
	default:
		return nil
	}
	if t.Messages+t.Artifacts > limit.Items {
		return &FullError{int64(limit.Items)}
	}
	if t.Bytes += int64(c.Size); t.Bytes > limit.Bytes {
		return &FullError{limit.Bytes}
	}
	return nil
}

// move moves the task to another state.
func (t *Task) move(to string, c *Change) {
	t.Previous, t.Status, t.Required, t.IsParked, t.Moved = t.Status, to, "", false, c.At
	switch to {
	case working:
		if c.Action == Send {
			t.Inputs++
		}
		if c.Claimant != "" {
			t.Owner = c.Claimant
		}
	case inputRequired:
		t.Paused, t.Required, t.IsJournaled = c.At, c.Required, true
	case completed, failed, canceled:
		t.Ended, t.Reason, t.CanceledBy = c.At, c.Reason, c.By
	}
}

// A Fate is the continuation of a task after the failure of its process (ARC-D74, ARC-D76).
type Fate int

// The fates.
const (
	Waits       Fate = iota // for its input, without a run
	Runs                    // again, or for the first time
	Interrupted             // fails
)

// A Policy is how an agent treats interrupted work.
type Policy struct {
	AlwaysRerun, AlwaysFail bool
	Agent                   any // for the handler: the Tag of the request of a run again
}

// Adopt returns the task with a new owner, and its fate: a task that has begun no work begins, a waiting task
// continues to wait without a run, and a task whose work was cut off runs again or fails.
func (t Task) Adopt(to lease.Owner, p Policy) (Task, Fate) {
	t.Owner, t.IsParked = to, t.Status == inputRequired
	switch {
	case t.IsParked:
		return t, Waits
	case t.Status == submitted, p.AlwaysRerun, t.IsJournaled && !p.AlwaysFail:
		return t, Runs
	}
	return t, Interrupted
}
