// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package sse reads and writes server-sent events, the text/event-stream format
// of the WHATWG HTML standard.
//
// A [Reader] interprets a stream by the standard's algorithm, to the letter and
// within bounds. [AppendEvent] and [AppendComment] write the format, and a
// [Writer] sends it as an HTTP response that survives server time limits and
// tells a dead reader from a quiet stream.
//
// # Deviations
//
// The standard decodes the stream as UTF-8 and replaces what is none. A Reader
// hands out the bytes as they came: the codec above refuses bad UTF-8 rather
// than read something else than was sent.
package sse
