// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

// refused is the code of an action that a chat in this state refuses. The empty state stands for a chat that does not
// exist.
func (s ChatStatus) refused() Code {
	switch s {
	case "":
		return ErrChatNotFound
	case ChatClosed:
		return ErrChatAlreadyClosed
	}
	return ErrInvalidParams // a chat.start with an id that is in use
}
