// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"context"
	"fmt"
)

// Send sends a message to the agent that belongs to no answer: an event of a
// process, a change of an environment. It waits while the agent does not read.
func (s *Session) Send(ctx context.Context, msgType string, body any) error {
	if err := s.out.wait(ctx); err != nil {
		return err
	}
	line, err := s.host.codec.Append(nil, NewMessage(msgType, body))
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == stateClosed {
		return ErrClosed
	}
	s.out.put(line)
	return nil
}

// A reply is what an agent answered to a request of the host.
type reply struct {
	answer *Message
	err    error // why it is none
}

// Call asks the agent something and waits for the answer (A2E-D39). An error
// message is returned as an [*Error], an answer that violates the protocol as
// [ErrInvalidResponse].
func (s *Session) Call(ctx context.Context, msgType string, body any) (*Message, error) {
	m := NewMessage(msgType, body)
	line, err := s.host.codec.Append(nil, m)
	if err != nil {
		return nil, err
	}
	waiter := make(chan reply, 1)
	s.mu.Lock()
	if s.state == stateClosed {
		s.mu.Unlock()
		return nil, ErrClosed
	}
	s.waiters[m.ID] = waiter
	s.out.put(line)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.waiters, m.ID)
		s.mu.Unlock()
	}()
	select {
	case got := <-waiter:
		answer := got.answer
		if got.err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalidResponse, got.err)
		}
		if b, ok := answer.Body.(*ErrorBody); ok {
			return nil, b.received()
		}
		if want := responseType(msgType); want != "" && hostReading(CanonicalType(answer.Type)) != CanonicalType(want) {
			return nil, ErrUnexpectedResponse
		}
		return answer, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-s.ctx.Done():
		return nil, ErrClosed
	}
}
