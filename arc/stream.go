// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"errors"
	"fmt"
	"io"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/sse"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// A ChatEvent is one event of a streamed chat: a piece of the answer, or the end.
type ChatEvent struct {
	ChatID  string
	Message *Message   // a piece of the answer; nil at the end
	Text    string     // the text of Message; the answer is all of them, joined
	Done    bool       // the answer is complete
	Status  ChatStatus // of the chat, at the end
	ID      string     // where to resume after, on servers that offer it
}

// A streamReader reads the events of a streamed chat (ARC-140 to ARC-147) from
// the body of an answer. It is for one goroutine at a time.
type streamReader struct {
	in      *sse.Reader
	decoder wire.Decoder
	ignored func(string, []byte)
	err     error // what Next returns from now on
	failed  bool  // an error event came: only a done right after it is still read
	chatID  string
	numbers *wire.EventNumbers
	own     wire.EventNumbers // of a stream over one connection
}

// newStreamReader returns a streamReader of body. It refuses an event with more than maxEvent bytes of data, and calls
// ignored, unless that is nil, with each event of an unknown type. The data are valid only during the call.
func newStreamReader(body io.Reader, maxEvent int, ignored func(name string, data []byte)) *streamReader {
	r := &streamReader{in: sse.NewReader(body, &sse.ReaderOptions{MaxData: maxEvent}), ignored: ignored}
	r.numbers = &r.own
	return r
}

// ChatID returns the id of the chat: the first id in an event (ARC-D21).
func (r *streamReader) ChatID() string { return r.chatID }

// Next returns the next event. After the event with Done set it returns
// [io.EOF].
//
// An error event of the peer is returned as an [*Error]; if a done event follows
// directly, one more call returns it, but the failure stays (ARC-D22). Other errors
// are [ErrTruncated], [ErrMalformedEvent], [ErrTooLarge] and errors of the body;
// every error but an [*Error] is permanent.
func (r *streamReader) Next() (*ChatEvent, error) {
	for r.err == nil {
		raw, err := r.in.Next()
		if err != nil {
			pending, ok := r.in.Pending()
			r.err = r.endOf(err)
			if !ok || !errors.Is(err, io.EOF) {
				break
			}
			// A last block without its empty line counts if its data prove to
			// be complete (ARC-D27).
			if _, err := wire.Check(pending.Data); err != nil {
				break
			}
			raw = pending
		}
		chatID := r.chatID
		ev, fault, err := r.read(raw)
		switch {
		case r.failed && (ev == nil || !ev.Done):
			r.chatID = chatID // what follows an error counts for nothing
			r.err = io.EOF
		case err != nil:
			r.err = err
		case fault != nil:
			r.failed = true
			return nil, fault
		case ev != nil:
			if ev.Done {
				r.err = io.EOF
			}
			return ev, nil
		case r.ignored != nil:
			r.ignored(raw.Name, raw.Data)
		}
	}
	return nil, r.err
}

// endOf returns the error for the end of the body.
func (r *streamReader) endOf(err error) error {
	switch {
	case r.failed:
		return io.EOF
	case errors.Is(err, sse.ErrTooLarge):
		return ErrTooLarge
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return ErrTruncated
	}
	return fmt.Errorf("arc: stream: %w", err)
}

// read interprets one event (ARC-D20). All results are nil for one to be ignored.
func (r *streamReader) read(raw sse.Event) (ev *ChatEvent, fault *Error, err error) {
	v, jsonErr := wire.Check(raw.Data)
	if jsonErr == nil && !v.IsObject() {
		jsonErr = errShape
	}
	if jsonErr != nil {
		v = nil
	}
	name := raw.Name
	if name == "" {
		name = kindOf(v)
	}
	if !r.numbers.Accept(raw.ID, name == wire.EventChunk || name == wire.EventChat || name == wire.EventDone) {
		return nil, nil, fmt.Errorf("%w: event %q does not follow event %q", ErrMalformedEvent, raw.ID, r.numbers.ID)
	}
	switch name {
	case wire.EventChunk, wire.EventChat:
		if jsonErr != nil {
			return nil, nil, fmt.Errorf("%w: %v", ErrMalformedEvent, jsonErr)
		}
		if chat := v.Get("chat"); v.Get("message").Absent() && chat.IsObject() {
			v = chat
		}
		return r.chunk(v, raw.ID)
	case wire.EventDone:
		status, _ := v.Get("status").Text()
		return &ChatEvent{ChatID: r.id(v), Done: true, Status: ChatStatus(status), ID: raw.ID}, nil, nil
	case wire.EventError:
		r.id(v)
		return nil, streamFault(v, raw.Data), nil
	}
	return nil, nil, nil
}

// kindOf names an event that has no name by its data.
func kindOf(v strictjson.Value) string {
	if !v.Get("error").Absent() {
		return wire.EventError
	}
	if done, _ := v.Get("done").Bool(); done {
		return wire.EventDone
	}
	if !v.Get("message").Absent() || !v.Get("chat").Get("message").Absent() {
		return wire.EventChunk
	}
	return ""
}

// id returns the chat id of an event and remembers the first.
func (r *streamReader) id(v strictjson.Value) string {
	b, _ := v.Get("chatId").TextBytes()
	if string(b) == r.chatID {
		return r.chatID // the usual case, without a copy
	}
	if r.chatID == "" {
		r.chatID = string(b)
		return r.chatID
	}
	return string(b)
}

// chunk reads a part of the response. Some peers send a bare part or a string in
// place of the message (ARC-D28).
func (r *streamReader) chunk(v strictjson.Value, id string) (*ChatEvent, *Error, error) {
	message := v.Get("message")
	if message.Absent() {
		return nil, nil, nil
	}
	var box struct { // one piece of memory for the usual event
		ChatEvent
		m     Message
		parts [1]Part
	}
	err := error(nil)
	switch {
	case message.Kind() == '"':
		text, _ := message.Text()
		box.parts[0] = TextPart(text)
		box.m = Message{Role: RoleAgent, Parts: box.parts[:]}
	case message.IsObject() && message.Get("parts") == nil && message.Get("type").Kind() == '"':
		err = r.readInto(message, &box.parts[0])
		box.m = Message{Role: RoleAgent, Parts: box.parts[:]}
	case message.IsObject():
		box.m.Parts = box.parts[:0]
		err = r.readInto(message, &box.m)
	default:
		err = errShape
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%w: the message is no object", ErrMalformedEvent)
	}
	ev := &box.ChatEvent
	ev.ChatID, ev.Message, ev.ID = r.id(v), &box.m, id
	ev.Text = ev.Message.Text()
	return ev, nil, nil
}

func (r *streamReader) readInto(text []byte, dst any) error {
	f, err := r.decoder.Decode(text, dst)
	if err == nil && f != nil {
		err = errShape
	}
	return err
}

// streamFault reads the error of an error event in all the forms that peers
// send. One that cannot be read still is an error.
func streamFault(v strictjson.Value, text []byte) *Error {
	if v == nil {
		return &Error{Code: ErrInternal, Message: string(text), Remote: true}
	}
	fault := v.Get("error")
	if fault.Absent() {
		fault = v
	}
	if e, ok := decodeError(fault); ok {
		return e
	}
	e := &Error{Code: ErrInternal, Remote: true}
	if e.Message, _ = fault.Get("message").Text(); e.Message == "" {
		e.Message, _ = fault.Text()
	}
	if code, ok := fault.Get("code").Int(); ok {
		e.Code = Code(code)
	}
	return e
}
