// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import "encoding/json"

// A TaskStatus is the state of a task (section 7).
type TaskStatus string

// The states of a task.
const (
	TaskSubmitted     TaskStatus = "SUBMITTED"
	TaskWorking       TaskStatus = "WORKING"
	TaskInputRequired TaskStatus = "INPUT_REQUIRED"
	TaskCompleted     TaskStatus = "COMPLETED"
	TaskFailed        TaskStatus = "FAILED"
	TaskCanceled      TaskStatus = "CANCELED"
)

// Final reports whether the state is final.
func (s TaskStatus) Final() bool {
	return s == TaskCompleted || s == TaskFailed || s == TaskCanceled
}

// A Priority is the urgency of a task.
type Priority string

// The priorities; empty means [PriorityNormal].
const (
	PriorityLow    Priority = "LOW"
	PriorityNormal Priority = "NORMAL"
	PriorityHigh   Priority = "HIGH"
	PriorityUrgent Priority = "URGENT"
)

// A Task describes work requested from an agent (section 7). The method that
// returns it determines which members are set.
type Task struct {
	ID        string
	Status    TaskStatus
	CreatedAt Timestamp
	UpdatedAt Timestamp

	// Messages and Artifacts are nil where the answer leaves them out, and
	// empty where there are none.
	Messages  []Message
	Artifacts []Artifact

	// MessageCount and ArtifactCount are the totals, if the request asked for pages and the server knows
	// them (ARC-D79).
	MessageCount, ArtifactCount json.Number

	CanceledAt  Timestamp
	CompletedAt Timestamp
	FailedAt    Timestamp
	Reason      string // why it was canceled or failed
	Error       *Error // cause of the failure, if given

	// Members that some peers add.
	Priority      Priority
	AssignedAgent string
	Metadata      json.RawMessage

	Extra Extra
}

// A ChatStatus is the state of a chat (section 7).
type ChatStatus string

// The states of a chat.
const (
	ChatActive ChatStatus = "ACTIVE"
	ChatPaused ChatStatus = "PAUSED"
	ChatClosed ChatStatus = "CLOSED"
)

// A Chat is what a processor tells about a conversation (section 7).
type Chat struct {
	ID           string
	Status       ChatStatus
	Message      *Message // the latest answer
	Participants []string
	CreatedAt    Timestamp
	UpdatedAt    Timestamp
	ClosedAt     Timestamp
	Reason       string
	Metadata     json.RawMessage
	Extra        Extra
}

// An Event is a change of a task for which webhooks receive notifications
// (ARC-102).
type Event string

// The events.
const (
	EventTaskCreated   Event = "TASK_CREATED"
	EventTaskStarted   Event = "TASK_STARTED"
	EventTaskPaused    Event = "TASK_PAUSED"
	EventTaskResumed   Event = "TASK_RESUMED"
	EventTaskCompleted Event = "TASK_COMPLETED"
	EventTaskFailed    Event = "TASK_FAILED"
	EventTaskCanceled  Event = "TASK_CANCELED"
	EventNewMessage    Event = "NEW_MESSAGE"
	EventNewArtifact   Event = "NEW_ARTIFACT"
	EventStatusChange  Event = "STATUS_CHANGE"
)

func (e Event) isValid() bool {
	switch e {
	case EventTaskCreated, EventTaskStarted, EventTaskPaused, EventTaskResumed, EventTaskCompleted,
		EventTaskFailed, EventTaskCanceled, EventNewMessage, EventNewArtifact, EventStatusChange:
		return true
	}
	return false
}

// A Subscription is a webhook that follows a task (ARC-101).
type Subscription struct {
	ID          string
	TaskID      string
	CallbackURL string
	Events      []Event
	CreatedAt   Timestamp
	Active      bool
	Extra       Extra
}
