// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"errors"
	"time"

	"github.com/fivewire/fivewire/store"
)

// A chatJob is the answering of one message: it has the turn in its chat.
type chatJob struct {
	table      *chatTable
	call       *Call
	chat       *liveChat
	id         string
	fresh      *chatState // of a chat.start: the chat that is to be
	first      bool
	stateless  bool
	message    *Message
	stream     bool
	reply      *Message // what a repeated request was answered with before, or nil
	kept       bool     // the message is stored
	isFinished bool     // the turn is; guarded by the lock of the chat
}

// serve answers, in one piece or as a stream.
func (j *chatJob) serve(ctx context.Context) (any, error) {
	if j.reply != nil {
		return j.repeat()
	}
	if !j.stream || !j.call.out.streams() { // a transport without streams gets it all at once
		return j.answer(ctx, nil)
	}
	if j.table.s.opts.EnableResume {
		return j.table.s.streams.serve(ctx, j)
	}
	return j.answer(ctx, j.call.out.begin())
}

// The messages of a request that may be repeated bear its mark in their ids.
const (
	markSaid  = "/said"
	markReply = "/reply"
)

// answered returns the answer that an earlier process stored before it exited, or
// nil.
func (j *chatJob) answered(ctx context.Context) (*Message, error) {
	var after uint64
	for {
		page, err := j.table.db.Read(ctx, chatItems(j.chat.key), after, itemPage)
		if err != nil {
			return nil, err
		}
		for _, rec := range page {
			if after = rec.Seq; rec.ID == j.call.mark+markReply {
				v, err := checkJSON(rec.Value)
				if err != nil {
					return nil, err
				}
				lenient := reader{lenient: true}
				return lenient.message(v), nil
			}
		}
		if len(page) < itemPage {
			return nil, nil
		}
	}
}

// repeat responds with the stored answer and releases the turn.
func (j *chatJob) repeat() (any, error) {
	lc := j.chat
	defer j.table.release(lc)
	lc.mu.Lock()
	defer lc.mu.Unlock()
	lc.starting = false
	lc.pass()
	if lc.state == nil {
		return nil, idFault(ErrChatNotFound, "chatId", j.id)
	}
	return lc.state.result(j.reply, !j.first)
}

// answer runs the handler and gives the turn on. With a sink, the result is nil,
// and the call is marked as streamed unless the stream did not begin.
func (j *chatJob) answer(ctx context.Context, sink EventSink) (any, error) {
	c, lc := j.table, j.chat
	defer c.release(lc)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(context.Canceled)
	out := &ChatWriter{ctx: ctx, cancel: cancel, chatID: j.id, legacy: j.call.out.legacy, sink: sink}
	out.limit = c.s.opts.Limits.MaxReply
	if sink != nil {
		out.began = func() error { return j.begin(ctx) }
		if j.stateless {
			out.limit = -1 // the answer is not retained
		}
	}
	turn := &ChatTurn{ChatID: j.id, Message: j.message, First: j.first, Stream: sink != nil, table: c, chat: lc, mark: j.call.mark}
	lc.mu.Lock()
	lc.pause = false
	if !j.stateless {
		lc.cancel = cancel
	}
	switch {
	case j.fresh != nil:
		turn.Metadata = j.fresh.metadata
	case lc.state != nil:
		turn.Metadata = lc.state.metadata
		if lc.state.status == ChatClosed {
			cancel(ErrChatAlreadyClosed) // ended between the turn and here
		}
	}
	lc.mu.Unlock()
	defer j.attend(context.WithoutCancel(ctx))()
	err := j.work(ctx, turn, out)
	reply := out.finish()
	if out.err != nil {
		err = out.err // the handler may have hidden it
	}
	return j.conclude(context.WithoutCancel(ctx), sink, out, reply, err)
}

func (j *chatJob) work(ctx context.Context, turn *ChatTurn, out *ChatWriter) (err error) {
	defer recovered(&err)
	return j.call.entry.ChatHandler.ServeChat(ctx, turn, out)
}

// attend keeps the chat from expiring while it is being answered. It returns the
// function that ends this.
func (j *chatJob) attend(ctx context.Context) func() {
	s := j.table.s
	if j.stateless || s.opts.Timing.ChatIdleTimeout == 0 {
		return func() {}
	}
	every := s.opts.Timing.ChatIdleTimeout / 4
	j.chat.mu.Lock() // for the timer, too, which may fire at once
	defer j.chat.mu.Unlock()
	if st := j.chat.state; st != nil && now().Sub(st.updated) >= every {
		j.table.renew(ctx, j.chat) // little may be left
	}
	var timer *time.Timer
	timer = time.AfterFunc(every, func() {
		if !s.begin(partOf) {
			return
		}
		defer s.end(partOf)
		j.chat.mu.Lock()
		defer j.chat.mu.Unlock()
		if !j.isFinished {
			j.table.renew(ctx, j.chat)
			timer.Reset(every)
		}
	})
	return func() { timer.Stop() }
}

// begin keeps a chat whose stream begins. It is called by the writer, from the
// handler.
func (j *chatJob) begin(ctx context.Context) error {
	if j.stateless {
		return nil
	}
	j.chat.mu.Lock()
	defer j.chat.mu.Unlock()
	return j.keep(context.WithoutCancel(ctx))
}

// keep writes the chat, if it is new, and what the caller said. It is called
// with the lock of the chat held.
func (j *chatJob) keep(ctx context.Context) error {
	if j.kept || j.stateless {
		return nil
	}
	if j.fresh != nil && j.chat.state == nil {
		if err := j.table.s.bindWork(ctx, j.call, "chatId", j.id); err != nil {
			return err
		}
		if err := j.table.save(ctx, j.chat, j.fresh); err != nil {
			return err
		}
	}
	j.kept = true
	return j.remember(ctx, j.message, markSaid)
}

// remember adds a message to the history.
func (j *chatJob) remember(ctx context.Context, m *Message, what string) error {
	b, err := encode(func(w *writer) { w.message(m) })
	if err != nil {
		return err
	}
	id := ""
	if j.call.mark != "" {
		id = j.call.mark + what
	}
	_, err = j.table.db.Append(ctx, chatItems(j.chat.key), id, b, j.table.itemLife())
	if errors.Is(err, store.ErrDuplicate) {
		err = nil // stored by a process that exited before it answered
	}
	return err
}

// conclude stores the messages, responds, and releases the turn.
func (j *chatJob) conclude(ctx context.Context, sink EventSink, out *ChatWriter, reply *Message, err error) (any, error) {
	lc := j.chat
	lc.mu.Lock()
	defer lc.mu.Unlock()
	if !j.stateless {
		defer func() {
			j.isFinished, lc.starting = true, false
			j.table.renew(ctx, lc)
			lc.pass()
		}()
	}
	cut := !j.stateless && lc.state != nil && lc.state.status == ChatClosed
	if cut {
		err = idFault(ErrChatAlreadyClosed, "chatId", j.id)
	}
	if err != nil {
		return nil, j.fail(ctx, sink, out, reply, err, cut)
	}
	if reply.Timestamp == "" && out.limit >= 0 { // otherwise it is not retained
		reply.Timestamp = NewTimestamp(now())
	}
	st, err := j.commit(ctx, reply)
	if err != nil {
		return nil, j.fail(ctx, sink, out, reply, err, false)
	}
	if sink == nil {
		return st.result(reply, !j.first)
	}
	j.call.out.streamed = true
	// A slow reader must not prevent callers from ending the chat.
	lc.mu.Unlock()
	err = out.done(ctx, st.status)
	lc.mu.Lock()
	j.call.out.sent = out.sent
	return nil, err
}

// commit stores the answer and returns the state that the response reports.
func (j *chatJob) commit(ctx context.Context, reply *Message) (*chatState, error) {
	if j.stateless {
		st := *j.fresh
		st.status = ChatClosed
		return &st, nil
	}
	if err := j.keep(ctx); err != nil {
		return nil, err
	}
	if err := j.remember(ctx, reply, markReply); err != nil {
		return nil, err
	}
	if j.chat.state == nil {
		return nil, idFault(ErrChatNotFound, "chatId", j.id) // expired during the call
	}
	next := *j.chat.state
	next.updated = now()
	if j.chat.pause {
		next.status = ChatPaused
	}
	if next.status != j.chat.state.status || !j.first {
		if err := j.table.save(ctx, j.chat, &next); err != nil {
			return nil, err
		}
	}
	return j.chat.state, nil
}

// fail answers with an error: as a plain answer if the stream has not begun,
// else inside it (ARC-D22, ARC-D23). It is called with the lock of the chat held.
func (j *chatJob) fail(ctx context.Context, sink EventSink, out *ChatWriter, reply *Message, err error, cut bool) error {
	if sink == nil || out.pieces == 0 && sink.Discard() {
		return err
	}
	j.call.out.streamed = true
	s := j.table.s
	if !j.stateless && !cut {
		// The streamed text and the chat stay.
		keepErr := j.keep(ctx)
		if keepErr == nil && out.pieces > 0 {
			keepErr = j.remember(ctx, reply, markReply)
		}
		if keepErr != nil {
			s.opts.Logger.ErrorContext(ctx, "arc: chat message not stored", "err", keepErr)
		}
	}
	if out.err != nil {
		return err // the caller has disconnected
	}
	fault := s.faultOf(ctx, j.call, err)
	j.chat.mu.Unlock()
	defer j.chat.mu.Lock()
	sendErr := out.failed(ctx, fault)
	if cut && sendErr == nil {
		sendErr = out.done(ctx, ChatClosed)
	}
	j.call.out.sent = out.sent
	if sendErr != nil {
		return errors.Join(fault, sendErr)
	}
	return fault
}
