// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/fivewire/fivewire/arc/internal/engine"
	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/store"
)

// A chatTable keeps the chats of a server. The store holds the state of a chat
// under one key and its messages in a stream. Each chat in use has an entry in
// memory that serializes its messages (ARC-D46). Between processes a turn is a claim
// in the store (ARC-D78).
type chatTable struct {
	s  *Server
	db store.Store

	mu   sync.Mutex
	live map[string]*liveChat // by key; guarded by mu
}

// A chatState is everything about a chat but its messages.
type chatState struct {
	id       string
	status   ChatStatus
	created  time.Time
	updated  time.Time
	closed   time.Time
	renewed  time.Time // when the messages got their time to live
	reason   string
	metadata json.RawMessage
	last     uint64 // position of the newest message, see readItems
}

// A liveChat is a chat that is being talked in.
type liveChat struct {
	key  string
	refs int // guarded by chatTable.mu

	mu     sync.Mutex                 // guards all that follows
	turn   engine.Turn[chan struct{}] // a waiting message has a channel that is closed at its turn
	cancel context.CancelCauseFunc    // ends the handler that has the turn
	closed chan struct{}              // closed with the chat
}

func newChatTable(s *Server) *chatTable {
	return &chatTable{s: s, db: s.opts.Persistence.Store, live: map[string]*liveChat{}}
}

func chatKey(key string) string   { return "arc/chat/" + key }
func chatItems(key string) string { return "arc/said/" + key }

// key returns the key of a chat, which contains its owner, so that ids of
// different callers never collide (ARC-D34, ARC-D36).
func (c *chatTable) key(call *Call, id string) string {
	return hashOf(call.Agent, call.principalID(), id)
}

func (c *chatTable) acquire(key string) *liveChat {
	c.mu.Lock()
	defer c.mu.Unlock()
	lc := c.live[key]
	if lc == nil {
		lc = &liveChat{key: key, closed: make(chan struct{})}
		c.live[key] = lc
	}
	lc.refs++
	return lc
}

func (c *chatTable) release(lc *liveChat) {
	if lc.key == "" { // of a stateless chat
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if lc.refs--; lc.refs == 0 {
		delete(c.live, lc.key)
	}
}

func (st *chatState) write(w *writer) {
	w.open()
	w.text("id", st.id)
	w.text("status", string(st.status))
	w.moment("created", st.created)
	w.moment("updated", st.updated)
	w.moment("closed", st.closed)
	w.moment("renewed", st.renewed)
	w.optText("reason", st.reason)
	w.optRaw("metadata", st.metadata)
	w.optCount("last", st.last)
	w.close()
}

func decodeChat(b []byte) (*chatState, error) {
	r, err := readStored(b)
	if err != nil {
		return nil, err
	}
	return &chatState{id: r.text("id"), status: ChatStatus(r.text("status")), created: r.moment("created"),
		updated: r.moment("updated"), closed: r.moment("closed"), renewed: r.moment("renewed"), reason: r.text("reason"), metadata: rawOf(r.v.Get("metadata")),
		last: uint64(r.number("last"))}, nil
}

// chatTaken refuses an id that another chat of the caller has.
func chatTaken() *Error { return fieldError(ErrInvalidParams, "chatId", "names an open chat") }

// refuses returns the error that a caller gets for an action that is refused.
func (st *chatState) refuses(id string, a engine.ChatAction) *Error {
	var status ChatStatus
	if st != nil {
		status = st.status
	}
	if _, ok := engine.NextChat(status, a); ok {
		return nil
	}
	code := status.refused()
	if code == ErrInvalidParams {
		return chatTaken()
	}
	return idFault(code, "chatId", id)
}

func (c *chatTable) handler(method string) Handler {
	switch method {
	case MethodChatStart:
		return HandlerFunc(c.start)
	case MethodChatMessage:
		return HandlerFunc(c.message)
	}
	return HandlerFunc(c.end)
}

// start begins a chat with its first message.
func (c *chatTable) start(ctx context.Context, call *Call) (any, error) {
	p, err := wire.Read[wire.StartChat](call.Params)
	if err != nil {
		return nil, err
	}
	at := now()
	message, err := c.s.admit("initialMessage", &p.InitialMessage, at)
	if err != nil {
		return nil, err
	}
	if p.Stream {
		if isAnswered, err := c.s.streams.serveEarlier(ctx, call); isAnswered || err != nil {
			return nil, err
		}
	}
	j := &chatJob{table: c, call: call, attempt: c.s.attemptOr(call.attempt), first: true, stateless: call.entry.StatelessChats, message: message, stream: p.Stream}
	j.fresh = &chatState{id: textOf(p.ChatID), status: ChatActive, created: at, updated: at, metadata: p.Metadata}
	if p.ChatID == nil {
		j.fresh.id = call.id("chat-")
	}
	j.id = j.fresh.id
	if j.stateless {
		j.chat = &j.unshared // it has no entry
		return j.serve(ctx)
	}
	j.chat = c.acquire(c.key(call, j.id))
	j.rec = chatRecord{table: c, key: j.chat.key, id: j.id}
	if err := j.reserve(ctx); err != nil {
		c.release(j.chat)
		return nil, err
	}
	return j.serve(ctx)
}

// reserve takes the id while the chat is not kept yet (ARC-D34). A chat that an earlier attempt of the request has begun
// may be in use: this one waits for its turn.
func (j *chatJob) reserve(ctx context.Context) error {
	st, err := j.rec.load(ctx)
	if err == nil {
		err = j.readStored(ctx, st)
	}
	if err != nil {
		return err
	}
	if j.isKept {
		j.fresh = nil
		return j.take(ctx)
	}
	if err := j.open(st); err != nil {
		return err
	}
	if err = j.claimNew(ctx); err == nil {
		if err = j.checkNew(ctx); err != nil {
			j.unclaim(ctx)
		}
	}
	if err != nil {
		j.pass()
	}
	return err
}

// open takes the turn of a chat that is to begin.
func (j *chatJob) open(st *chatState) error {
	lc := j.chat
	lc.mu.Lock()
	defer lc.mu.Unlock()
	if lc.turn.IsTaken() {
		return chatTaken()
	}
	if fault := st.refuses(j.id, engine.StartChat); fault != nil {
		return fault
	}
	lc.turn.Open()
	return nil
}

// checkNew checks the state of a new chat at its turn: another process may have begun it.
func (j *chatJob) checkNew(ctx context.Context) error {
	st, err := j.rec.load(ctx)
	if fault := st.refuses(j.id, engine.StartChat); err == nil && fault != nil {
		err = fault
	}
	return err
}

// message answers a further message of a chat.
func (c *chatTable) message(ctx context.Context, call *Call) (any, error) {
	p, err := wire.Read[wire.ChatMessage](call.Params)
	if err != nil {
		return nil, err
	}
	message, err := c.s.admit("message", &p.Message, now())
	if err != nil {
		return nil, err
	}
	if p.Stream {
		if isAnswered, err := c.s.streams.serveEarlier(ctx, call); isAnswered || err != nil {
			return nil, err
		}
	}
	j := &chatJob{table: c, call: call, attempt: c.s.attemptOr(call.attempt), id: p.ChatID, message: message, stream: p.Stream, chat: c.acquire(c.key(call, p.ChatID))}
	j.rec = chatRecord{table: c, key: j.chat.key, id: j.id}
	if err := j.take(ctx); err != nil {
		c.release(j.chat)
		return nil, err
	}
	return j.serve(ctx)
}

// take waits for the turn of a message.
func (j *chatJob) take(ctx context.Context) error {
	lc := j.chat
	turn, err := j.queue(ctx)
	if err == nil {
		err = lc.wait(ctx, turn, j.id)
	}
	if err != nil {
		return err
	}
	err = j.claim(ctx)
	if err == nil {
		err = j.checkTurn(ctx)
		if err != nil {
			j.unclaim(ctx)
		}
	}
	if err != nil {
		j.pass()
	}
	return err
}

// checkTurn checks the state of the chat at the turn of a message, which resumes a paused chat. A message that was
// answered gets the stored answer.
func (j *chatJob) checkTurn(ctx context.Context) error {
	st, err := j.rec.load(ctx)
	if err == nil {
		err = j.readStored(ctx, st)
	}
	if err != nil || j.reply != nil {
		return err
	}
	if fault := st.refuses(j.id, engine.MessageChat); fault != nil {
		return fault
	}
	if st.status == ChatPaused {
		err = j.rec.change(ctx, func(next *chatState) { next.status, next.updated = ChatActive, now() })
	}
	return err
}

// queue checks the state of the chat and queues the message.
func (j *chatJob) queue(ctx context.Context) (turn chan struct{}, err error) {
	lc := j.chat
	lc.mu.Lock()
	isNew := lc.turn.MayBeNew()
	lc.mu.Unlock()
	if !isNew && j.reply == nil {
		st, err := j.rec.load(ctx)
		if err != nil {
			return nil, err
		}
		if fault := st.refuses(j.id, engine.MessageChat); fault != nil {
			return nil, fault
		}
	}
	lc.mu.Lock()
	defer lc.mu.Unlock()
	return j.queueLocked()
}

// queueLocked takes the turn if it is free, else it returns a channel that is closed at
// the turn. The lock of the chat must be held.
func (j *chatJob) queueLocked() (turn chan struct{}, err error) {
	lc := j.chat
	if lc.turn.Enter() {
		return nil, nil
	}
	next := make(chan struct{})
	if !lc.turn.Wait(next, j.table.s.opts.Limits.ChatQueueLimit) {
		return nil, idFault(ErrChatBufferOverflow, "chatId", j.id)
	}
	return next, nil
}

// wait waits for the turn; nil means that it is taken.
func (lc *liveChat) wait(ctx context.Context, turn chan struct{}, id string) (err error) {
	if turn == nil {
		return nil
	}
	select {
	case <-turn:
		return nil
	case <-lc.closed:
		err = idFault(ErrChatAlreadyClosed, "chatId", id)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	lc.mu.Lock()
	defer lc.mu.Unlock()
	if !lc.turn.Remove(turn) {
		lc.passLocked() // the turn came at the same moment
	}
	return err
}

// passLocked passes the turn to the next message. lc.mu must be held.
func (lc *liveChat) passLocked() {
	lc.cancel = nil
	if next, ok := lc.turn.Leave(); ok {
		close(next)
	}
}

// end closes a chat at once: what is being answered is cut off (ARC-D46).
func (c *chatTable) end(ctx context.Context, call *Call) (any, error) {
	p, err := wire.Read[wire.EndChat](call.Params)
	if err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx)
	lc := c.acquire(c.key(call, p.ChatID))
	defer c.release(lc)
	r := chatRecord{table: c, key: lc.key, id: p.ChatID}
	st, err := r.end(ctx, textOf(p.Reason), call.attempt)
	if err != nil {
		return nil, err
	}
	lc.mu.Lock()
	lc.cutLocked()
	lc.mu.Unlock()
	c.cutElsewhere(ctx, lc.key)
	if err := c.db.Expire(ctx, chatItems(lc.key), c.s.opts.Persistence.ChatRetention); err != nil {
		c.s.opts.Logger.WarnContext(ctx, "arc: closed chat not expired", "chat", p.ChatID, "err", err)
	}
	return st.result(nil, true)
}

// result is the answer of the chat methods.
func (st *chatState) result(m *Message, updated bool) (any, error) {
	w := newReady()
	w.b = append(w.b, `{"type":"chat","chat":{`...)
	w.text("chatId", st.id)
	w.text("status", string(st.status))
	if m != nil {
		w.key("message")
		w.message(m)
	}
	w.stamp("createdAt", st.created)
	switch {
	case st.status == ChatClosed && !st.closed.IsZero():
		w.stamp("closedAt", st.closed)
		w.optText("reason", st.reason)
	case updated:
		w.stamp("updatedAt", st.updated)
	}
	w.b = append(w.b, '}', '}')
	return w, w.err
}
