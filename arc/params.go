// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import "encoding/json"

// CreateTaskParams are the params of task.create.
type CreateTaskParams struct {
	InitialMessage *Message
	Priority       Priority        // empty means NORMAL
	Metadata       json.RawMessage // an object, or nil; its content is free
	Extra          Extra
}

// SendTaskParams are the params of task.send.
type SendTaskParams struct {
	TaskID  string
	Message *Message
	Extra   Extra
}

// TaskInfoParams are the params of task.info. The zero value of the two switches
// asks for everything, as the specification's defaults do.
type TaskInfoParams struct {
	TaskID        string
	OmitMessages  bool // includeMessages: false
	OmitArtifacts bool // includeArtifacts: false

	// With any of these the lists have at most 8 MiB together, messages first, and the task has
	// MessageCount and ArtifactCount, unless the server does not know pages (ARC-D79). After is the
	// number of elements to skip, and Limit bounds their number.
	MessagesAfter, MessagesLimit, ArtifactsAfter, ArtifactsLimit *int64

	Extra Extra
}

// CancelTaskParams are the params of task.cancel.
type CancelTaskParams struct {
	TaskID string
	Reason string
	Extra  Extra
}

// SubscribeParams are the params of task.subscribe.
type SubscribeParams struct {
	TaskID      string
	CallbackURL string
	Events      []Event // empty means TASK_COMPLETED and TASK_FAILED
	Extra       Extra
}

// StartChatParams are the params of chat.start.
type StartChatParams struct {
	InitialMessage *Message
	ChatID         string          // empty: the server chooses one
	Stream         bool            // set by the calls that stream
	Metadata       json.RawMessage // an object, or nil
	Extra          Extra
}

// ChatMessageParams are the params of chat.message.
type ChatMessageParams struct {
	ChatID  string
	Message *Message
	Stream  bool // set by the calls that stream
	Extra   Extra
}

// EndChatParams are the params of chat.end.
type EndChatParams struct {
	ChatID string
	Reason string
	Extra  Extra
}

// A Notification is the params of task.notification: what a webhook receives.
type Notification struct {
	TaskID    string
	Event     Event
	Timestamp Timestamp // of the event, not of its delivery
	Data      NotificationData
	Extra     Extra
}

// NotificationData describes an event (ARC-112 to ARC-136). Only Status and
// Message are always set.
type NotificationData struct {
	Status  string // the state of the task after the event, mostly a [TaskStatus]
	Message string // for people

	Priority          Priority
	AssignedAgent     string
	CreatedAt         Timestamp
	StartedAt         Timestamp
	PausedAt          Timestamp
	ResumedAt         Timestamp
	CompletedAt       Timestamp
	FailedAt          Timestamp
	CanceledAt        Timestamp
	ChangedAt         Timestamp
	Duration          json.Number // milliseconds; empty means absent, like the numbers below
	PauseDuration     json.Number // milliseconds
	EstimatedDuration json.Number // milliseconds
	ArtifactCount     json.Number
	MessageCount      json.Number
	CanceledBy        string
	Reason            string
	RequiredInput     string
	PreviousStatus    string
	Error             json.RawMessage // an object
	MessageContent    *Message
	Artifact          *Artifact

	Extra Extra
}
