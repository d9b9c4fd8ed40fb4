// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"regexp"
	"strconv"
	"strings"
)

// The names of the events on the wire (section 6).
const (
	EventChunk = "stream"
	EventChat  = "chat" // how one example of the specification calls a chunk (ARC-D20)
	EventDone  = "done"
	EventError = "error"
)

// KeepAlive is the text of the comment on an idle stream (ARC-D26).
const KeepAlive = "keep-alive"

// AppendChunk appends the data of a piece of the answer: the role and the parts of a message, as JSON.
func AppendChunk(b []byte, chatID, role string, parts []byte) []byte {
	o := openEvent(b, chatID)
	o.Object("message")
	o.Text("role", role)
	o.Raw("parts", parts)
	o.End()
	return o.Close()
}

// AppendText appends the data of a piece of text of the agent.
func AppendText(b []byte, chatID, text string) []byte {
	o := openEvent(b, chatID)
	o.B = append(o.B, `,"message":{"role":"agent","parts":[{"type":"TextPart"`...)
	o.Text("content", text)
	o.B = append(o.B, "}]}}"...)
	return o.B
}

// AppendDone appends the data of the event that ends a complete answer.
func AppendDone(b []byte, chatID, status string) []byte {
	if b == nil {
		b = make([]byte, 0, 64+len(chatID))
	}
	o := openEvent(b, chatID)
	o.Text("status", status)
	o.Bool("done", true)
	return o.Close()
}

// AppendError appends the data of the event that ends a failed answer, with an error as JSON (ARC-D22).
func AppendError(b []byte, chatID string, fault []byte) []byte {
	o := openEvent(b, chatID)
	o.Raw("error", fault)
	return o.Close()
}

func openEvent(b []byte, chatID string) Object {
	o := Open(b)
	o.Text("chatId", chatID)
	return o
}

// eventIDs are the ids of the form of ARC-D73.
var eventIDs = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,63}\.[1-9][0-9]*$`)

// ParseEventID returns the stream and the number of an event id, if it has the form of ARC-D73.
func ParseEventID(id string) (stream string, n uint64, ok bool) {
	if !eventIDs.MatchString(id) {
		return "", 0, false
	}
	stream, number, _ := strings.Cut(id, ".")
	n, err := strconv.ParseUint(number, 10, 64)
	return stream, n, err == nil
}

// EventNumbers are the numbers of the events of a stream, over all of its connections. They begin with the first id
// of the form of ARC-D73.
type EventNumbers struct {
	stream string
	n      uint64
	ID     string // of event n
}

// Accept reports whether an event may follow. The id of an event without one is that of the event before it, or
// empty.
func (e *EventNumbers) Accept(id string, isRequired bool) bool {
	if id == "" || id == e.ID {
		return e.stream == "" || !isRequired
	}
	stream, n, ok := ParseEventID(id)
	if e.stream == "" && !ok {
		return true
	}
	isNext := e.stream == "" || ok && stream == e.stream && n == e.n+1
	if isNext {
		*e = EventNumbers{stream, n, id}
	}
	return isNext
}
