// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"time"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// A Turn is the answering of one message: it has the turn in its chat.
type Turn struct {
	c       *Chats
	q       *Request
	m       *ChatMessage
	attempt Attempt
	chat    *chat
	id      string
	fresh   *chatState // of a chat.start: the chat that is to be
	rec     chatRecord
	run     *streamRun // nil unless the answer is a stream

	reply    []byte // what a repeated request was answered with before, or nil
	isKept   bool   // the message is stored
	last     uint64 // position of the message before this one
	reserved int    // bytes for the messages of this turn
	memory   budget.Hold
	pieces   int   // of the stream; guarded by the mutex of the caller of Append, as the one below
	err      error // of the stream
	unshared chat  // of a stateless chat
	first    chatState
}

// ChatID returns the id of the chat.
func (t *Turn) ChatID() string { return t.id }

// Request returns the request with the message.
func (t *Turn) Request() *Request { return t.q }

// IsStreamed reports whether the caller reads the answer as it is written.
func (t *Turn) IsStreamed() bool { return t.run != nil }

// Metadata returns what the caller gave along with chat.start, or nil.
func (t *Turn) Metadata() []byte {
	if st := t.rec.current(); st != nil {
		return st.Metadata
	}
	if t.fresh != nil {
		return t.fresh.Metadata
	}
	return nil
}

// History returns the messages before this one, as JSON.
func (t *Turn) History(ctx context.Context) ([][]byte, error) {
	list, err := t.c.readItems(ctx, chatItems(t.chat.key), 0, t.last)
	if err != nil {
		return nil, err
	}
	messages := make([][]byte, len(list))
	for i, r := range list {
		messages[i] = r.Value
	}
	return messages, nil
}

// Pause pauses the chat after this answer (ARC-D35).
func (t *Turn) Pause() {
	t.chat.mu.Lock()
	defer t.chat.mu.Unlock()
	t.chat.turn.Pause()
}

// Reserve takes memory for n bytes of the answer.
func (t *Turn) Reserve(n int) (err error) {
	if t.memory == (budget.Hold{}) {
		t.memory, err = t.c.Scope(t.q.Account).Reserve(budget.Memory, int64(n))
	} else {
		err = t.memory.Resize(int64(n))
	}
	if err != nil {
		return Refused(t.q.Target, err)
	}
	return nil
}

func (t *Turn) closedFault() error { return noChat(wire.ChatAlreadyClosed, t.id) }

// reserve takes the id of a chat that is to begin (ARC-D34). A chat that an earlier attempt of the request has begun may
// be in use: this one waits for its turn.
func (t *Turn) reserve(ctx context.Context) error {
	st, err := t.rec.load(ctx)
	if err == nil {
		err = t.readStored(ctx, st)
	}
	if err != nil {
		return err
	}
	if t.isKept {
		t.fresh = nil
		return t.take(ctx)
	}
	t.chat.mu.Lock()
	if t.chat.turn.IsTaken() {
		err = errChatTaken
	} else if err = st.refuses(t.id, StartChat); err == nil {
		t.chat.turn.Open()
	}
	t.chat.mu.Unlock()
	if err != nil {
		return err
	}
	if err = t.claimNew(ctx); err == nil {
		st, err = t.rec.load(ctx) // another process may have begun it
		if err == nil {
			err = st.refuses(t.id, StartChat)
		}
		if err != nil {
			t.unclaim()
		}
	}
	if err != nil {
		t.pass()
	}
	return err
}

// take waits for the turn of a message.
func (t *Turn) take(ctx context.Context) error {
	turn, err := t.queue(ctx)
	if err == nil {
		err = t.wait(ctx, turn)
	}
	if err != nil {
		return err
	}
	if err = t.claim(ctx); err == nil {
		if err = t.checkTurn(ctx); err != nil {
			t.unclaim()
		}
	}
	if err != nil {
		t.pass()
	}
	return err
}

// checkTurn checks the state of the chat at the turn of a message, which resumes a paused chat. A message that was
// answered gets the stored answer.
func (t *Turn) checkTurn(ctx context.Context) error {
	st, err := t.rec.load(ctx)
	if err == nil {
		err = t.readStored(ctx, st)
	}
	if err != nil || t.reply != nil {
		return err
	}
	if err := st.refuses(t.id, MessageChat); err != nil {
		return err
	}
	if !t.isKept {
		t.last = st.Last
	}
	if st.Status == paused {
		err = t.rec.change(nil, func(next *chatState) { next.Status, next.Updated = active, Now() })
	}
	return err
}

// queue takes the turn if it is free, else it returns a channel that is closed at the turn.
func (t *Turn) queue(ctx context.Context) (turn chan struct{}, err error) {
	ch := t.chat
	ch.mu.Lock()
	isNew := ch.turn.MayBeNew()
	ch.mu.Unlock()
	if !isNew && t.reply == nil {
		st, err := t.rec.load(ctx)
		if err == nil {
			err = st.refuses(t.id, MessageChat)
		}
		if err != nil {
			return nil, err
		}
	}
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.turn.Enter() {
		return nil, nil
	}
	next := make(chan struct{})
	if !ch.turn.Wait(next, t.c.opts.ChatQueue) {
		return nil, noChat(wire.ChatBufferOverflow, t.id)
	}
	return next, nil
}

// wait waits for the turn; nil means that it is taken.
func (t *Turn) wait(ctx context.Context, turn chan struct{}) (err error) {
	if turn == nil {
		return nil
	}
	select {
	case <-turn:
		return nil
	case <-t.chat.closed:
		err = t.closedFault()
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	t.chat.mu.Lock()
	defer t.chat.mu.Unlock()
	if !t.chat.turn.Remove(turn) {
		t.chat.passLocked() // the turn came at the same moment
	}
	return err
}

// passLocked passes the turn to the next message. ch.mu must be held.
func (ch *chat) passLocked() {
	ch.cancel = nil
	if next, ok := ch.turn.Leave(); ok {
		close(next)
	}
}

func (t *Turn) pass() {
	t.chat.mu.Lock()
	defer t.chat.mu.Unlock()
	t.chat.passLocked()
}

// readStored finds what an earlier attempt of the request stored: the message of the caller, and its answer.
func (t *Turn) readStored(ctx context.Context, st *chatState) error {
	if st == nil || !t.attempt.IsRepeated {
		return nil
	}
	list, err := t.c.readItems(ctx, chatItems(t.chat.key), 0, st.Last)
	if err != nil {
		return err
	}
	question, answer := t.attempt.find(list, questionName), t.attempt.find(list, answerName)
	if t.isKept = question >= 0; question > 0 {
		t.last = list[question-1].Seq
	}
	if answer >= 0 {
		t.reply = list[answer].Value
	}
	return nil
}

// serve answers, in one piece or as a stream.
func (t *Turn) serve(ctx context.Context) ([]byte, *Connection, error) {
	if t.reply != nil && !t.m.IsStreamed {
		defer t.c.release(t.chat)
		t.unclaim()
		t.pass()
		return t.rec.current().result(t.reply, !t.m.IsStart), nil, nil
	}
	if err := t.reserveBytes(); err != nil {
		t.drop()
		return nil, nil, err
	}
	if t.m.IsStreamed {
		conn, err := t.c.streams.serve(ctx, t)
		return nil, conn, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(context.Canceled)
	result, err := t.answer(ctx, cancel)
	return result, nil, err
}

// drop gives up a turn whose handler has not started.
func (t *Turn) drop() {
	t.q.claim.end(true)
	t.unclaim()
	t.returnBytes()
	if !t.m.IsStateless {
		t.pass()
	}
	t.c.release(t.chat)
}

// reserveBytes takes space for the message of the caller, and for a new chat.
func (t *Turn) reserveBytes() error {
	n, l := len(t.q.Params)+itemBytes, t.c.ledger
	if t.m.IsStateless || t.reply != nil {
		return nil
	}
	var err error
	if t.fresh != nil {
		err = l.add(chatObject, t.chat.key, t.q, n)
	} else {
		err = l.grow(chatObject, t.chat.key, n)
	}
	if err == nil {
		t.reserved = n
	}
	return err
}

// returnBytes ends the reservations of a turn.
func (t *Turn) returnBytes() {
	t.memory.Release()
	switch {
	case t.m.IsStateless:
	case t.fresh != nil && t.rec.current() == nil: // the chat does not exist
		t.c.ledger.drop(chatObject, t.chat.key)
	default:
		_ = t.c.ledger.grow(chatObject, t.chat.key, -t.reserved) // always succeeds
	}
	t.reserved = 0
}

// answer runs the handler, ends the turn and returns the result, which is nil for a stream.
func (t *Turn) answer(ctx context.Context, cancel context.CancelCauseFunc) ([]byte, error) {
	ch := t.chat
	defer t.c.release(ch)
	ch.mu.Lock()
	if !t.m.IsStateless {
		ch.cancel = cancel
		if ch.turn.IsEnded() {
			cancel(t.c.opts.ChatClosed) // ended between the turn and here
		}
	}
	ch.mu.Unlock()
	defer t.attend()()
	if t.reply != nil {
		v := strictjson.Value(t.reply)
		role, _ := v.Get("role").Text()
		return t.conclude(ctx, t.reply, t.Append(ctx, wire.AppendChunk(nil, t.id, role, v.Get("parts"))))
	}
	reply, err := t.m.Host.Serve(ctx, t)
	if t.err != nil {
		err = t.err // the handler may have hidden it
	}
	return t.conclude(ctx, reply, err)
}

// attend keeps the chat from expiring while it is being answered. It returns the function that ends this.
func (t *Turn) attend() func() {
	idle := t.c.opts.ChatIdle
	if t.m.IsStateless || idle == 0 {
		return func() {}
	}
	every := idle / 4
	if st := t.rec.current(); st != nil && Now().isPast(st.Updated, every) {
		t.rec.renew() // little may be left
	}
	t.rec.mu.Lock() // for the timer, which may fire at once
	defer t.rec.mu.Unlock()
	var timer *time.Timer
	timer = time.AfterFunc(every, func() {
		work, err := t.c.life.Start(context.Background(), life.Part)
		if err != nil {
			return
		}
		defer work.Finish()
		t.rec.renew()
		t.rec.mu.Lock()
		defer t.rec.mu.Unlock()
		if !t.rec.isOver {
			timer.Reset(every)
		}
	})
	return func() { timer.Stop() }
}

// Append adds the data of a piece to the stream, and keeps the chat before the first one. It waits while the readers
// are slow. The caller serializes the calls.
func (t *Turn) Append(ctx context.Context, data []byte) error {
	if t.err != nil {
		return t.err
	}
	if err := t.run.count(len(data)); err != nil {
		return err
	}
	if err := t.begin(); err != nil {
		return err
	}
	t.pieces++
	err := t.run.append(ctx, wire.EventChunk, data)
	if err != nil && ctx.Err() == nil {
		t.err = errors.Join(ErrNoReader, err)
		t.run.work.Cancel(t.err)
		return t.err
	}
	return err
}

// begin keeps a chat whose stream begins, with its message.
func (t *Turn) begin() error {
	if t.pieces == 0 && t.err == nil {
		t.err = t.keep(nil, answerName, func(*chatState) {})
	}
	return t.err
}

// IsPassing reports whether a later attempt may not meet an error, which is not stored (ARC-D48).
func IsPassing(code int64) bool {
	switch code {
	case wire.Internal, -32700, -32600, wire.AgentNotAvailable, -41003, -41006, wire.AgentCapacityExceeded,
		wire.ChatBufferOverflow, wire.RateLimitExceeded:
		return true
	}
	return code <= -44001 && code >= -44005
}
