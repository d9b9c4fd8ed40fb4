// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Send sends a message to the agent that belongs to no answer: an event of a
// process, a change of an environment. It waits while the agent does not read.
func (s *Session) Send(ctx context.Context, msgType string, body any) error {
	return s.sendMessage(ctx, NewMessage(msgType, body))
}

func (s *Session) sendMessage(ctx context.Context, m *Message) error {
	line, err := s.boundedLine(m)
	if err != nil {
		return err
	}
	defer freeLine(line)
	return s.post(ctx, *line, func() error {
		if s.state == stateClosed {
			return ErrClosed
		}
		return nil
	}, func(int) {})
}

// boundedLine encodes a message of a handler. The error of a message over the bounds that the agent
// announced, or MaxOutput, is for the handler (A2E-D57).
func (s *Session) boundedLine(m *Message) (*[]byte, error) {
	s.mu.Lock()
	limit := s.host.codec.within(s.reads)
	s.mu.Unlock()
	return s.host.codec.boundedLine(m, ErrRuntime, limit)
}

// isOverBound reports whether a message was not encoded because of its size or depth.
func isOverBound(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && (e.Reason == ReasonTooLarge || e.Reason == ReasonTooDeep)
}

// A reply is what an agent answered to a request of the host.
type reply struct {
	answer *Message
	err    error // the error of an invalid answer
}

// Call sends a request to the agent and waits for the answer (A2E-D39). An error message is
// returned as an [*Error], an answer that violates the protocol as [ErrInvalidResponse].
func (s *Session) Call(ctx context.Context, msgType string, body any) (*Message, error) {
	m := NewMessage(msgType, body)
	call, err := s.replies.Add(m.ID, time.Time{}, reply{})
	if err != nil {
		return nil, fmt.Errorf("a2e: call %s: %w", msgType, err)
	}
	if err := s.sendMessage(ctx, m); err != nil {
		s.replies.Fail(m.ID, err)
		return nil, err
	}
	got, err := call.Wait(ctx)
	switch {
	case err != nil:
		s.replies.Fail(m.ID, err) // agents cannot cancel, so the slot is free
		return nil, err
	case got.err != nil:
		return nil, fmt.Errorf("%w: %w", ErrInvalidResponse, got.err)
	}
	if b, ok := got.answer.Body.(*ErrorBody); ok {
		return nil, b.received()
	}
	if want := responseType(msgType); want != "" && hostReading(canonicalType(got.answer.Type)) != canonicalType(want) {
		return nil, ErrUnexpectedResponse
	}
	return got.answer, nil
}
