// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

// SetReplayWindow makes the window of replays of a new session smaller, so that
// tests can fill it. It returns how large it was.
func SetReplayWindow(s *Session, n int) int {
	was := s.seen.max
	s.seen.max = n
	return was
}

// SetHotLimit makes hot state of a session smaller, so that tests can fill it.
func SetHotLimit(s *Session, n int) { s.hotLimit = n }
