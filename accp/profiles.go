// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"errors"
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
