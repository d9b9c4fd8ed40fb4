// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"net/http/httptest"
	"time"
)

// A SlowReader is the writer of a response whose reader takes nothing until Wait is closed. It is for one goroutine at a
// time.
type SlowReader struct {
	*httptest.ResponseRecorder
	Wait      chan struct{}
	Deadlines []time.Time // of writes, in order
}

// SetWriteDeadline notes a deadline, for [net/http.ResponseController].
func (w *SlowReader) SetWriteDeadline(t time.Time) error {
	w.Deadlines = append(w.Deadlines, t)
	return nil
}

// Write writes after the end of the wait.
func (w *SlowReader) Write(b []byte) (int, error) {
	<-w.Wait
	return w.ResponseRecorder.Write(b)
}
