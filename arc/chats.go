// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/arc/internal/engine"
	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/jsonmap"
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

	turn *engine.Turn
}

// History returns the messages of the chat before this one, those of both
// sides. For a stateless chat there are none.
func (t *ChatTurn) History(ctx context.Context) ([]Message, error) {
	texts, err := t.turn.History(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]Message, len(texts))
	for i, text := range texts {
		if err := readInto(text, &list[i]); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// Pause lets the chat be PAUSED after this answer, until the caller's next
// message (ARC-D35).
func (t *ChatTurn) Pause() { t.turn.Pause() }

// A ChatWriter writes the answer to a message. Its methods are safe for
// concurrent use while the handler runs. They block while the caller reads slower
// than the handler writes. After the caller has disconnected, and over MaxOutput of
// [Limits], every call fails: the handler then returns. Of another piece that is
// refused, such as one over 16 MiB, nothing is sent, and others may follow.
type ChatWriter struct {
	ctx    context.Context // of the handler
	turn   *engine.Turn
	chatID string
	limit  int // how large the answer may get; less than zero keeps nothing

	mu       sync.Mutex // guards all that follows
	buf      []byte     // data of an event
	isClosed bool
	parts    []Part // the answer so far
	text     strings.Builder
	head     Message // role and others of the answer
	size     int     // of the retained answer
	reserved int     // bytes for it
	piece    [1]Part // of a Send, so that it needs no memory
}

const (
	smallAnswer = 4 << 10  // is part of the memory of a connection
	maxAhead    = 64 << 10 // reserved ahead, to reserve once for several pieces
	maxEvent    = 16 << 20 // bytes of the data of an event (ARC-D13)
)

// ErrStreamClosed reports an event after the final event of a stream.
var ErrStreamClosed = errors.New("arc: stream ended")

// errLongAnswer reports an answer over Limits.MaxOutput.
var errLongAnswer = errors.New("arc: the answer is too long to be kept")

// Send writes a piece of text. The answer's text is that of all pieces, joined.
func (w *ChatWriter) Send(text string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.piece[0] = Part{Type: PartTypeText, Content: text}
	defer clear(w.piece[:])
	return w.writeLocked(&Message{Role: RoleAgent, Parts: w.piece[:]})
}

// SendMessage writes a piece of the answer of any kind, such as an image. One
// without a role is the agent's.
func (w *ChatWriter) SendMessage(m *Message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.writeLocked(m)
}

// writeLocked writes a piece. w.mu must be held.
func (w *ChatWriter) writeLocked(m *Message) error {
	switch {
	case m == nil:
		return errNoMessage
	case w.isClosed:
		return ErrStreamClosed
	case w.ctx.Err() != nil:
		return context.Cause(w.ctx)
	}
	role := cmp.Or(m.Role, RoleAgent)
	size, err := w.reserveLocked(m)
	if err != nil {
		return err
	}
	if w.turn.IsStreamed() {
		if err := w.encodeLocked(role, m.Parts); err != nil {
			return err // invalid JSON from the handler: nothing was sent
		}
		if len(w.buf) > maxEvent {
			return ErrTooLarge
		}
		if err := w.turn.Append(w.ctx, w.buf); err != nil {
			return public(err)
		}
	}
	if w.limit >= 0 {
		w.size = size
		w.keepLocked(m, role)
	}
	return nil
}

// reserveLocked takes memory for a piece of an answer that is retained, and returns the size of the answer with it. w.mu
// must be held.
func (w *ChatWriter) reserveLocked(m *Message) (size int, err error) {
	if w.limit < 0 {
		return 0, nil
	}
	size = w.size
	for i := range m.Parts {
		size += len(m.Parts[i].Content) + len(m.Parts[i].Data)
	}
	if size > w.limit {
		w.size = size // all later pieces fail, too
		return 0, errLongAnswer
	}
	if size > w.reserved && size > smallAnswer {
		n := size + min(size, maxAhead)
		if err := w.turn.Reserve(n); err != nil {
			return 0, public(err)
		}
		w.reserved = n
	}
	return size, nil
}

// encodeLocked writes the data of a piece. Of a message, only role and parts are sent. w.mu must be held.
func (w *ChatWriter) encodeLocked(role Role, parts []Part) error {
	if w.buf == nil {
		w.buf = make([]byte, 0, 256)
	}
	if len(parts) == 1 && role == RoleAgent && parts[0].isText() {
		w.buf = wire.AppendText(w.buf[:0], w.chatID, parts[0].Content)
		return nil
	}
	text, err := encodeParts(parts)
	if err == nil {
		w.buf = wire.AppendChunk(w.buf[:0], w.chatID, string(role), text)
	}
	return err
}

func encodeParts(parts []Part) ([]byte, error) { return jsonmap.Append(nil, parts) }

// keepLocked adds a piece to the answer as a whole: neighbouring texts become one. w.mu must be held.
func (w *ChatWriter) keepLocked(m *Message, role Role) {
	if w.head.Role == "" {
		w.head = *m
		w.head.Role = role
	}
	for i := range m.Parts {
		if p := &m.Parts[i]; p.isText() {
			w.text.WriteString(p.Content)
		} else {
			w.flushLocked()
			w.parts = append(w.parts, *p)
		}
	}
}

// flushLocked makes the text so far a part. w.mu must be held.
func (w *ChatWriter) flushLocked() {
	if w.text.Len() > 0 {
		w.parts = append(w.parts, TextPart(strings.ToValidUTF8(w.text.String(), "\uFFFD")))
		w.text.Reset()
	}
}

// finish ends the writing and returns the answer as a whole, nil if it is not retained.
func (w *ChatWriter) finish() ([]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isClosed = true
	if w.limit < 0 {
		return nil, nil
	}
	w.flushLocked()
	m := w.head
	m.Role, m.Parts = cmp.Or(m.Role, RoleAgent), w.parts
	if m.Parts == nil {
		m.Parts = []Part{TextPart("")} // an answer has a part
	}
	if m.Timestamp == "" {
		m.Timestamp = NewTimestamp(time.Now())
	}
	return jsonmap.Append(nil, &m)
}

// chatMethods serve the chats of agents.
func (s *Server) chatMethods() map[string]Handler {
	return map[string]Handler{MethodChatStart: handlerOf(s.startChat), MethodChatMessage: handlerOf(s.chatMessage), MethodChatEnd: handlerOf(s.endChat)}
}

func (s *Server) startChat(ctx context.Context, call *Call, p *wire.StartChat) (any, error) {
	message, err := s.admit(call, "initialMessage", &p.InitialMessage)
	if err != nil {
		return nil, err
	}
	return s.answerChat(ctx, call, engine.ChatMessage{ChatID: textOf(p.ChatID), IsStart: true, IsStateless: call.entry.StatelessChats,
		IsStreamed: p.Stream, Message: message[engine.Room:], Metadata: bytesOf(p.Metadata)})
}

func (s *Server) chatMessage(ctx context.Context, call *Call, p *wire.ChatMessage) (any, error) {
	message, err := s.admit(call, "message", &p.Message)
	if err != nil {
		return nil, err
	}
	return s.answerChat(ctx, call, engine.ChatMessage{ChatID: p.ChatID, IsStreamed: p.Stream, Message: message[engine.Room:]})
}

func (s *Server) endChat(ctx context.Context, call *Call, p *wire.EndChat) (any, error) {
	return call.ready(s.engine.Chats.End(ctx, call.x.request(call), p.ChatID, textOf(p.Reason)))
}

// An answering is the handling of one message of a chat.
type answering struct {
	engine.ChatMessage
	s    *Server
	x    *exchange // until Open
	call Call      // without its params: a resumable stream outlives its request
	ctx  callCtx   // of the handler
	turn ChatTurn
	out  ChatWriter

	message Message
	parts   [1]Part // of the usual message
}

// answerChat answers a message of a chat.
func (s *Server) answerChat(ctx context.Context, call *Call, m engine.ChatMessage) (any, error) {
	x, q := call.x, call.x.request(call)
	a := &answering{ChatMessage: m, s: s, x: x, call: *call}
	a.IsStreamed = m.IsStreamed && x.canStream()
	a.call.Params, a.call.x, a.Host = nil, nil, a
	q.Tag = &a.call
	result, conn, err := s.engine.Chats.Answer(ctx, q, &a.ChatMessage, x.in.LastEventID)
	if conn != nil {
		x.streamed, x.sent = conn.IsStreamed, conn.Sent
	}
	return call.ready(result, err)
}

// Open is for package engine.
func (a *answering) Open() engine.Sink {
	x := a.x
	a.x = nil
	return x.begin()
}

// Serve is for package engine. It runs the handler.
func (a *answering) Serve(ctx context.Context, t *engine.Turn) ([]byte, error) {
	m := &a.message
	m.Parts = a.parts[:0]
	if err := readInto(a.Message, m); err != nil {
		return nil, err
	}
	a.ctx = callCtx{Context: ctx, call: &a.call}
	a.turn = ChatTurn{ChatID: t.ChatID(), Message: m, First: a.IsStart, Metadata: t.Metadata(), Stream: t.IsStreamed(), turn: t}
	out := &a.out
	out.ctx, out.turn, out.chatID, out.limit = &a.ctx, t, t.ChatID(), a.s.opts.Limits.MaxOutput
	if t.IsStreamed() && a.IsStateless {
		out.limit = -1 // the answer is not retained
	}
	err := guard.Call("chat handler", func() error { return a.call.entry.ChatHandler.ServeChat(&a.ctx, &a.turn, out) })
	reply, failed := out.finish()
	return reply, cmp.Or(err, failed)
}

// bytesOf returns nil for an absent value.
func bytesOf(b json.RawMessage) []byte {
	if len(b) == 0 {
		return nil
	}
	return bytes.Clone(b)
}
