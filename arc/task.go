// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"encoding/json"

	"github.com/fivewire/fivewire/arc/internal/engine"
)

// refused is the code of a change that a task in this state refuses.
func (s TaskStatus) refused() Code {
	switch s {
	case TaskCompleted:
		return ErrTaskAlreadyCompleted
	case TaskCanceled:
		return ErrTaskAlreadyCanceled
	}
	return ErrInvalidTaskTransition
}

// taskFault is the error that a caller gets for an action that is refused; its
// details are those of ARC-D55.
func taskFault(id string, s TaskStatus, a engine.Action) *Error {
	code := s.refused()
	d, _ := encode(func(w *writer) { // texts can always be written
		w.open()
		w.text("taskId", id)
		if code == ErrInvalidTaskTransition {
			w.text("from", string(s))
			w.text("to", a.LeadsTo(string(s)))
		}
		w.close()
	})
	return &Error{Code: code, Message: code.Message(), Details: json.RawMessage(d)}
}
