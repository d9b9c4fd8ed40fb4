// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import "encoding/json"

// A taskAction is something that moves a task or adds to it; see
// the transitions of TaskStatus.
type taskAction string

// The actions. Those of the processor come first.
const (
	taskStart        taskAction = "start"
	taskRequireInput taskAction = "require_input"
	taskResume       taskAction = "resume"
	taskComplete     taskAction = "complete"
	taskFail         taskAction = "fail"
	taskAddMessage   taskAction = "message"
	taskAddArtifact  taskAction = "artifact"
	taskSend         taskAction = "send"   // task.send
	taskCancel       taskAction = "cancel" // task.cancel
)

type taskStep struct {
	to   TaskStatus
	emit []Event
}

// taskTable is the whole machine of the tasks that are not over: what is not in
// it is refused.
var taskTable = map[TaskStatus]map[taskAction]taskStep{
	TaskSubmitted: {
		taskStart:       {TaskWorking, []Event{EventTaskStarted, EventStatusChange}},
		taskFail:        {TaskFailed, []Event{EventTaskFailed, EventStatusChange}},
		taskCancel:      {TaskCanceled, []Event{EventTaskCanceled, EventStatusChange}},
		taskAddMessage:  {TaskSubmitted, []Event{EventNewMessage}},
		taskAddArtifact: {TaskSubmitted, []Event{EventNewArtifact}},
	},
	TaskWorking: {
		taskRequireInput: {TaskInputRequired, []Event{EventTaskPaused, EventStatusChange}},
		taskComplete:     {TaskCompleted, []Event{EventTaskCompleted, EventStatusChange}},
		taskFail:         {TaskFailed, []Event{EventTaskFailed, EventStatusChange}},
		taskCancel:       {TaskCanceled, []Event{EventTaskCanceled, EventStatusChange}},
		taskAddMessage:   {TaskWorking, []Event{EventNewMessage}},
		taskAddArtifact:  {TaskWorking, []Event{EventNewArtifact}},
	},
	TaskInputRequired: {
		taskSend:        {TaskWorking, []Event{EventNewMessage, EventTaskResumed, EventStatusChange}},
		taskResume:      {TaskWorking, []Event{EventTaskResumed, EventStatusChange}},
		taskFail:        {TaskFailed, []Event{EventTaskFailed, EventStatusChange}},
		taskCancel:      {TaskCanceled, []Event{EventTaskCanceled, EventStatusChange}},
		taskAddMessage:  {TaskInputRequired, []Event{EventNewMessage}},
		taskAddArtifact: {TaskInputRequired, []Event{EventNewArtifact}},
	},
}

// wouldLeadTo is where an action goes where it is allowed.
func (a taskAction) wouldLeadTo(from TaskStatus) TaskStatus {
	switch a {
	case taskStart, taskResume, taskSend:
		return TaskWorking
	case taskRequireInput:
		return TaskInputRequired
	case taskComplete:
		return TaskCompleted
	case taskFail:
		return TaskFailed
	case taskCancel:
		return TaskCanceled
	}
	return from
}

// next returns the state that a task in state s gets into by an action, and the
// events that this emits, in order. The events are shared and must not be
// changed. An action that the state does not allow leaves the task as it is and
// is [ErrTaskAlreadyCompleted], [ErrTaskAlreadyCanceled] or
// [ErrInvalidTaskTransition].
func (s TaskStatus) next(a taskAction) (TaskStatus, []Event, error) {
	if step, ok := taskTable[s][a]; ok {
		return step.to, step.emit, nil
	}
	switch s {
	case TaskCompleted:
		return s, nil, ErrTaskAlreadyCompleted
	case TaskCanceled:
		return s, nil, ErrTaskAlreadyCanceled
	}
	return s, nil, ErrInvalidTaskTransition
}

// taskFault is the error that a caller gets for an action that is refused; its
// details are those of ARC-D55.
func taskFault(id string, s TaskStatus, a taskAction, code Code) *Error {
	d, _ := encode(func(w *writer) { // texts can always be written
		w.open()
		w.text("taskId", id)
		if code == ErrInvalidTaskTransition {
			w.text("from", string(s))
			w.text("to", string(a.wouldLeadTo(s)))
		}
		w.close()
	})
	return &Error{Code: code, Message: code.Message(), Details: json.RawMessage(d)}
}
