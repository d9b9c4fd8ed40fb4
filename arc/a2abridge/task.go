// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2abridge

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/fivewire/fivewire/arc"
)

// A view is a task as its watcher has seen it.
type view struct {
	info   a2a.TaskInfo
	task   *a2a.Task // nil before the first state
	prompt *a2a.Message
	count  int // of messages
	size   int // of the contents of messages and artifacts, in bytes
}

// add adds a state of the task, and returns the events of the change.
func (v *view) add(t *arc.Task) []a2a.Event {
	isFirst := v.task == nil
	if isFirst {
		v.info = a2a.TaskInfo{TaskID: a2a.TaskID(t.ID), ContextID: contextOf(t)}
		v.task = &a2a.Task{ID: v.info.TaskID, ContextID: v.info.ContextID}
	}
	var events []a2a.Event
	var spoken []*a2a.Message
	for i := range t.Messages {
		v.count++
		m := fromMessage(&t.Messages[i], v.info, v.count)
		v.task.History = append(v.task.History, m)
		v.size += sizeOf(t.Messages[i].Parts)
		v.prompt = nil
		if m.Role == a2a.MessageRoleAgent {
			v.prompt = m
			spoken = append(spoken, m)
		}
	}
	for i := range t.Artifacts {
		a := fromArtifact(&t.Artifacts[i])
		v.task.Artifacts = append(v.task.Artifacts, a)
		v.size += sizeOf(t.Artifacts[i].Parts)
		events = append(events, &a2a.TaskArtifactUpdateEvent{TaskID: v.info.TaskID, ContextID: v.info.ContextID, Artifact: a, LastChunk: true})
	}
	before := v.task.Status
	v.task.Status = v.status(t)
	if isFirst {
		return []a2a.Event{v.snapshot()}
	}
	for _, m := range spoken {
		if m != v.task.Status.Message {
			events = append(events, v.update(a2a.TaskStatus{State: a2a.TaskStateWorking, Message: m, Timestamp: v.task.Status.Timestamp}))
		}
	}
	if now := v.task.Status; now.State != before.State || now.Message != nil && now.Message != before.Message {
		events = append(events, v.update(now))
	}
	return events
}

func sizeOf(parts []arc.Part) (n int) {
	for i := range parts {
		n += len(parts[i].Content) + len(parts[i].Data)
	}
	return n
}

func (v *view) update(s a2a.TaskStatus) *a2a.TaskStatusUpdateEvent {
	return &a2a.TaskStatusUpdateEvent{TaskID: v.info.TaskID, ContextID: v.info.ContextID, Status: s}
}

// status returns the state of a task with its message: the last one of the agent where the task works or waits,
// and otherwise the reason.
func (v *view) status(t *arc.Task) a2a.TaskStatus {
	s := a2a.TaskStatus{State: stateOf(t)}
	if at, err := t.UpdatedAt.Time(); err == nil {
		s.Timestamp = &at
	}
	switch {
	case t.Status == arc.TaskCanceled || t.Status == arc.TaskFailed || t.Status == arc.TaskInputRequired && v.prompt == nil:
		if t.Reason != "" {
			s.Message = a2a.NewMessageForTask(a2a.MessageRoleAgent, v.info, a2a.NewTextPart(t.Reason))
			s.Message.ID = fmt.Sprintf("%s-status-%d", t.ID, v.count)
		}
	case t.Status != arc.TaskCompleted:
		s.Message = v.prompt
	}
	return s
}

// snapshot returns the task; its lists do not change later.
func (v *view) snapshot() *a2a.Task {
	t := *v.task
	t.History, t.Artifacts = slices.Clone(t.History), slices.Clone(t.Artifacts)
	return &t
}

// contextOf returns the contextId of a task.
func contextOf(t *arc.Task) string {
	var id string
	if json.Unmarshal(t.Extra["traceId"], &id) != nil || id == "" {
		return t.ID
	}
	return id
}

// isPaused reports whether a state ends the stream of a message.
func isPaused(s a2a.TaskState) bool {
	return s.Terminal() || s == a2a.TaskStateInputRequired || s == a2a.TaskStateAuthRequired
}

// trim returns a task with the newest n messages; nil means all.
func trim(t *a2a.Task, n *int) *a2a.Task {
	if n != nil && *n >= 0 && *n < len(t.History) {
		t.History = t.History[len(t.History)-*n:]
	}
	return t
}
