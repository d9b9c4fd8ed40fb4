// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package lines frames messages as lines: NDJSON over any byte stream.
//
// A [Reader] splits a stream into bounded lines and survives the lines that
// break the bound; a [Writer] lets many goroutines write whole lines and turns
// what they write at the same time into few write calls. Neither looks into a
// line: whether it is blank (see [Blank]), valid UTF-8 or a message is decided
// by the codec above.
package lines
