// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engine

// A ChatAction is something that happens to a chat.
type ChatAction string

// The actions. An agent pauses and resumes a chat; no method does (ARC-D35).
const (
	StartChat   ChatAction = "start"   // chat.start
	MessageChat ChatAction = "message" // chat.message
	PauseChat   ChatAction = "pause"
	ResumeChat  ChatAction = "resume"
	EndChat     ChatAction = "end" // chat.end
)

// The states of chats. Without one, the chat does not exist.
const (
	active = "ACTIVE"
	paused = "PAUSED"
	closed = "CLOSED"
)

// NextChat returns the state of a chat after an action, and reports false if the state does not allow it.
func NextChat(s string, a ChatAction) (string, bool) {
	switch {
	case s == "" && a == StartChat:
		return active, true
	case s != active && s != paused || a == StartChat:
		return s, false
	case a == PauseChat:
		return paused, true
	case a == EndChat:
		return closed, true
	}
	return active, true
}
