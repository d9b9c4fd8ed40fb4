// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"encoding/json"
	"errors"
	"time"
)

// A CallStream is the client's state of one call. It receives the messages of the call and yields
// payloads in order (section e of the protocol reference, client call). It is not safe for
// concurrent use.
type CallStream struct {
	id      string
	asm     assembler
	started bool // a chunk was accepted
	isEnded bool
	err     error
	out     []json.RawMessage
	first   int                // of out
	one     [1]json.RawMessage // room for the payloads of most calls

	result *ToolResult // what ended the call, if it was one
}

// NewCallStream returns the state of a call that was just sent.
func NewCallStream(invocationID string) *CallStream {
	return &CallStream{id: invocationID}
}

// Add takes a message in, and reports whether it had any effect. Messages of
// other calls have none, and neither have chunks that are late or doubled.
func (s *CallStream) Add(m Message, now time.Time) bool {
	if s.isEnded {
		return false
	}
	switch m := m.(type) {
	case *StreamChunk:
		return m.InvocationID == s.id && s.chunk(m, now)
	case *ToolResult:
		if m.InvocationID != s.id || m.Error == nil && s.started {
			return false
		}
		s.isEnded = true
		s.result = m
		if m.Error != nil {
			s.err = m.Error
		} else {
			s.push(m.Payload)
		}
		return true
	}
	return false
}

func (s *CallStream) chunk(c *StreamChunk, now time.Time) bool {
	if s.asm.inOrder(c) {
		s.started = true
		s.deliver(c)
		return true
	}
	accepted, err := s.asm.Add(c, now)
	if err != nil {
		s.fail(err)
		return true
	}
	if !accepted {
		return false
	}
	s.started = true
	for c := s.asm.Next(now); c != nil; c = s.asm.Next(now) {
		s.deliver(c)
	}
	return true
}

func (s *CallStream) deliver(c *StreamChunk) {
	switch {
	case c.Error != nil:
		s.fail(c.Error)
	case c.Payload != nil:
		s.push(c.Payload)
	}
	if c.IsFinal {
		s.isEnded = true
	}
}

// Broken takes in a frame that [DecodeMessage] refused: if it was a result or a chunk
// of this call, the call fails with INTERNAL_ERROR invalid_result (ALT-D06). It
// reports whether it was.
func (s *CallStream) Broken(err error) bool {
	var e *DecodeError
	if s.isEnded || !errors.As(err, &e) || e.InvocationID != s.id || e.Type != "ToolResult" && e.Type != "StreamChunk" {
		return false
	}
	s.fail(errInvalidResult())
	return true
}

// Gap fails the call if a missing chunk was waited for long enough by now, and
// otherwise says until when to wait, zero meaning that nothing is missing.
func (s *CallStream) Gap(now time.Time) (until time.Time) {
	if s.isEnded {
		return time.Time{}
	}
	until, waiting := s.asm.Waiting()
	if waiting && !now.Before(until) {
		s.fail(errChunkGap())
		return time.Time{}
	}
	return until
}

func (s *CallStream) push(payload json.RawMessage) {
	if s.out == nil {
		s.out = s.one[:0]
	}
	s.out = append(s.out, payload)
}

func (s *CallStream) fail(err error) {
	s.isEnded, s.err = true, err
}

// Next returns the next payload, if there is one.
func (s *CallStream) Next() (payload json.RawMessage, ok bool) {
	if s.first == len(s.out) {
		s.out, s.first = s.out[:0], 0
		return nil, false
	}
	payload = s.out[s.first]
	s.out[s.first] = nil
	s.first++
	return payload, true
}

// End reports whether the call has ended, and with which error. There may still
// be payloads to take.
func (s *CallStream) End() (done bool, err error) { return s.isEnded, s.err }

// Expected returns the id of the chunk that is due: where to resume (ALT-D22).
func (s *CallStream) Expected() int64 { return s.asm.Expected() }

func errInvalidResult() *Error {
	return fault(ErrInternal, ReasonInvalidResult, "", "the Runtime sent an answer that is not valid")
}
