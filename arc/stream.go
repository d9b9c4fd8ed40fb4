// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

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

// streamReaderOptions adjusts a [streamReader]. The zero value is right for
// production.
type streamReaderOptions struct {
	// MaxEvent bounds the data of one event in bytes. Zero means 16 MiB.
	MaxEvent int

	// OnUnknownEvent, if set, is called with each event of an unknown type. The data
	// are valid only during the call.
	OnUnknownEvent func(name string, data []byte)
}

// A streamReader reads the events of a streamed chat (ARC-140 to ARC-147) from
// the body of an answer. It is for one goroutine at a time.
type streamReader struct {
	in      *sse.Reader
	ignored func(string, []byte)
	err     error // what Next returns from now on
	failed  bool  // an error event came: only a done right after it is still read
	chatID  string
	lenient reader

	numbers *eventNumbers
	own     eventNumbers // of a stream over one connection
}

// eventIDs are the ids of the form of ARC-D73.
var eventIDs = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,63}\.[1-9][0-9]*$`)

// parseEventID returns the stream and the number of an event id, if it has the form of ARC-D73.
func parseEventID(id string) (stream string, n uint64, ok bool) {
	if !eventIDs.MatchString(id) {
		return "", 0, false
	}
	stream, number, _ := strings.Cut(id, ".")
	n, err := strconv.ParseUint(number, 10, 64)
	return stream, n, err == nil
}

// eventNumbers are the numbers of the events of a stream, over all of its connections. They begin with
// the first id of the form of ARC-D73.
type eventNumbers struct {
	stream string
	n      uint64
	id     string // of event n
}

// accept reports whether an event may follow. The id of an event without one is that of the event before
// it, or empty.
func (e *eventNumbers) accept(id string, isRequired bool) bool {
	if id == "" || id == e.id {
		return e.stream == "" || !isRequired
	}
	stream, n, ok := parseEventID(id)
	if e.stream == "" && !ok {
		return true
	}
	isNext := e.stream == "" || ok && stream == e.stream && n == e.n+1
	if isNext {
		*e = eventNumbers{stream, n, id}
	}
	return isNext
}

// newStreamReader returns a streamReader of body.
func newStreamReader(body io.Reader, opts *streamReaderOptions) *streamReader {
	var o streamReaderOptions
	if opts != nil {
		o = *opts
	}
	if o.MaxEvent <= 0 {
		o.MaxEvent = 16 << 20
	}
	r := &streamReader{in: sse.NewReader(body, &sse.ReaderOptions{MaxData: o.MaxEvent}), ignored: o.OnUnknownEvent,
		lenient: reader{lenient: true, texts: texts{size: maxBlock}}}
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
	if !r.numbers.accept(raw.ID, name == eventChunk || name == eventChat || name == eventDone) {
		return nil, nil, fmt.Errorf("%w: event %q does not follow event %q", ErrMalformedEvent, raw.ID, r.numbers.id)
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

// ErrStreamClosed reports an event after the final event of a stream.
var ErrStreamClosed = errors.New("arc: stream ended")

const keepAliveText = "keep-alive"

// chunkEvent writes the data of a piece of the answer (ARC-D25). Of the message, only
// role and parts are sent. Like the other two functions it reuses the memory of w.
func (w *writer) chunkEvent(chatID string, m *Message) error {
	w.openEvent(chatID)
	w.key("message")
	w.message(&Message{Role: m.Role, Parts: m.Parts})
	w.close()
	return w.err
}

// doneEvent writes the data of the event that ends a complete answer.
func (w *writer) doneEvent(chatID string, status ChatStatus) error {
	w.openEvent(chatID)
	w.text("status", string(status))
	w.flag("done", true)
	w.close()
	return w.err
}

// errorEvent writes the data of the event that ends a failed answer (ARC-D22).
func (w *writer) errorEvent(chatID string, e *Error) error {
	w.openEvent(chatID)
	w.key("error")
	w.error(e)
	w.close()
	return w.err
}

func (w *writer) openEvent(chatID string) {
	if w.b == nil {
		w.b = make([]byte, 0, 256)
	}
	w.b, w.err = w.b[:0], nil
	w.open()
	w.text("chatId", chatID)
}
