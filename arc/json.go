// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"encoding/json"
	"errors"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// The methods below let users embed the types of this package in JSON messages.
// Decoding is strict about JSON and lenient about ARC, as for a peer's message.

// MarshalJSON writes the message as section 7 has it.
func (m Message) MarshalJSON() ([]byte, error) { return encode(func(w *writer) { w.message(&m) }) }

// UnmarshalJSON reads a message of a peer.
func (m *Message) UnmarshalJSON(b []byte) error {
	return unmarshal(b, m, (*reader).message)
}

// MarshalJSON writes the part as section 7 has it.
func (p Part) MarshalJSON() ([]byte, error) { return encode(func(w *writer) { w.part(&p) }) }

// UnmarshalJSON reads a part of a peer.
func (p *Part) UnmarshalJSON(b []byte) error {
	return unmarshal(b, p, func(r *reader, v strictjson.Value) *Part {
		part := r.part(v)
		return &part
	})
}

// MarshalJSON writes the artifact as section 7 has it.
func (a Artifact) MarshalJSON() ([]byte, error) { return encode(func(w *writer) { w.artifact(&a) }) }

// UnmarshalJSON reads an artifact of a peer.
func (a *Artifact) UnmarshalJSON(b []byte) error {
	return unmarshal(b, a, (*reader).artifact)
}

// MarshalJSON writes the task as section 7 has it.
func (t Task) MarshalJSON() ([]byte, error) { return encode(func(w *writer) { w.task(&t) }) }

// UnmarshalJSON reads a task of a peer. It needs an id and a status.
func (t *Task) UnmarshalJSON(b []byte) error { return unmarshal(b, t, (*reader).task) }

// MarshalJSON writes the chat as section 7 has it.
func (c Chat) MarshalJSON() ([]byte, error) { return encode(func(w *writer) { w.chat(&c) }) }

// UnmarshalJSON reads a chat of a peer. It needs an id.
func (c *Chat) UnmarshalJSON(b []byte) error { return unmarshal(b, c, (*reader).chat) }

// MarshalJSON writes the subscription as ARC-101 has it.
func (s Subscription) MarshalJSON() ([]byte, error) {
	return encode(func(w *writer) { w.subscription(&s) })
}

// UnmarshalJSON reads a subscription of a peer. It needs an id.
func (s *Subscription) UnmarshalJSON(b []byte) error { return unmarshal(b, s, (*reader).subscription) }

// MarshalJSON writes the notification as ARC-111 has it.
func (n Notification) MarshalJSON() ([]byte, error) { return encode(n.write) }

// UnmarshalJSON reads a notification with the checks of a receiver.
func (n *Notification) UnmarshalJSON(b []byte) error {
	v, err := checkJSON(b)
	if err != nil {
		return err
	}
	var r reader
	got := r.notification(v)
	if r.fault != nil {
		return r.fault
	}
	*n = *got
	return nil
}

// MarshalJSON writes code, message and details (section 4).
func (e *Error) MarshalJSON() ([]byte, error) { return encode(func(w *writer) { w.error(e) }) }

// UnmarshalJSON reads the error of a response.
func (e *Error) UnmarshalJSON(b []byte) error {
	return unmarshal(b, e, func(_ *reader, v strictjson.Value) *Error {
		got, ok := decodeError(v)
		if !ok {
			return nil
		}
		return got
	})
}

// MarshalJSON writes the params of task.create.
func (p CreateTaskParams) MarshalJSON() ([]byte, error) { return encode(p.write) }

// MarshalJSON writes the params of task.send.
func (p SendTaskParams) MarshalJSON() ([]byte, error) { return encode(p.write) }

// MarshalJSON writes the params of task.info.
func (p TaskInfoParams) MarshalJSON() ([]byte, error) { return encode(p.write) }

// MarshalJSON writes the params of task.cancel.
func (p CancelTaskParams) MarshalJSON() ([]byte, error) { return encode(p.write) }

// MarshalJSON writes the params of task.subscribe.
func (p SubscribeParams) MarshalJSON() ([]byte, error) { return encode(p.write) }

// MarshalJSON writes the params of chat.start.
func (p StartChatParams) MarshalJSON() ([]byte, error) { return encode(p.write) }

// MarshalJSON writes the params of chat.message.
func (p ChatMessageParams) MarshalJSON() ([]byte, error) { return encode(p.write) }

// MarshalJSON writes the params of chat.end.
func (p EndChatParams) MarshalJSON() ([]byte, error) { return encode(p.write) }

var errShape = errors.New("arc: JSON of another shape")

func unmarshal[T any](b []byte, dst *T, read func(*reader, strictjson.Value) *T) error {
	v, err := checkJSON(b)
	if err != nil {
		return err
	}
	if !v.IsObject() {
		return errShape
	}
	got := read(&reader{lenient: true}, v)
	if got == nil {
		return errShape
	}
	*dst = *got
	return nil
}

var _ = []json.Marshaler{Message{}, Part{}, Artifact{}, Task{}, Chat{}, Subscription{}, Notification{}, &Error{}}
