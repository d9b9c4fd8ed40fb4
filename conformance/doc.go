// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package conformance runs the vectors of the five protocols: cases in JSON
// files that state, without any programming language, what an implementation
// must do.
package conformance
