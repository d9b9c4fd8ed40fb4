// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"errors"
	"slices"
)

// A Profile is a named set of schemas and rules for their use. A session may have any number of
// profiles.
type Profile struct {
	Name    string
	Schemas []Schema // custom schemas of the profile

	// Sequences are the exchanges of the profile, such as req:tool, done:tool. They are
	// documentation and not enforced.
	Sequences [][]string

	// Validator, if set, checks every message sent and received, with full keys. An error rejects
	// the message.
	Validator func(m *Message) error
}

// BuiltinProfiles returns the profiles of the draft: chat (CH), tool (TC), transaction (TX),
// streaming (ST) and workflow (TA). A session enforces their rules without [Session.AddProfile].
func BuiltinProfiles() []Profile {
	return []Profile{
		{Name: SchemaChat, Sequences: [][]string{{"req:chat", "done:chat"}}},
		{Name: SchemaTool, Sequences: [][]string{{"req:tool", "done:tool"}, {"req:tool", "fail:error"}}},
		{Name: SchemaTransaction, Sequences: [][]string{{"req:transaction", "done:transaction"}}},
		{Name: SchemaStream, Sequences: [][]string{{"stream", "end"}}},
		{Name: SchemaTask, Sequences: [][]string{{"req:schedule", "done:schedule"}}},
	}
}

// AddProfile adds a profile to the session. If one of its schemas is rejected, the schemas before
// it stay registered and the profile is not active.
func (s *Session) AddProfile(p Profile) error {
	for _, schema := range p.Schemas {
		if err := s.registry.Register(schema); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.profiles = append(s.profiles, p)
	return nil
}

// profiles are the active ones of a session.
type profiles []Profile

// check calls the validators.
func (list profiles) check(m *Message) error {
	for _, p := range list {
		if p.Validator == nil {
			continue
		}
		if err := p.Validator(m); err != nil {
			var e *Error
			if errors.As(err, &e) {
				return e
			}
			return &Error{Code: ErrPolicyDenied, Message: "profile " + p.Name, Cause: err}
		}
	}
	return nil
}

// A Chat is a message of the chat profile.
type Chat struct {
	Role    string `json:"role,omitempty"` // empty: assistant
	Content string `json:"content"`
	Turn    int64  `json:"turn,omitempty"`
	Lang    string `json:"lang,omitempty"` // empty: en
	ReplyTo string `json:"reply_to,omitempty"`
}

// A Transaction is a message of the transaction profile. The id must stay the same over retries.
type Transaction struct {
	ID        string `json:"transaction_id"`    // must not be empty
	Amount    string `json:"amount" accp:"dec"` // exact decimal of at most six places; empty: absent
	Currency  string `json:"currency,omitempty"`
	Account   string `json:"account,omitempty"`
	Reference string `json:"reference,omitempty"`
	Status    string `json:"status,omitempty"`
	Retryable bool   `json:"retryable,omitempty"`
}

// A ToolCall is a request of the tool profile.
type ToolCall struct {
	Name      string `json:"tool_name"`
	Arguments Value  `json:"arguments"` // a map
}

// A Chunk is one piece of a stream.
type Chunk struct {
	Index int64  `json:"chunk_index"`
	Total *int64 `json:"total_chunks"` // nil if unknown
	Data  Value  `json:"data"`
	Final bool   `json:"is_final"`
}

// A Task is a message of the workflow profile.
type Task struct {
	Assignee string   `json:"assignee,omitempty"`
	Task     string   `json:"task,omitempty"`
	Priority string   `json:"priority,omitempty"` // empty: medium
	Deadline string   `json:"deadline,omitempty"`
	Deps     []string `json:"deps,omitempty"`
	Status   string   `json:"status,omitempty"`
	Progress *int64   `json:"progress"`
}

// NewMessage returns a message with the params of a struct (see [Marshal]). The schema may be
// empty.
func NewMessage(intent Intent, op, schema string, v any) (*Message, error) {
	params, err := Marshal(v)
	if err != nil {
		return nil, err
	}
	if schema != "" {
		params = params.Set(keySchema, String(schema))
	}
	return &Message{Intent: intent, Op: op, Params: params}, nil
}

// A ToolFunc performs a tool call. The arguments have full keys. The code of an [*Error] or a
// [Code] is sent; any other error is [ErrToolExecFailed].
type ToolFunc func(ctx context.Context, arguments Params) (Value, error)

// NewToolHandler returns a handler of req:tool frames, which answers with done:tool. A name that is
// not in tools is [ErrToolNotFound]. Arguments that are not a map, or a name that is not a string,
// are [ErrToolSchema].
func NewToolHandler(tools map[string]ToolFunc) Handler {
	return HandlerFunc(func(ctx context.Context, w *ReplyWriter, m *Message) error {
		name, _ := m.Params.Get("tool_name")
		arguments, there := m.Params.Get("arguments")
		if name.kind != KindString || there && arguments.kind != KindMap {
			return fail(ErrToolSchema, "tool_name must be a string and arguments a map")
		}
		tool := tools[name.text]
		if tool == nil {
			return fail(ErrToolNotFound, "tool %.80q", name.text)
		}
		result, err := tool(ctx, slices.Clone(arguments.Entries()))
		if err != nil {
			var e *Error
			var c Code
			if errors.As(err, &e) || errors.As(err, &c) {
				return err
			}
			return &Error{Code: ErrToolExecFailed, Message: "tool " + name.text, Cause: err}
		}
		return w.SendResult(Params{{"tool_name", name}, {"result", result}, {keySchema, String(SchemaTool)}})
	})
}
