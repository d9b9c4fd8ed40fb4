// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package core has the state machines of AIR: threads, received messages and the outbox. They are
// pure steps of state, event and time, without clock, lock, I/O and goroutine. Package air runs them.
package core

// A Refusal is why a step leaves its state unchanged. Code is the text of an air.Code.
type Refusal struct{ Code, Detail string }

// Error returns the detail.
func (r *Refusal) Error() string { return r.Detail }

func refuse(code, detail string) error { return &Refusal{Code: code, Detail: detail} }
