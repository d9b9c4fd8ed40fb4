// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"encoding/json"

	"github.com/fivewire/fivewire/internal/jsonmap"
)

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
	ID        string     `json:"taskId"`
	Status    TaskStatus `json:"status"`
	CreatedAt Timestamp  `json:"createdAt,omitempty"`
	UpdatedAt Timestamp  `json:"updatedAt,omitempty"`

	// Messages and Artifacts are nil where the answer leaves them out, and
	// empty where there are none.
	Messages  []Message  `json:"messages,omitzero"`
	Artifacts []Artifact `json:"artifacts,omitzero"`

	// MessageCount and ArtifactCount are the totals, if the request asked for pages and the server knows
	// them (ARC-D79).
	MessageCount  json.Number `json:"messageCount,omitempty"`
	ArtifactCount json.Number `json:"artifactCount,omitempty"`

	CompletedAt Timestamp `json:"completedAt,omitempty"`
	CanceledAt  Timestamp `json:"canceledAt,omitempty"`
	FailedAt    Timestamp `json:"failedAt,omitempty"`
	Reason      string    `json:"reason,omitempty"` // why it was canceled or failed, or the input that it waits for
	Error       *Error    `json:"error,omitempty"`  // cause of the failure, if given

	// Members that some peers add.
	Priority      Priority        `json:"priority,omitempty"`
	AssignedAgent string          `json:"assignedAgent,omitempty"`
	Metadata      json.RawMessage `json:"metadata,omitempty" jsonmap:"object,unset"`

	Extra Extra `json:"-" jsonmap:"extra"`
}

// MarshalJSON writes the task as section 7 has it.
func (t Task) MarshalJSON() ([]byte, error) { return jsonmap.Append(nil, &t) }

// UnmarshalJSON reads a task of a peer. It needs an id and a status.
func (t *Task) UnmarshalJSON(b []byte) error { return unmarshalNamed(b, t, "taskId", "status") }

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
	ID           string          `json:"chatId"`
	Status       ChatStatus      `json:"status,omitempty"`
	Message      *Message        `json:"message,omitempty"` // the latest answer
	Participants []string        `json:"participants,omitzero"`
	CreatedAt    Timestamp       `json:"createdAt,omitempty"`
	UpdatedAt    Timestamp       `json:"updatedAt,omitempty"`
	ClosedAt     Timestamp       `json:"closedAt,omitempty"`
	Reason       string          `json:"reason,omitempty"`
	Metadata     json.RawMessage `json:"metadata,omitempty" jsonmap:"object,unset"`
	Extra        Extra           `json:"-" jsonmap:"extra"`
}

// MarshalJSON writes the chat as section 7 has it.
func (c Chat) MarshalJSON() ([]byte, error) { return jsonmap.Append(nil, &c) }

// UnmarshalJSON reads a chat of a peer. It needs an id.
func (c *Chat) UnmarshalJSON(b []byte) error { return unmarshalNamed(b, c, "chatId", "chatId") }

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

// A Subscription is a webhook that follows a task (ARC-101).
type Subscription struct {
	ID          string    `json:"subscriptionId"`
	TaskID      string    `json:"taskId"`
	CallbackURL string    `json:"callbackUrl"`
	Events      []Event   `json:"events"`
	CreatedAt   Timestamp `json:"createdAt"`
	Active      bool      `json:"active"`
	Extra       Extra     `json:"-" jsonmap:"extra"`
}

// MarshalJSON writes the subscription as ARC-101 has it.
func (s Subscription) MarshalJSON() ([]byte, error) { return jsonmap.Append(nil, &s) }

// UnmarshalJSON reads a subscription of a peer. It needs an id.
func (s *Subscription) UnmarshalJSON(b []byte) error {
	return unmarshalNamed(b, s, "subscriptionId", "subscriptionId")
}

func eventList(names []string) []Event {
	list := make([]Event, len(names))
	for i, name := range names {
		list[i] = Event(name)
	}
	return list
}

// textOf returns the text of an optional member.
func textOf(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
