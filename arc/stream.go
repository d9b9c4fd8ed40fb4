// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"errors"
	"fmt"
	"io"

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

// The names of the events on the wire (section 6).
const (
	eventChunk = "stream"
	eventChat  = "chat" // how one example of the specification calls a chunk (ARC-D20)
	eventDone  = "done"
	eventError = "error"
)

// StreamReaderOptions adjusts a [StreamReader]. The zero value is right for
// production.
type StreamReaderOptions struct {
	// MaxEvent bounds the data of one event in bytes. Zero means 16 MiB.
	MaxEvent int

	// OnUnknownEvent, if set, is called with each event of an unknown type. The data
	// are valid only during the call.
	OnUnknownEvent func(name string, data []byte)
}

// A StreamReader reads the events of a streamed chat (ARC-140 to ARC-147) from
// the body of an answer. It is for one goroutine at a time.
type StreamReader struct {
	in      *sse.Reader
	ignored func(string, []byte)
	err     error // what Next returns from now on
	failed  bool  // an error event came: only a done right after it is still read
	chatID  string
	lenient reader
}

// NewStreamReader returns a StreamReader of body.
func NewStreamReader(body io.Reader, opts *StreamReaderOptions) *StreamReader {
	var o StreamReaderOptions
	if opts != nil {
		o = *opts
	}
	if o.MaxEvent <= 0 {
		o.MaxEvent = 16 << 20
	}
	return &StreamReader{in: sse.NewReader(body, &sse.ReaderOptions{MaxData: o.MaxEvent}), ignored: o.OnUnknownEvent,
		lenient: reader{lenient: true, texts: texts{size: maxBlock}}}
}

// ChatID returns the id of the chat: the first id in an event (ARC-D21).
func (r *StreamReader) ChatID() string { return r.chatID }

// Next returns the next event. After the event with Done set it returns
// [io.EOF].
//
// An error event of the peer is returned as an [*Error]; if a done event follows
// directly, one more call returns it, but the failure stays (ARC-D22). Other errors
// are [ErrTruncated], [ErrMalformedEvent], [ErrTooLarge] and errors of the body;
// every error but an [*Error] is permanent.
func (r *StreamReader) Next() (*ChatEvent, error) {
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
			if _, err := checkJSON(pending.Data); err != nil {
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
func (r *StreamReader) endOf(err error) error {
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
func (r *StreamReader) read(raw sse.Event) (ev *ChatEvent, fault *Error, err error) {
	v, jsonErr := checkJSON(raw.Data)
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
	switch name {
	case eventChunk, eventChat:
		if jsonErr != nil {
			return nil, nil, fmt.Errorf("%w: %v", ErrMalformedEvent, jsonErr)
		}
		if chat := v.Get("chat"); v.Get("message").Absent() && chat.IsObject() {
			v = chat
		}
		return r.chunk(v, raw.ID)
	case eventDone:
		status, _ := v.Get("status").Text()
		return &ChatEvent{ChatID: r.id(v), Done: true, Status: ChatStatus(status), ID: raw.ID}, nil, nil
	case eventError:
		r.id(v)
		return nil, streamFault(v, raw.Data), nil
	}
	return nil, nil, nil
}

// kindOf names an event that has no name by its data.
func kindOf(v strictjson.Value) string {
	if !v.Get("error").Absent() {
		return eventError
	}
	if done, _ := v.Get("done").Bool(); done {
		return eventDone
	}
	if !v.Get("message").Absent() || !v.Get("chat").Get("message").Absent() {
		return eventChunk
	}
	return ""
}

// id returns the chat id of an event and remembers the first.
func (r *StreamReader) id(v strictjson.Value) string {
	b, _ := v.Get("chatId").TextBytes()
	if string(b) == r.chatID {
		return r.chatID // the usual case, without a copy
	}
	if r.chatID == "" {
		r.chatID = string(b)
	}
	return string(b)
}

// chunk reads a part of the response. Some peers send a bare part or a string in
// place of the message (ARC-D28).
func (r *StreamReader) chunk(v strictjson.Value, id string) (*ChatEvent, *Error, error) {
	message := v.Get("message")
	if message.Absent() {
		return nil, nil, nil
	}
	var box struct { // one piece of memory for the usual event
		ChatEvent
		m     Message
		parts [1]Part
	}
	switch {
	case message.Kind() == '"':
		text, _ := r.lenient.texts.text(message)
		box.parts[0] = TextPart(text)
		box.m = Message{Role: RoleAgent, Parts: box.parts[:]}
	case message.IsObject() && message.Get("parts") == nil && message.Get("type").Kind() == '"':
		box.parts[0] = r.lenient.part(message)
		box.m = Message{Role: RoleAgent, Parts: box.parts[:]}
	case message.IsObject():
		box.m.Parts = box.parts[:0]
		r.lenient.messageInto(&box.m, message)
	default:
		return nil, nil, fmt.Errorf("%w: the message is no object", ErrMalformedEvent)
	}
	ev := &box.ChatEvent
	ev.ChatID, ev.Message, ev.ID = r.id(v), &box.m, id
	ev.Text = ev.Message.Text()
	return ev, nil, nil
}

// streamFault reads the error of an error event in all the forms that peers
// send. One that cannot be read still is an error.
func streamFault(v strictjson.Value, text []byte) *Error {
	if v == nil {
		return &Error{Code: ErrInternal, Message: string(text)}
	}
	fault := v.Get("error")
	if fault.Absent() {
		fault = v
	}
	if e, ok := decodeError(fault); ok {
		return e
	}
	e := &Error{Code: ErrInternal}
	if e.Message, _ = fault.Get("message").Text(); e.Message == "" {
		e.Message, _ = fault.Text()
	}
	if code, ok := fault.Get("code").Int(); ok {
		e.Code = Code(code)
	}
	return e
}

// ErrStreamClosed reports an event after the final event of a stream.
var ErrStreamClosed = errors.New("arc: the stream has ended")

// A StreamEncoder writes the events of a streamed chat (ARC-D22, ARC-D25). Its zero
// value is at the beginning of a stream. It appends bytes and does no I/O; after
// a done or an error event nothing more can be appended.
type StreamEncoder struct {
	isClosed bool
	w        writer // its memory is used again for each event
}

// AppendChunk appends a piece of the answer. Of the message, only role and parts
// are sent. The id, unless empty, is where a reader may resume after.
func (e *StreamEncoder) AppendChunk(dst []byte, chatID, id string, m *Message) ([]byte, error) {
	return e.append(dst, eventChunk, id, chatID, func(w *writer) {
		w.key("message")
		w.message(&Message{Role: m.Role, Parts: m.Parts})
	})
}

// AppendDone appends the event that ends a complete answer.
func (e *StreamEncoder) AppendDone(dst []byte, chatID, id string, status ChatStatus) ([]byte, error) {
	out, err := e.append(dst, eventDone, id, chatID, func(w *writer) {
		w.text("status", string(status))
		w.flag("done", true)
	})
	e.isClosed = e.isClosed || err == nil
	return out, err
}

// AppendError appends the event that ends a failed answer.
func (e *StreamEncoder) AppendError(dst []byte, chatID string, fault *Error) ([]byte, error) {
	out, err := e.append(dst, eventError, "", chatID, func(w *writer) {
		w.key("error")
		w.error(fault)
	})
	e.isClosed = e.isClosed || err == nil
	return out, err
}

// AppendKeepAlive appends a comment that shows that the stream lives (ARC-D26).
func (e *StreamEncoder) AppendKeepAlive(dst []byte) ([]byte, error) {
	if e.isClosed {
		return dst, ErrStreamClosed
	}
	return sse.AppendComment(dst, keepAliveText)
}

const keepAliveText = "keep-alive"

func (e *StreamEncoder) append(dst []byte, name, id, chatID string, rest func(w *writer)) ([]byte, error) {
	if e.isClosed {
		return dst, ErrStreamClosed
	}
	w := &e.w
	w.b, w.err = w.b[:0], nil
	w.open()
	w.text("chatId", chatID)
	rest(w)
	w.close()
	if w.err != nil {
		return dst, w.err
	}
	return sse.AppendEvent(dst, name, id, w.b)
}
