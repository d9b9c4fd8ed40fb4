// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

// A chatAction is something that happens to a chat; see the transitions of ChatStatus.
type chatAction string

// The actions. An agent pauses and resumes a chat; no method does (ARC-D35).
const (
	chatStart   chatAction = "start"   // chat.start
	chatMessage chatAction = "message" // chat.message
	chatPause   chatAction = "pause"
	chatResume  chatAction = "resume"
	chatEnd     chatAction = "end" // chat.end
)

// next returns the state that a chat in state s gets into by an action. The empty
// state stands for a chat that does not exist. An action that the state does not
// allow leaves the chat as it is and is [ErrChatNotFound],
// [ErrChatAlreadyClosed], or [ErrInvalidParams] for an id that is taken.
func (s ChatStatus) next(a chatAction) (ChatStatus, error) {
	switch s {
	case "":
		if a == chatStart {
			return ChatActive, nil
		}
		return s, ErrChatNotFound
	case ChatActive, ChatPaused:
		switch a {
		case chatMessage, chatResume:
			return ChatActive, nil
		case chatPause:
			return ChatPaused, nil
		case chatEnd:
			return ChatClosed, nil
		}
		return s, ErrInvalidParams
	}
	return s, ErrChatAlreadyClosed
}
