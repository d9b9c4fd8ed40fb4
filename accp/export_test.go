// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

// SetReplayWindow makes the window of replays of a new session smaller, so that
// tests can fill it.
func SetReplayWindow(s *Session, n int) { s.seen.max = n }
