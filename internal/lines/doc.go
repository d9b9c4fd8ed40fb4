// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package lines frames messages as lines: NDJSON over any byte stream.
//
// A [Reader] splits a stream into bounded lines and skips lines that exceed the bound. It does not inspect a line: the
// codec above decides whether it is blank (see [Blank]), valid UTF-8 or a message.
package lines
