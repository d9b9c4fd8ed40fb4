// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/streamlog"
)

// keep adds the message of the caller, unless the stream has begun with it, and an answer, if there is one, to the chat.
func (t *Turn) keep(reply []byte, name string, edit func(next *chatState)) error {
	if t.m.IsStateless || t.reply != nil || t.isKept && reply == nil {
		return nil
	}
	var items []chatItem
	if !t.isKept {
		items = append(items, chatItem{t.attempt.item(questionName), append(make([]byte, linkLen), t.m.Message...)})
	}
	if reply != nil {
		items = append(items, chatItem{t.attempt.ownItem(name), append(make([]byte, linkLen), reply...)})
	}
	for _, item := range items {
		n := len(item.data) + itemBytes
		if err := t.c.ledger.grow(chatObject, t.chat.key, n-min(n, t.reserved)); err != nil {
			return err
		}
		t.reserved -= min(n, t.reserved)
	}
	if t.fresh != nil && t.rec.current() == nil {
		err := t.c.persist(t.c.durable(), func(ctx context.Context) error { return t.c.router.BindWork(ctx, t.q, "chatId", t.id) })
		if err != nil {
			return err
		}
	}
	if err := t.rec.change(t.fresh, edit, items...); err != nil {
		return err
	}
	t.isKept = true
	return nil
}

// conclude stores the messages, releases the turn, and responds. In this order a caller who repeats the request on the
// end of a stream does not meet the turn of the earlier attempt. The context is that of the handler.
func (t *Turn) conclude(work context.Context, reply []byte, err error) (result []byte, _ error) {
	ctx := context.WithoutCancel(work)
	var st *chatState
	isCut := t.isEnded(ctx)
	if isCut {
		err = t.closedFault()
	} else if err == nil {
		st, err = t.commit(reply)
		isCut = isCode(err, wire.ChatAlreadyClosed) // by another process
	}
	var data []byte // of the event of an error
	if err != nil && t.run != nil {
		data = t.fail(work, reply, err, isCut)
	}
	t.release()
	if t.run == nil {
		if err == nil {
			result = st.result(reply, !t.m.IsStart)
		}
		return result, err
	}
	switch {
	case err == nil:
		err = t.run.finish(ctx, wire.EventDone, wire.AppendDone(nil, t.id, st.Status))
	case data == nil:
		t.run.w.Cut(streamlog.ErrNoReader)
	default:
		if IsPassing(t.run.fault.Code) {
			t.run.claim.end(true)
		}
		t.run.finishFault(ctx, t.id, data, isCut)
	}
	t.run.claim.end(false) // no effect after the other end
	return result, err
}

// release releases the turn.
func (t *Turn) release() {
	t.returnBytes()
	if !t.m.IsStateless {
		t.rec.renew()
		t.rec.finish()
	}
	t.unclaim()
	if !t.m.IsStateless {
		t.pass()
	}
}

// isEnded reports whether the chat was ended during the turn.
func (t *Turn) isEnded(ctx context.Context) bool {
	if t.m.IsStateless {
		return false
	}
	t.chat.mu.Lock()
	isEnded := t.chat.turn.IsEnded()
	t.chat.mu.Unlock()
	if isEnded || !t.c.isShared {
		return isEnded
	}
	r := chatRecord{c: t.c, key: t.chat.key}
	st, err := r.load(ctx)
	if err != nil {
		t.c.log.WarnContext(ctx, "arc: chat not read", "chat", t.id, "err", err)
	}
	return st != nil && st.Status == closed
}

// commit makes question, answer and state history, by one change, and returns the state that the response reports.
func (t *Turn) commit(reply []byte) (*chatState, error) {
	if t.m.IsStateless {
		t.fresh.Status = closed
		return t.fresh, nil
	}
	t.chat.mu.Lock()
	isPaused := t.chat.turn.Phase == Pausing
	t.chat.mu.Unlock()
	err := t.keep(reply, answerName, func(next *chatState) {
		next.Updated = Now()
		if isPaused {
			next.Status = paused
		}
	})
	if errors.Is(err, errTurnLost) {
		fault := wire.NewFault(wire.AgentNotAvailable, "agentId", t.q.Target)
		fault.Cause = err
		return nil, fault
	}
	return t.rec.current(), err
}

// fail keeps the pieces that were streamed before an error. It returns the data of the event that ends the stream: as a
// plain answer if the stream has not begun, else as its last event (ARC-D22, ARC-D23). They are nil without a reader.
func (t *Turn) fail(work context.Context, reply []byte, err error, isCut bool) []byte {
	ctx, c, r := context.WithoutCancel(work), t.c, t.run
	isPlain := t.pieces == 0 && r.conn.discard()
	if !isPlain && !t.m.IsStateless && !isCut {
		if t.pieces == 0 {
			reply = nil
		}
		if keepErr := t.keep(reply, partName, func(*chatState) {}); keepErr != nil {
			c.log.ErrorContext(ctx, "arc: chat message not stored", "chat", t.id, "err", keepErr)
		}
	}
	cause := context.Cause(work)
	if t.err != nil || errors.Is(cause, ErrNoReader) {
		c.log.DebugContext(ctx, "arc: stream ended without reader", "chat", t.id, "err", err)
		return nil
	}
	if errors.Is(cause, c.opts.Closed) && (errors.Is(err, cause) || errors.Is(err, work.Err())) {
		err = wire.NewFault(wire.AgentNotAvailable, "agentId", t.q.Target)
	}
	r.fault = c.opts.Fault(ctx, t.q, err)
	return wire.AppendError(nil, t.id, r.fault.JSON())
}

// finishFault sends the event of an error. If the chat was ended it is followed by the end of the stream.
func (r *streamRun) finishFault(ctx context.Context, chatID string, data []byte, isCut bool) {
	err := error(nil)
	if isCut {
		if err = r.append(ctx, wire.EventError, data); err == nil {
			err = r.finish(ctx, wire.EventDone, wire.AppendDone(nil, chatID, closed))
		}
	} else {
		err = r.finish(ctx, wire.EventError, data)
	}
	if err != nil {
		r.s.log.DebugContext(ctx, "arc: end of stream not stored", "chat", chatID, "err", err)
	}
}
