// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/fivewire/fivewire/altar/internal/core"
)

// A callStream is the client's state of one call. It receives the messages of the call and yields
// payloads in order (section e of the protocol reference, client call). It is not safe for
// concurrent use.
type callStream struct {
	id      string
	order   core.Order
	started bool // a chunk was accepted
	isEnded bool
	err     error
	out     []json.RawMessage
	first   int                // of out
	one     [1]json.RawMessage // room for the payloads of most calls

	waiting int   // bytes of out
	longest int   // of a payload
	credit  int64 // chunks with lower ids may be sent

	result *ToolResult // what ended the call, if it was one
}

// newCallStream returns the state of a call that was just sent.
func newCallStream(invocationID string) *callStream {
	return &callStream{id: invocationID}
}

// Add takes a message in, and reports whether it had any effect. Messages of
// other calls have none, and neither have chunks that are late or doubled. The
// clock is read only for a chunk that is out of order.
func (s *callStream) Add(m Message, clock func() time.Time) bool {
	if s.isEnded {
		return false
	}
	switch m := m.(type) {
	case *StreamChunk:
		return m.InvocationID == s.id && s.chunk(m, clock)
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

func (s *callStream) chunk(c *StreamChunk, clock func() time.Time) bool {
	if s.order.AddNext(c.ChunkID, c.IsFinal) {
		s.started = true
		s.deliver(c)
		return true
	}
	now := clock()
	switch s.order.Add(chunkOf(c), now) {
	case core.Gap:
		s.fail(errChunkGap())
		return true
	case core.Late:
		return false
	}
	s.started = true
	for c, ok := s.order.Next(now); ok; c, ok = s.order.Next(now) {
		s.deliver(c.Data.(*StreamChunk))
	}
	return true
}

func (s *callStream) deliver(c *StreamChunk) {
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
func (s *callStream) Broken(err error) bool {
	var e *badFrame
	if s.isEnded || !errors.As(err, &e) || e.InvocationID != s.id || e.Type != "ToolResult" && e.Type != "StreamChunk" {
		return false
	}
	s.fail(errInvalidResult())
	return true
}

// Gap fails the call if a missing chunk was waited for long enough, and
// otherwise returns for how long to wait: zero if nothing is missing.
func (s *callStream) Gap() (wait time.Duration) {
	until, isWaiting := s.order.Waiting()
	if s.isEnded || !isWaiting {
		return 0
	}
	wait = time.Until(until)
	if wait <= 0 {
		s.fail(errChunkGap())
		return 0
	}
	return wait
}

func (s *callStream) push(payload json.RawMessage) {
	switch cap(s.out) {
	case 0:
		s.out = s.one[:0]
	case len(s.one): // a stream
		s.out = slices.Grow(s.out, firstClientCredit)
	}
	s.out = append(s.out, payload)
	s.waiting += len(payload)
	s.longest = max(s.longest, len(payload))
}

func (s *callStream) fail(err error) {
	s.isEnded, s.err = true, err
}

// Next returns the next payload, if there is one.
func (s *callStream) Next() (payload json.RawMessage, ok bool) {
	if s.first == len(s.out) {
		s.out, s.first = s.out[:0], 0
		return nil, false
	}
	payload = s.out[s.first]
	s.out[s.first] = nil
	s.first++
	s.waiting -= len(payload)
	return payload, true
}

// End reports whether the call has ended, and with which error. There may still
// be payloads to take.
func (s *callStream) End() (done bool, err error) { return s.isEnded, s.err }

// Expected returns the id of the chunk that is due: where to resume (ALT-D22).
func (s *callStream) Expected() int64 { return s.order.Expected() }

// Credits of a client (ALT-D37).
const (
	firstClientCredit = 16
	maxClientCredit   = 64      // chunks that wait for the reader
	maxClientWaiting  = 1 << 20 // bytes of them, by the longest
)

// Grant returns the credit for the Host after the reader took a payload, and reports whether it
// has changed enough to be sent.
func (s *callStream) Grant() (credit int64, isRaised bool) {
	ahead := maxClientCredit
	if s.longest > 0 {
		ahead = min(maxClientCredit, max(1, maxClientWaiting/s.longest))
	}
	credit = s.order.Expected() - int64(len(s.out)-s.first) + int64(ahead)
	if s.isEnded || credit < s.credit+int64(max(1, ahead/2)) {
		return s.credit, false
	}
	s.credit = credit
	return credit, true
}

func errChunkGap() *Error {
	return fault(ErrInternal, reasonChunkGap, "", "a part of the stream is missing")
}

func errInvalidResult() *Error {
	return fault(ErrInternal, reasonInvalidResult, "", "the Runtime sent an answer that is not valid")
}
