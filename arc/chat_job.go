// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"errors"
	"time"

	"github.com/fivewire/fivewire/arc/internal/engine"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/streamlog"
)

// A chatJob is the answering of one message: it has the turn in its chat.
type chatJob struct {
	table     *chatTable
	call      *Call
	attempt   attempt
	chat      *liveChat
	id        string
	fresh     *chatState // of a chat.start: the chat that is to be
	first     bool
	stateless bool
	message   *Message
	stream    bool
	run       *streamRun // nil unless the answer is a stream
	reply     *Message   // what a repeated request was answered with before, or nil
	rec       chatRecord
	isKept    bool   // the message is stored
	before    uint64 // position of the message before one that an earlier attempt stored
	isPartial bool   // the answer to be stored is incomplete
	reserved  int    // bytes for the messages of this turn
	bytes     holds  // of the answer before it is stored
	out       ChatWriter
	turn      ChatTurn
	unshared  liveChat // of a stateless chat
}

// serve answers, in one piece or as a stream.
func (j *chatJob) serve(ctx context.Context) (any, error) {
	isStreamed := j.stream && j.call.out.streams()
	if j.reply != nil && !isStreamed {
		return j.repeat()
	}
	if err := j.reserveBytes(); err != nil {
		j.drop()
		return nil, err
	}
	if isStreamed {
		return j.table.s.streams.serve(ctx, j)
	}
	// A transport without streams gets it all at once.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(context.Canceled)
	return j.answer(ctx, cancel)
}

// readStored finds what an earlier attempt of the request stored: the message of the caller, and its answer.
func (j *chatJob) readStored(ctx context.Context, st *chatState) error {
	if st == nil || !j.attempt.isRepeated {
		return nil
	}
	list, err := readItems(ctx, j.table.db, chatItems(j.chat.key), st.last)
	if err != nil {
		return err
	}
	question, answer := j.attempt.find(list, questionName), j.attempt.find(list, answerName)
	if j.isKept = question >= 0; question > 0 {
		j.before = list[question-1].Seq
	}
	if answer >= 0 {
		j.reply, err = saidIn(list[answer])
	}
	return err
}

// reserveBytes takes room for the message of the caller, and for a new chat.
func (j *chatJob) reserveBytes() error {
	n, ledger := len(j.call.Params)+itemBytes, j.table.s.ledger
	if j.stateless || j.reply != nil {
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

// returnBytes ends the reservations of a turn.
func (j *chatJob) returnBytes() {
	j.bytes.release()
	switch {
	case j.stateless:
	case j.fresh != nil && j.rec.current() == nil: // the chat does not exist
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
	j.returnBytes()
	if !j.stateless {
		j.pass()
	}
	j.table.release(lc)
}

// repeat responds with the stored answer and releases the turn.
func (j *chatJob) repeat() (any, error) {
	defer j.table.release(j.chat)
	j.unclaim(context.Background())
	j.pass()
	return j.rec.current().result(j.reply, !j.first)
}

// pass passes the turn to the next message.
func (j *chatJob) pass() {
	j.chat.mu.Lock()
	defer j.chat.mu.Unlock()
	j.chat.passLocked()
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
	*turn = ChatTurn{ChatID: j.id, Message: j.message, First: j.first, Stream: j.run != nil, table: c, chat: lc}
	if st := j.rec.current(); st != nil {
		turn.Metadata, turn.last = st.metadata, st.last
	} else if j.fresh != nil {
		turn.Metadata = j.fresh.metadata
	}
	if j.isKept {
		turn.last = j.before
	}
	lc.mu.Lock()
	if !j.stateless {
		lc.cancel = cancel
		if lc.turn.IsEnded() {
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
	if j.reply != nil {
		return out.SendMessage(j.reply)
	}
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
	if st := j.rec.current(); st != nil && now().Sub(st.updated) >= every {
		j.rec.renew(ctx) // little may be left
	}
	j.rec.mu.Lock() // for the timer, which may fire at once
	defer j.rec.mu.Unlock()
	var timer *time.Timer
	timer = time.AfterFunc(every, func() {
		work, err := s.life.Start(ctx, life.Part)
		if err != nil {
			return
		}
		defer work.Finish()
		j.rec.renew(ctx)
		j.rec.mu.Lock()
		defer j.rec.mu.Unlock()
		if !j.rec.isOver {
			timer.Reset(every)
		}
	})
	return func() { timer.Stop() }
}

// begin keeps a chat whose stream begins, with its message. It is called by the writer, from the handler.
func (j *chatJob) begin(ctx context.Context) error { return j.keep(ctx, nil, func(*chatState) {}) }

// keep adds the message of the caller, unless the stream has begun with it, and an answer, if there is one, to the chat.
func (j *chatJob) keep(ctx context.Context, reply *Message, edit func(next *chatState)) error {
	if j.stateless || j.reply != nil || j.isKept && reply == nil {
		return nil
	}
	var items []chatItem
	if !j.isKept {
		item, err := j.item(j.message, j.attempt.item(questionName))
		if err != nil {
			return err
		}
		items = append(items, item)
	}
	if reply != nil {
		name := answerName
		if j.isPartial {
			name = partName
		}
		item, err := j.item(reply, j.attempt.ownItem(name))
		if err != nil {
			return err
		}
		items = append(items, item)
	}
	if j.fresh == nil {
		if err := j.rec.change(ctx, edit, items...); err != nil {
			return err
		}
		j.isKept = true
		return nil
	}
	if j.rec.current() == nil {
		if err := j.table.s.persist(ctx, func(ctx context.Context) error { return j.table.s.bindWork(ctx, j.call, "chatId", j.id) }); err != nil {
			return err
		}
	}
	if err := j.rec.create(ctx, j.fresh, edit, items...); err != nil {
		return err
	}
	j.isKept = true
	return nil
}

// item returns a message as the store keeps it, and counts its bytes.
func (j *chatJob) item(m *Message, id string) (item chatItem, err error) {
	item.id = id
	item.data, err = encode(func(w *writer) {
		w.b = append(w.b, make([]byte, linkLen)...)
		w.message(m)
	})
	if err != nil {
		return item, err
	}
	n := len(item.data) + itemBytes
	if err := j.table.s.ledger.grow(chatObject, j.chat.key, n-min(n, j.reserved)); err != nil {
		return item, err
	}
	j.reserved -= min(n, j.reserved)
	return item, nil
}

// conclude stores the messages, responds, and releases the turn. A slow reader of the end
// of a stream does not prevent callers from ending the chat. The context work is that of the handler.
func (j *chatJob) conclude(work, ctx context.Context, reply *Message, err error) (result any, _ error) {
	out := &j.out
	var st *chatState
	isCut := j.isEnded(ctx)
	switch {
	case isCut:
		err = idFault(ErrChatAlreadyClosed, "chatId", j.id)
	case err == nil:
		if reply != nil && reply.Timestamp == "" {
			reply.Timestamp = NewTimestamp(now())
		}
		st, err = j.commit(ctx, reply)
		isCut = errors.Is(err, ErrChatAlreadyClosed) // by another process
	}
	switch {
	case err == nil && j.run != nil:
		err = out.done(ctx, st.status)
	case err == nil:
		result, err = st.result(reply, !j.first)
	case j.run != nil:
		j.fail(work, ctx, reply, err, isCut)
	}
	if j.run != nil {
		j.run.claim.end(j.run.fault != nil && isPassing(j.run.fault.Code))
	}
	j.returnBytes()
	if !j.stateless {
		j.rec.renew(ctx)
		j.rec.finish()
	}
	j.unclaim(ctx)
	if !j.stateless {
		j.pass()
	}
	return result, err
}

// isEnded reports whether the chat was ended during the turn.
func (j *chatJob) isEnded(ctx context.Context) bool {
	if j.stateless {
		return false
	}
	j.chat.mu.Lock()
	isEnded := j.chat.turn.IsEnded()
	j.chat.mu.Unlock()
	if isEnded || !j.table.s.isShared {
		return isEnded
	}
	r := chatRecord{table: j.table, key: j.chat.key}
	st, err := r.load(ctx)
	if err != nil {
		j.table.s.opts.Logger.WarnContext(ctx, "arc: chat not read", "chat", j.id, "err", err)
	}
	return st != nil && st.status == ChatClosed
}

// commit makes question, answer and state history, by one change, and returns the state that the response reports.
func (j *chatJob) commit(ctx context.Context, reply *Message) (*chatState, error) {
	if j.stateless {
		j.fresh.status = ChatClosed
		return j.fresh, nil
	}
	j.chat.mu.Lock()
	isPaused := j.chat.turn.Phase == engine.Pausing
	j.chat.mu.Unlock()
	err := j.keep(ctx, reply, func(next *chatState) {
		next.updated = now()
		if isPaused {
			next.status = ChatPaused
		}
	})
	if errors.Is(err, errTurnLost) {
		fault := agentFault(ErrAgentNotAvailable, j.call.TargetAgent)
		fault.Cause = err
		return nil, fault
	}
	return j.rec.current(), err
}

// fail ends a stream with an error: as a plain answer if the stream has not begun, else in its last
// event (ARC-D22, ARC-D23).
func (j *chatJob) fail(work, ctx context.Context, reply *Message, err error, isCut bool) {
	s, r, out := j.table.s, j.run, &j.out
	isPlain := out.pieces == 0 && r.conn.discard()
	if !isPlain && !j.stateless && !isCut {
		if out.pieces == 0 {
			reply = nil
		}
		j.isPartial = true
		if keepErr := j.keep(ctx, reply, func(*chatState) {}); keepErr != nil { // what was streamed stays
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
