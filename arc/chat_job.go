// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"errors"
	"time"

	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/streamlog"
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
	run        *streamRun // nil unless the answer is a stream
	reply      *Message   // what a repeated request was answered with before, or nil
	kept       bool       // the message is stored
	reserved   int        // bytes for the messages of this turn
	bytes      holds      // of the answer before it is stored
	isFinished bool       // the turn is; guarded by the lock of the chat
	out        ChatWriter
	turn       ChatTurn
	unshared   liveChat // of a stateless chat
}

// serve answers, in one piece or as a stream.
func (j *chatJob) serve(ctx context.Context) (any, error) {
	if j.reply != nil {
		return j.repeat()
	}
	if err := j.reserveBytes(); err != nil {
		j.drop()
		return nil, err
	}
	if j.stream && j.call.out.streams() {
		return j.table.s.streams.serve(ctx, j)
	}
	// A transport without streams gets it all at once.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(context.Canceled)
	return j.answer(ctx, cancel)
}

// The messages of a request that may be repeated bear its claim in their ids, before these.
const (
	questionID = "/question"
	answerID   = "/answer"
)

// storedAnswer returns the answer that an earlier attempt of the request stored, or nil.
func (j *chatJob) storedAnswer(ctx context.Context) (*Message, error) {
	var after uint64
	for {
		page, err := j.table.db.Read(ctx, chatItems(j.chat.key), after, itemPage)
		if err != nil {
			return nil, err
		}
		for _, rec := range page {
			if after = rec.Seq; rec.ID == j.call.claim.Token+answerID {
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

// reserveBytes takes room for the message of the caller, and for a new chat.
func (j *chatJob) reserveBytes() error {
	n, ledger := len(j.call.Params)+itemBytes, j.table.s.ledger
	if j.stateless {
		return nil
	}
	if j.fresh != nil {
		if err := ledger.add(chatObject, j.chat.key, j.call, n); err != nil {
			return err
		}
	} else if err := ledger.grow(chatObject, j.chat.key, n); err != nil {
		return err
	}
	j.reserved = n
	return nil
}

// returnBytesLocked ends the reservations of a turn. The lock of the chat must be held.
func (j *chatJob) returnBytesLocked() {
	j.bytes.release()
	switch {
	case j.stateless:
	case j.fresh != nil && j.chat.state == nil: // the chat does not exist
		j.table.s.ledger.remove(chatObject, j.chat.key)
	default:
		_ = j.table.s.ledger.grow(chatObject, j.chat.key, -j.reserved) // always succeeds
	}
	j.reserved = 0
}

// drop gives up a turn whose handler has not started.
func (j *chatJob) drop() {
	lc := j.chat
	j.unclaim(context.Background())
	lc.mu.Lock()
	j.returnBytesLocked()
	if !j.stateless {
		lc.starting = false
		lc.passLocked()
	}
	lc.mu.Unlock()
	j.table.release(lc)
}

// repeat responds with the stored answer and releases the turn.
func (j *chatJob) repeat() (any, error) {
	lc := j.chat
	defer j.table.release(lc)
	j.unclaim(context.Background())
	lc.mu.Lock()
	defer lc.mu.Unlock()
	lc.starting = false
	lc.passLocked()
	if lc.state == nil {
		return nil, idFault(ErrChatNotFound, "chatId", j.id)
	}
	return lc.state.result(j.reply, !j.first)
}

// answer runs the handler, ends the turn and returns the answer, which is nil for a stream.
func (j *chatJob) answer(ctx context.Context, cancel context.CancelCauseFunc) (any, error) {
	c, lc := j.table, j.chat
	defer c.release(lc)
	free := context.WithoutCancel(ctx)
	out, turn := &j.out, &j.turn
	out.job, out.ctx, out.cancel, out.chatID, out.limit = j, ctx, cancel, j.id, c.s.opts.Limits.MaxOutput
	if j.run != nil {
		out.log = j.run.w
		if j.stateless {
			out.limit = -1 // the answer is not retained
		}
	}
	*turn = ChatTurn{ChatID: j.id, Message: j.message, First: j.first, Stream: j.run != nil, table: c, chat: lc, claim: j.call.claim.Token}
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
	defer j.attend(free)()
	err := j.work(ctx, turn, out)
	reply := out.finish()
	if out.err != nil {
		err = out.err // the handler may have hidden it
	}
	return j.conclude(ctx, free, reply, err)
}

// reserveAnswer takes memory for n bytes of the answer.
func (j *chatJob) reserveAnswer(n int) (err error) {
	if h := &j.bytes[0]; *h == (budget.Hold{}) {
		*h, err = j.table.s.scope(j.call).Reserve(budget.Memory, int64(n))
	} else {
		err = h.Resize(int64(n))
	}
	if err != nil {
		return overBudget(j.call.TargetAgent, err)
	}
	return nil
}

func (j *chatJob) work(ctx context.Context, turn *ChatTurn, out *ChatWriter) error {
	return guard.Call("chat handler", func() error { return j.call.entry.ChatHandler.ServeChat(ctx, turn, out) })
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
		j.table.renewLocked(ctx, j.chat) // little may be left
	}
	var timer *time.Timer
	timer = time.AfterFunc(every, func() {
		work, err := s.life.Start(ctx, life.Part)
		if err != nil {
			return
		}
		defer work.Finish()
		j.chat.mu.Lock()
		defer j.chat.mu.Unlock()
		if !j.isFinished {
			j.table.renewLocked(ctx, j.chat)
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
	ctx = context.WithoutCancel(ctx)
	j.chat.mu.Lock()
	defer j.chat.mu.Unlock()
	return j.keepLocked(ctx)
}

// keepLocked writes the chat, if it is new, and the message of the caller. The lock of
// the chat must be held.
func (j *chatJob) keepLocked(ctx context.Context) error {
	if j.kept || j.stateless {
		return nil
	}
	if j.fresh != nil && j.chat.state == nil {
		if err := j.table.s.bindWork(ctx, j.call, "chatId", j.id); err != nil {
			return err
		}
		if err := j.table.saveLocked(ctx, j.chat, j.fresh); err != nil {
			return err
		}
	}
	j.kept = true
	return j.rememberLocked(ctx, j.message, questionID)
}

// rememberLocked adds a message to the history. The lock of the chat must be held.
func (j *chatJob) rememberLocked(ctx context.Context, m *Message, what string) error {
	b, err := encode(func(w *writer) { w.message(m) })
	if err != nil {
		return err
	}
	n := len(b) + itemBytes
	if err := j.table.s.ledger.grow(chatObject, j.chat.key, n-min(n, j.reserved)); err != nil {
		return err
	}
	j.reserved -= min(n, j.reserved)
	id := ""
	if j.call.claim.Token != "" {
		id = j.call.claim.Token + what
	}
	_, err = j.table.db.Append(ctx, chatItems(j.chat.key), id, b, j.table.itemLife())
	if errors.Is(err, store.ErrDuplicate) {
		err = nil // stored by a process that exited before it answered
	}
	return err
}

// conclude stores the messages, responds, and releases the turn. A slow reader of the end
// of a stream does not prevent callers from ending the chat. The context work is that of the handler.
func (j *chatJob) conclude(work, ctx context.Context, reply *Message, err error) (result any, _ error) {
	lc, out := j.chat, &j.out
	lc.mu.Lock()
	isCut := j.isEndedLocked(ctx)
	if isCut {
		err = idFault(ErrChatAlreadyClosed, "chatId", j.id)
	}
	var st *chatState
	if err == nil {
		if reply != nil && reply.Timestamp == "" {
			reply.Timestamp = NewTimestamp(now())
		}
		st, err = j.commitLocked(ctx, reply)
		if errors.Is(err, store.ErrConflict) && j.isEndedLocked(ctx) { // by another process
			isCut, err = true, idFault(ErrChatAlreadyClosed, "chatId", j.id)
		}
	}
	lc.mu.Unlock()
	switch {
	case err == nil && j.run != nil:
		err = out.done(ctx, st.status)
	case err == nil:
		result, err = st.result(reply, !j.first)
	case j.run != nil:
		j.fail(work, ctx, reply, err, isCut)
	}
	if j.run != nil {
		j.run.finishClaim(ctx)
	}
	lc.mu.Lock()
	j.returnBytesLocked()
	if !j.stateless {
		j.isFinished, lc.starting = true, false
		j.table.renewLocked(ctx, lc)
	}
	lc.mu.Unlock()
	j.unclaim(ctx)
	if !j.stateless {
		lc.mu.Lock()
		defer lc.mu.Unlock()
		lc.passLocked()
	}
	return result, err
}

// isEndedLocked reports whether the chat was ended during the turn. The lock of the chat must be held.
func (j *chatJob) isEndedLocked(ctx context.Context) bool {
	lc := j.chat
	if j.table.s.isShared && lc.state != nil {
		if err := j.table.loadLocked(ctx, lc); err != nil {
			j.table.s.opts.Logger.WarnContext(ctx, "arc: chat not read", "chat", j.id, "err", err)
		}
	}
	return !j.stateless && lc.state != nil && lc.state.status == ChatClosed
}

// commitLocked stores the answer and returns the state that the response reports. The
// lock of the chat must be held.
func (j *chatJob) commitLocked(ctx context.Context, reply *Message) (*chatState, error) {
	if j.stateless {
		j.fresh.status = ChatClosed
		return j.fresh, nil
	}
	if err := j.keepLocked(ctx); err != nil {
		return nil, err
	}
	if err := j.rememberLocked(ctx, reply, answerID); err != nil {
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
		if err := j.table.saveLocked(ctx, j.chat, &next); err != nil {
			return nil, err
		}
	}
	return j.chat.state, nil
}

// fail ends a stream with an error: as a plain answer if the stream has not begun, else in its last
// event (ARC-D22, ARC-D23).
func (j *chatJob) fail(work, ctx context.Context, reply *Message, err error, isCut bool) {
	s, r, out := j.table.s, j.run, &j.out
	isPlain := out.pieces == 0 && r.conn.discard()
	if !isPlain && !j.stateless && !isCut {
		if keepErr := j.keepText(ctx, reply); keepErr != nil {
			s.opts.Logger.ErrorContext(ctx, "arc: chat message not stored", "chat", j.id, "err", keepErr)
		}
	}
	cause := context.Cause(work)
	if out.err != nil || errors.Is(cause, errNoReader) {
		s.opts.Logger.DebugContext(ctx, "arc: stream ended without reader", "chat", j.id, "err", err)
		r.w.Cut(streamlog.ErrNoReader)
		return
	}
	if errors.Is(cause, ErrClosed) && errors.Is(err, work.Err()) {
		err = agentFault(ErrAgentNotAvailable, j.call.TargetAgent)
	}
	r.fault = s.faultOf(ctx, j.call, err)
	err = out.failed(ctx, r.fault, !isCut)
	if err == nil && isCut {
		err = out.done(ctx, ChatClosed)
	}
	if err != nil {
		s.opts.Logger.DebugContext(ctx, "arc: end of stream not stored", "chat", j.id, "err", err)
	}
}

// keepText stores the text that was streamed before an error, with its question.
func (j *chatJob) keepText(ctx context.Context, reply *Message) error {
	j.chat.mu.Lock()
	defer j.chat.mu.Unlock()
	err := j.keepLocked(ctx)
	if err == nil && j.out.pieces > 0 {
		err = j.rememberLocked(ctx, reply, answerID)
	}
	return err
}
