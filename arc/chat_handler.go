// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/jsonmap"
	"github.com/fivewire/fivewire/internal/streamlog"
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
	last  uint64 // position of the message before this one
}

// History returns the messages of the chat before this one, those of both
// sides. For a stateless chat there are none.
func (t *ChatTurn) History(ctx context.Context) ([]Message, error) {
	return t.table.history(ctx, t.chat.key, t.last)
}

// Pause lets the chat be PAUSED after this answer, until the caller's next
// message (ARC-D35).
func (t *ChatTurn) Pause() {
	t.chat.mu.Lock()
	defer t.chat.mu.Unlock()
	t.chat.turn.Pause()
}

// A ChatWriter writes the answer to a message. Its methods are safe for
// concurrent use while the handler runs. They block while the caller reads slower
// than the handler writes, and fail after the caller has disconnected: the handler
// then returns. After a failure every call fails.
type ChatWriter struct {
	ctx    context.Context // of the handler
	cancel context.CancelCauseFunc
	chatID string
	job    *chatJob // reserves the memory of the answer, and keeps the chat before the first event
	limit  int      // how large the answer may get; less than zero keeps nothing

	mu       sync.Mutex        // guards all that follows
	log      *streamlog.Writer // nil if the caller does not read along
	buf      writer            // data of an event
	chunk    []byte            // memory for the next events
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
	reserved int     // bytes for it
	piece    [1]Part // of a Send, so that it needs no memory
}

const (
	smallAnswer = 4 << 10  // is part of the memory of a connection
	maxAhead    = 64 << 10 // reserved ahead, to reserve once for several pieces
)

// errLongAnswer reports an answer over Limits.MaxOutput.
var errLongAnswer = errors.New("arc: the answer is too long to be kept")

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
		return ErrStreamClosed
	case w.ctx.Err() != nil:
		return context.Cause(w.ctx)
	}
	role := cmp.Or(m.Role, RoleAgent)
	if w.limit >= 0 {
		for i := range m.Parts {
			w.size += len(m.Parts[i].Content) + len(m.Parts[i].Data)
		}
		if w.size > w.limit {
			return errLongAnswer
		}
		if w.size > w.reserved && w.size > smallAnswer {
			n := w.size + min(w.size, maxAhead)
			if err := w.job.reserveAnswer(n); err != nil {
				return err
			}
			w.reserved = n
		}
	}
	if w.log != nil {
		if err := w.encodePiece(role, m.Parts); err != nil {
			return err // invalid JSON from the handler: nothing was sent
		}
		if len(w.buf.b) > maxEvent {
			return ErrTooLarge
		}
		if err := w.sendLocked(w.ctx, wire.EventChunk); err != nil {
			return err
		}
	}
	if w.limit >= 0 {
		w.keep(m, role)
	}
	return nil
}

// encodePiece writes the data of a piece. Of a message, only role and parts are sent.
func (w *ChatWriter) encodePiece(role Role, parts []Part) error {
	if len(parts) == 1 && role == RoleAgent && parts[0].isText() {
		w.buf.b = wire.AppendText(w.buf.b[:0], w.chatID, parts[0].Content)
		return nil
	}
	return w.encodeParts(role, parts)
}

func (w *ChatWriter) encodeParts(role Role, parts []Part) error {
	text, err := jsonmap.Append(nil, parts)
	if err == nil {
		w.buf.b = wire.AppendChunk(w.buf.b[:0], w.chatID, string(role), text)
	}
	return err
}

// maxEvent bounds the data of an event (ARC-D13).
const maxEvent = 16 << 20

// item returns the item of an event whose data are in buf. Small items share memory.
func (w *ChatWriter) item(name string) []byte {
	const chunkLimit = 8 << 10 // bytes that an item may keep from being freed
	n := 1 + len(w.buf.b)
	if cap(w.chunk)-len(w.chunk) < n {
		w.chunk = make([]byte, 0, max(n, min(chunkLimit, max(chunkLimit/8, 4*cap(w.chunk)))))
	}
	start := len(w.chunk)
	w.chunk = append(append(w.chunk, name[0]), w.buf.b...)
	return w.chunk[start:len(w.chunk):len(w.chunk)]
}

// beginLocked keeps the chat before the first event. w.mu must be held.
func (w *ChatWriter) beginLocked() error {
	if w.err == nil && w.pieces == 0 {
		w.err = w.job.begin(w.ctx)
	}
	return w.err
}

// sendLocked sends the contents of buf. w.mu must be held.
func (w *ChatWriter) sendLocked(ctx context.Context, name string) error {
	if err := w.job.run.count(len(w.buf.b)); err != nil {
		return err
	}
	if err := w.beginLocked(); err != nil {
		return err
	}
	w.pieces++
	_, err := w.log.Append(ctx, w.item(name))
	if err != nil && ctx.Err() == nil {
		w.err = fmt.Errorf("%w: %w", errNoReader, err)
		w.cancel(w.err)
		return w.err
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
		if p.isText() {
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

// finish ends the writing and returns the answer as a whole, nil if it is not retained.
func (w *ChatWriter) finish() *Message {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isClosed = true
	if w.limit < 0 {
		return nil
	}
	w.flush()
	m := &Message{Role: cmp.Or(w.role, RoleAgent), Parts: w.parts, AgentID: w.agent, Timestamp: w.stamp, Extra: w.extra}
	if m.Parts == nil {
		m.Parts = []Part{TextPart("")} // an answer has a part
	}
	return m
}

// done ends the stream of a complete answer. The stream of a chat that was ended during the answer has an
// error before that; failed ends that of another incomplete answer.
func (w *ChatWriter) done(ctx context.Context, status ChatStatus) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.beginLocked(); err != nil {
		return err
	}
	w.buf.b = wire.AppendDone(w.buf.b[:0], w.chatID, string(status))
	return w.log.Finish(ctx, w.item(wire.EventDone))
}

func (w *ChatWriter) failed(ctx context.Context, e *Error, isLast bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	text, err := e.MarshalJSON()
	if err != nil {
		return err
	}
	w.buf.b = wire.AppendError(w.buf.b[:0], w.chatID, text)
	if isLast {
		return w.log.Finish(ctx, w.item(wire.EventError))
	}
	w.pieces++
	_, err = w.log.Append(ctx, w.item(wire.EventError))
	return err
}
