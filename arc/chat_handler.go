// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
)

// A ChatHandler answers the messages of chats. ServeChat handles one message of a
// chat at a time; different chats run concurrently. The text written to out is
// the answer: a stream for a caller that requested one, and a single message for
// any other caller. A handler that cannot stream writes once.
//
// The context ends when the caller disconnects or the chat is ended, with the
// cause [ErrChatAlreadyClosed], and carries the workflow and the [Call]. An error
// ends the answer; the caller keeps the text streamed before it (ARC-D22). The
// rules for errors are those of a [Handler].
type ChatHandler interface {
	ServeChat(ctx context.Context, turn *ChatTurn, out *ChatWriter) error
}

// A ChatHandlerFunc is a function that serves as a [ChatHandler].
type ChatHandlerFunc func(ctx context.Context, turn *ChatTurn, out *ChatWriter) error

// ServeChat calls f.
func (f ChatHandlerFunc) ServeChat(ctx context.Context, turn *ChatTurn, out *ChatWriter) error {
	return f(ctx, turn, out)
}

// A ChatReplyFunc is a function that serves as a [ChatHandler] and answers each
// message as a whole.
type ChatReplyFunc func(ctx context.Context, turn *ChatTurn) (*Message, error)

// ServeChat calls f and writes its answer.
func (f ChatReplyFunc) ServeChat(ctx context.Context, turn *ChatTurn, out *ChatWriter) error {
	m, err := f(ctx, turn)
	if err == nil && m != nil {
		err = out.SendMessage(m)
	}
	return err
}

// A ChatTurn is one message of a chat, to be answered.
type ChatTurn struct {
	ChatID   string
	Message  *Message
	First    bool            // the chat begins with it
	Metadata json.RawMessage // what the caller gave along with chat.start, or nil
	Stream   bool            // the caller reads the answer as it is written

	table *chatTable
	chat  *liveChat
	mark  string // of the request
}

// History returns the messages of the chat before this one, those of both
// sides. For a stateless chat there are none.
func (t *ChatTurn) History(ctx context.Context) ([]Message, error) {
	return t.table.history(ctx, t.chat, t.mark)
}

// Pause lets the chat be PAUSED after this answer, until the caller's next
// message (ARC-D35).
func (t *ChatTurn) Pause() {
	t.chat.mu.Lock()
	defer t.chat.mu.Unlock()
	t.chat.pause = true
}

// A ChatWriter writes the answer to a message. Its methods are safe for
// concurrent use while the handler runs. They block while the caller reads slower
// than the handler writes, and fail after the caller has disconnected: the handler
// then returns. After a failure every call fails.
type ChatWriter struct {
	ctx    context.Context // of the handler
	cancel context.CancelCauseFunc
	chatID string
	legacy bool
	began  func() error // called before the first event goes out
	limit  int          // how large the answer may get; less than zero keeps nothing

	mu       sync.Mutex // guards all that follows
	sink     EventSink  // nil if the caller does not read along
	buf      []byte
	sent     int // bytes of data
	err      error
	isClosed bool
	parts    []Part // the answer so far
	text     strings.Builder
	role     Role
	agent    string
	extra    Extra
	stamp    Timestamp
	pieces   int
	size     int     // of the retained answer
	piece    [1]Part // of a Send, so that it needs no memory
}

// errLongAnswer reports an answer over [ServerOptions.Limits.MaxReply].
var errLongAnswer = errors.New("arc: the answer is too long to be kept")

// errAnswered reports a write after the handler returned.
var errAnswered = errors.New("arc: the message is answered")

// Send writes a piece of text. The answer's text is that of all pieces, joined.
func (w *ChatWriter) Send(text string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.piece[0] = Part{Type: PartTypeText, Content: text}
	defer clear(w.piece[:])
	return w.write(&Message{Role: RoleAgent, Parts: w.piece[:]})
}

// SendMessage writes a piece of the answer of any kind, such as an image. One
// without a role is the agent's.
func (w *ChatWriter) SendMessage(m *Message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.write(m)
}

func (w *ChatWriter) write(m *Message) error {
	switch {
	case w.err != nil:
		return w.err
	case w.isClosed:
		return errAnswered
	case w.ctx.Err() != nil:
		return context.Cause(w.ctx)
	}
	role := or(m.Role, RoleAgent)
	if w.limit >= 0 {
		for i := range m.Parts {
			w.size += len(m.Parts[i].Content) + len(m.Parts[i].Data)
		}
		if w.size > w.limit {
			return errLongAnswer
		}
	}
	if w.sink != nil {
		enc := writer{b: w.buf[:0]}
		enc.open()
		enc.text(chatIDName(w.legacy), w.chatID)
		enc.key("message")
		enc.message(&Message{Role: role, Parts: m.Parts})
		enc.close()
		w.buf = enc.b
		if enc.err != nil {
			return enc.err // invalid JSON from the handler: nothing was sent
		}
		if err := w.send(w.ctx, eventChunk); err != nil {
			return err
		}
	}
	if w.limit >= 0 {
		w.keep(m, role)
	}
	return nil
}

// send sends the contents of buf. w.mu must be held.
func (w *ChatWriter) send(ctx context.Context, name string) error {
	if w.pieces == 0 && w.began != nil {
		if w.err = w.began(); w.err != nil {
			return w.err
		}
	}
	w.pieces++
	err := w.sink.Send(ctx, name, "", w.buf)
	switch {
	case err == nil:
		w.sent += len(w.buf)
	case ctx.Err() == nil:
		w.err = err // the reader disconnected
		w.cancel(err)
	}
	return err
}

// keep adds a piece to the answer as a whole: neighbouring texts become one.
func (w *ChatWriter) keep(m *Message, role Role) {
	if w.role == "" {
		w.role, w.agent, w.stamp, w.extra = role, m.AgentID, m.Timestamp, m.Extra
	}
	for i := range m.Parts {
		p := &m.Parts[i]
		if p.Type == PartTypeText && p.Extra == nil && p.MIMEType == "" && p.Encoding == "" && p.Filename == "" {
			w.text.WriteString(p.Content)
			continue
		}
		w.flush()
		w.parts = append(w.parts, *p)
	}
}

func (w *ChatWriter) flush() {
	if w.text.Len() > 0 {
		w.parts = append(w.parts, TextPart(w.text.String()))
		w.text.Reset()
	}
}

// finish ends the writing and returns the answer as a whole.
func (w *ChatWriter) finish() *Message {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isClosed = true
	w.flush()
	m := &Message{Role: or(w.role, RoleAgent), Parts: w.parts, AgentID: w.agent, Timestamp: w.stamp, Extra: w.extra}
	if m.Parts == nil {
		m.Parts = []Part{TextPart("")} // an answer has a part
	}
	return m
}

// done sends the event that ends a complete answer; failed sends the event that
// ends an incomplete one.
func (w *ChatWriter) done(ctx context.Context, status ChatStatus) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	enc := writer{b: w.buf[:0]}
	enc.open()
	enc.text(chatIDName(w.legacy), w.chatID)
	enc.text("status", string(status))
	enc.flag("done", true)
	enc.close()
	w.buf = enc.b
	return w.send(ctx, eventDone)
}

func (w *ChatWriter) failed(ctx context.Context, e *Error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	enc := writer{b: w.buf[:0]}
	enc.open()
	enc.text(chatIDName(w.legacy), w.chatID)
	enc.key("error")
	enc.error(e)
	enc.close()
	w.buf = enc.b
	if enc.err != nil {
		return enc.err
	}
	return w.send(ctx, eventError)
}
