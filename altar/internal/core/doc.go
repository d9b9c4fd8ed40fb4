// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package core holds the parts of a Host that are pure state: their methods take
// the event and the time, and change or return nothing else. It has no lock,
// goroutine, clock, connection or store, and knows messages only as opaque data.
package core
