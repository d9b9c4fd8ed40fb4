// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package order numbers the frames of a session and decides which received ones are in order, which are
// repetitions, and which belong to a cancelled chain. It does no I/O.
package order

import (
	"iter"
	"math"
	"strings"
)

const (
	maxJump    = 1000 // longest gap after which the number is used (ACCP-D25)
	maxSenders = 4096 // with a number
	maxChanges = 1024 // message ids of changes of the shared state
)

// A State has the numbers of a session. Its zero value is not ready for use; see [New].
type State struct {
	IsStarted bool  // a frame was received in order
	High      int64 // M of ACCP-D24
	Last      Numbers
	Seen      Window // message ids (ACCP-D26)
	Cancelled Window // chains (ACCP-D28)
	Changes   Window // message ids of received changes of the shared state

	isPerSender bool
}

// New returns an empty state whose windows hold a number of marks.
func New(marks int, isPerSender bool) State {
	return State{Seen: NewWindow(marks), Cancelled: NewWindow(marks), Changes: NewWindow(maxChanges), isPerSender: isPerSender}
}

// Reset returns an empty state with the bounds of s.
func (s *State) Reset() State { return New(s.Seen.max, s.isPerSender) }

// Check reports whether the number of a received frame is in order, and whether a refused one is used
// up (ACCP-D24, ACCP-D25). A frame that begins an exchange of a client is a base.
func (s *State) Check(from string, n int64, isBase bool) (ok, isUsed bool) {
	last, found := s.Last.Get(from)
	high := s.High
	if s.isPerSender {
		if !found {
			return true, true
		}
		high = last
	}
	// The differences cannot overflow: no number is negative.
	switch {
	case found && n <= last:
		return false, false
	case isBase, !s.IsStarted, n <= high, n-high == 1:
		return true, true
	}
	return false, n-high <= maxJump+1
}

// Next returns the number of the next frame of a sender, or false if the session has used all numbers (ACCP-D20).
func (s *State) Next(from string) (int64, bool) {
	n := s.High
	if s.isPerSender {
		n, _ = s.Last.Get(from)
	}
	if n == math.MaxInt64 {
		return 0, false
	}
	return n + 1, true
}

// IsPerSender reports whether each sender has its own numbers.
func (s *State) IsPerSender() bool { return s.isPerSender }

// Use uses the number of a frame. An exact one replaces a higher one.
func (s *State) Use(from string, n int64, isExact bool) {
	s.High = max(s.High, n)
	if isExact {
		s.High = n
	}
	s.Last.set(from, n)
}

// Bounds returns the number of marks that the windows hold.
func (s *State) Bounds() int { return s.Seen.max }

// Bytes returns the size of the state in memory.
func (s *State) Bytes() int {
	return s.Seen.bytes() + s.Cancelled.bytes() + s.Changes.bytes() + s.Last.bytes
}

// Numbers are the last numbers of the senders. The zero value is empty.
type Numbers struct {
	last  map[string]int64
	names []string // the oldest first from next on
	next  int
	bytes int
}

const senderBytes = 128 // of a sender besides its name

// Get returns the last number of a sender.
func (l *Numbers) Get(name string) (int64, bool) {
	n, ok := l.last[name]
	return n, ok
}

// set replaces the oldest sender if there are too many.
func (l *Numbers) set(name string, n int64) {
	if _, ok := l.last[name]; !ok {
		name = strings.Clone(name) // releases the memory of the frame
		if l.last == nil {
			l.last = map[string]int64{}
		}
		if len(l.names) < maxSenders {
			l.names = append(l.names, name)
		} else {
			old := l.names[l.next]
			delete(l.last, old)
			l.bytes -= len(old) + senderBytes
			l.names[l.next] = name
			l.next = (l.next + 1) % maxSenders
		}
		l.bytes += len(name) + senderBytes
	}
	l.last[name] = n
}

// All yields the senders with their last numbers, the oldest first.
func (l *Numbers) All() iter.Seq2[string, int64] {
	return func(yield func(string, int64) bool) {
		for i := range l.names {
			name := l.names[(l.next+i)%len(l.names)]
			if !yield(name, l.last[name]) {
				return
			}
		}
	}
}
