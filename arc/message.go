// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"encoding/json"
	"time"

	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// ProtocolVersion is the protocol version that this package speaks.
const ProtocolVersion = "1.0"

// The media types of the HTTP binding (ARC-004, ARC-005).
const (
	MediaType       = "application/arc+json"
	mediaTypeStream = "text/event-stream"
)

// The nine standard methods (ARC-070).
const (
	MethodTaskCreate       = "task.create"
	MethodTaskSend         = "task.send"
	MethodTaskInfo         = "task.info"
	MethodTaskCancel       = "task.cancel"
	MethodTaskSubscribe    = "task.subscribe"
	MethodTaskNotification = "task.notification"
	MethodChatStart        = "chat.start"
	MethodChatMessage      = "chat.message"
	MethodChatEnd          = "chat.end"
)

// An ID correlates a response with its request. It is the JSON token itself, a
// string with its quotes or a number, so that it goes back byte for byte as it
// came (ARC-D02). The zero value stands for no id.
type ID string

// NewID returns a fresh random id.
func NewID() ID {
	var array [32]byte
	return ID(append(randid.Append(append(array[:0], `"req-`...)), '"'))
}

// Equal reports whether two ids are the same: strings by their text, numbers by
// their exact decimal value, never a string and a number.
func (id ID) Equal(other ID) bool {
	if id == other {
		return true
	}
	a, err1 := checkJSON([]byte(id))
	b, err2 := checkJSON([]byte(other))
	if err1 != nil || err2 != nil || a.Kind() != b.Kind() {
		return false
	}
	switch a.Kind() {
	case '"':
		x, _ := a.Text()
		y, _ := b.Text()
		return x == y
	case '0':
		return strictjson.EqualNumbers(a, b)
	}
	return false
}

// A Request asks an agent to run a method (section 3).
type Request struct {
	ID           ID
	Method       string
	RequestAgent string          // the calling agent
	TargetAgent  string          // the requested agent or group
	TraceID      string          // the workflow; empty means none
	Params       json.RawMessage // an object

	// Extra holds members that the specification does not define. They are
	// read and written, and mean nothing to this package (ARC-014).
	Extra Extra
}

// A Response answers a [Request] (section 3). Exactly one of Result and Error is
// set.
type Response struct {
	ID            ID // "null" where the peer could not read the request's id
	ResponseAgent string
	TargetAgent   string
	TraceID       string
	Result        json.RawMessage // an object
	Error         *Error

	Extra Extra
}

// Extra holds the members of an object that this package does not know, by
// name, as JSON text.
type Extra map[string]json.RawMessage

// A Timestamp is a time in a message: RFC 3339 text. A received time keeps its
// text (ARC-D63). The zero value means absent.
type Timestamp string

// NewTimestamp returns t in UTC, its fraction without trailing zeros.
func NewTimestamp(t time.Time) Timestamp {
	return Timestamp(t.UTC().Format(time.RFC3339Nano))
}

// Time returns the moment, in UTC. It accepts what peers send: any offset or none
// (then UTC), lower-case t and z, and fractions of any length, of which nine
// digits count.
func (ts Timestamp) Time() (time.Time, error) { return parseTimestamp(string(ts)) }
