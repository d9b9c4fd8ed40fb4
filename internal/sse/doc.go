// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package sse reads and writes server-sent events, the text/event-stream format of the WHATWG HTML
// standard.
//
// A [Reader] interprets a stream exactly by the standard's algorithm, within bounds. [AppendEvent]
// and [AppendComment] write the format, and a [Writer] sends it as an HTTP response that survives
// server time limits and distinguishes a disconnected reader from a quiet stream.
//
// # Deviations
//
// The standard decodes the stream as UTF-8 and replaces invalid sequences. A Reader returns the
// bytes unchanged: the codec above rejects invalid UTF-8 rather than read a different text.
package sse
