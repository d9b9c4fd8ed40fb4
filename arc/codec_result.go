// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"encoding/json"
	"fmt"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// A Result is the result of one of the nine standard methods. One of Task,
// Subscription and Chat is set, or none of them for an acknowledgment; Object is
// set for every other method.
type Result struct {
	Task         *Task
	Subscription *Subscription
	Chat         *Chat
	Message      string // of an acknowledgment, for people
	Object       json.RawMessage
}

// DecodeResult reads the result of a response to method. The members decide what
// it is, not the type that it claims (ARC-D31, ARC-D32); a result that fits the method
// in no way is [ErrInvalidResult], an acknowledgment that denies success is
// [ErrNotAcknowledged]. Nothing of a task.notification's result matters.
func DecodeResult(method string, result json.RawMessage) (*Result, error) {
	res, err := decodeResult(method, result)
	if err != nil {
		return nil, err
	}
	return &res, nil
}

func decodeResult(method string, result json.RawMessage) (res Result, err error) {
	if method == MethodTaskNotification {
		return res, nil
	}
	v, err := checkJSON(result)
	if err != nil || !v.IsObject() {
		return res, fmt.Errorf("%w: not an object", ErrInvalidResult)
	}
	r := newReader(true)
	defer r.free()
	switch method {
	case MethodTaskCreate, MethodTaskSend, MethodTaskInfo, MethodTaskCancel:
		if t := r.task(v.Get("task")); t != nil {
			return Result{Task: t}, nil
		}
	case MethodTaskSubscribe:
		if s := r.subscription(v.Get("subscription")); s != nil {
			return Result{Subscription: s}, nil
		}
	case MethodChatStart, MethodChatMessage, MethodChatEnd:
		if c := r.chat(v.Get("chat")); c != nil {
			return Result{Chat: c}, nil
		}
	default:
		return Result{Object: raw(v)}, nil
	}
	if method == MethodTaskSend || method == MethodChatMessage {
		if yes, ok := v.Get("success").Bool(); ok {
			if !yes {
				return res, ErrNotAcknowledged
			}
			message, _ := v.Get("message").Text()
			return Result{Message: message}, nil
		}
	}
	return res, fmt.Errorf("%w for %s", ErrInvalidResult, method)
}

var taskMembers = []string{"taskId", "status", "createdAt", "updatedAt", "messages", "artifacts", "canceledAt", "reason",
	"completedAt", "failedAt", "error", "priority", "assignedAgent", "metadata", "messageCount", "artifactCount"}

// newTask makes a task, with memory for the usual history, a message of one part,
// if there is one to read.
func newTask(messages strictjson.Value) (*Task, []Message) {
	if e := messages.Elements(); !e.Next() {
		return &Task{}, []Message{}
	}
	box := &struct {
		Task
		messages [1]Message
		parts    [1]Part
	}{}
	box.messages[0].Parts = box.parts[:0]
	return &box.Task, box.messages[:0]
}

// task reads a task, or returns nil if it has no id or no status.
func (r *reader) task(v strictjson.Value) *Task {
	f := r.object(v, taskMembers)
	defer f.done()
	id, _ := r.texts.text(f.vals[0])
	status, ok := r.texts.text(f.vals[1])
	if id == "" || !ok {
		return nil
	}
	t, messages := newTask(f.vals[4])
	t.ID, t.Status = id, TaskStatus(status)
	t.CreatedAt, t.UpdatedAt = f.peerTime(2), f.peerTime(3)
	if v := f.vals[4]; v.IsArray() {
		t.Messages = messages
		for e := v.Elements(); e.Next(); {
			var m Message
			if len(t.Messages) < cap(messages) {
				m.Parts = messages[:1][0].Parts
			}
			if !r.messageInto(&m, e.Value) {
				t.Messages = nil
				f.keep("messages", v)
				break
			}
			t.Messages = append(t.Messages, m)
		}
	} else if !v.Absent() {
		f.keep("messages", v)
	}
	if v := f.vals[5]; v.IsArray() {
		t.Artifacts = []Artifact{}
		for e := v.Elements(); e.Next(); {
			a := r.artifact(e.Value)
			if a == nil {
				t.Artifacts = nil
				f.keep("artifacts", v)
				break
			}
			t.Artifacts = append(t.Artifacts, *a)
		}
	} else if !v.Absent() {
		f.keep("artifacts", v)
	}
	t.CanceledAt, t.Reason = f.peerTime(6), f.peerText(7)
	t.CompletedAt, t.FailedAt = f.peerTime(8), f.peerTime(9)
	if v := f.vals[10]; !v.Absent() {
		if t.Error, ok = decodeError(v); !ok {
			t.Error = nil
			f.keep("error", v)
		}
	}
	t.Priority, t.AssignedAgent = Priority(f.peerText(11)), f.peerText(12)
	t.Metadata = f.any(13)
	t.MessageCount, t.ArtifactCount = f.peerNumber(14), f.peerNumber(15)
	t.Extra = f.extra
	return t
}

var chatMembers = []string{"chatId", "status", "message", "participants", "createdAt", "updatedAt", "closedAt", "reason", "metadata"}

// chat reads a chat, or returns nil if it has no id.
func (r *reader) chat(v strictjson.Value) *Chat {
	f := r.object(v, chatMembers)
	defer f.done()
	id, _ := r.texts.text(f.vals[0])
	if id == "" {
		return nil
	}
	c := &Chat{ID: id, Status: ChatStatus(f.peerText(1))}
	if v := f.vals[2]; !v.Absent() {
		if c.Message = r.messageIn(f.names[2], v); c.Message == nil {
			f.keep("message", v)
		}
	}
	if v := f.vals[3]; v.IsArray() {
		c.Participants = []string{}
		for e := v.Elements(); e.Next(); {
			s, ok := r.texts.text(e.Value)
			if !ok {
				c.Participants = nil
				f.keep("participants", v)
				break
			}
			c.Participants = append(c.Participants, s)
		}
	} else if !v.Absent() {
		f.keep("participants", v)
	}
	c.CreatedAt, c.UpdatedAt, c.ClosedAt = f.peerTime(4), f.peerTime(5), f.peerTime(6)
	c.Reason = f.peerText(7)
	c.Metadata = f.any(8)
	c.Extra = f.extra
	return c
}

var subscriptionMembers = []string{"subscriptionId", "taskId", "callbackUrl", "events", "createdAt", "active"}

// subscription reads a subscription, or returns nil if it has no id.
func (r *reader) subscription(v strictjson.Value) *Subscription {
	f := r.object(v, subscriptionMembers)
	defer f.done()
	id, _ := r.texts.text(f.vals[0])
	if id == "" {
		return nil
	}
	s := &Subscription{ID: id, TaskID: f.peerText(1), CallbackURL: f.peerText(2)}
	if v := f.vals[3]; v.IsArray() {
		for e := v.Elements(); e.Next(); {
			name, ok := r.texts.text(e.Value)
			if !ok {
				s.Events = nil
				f.keep("events", v)
				break
			}
			s.Events = append(s.Events, Event(name))
		}
	} else if !v.Absent() {
		f.keep("events", v)
	}
	s.CreatedAt = f.peerTime(4)
	s.Active = f.flag(5, false)
	s.Extra = f.extra
	return s
}

func taskResult(t *Task) (json.RawMessage, error) {
	return encode(func(w *writer) {
		w.open()
		w.text("type", "task")
		w.key("task")
		w.task(t)
		w.close()
	})
}

func chatResult(c *Chat) (json.RawMessage, error) {
	return encode(func(w *writer) {
		w.open()
		w.text("type", "chat")
		w.key("chat")
		w.chat(c)
		w.close()
	})
}

func subscriptionResult(s *Subscription, p Profile) (json.RawMessage, error) {
	kind := "task" // not "subscription": ARC-D32
	if p == ProfilePythonSDK {
		kind = "subscription"
	}
	return encode(func(w *writer) {
		w.open()
		w.text("type", kind)
		w.key("subscription")
		w.subscription(s)
		w.close()
	})
}
