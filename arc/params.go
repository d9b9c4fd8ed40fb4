// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"encoding/json"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/jsonmap"
)

// marshalParams returns params as JSON, in the first buffer if they are short.
func marshalParams(p any) ([]byte, error) { return jsonmap.Append(make([]byte, 0, 256), p) }

// CreateTaskParams are the params of task.create.
type CreateTaskParams struct {
	InitialMessage *Message        `json:"initialMessage"`
	Priority       Priority        `json:"priority,omitempty"`                        // empty means NORMAL
	Metadata       json.RawMessage `json:"metadata,omitempty" jsonmap:"object,unset"` // its content is free
	Extra          Extra           `json:"-" jsonmap:"extra"`
}

// MarshalJSON writes the params of task.create.
func (p CreateTaskParams) MarshalJSON() ([]byte, error) { return marshalParams(&p) }

// SendTaskParams are the params of task.send.
type SendTaskParams struct {
	TaskID  string   `json:"taskId"`
	Message *Message `json:"message"`
	Extra   Extra    `json:"-" jsonmap:"extra"`
}

// MarshalJSON writes the params of task.send.
func (p SendTaskParams) MarshalJSON() ([]byte, error) { return marshalParams(&p) }

// TaskInfoParams are the params of task.info. The zero value of the two switches
// asks for everything, as the specification's defaults do.
type TaskInfoParams struct {
	TaskID        string `json:"taskId"`
	OmitMessages  bool   `json:"includeMessages" jsonmap:"not"`
	OmitArtifacts bool   `json:"includeArtifacts" jsonmap:"not"`

	// With any of these the lists have at most 8 MiB together, messages first, and the task has
	// MessageCount and ArtifactCount, unless the server does not know pages (ARC-D79). After is the
	// number of elements to skip, and Limit bounds their number.
	MessagesAfter  *int64 `json:"messagesAfter,omitempty"`
	MessagesLimit  *int64 `json:"messagesLimit,omitempty"`
	ArtifactsAfter *int64 `json:"artifactsAfter,omitempty"`
	ArtifactsLimit *int64 `json:"artifactsLimit,omitempty"`

	Extra Extra `json:"-" jsonmap:"extra"`
}

// MarshalJSON writes the params of task.info.
func (p TaskInfoParams) MarshalJSON() ([]byte, error) { return marshalParams(&p) }

// CancelTaskParams are the params of task.cancel.
type CancelTaskParams struct {
	TaskID string `json:"taskId"`
	Reason string `json:"reason,omitempty"`
	Extra  Extra  `json:"-" jsonmap:"extra"`
}

// MarshalJSON writes the params of task.cancel.
func (p CancelTaskParams) MarshalJSON() ([]byte, error) { return marshalParams(&p) }

// SubscribeParams are the params of task.subscribe.
type SubscribeParams struct {
	TaskID      string  `json:"taskId"`
	CallbackURL string  `json:"callbackUrl"`
	Events      []Event `json:"events,omitempty"` // empty means TASK_COMPLETED and TASK_FAILED
	Extra       Extra   `json:"-" jsonmap:"extra"`
}

// MarshalJSON writes the params of task.subscribe.
func (p SubscribeParams) MarshalJSON() ([]byte, error) { return marshalParams(&p) }

// StartChatParams are the params of chat.start.
type StartChatParams struct {
	InitialMessage *Message        `json:"initialMessage"`
	ChatID         string          `json:"chatId,omitempty"` // empty: the server chooses one
	Stream         bool            `json:"stream"`           // set by the calls that stream
	Metadata       json.RawMessage `json:"metadata,omitempty" jsonmap:"object,unset"`
	Extra          Extra           `json:"-" jsonmap:"extra"`
}

// MarshalJSON writes the params of chat.start.
func (p StartChatParams) MarshalJSON() ([]byte, error) { return marshalParams(&p) }

// ChatMessageParams are the params of chat.message.
type ChatMessageParams struct {
	ChatID  string   `json:"chatId"`
	Message *Message `json:"message"`
	Stream  bool     `json:"stream"` // set by the calls that stream
	Extra   Extra    `json:"-" jsonmap:"extra"`
}

// MarshalJSON writes the params of chat.message.
func (p ChatMessageParams) MarshalJSON() ([]byte, error) { return marshalParams(&p) }

// EndChatParams are the params of chat.end.
type EndChatParams struct {
	ChatID string `json:"chatId"`
	Reason string `json:"reason,omitempty"`
	Extra  Extra  `json:"-" jsonmap:"extra"`
}

// MarshalJSON writes the params of chat.end.
func (p EndChatParams) MarshalJSON() ([]byte, error) { return marshalParams(&p) }

// A Notification is the params of task.notification: what a webhook receives.
type Notification struct {
	TaskID    string           `json:"taskId"`
	Event     Event            `json:"event"`
	Timestamp Timestamp        `json:"timestamp"` // of the event, not of its delivery
	Data      NotificationData `json:"data"`
	Extra     Extra            `json:"-" jsonmap:"extra"`
}

// MarshalJSON writes the notification as ARC-111 has it.
func (n Notification) MarshalJSON() ([]byte, error) { return jsonmap.Append(nil, &n) }

// UnmarshalJSON reads a notification with the checks of a receiver.
func (n *Notification) UnmarshalJSON(b []byte) error {
	if _, err := wire.Check(b); err != nil {
		return err
	}
	text, err := wire.Normalize(MethodTaskNotification, b)
	if err != nil {
		return asError(err)
	}
	return unmarshal(text, n)
}

// NotificationData describes an event (ARC-112 to ARC-136). Only Status and
// Message are always set. Durations are in milliseconds.
type NotificationData struct {
	Status  string `json:"status"`  // the state of the task after the event, mostly a [TaskStatus]
	Message string `json:"message"` // for people

	Priority          Priority        `json:"priority,omitempty"`
	AssignedAgent     string          `json:"assignedAgent,omitempty"`
	CreatedAt         Timestamp       `json:"createdAt,omitempty"`
	StartedAt         Timestamp       `json:"startedAt,omitempty"`
	PausedAt          Timestamp       `json:"pausedAt,omitempty"`
	ResumedAt         Timestamp       `json:"resumedAt,omitempty"`
	CompletedAt       Timestamp       `json:"completedAt,omitempty"`
	FailedAt          Timestamp       `json:"failedAt,omitempty"`
	CanceledAt        Timestamp       `json:"canceledAt,omitempty"`
	ChangedAt         Timestamp       `json:"changedAt,omitempty"`
	Duration          json.Number     `json:"duration,omitempty"`
	PauseDuration     json.Number     `json:"pauseDuration,omitempty"`
	EstimatedDuration json.Number     `json:"estimatedDuration,omitempty"`
	ArtifactCount     json.Number     `json:"artifactCount,omitempty"`
	MessageCount      json.Number     `json:"messageCount,omitempty"`
	CanceledBy        string          `json:"canceledBy,omitempty"`
	Reason            string          `json:"reason,omitempty"`
	RequiredInput     string          `json:"requiredInput,omitempty"`
	PreviousStatus    string          `json:"previousStatus,omitempty"`
	Error             json.RawMessage `json:"error,omitempty" jsonmap:"object,unset"`
	MessageContent    *Message        `json:"messageContent,omitempty"`
	Artifact          *Artifact       `json:"artifact,omitempty"`

	Extra Extra `json:"-" jsonmap:"extra"`
}
