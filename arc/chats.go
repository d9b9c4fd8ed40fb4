// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/fivewire/fivewire/store"
)

// A chatTable keeps the chats of a server. The store holds the state of a chat
// under one key and its messages in a stream. Each chat in use has an entry in
// memory that serializes its messages (ARC-D46). Processes that share a store must
// send the calls of one chat to one of them at a time.
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
	mark     string // of the request that began the chat
	endMark  string // of the request that ended it
}

// A liveChat is a chat that is being talked in.
type liveChat struct {
	key  string
	refs int // guarded by chatTable.mu

	mu       sync.Mutex // guards all that follows
	state    *chatState // nil as long as the chat does not exist
	rev      store.Revision
	saved    time.Time               // when the state was written last
	starting bool                    // a chat.start runs, and nothing is kept yet
	busy     bool                    // a message has the turn
	waiting  []chan struct{}         // waiting messages, in order
	cancel   context.CancelCauseFunc // ends the handler that has the turn
	pause    bool                    // the chat is to be paused after this turn
	closed   chan struct{}           // closed with the chat
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
	w.optText("mark", st.mark)
	w.optText("endMark", st.endMark)
	w.close()
}

func decodeChat(b []byte) (*chatState, error) {
	r, err := readStored(b)
	if err != nil {
		return nil, err
	}
	return &chatState{id: r.text("id"), status: ChatStatus(r.text("status")), created: r.moment("created"),
		updated: r.moment("updated"), closed: r.moment("closed"), renewed: r.moment("renewed"), reason: r.text("reason"), metadata: raw(r.v.Get("metadata")),
		mark: r.text("mark"), endMark: r.text("endMark")}, nil
}

// load reads the chat from the store. It is called with the lock held.
func (c *chatTable) load(ctx context.Context, lc *liveChat) error {
	entry, err := c.db.Get(ctx, chatKey(lc.key))
	if errors.Is(err, store.ErrNotFound) {
		lc.state = nil
		return nil
	}
	if err == nil && (lc.state == nil || lc.rev != entry.Revision) {
		lc.state, err = decodeChat(entry.Value)
		lc.rev = entry.Revision
	}
	return err
}

// save writes a changed state, from which the time of silence counts that is left
// to an open chat. It is called with the lock held.
func (c *chatTable) save(ctx context.Context, lc *liveChat, next *chatState) error {
	at, idle := now(), c.s.opts.Timing.ChatIdleTimeout
	ttl := idle
	switch {
	case next.status == ChatClosed:
		ttl = c.s.opts.Persistence.ChatRetention
	case lc.state == nil:
		next.renewed = at
	case idle > 0 && at.Sub(next.renewed) >= idle/4:
		// Messages live longer than the chat by this quarter, so that a turn
		// costs the same however many there are.
		if err := c.db.Expire(ctx, chatItems(lc.key), c.itemLife()); err != nil {
			return err
		}
		next.renewed = at
	}
	w := newReady()
	defer w.free()
	if next.write(&w.writer); w.err != nil {
		return w.err
	}
	var err error
	if lc.state == nil {
		lc.rev, err = c.db.Create(ctx, chatKey(lc.key), w.b, ttl)
		if errors.Is(err, store.ErrExists) {
			err = chatTaken()
		}
	} else {
		lc.rev, err = c.db.Update(ctx, chatKey(lc.key), w.b, lc.rev, ttl)
		if errors.Is(err, store.ErrNotFound) {
			err = idFault(ErrChatNotFound, "chatId", next.id) // idle for too long
		}
	}
	if err == nil {
		lc.state, lc.saved = next, at
	}
	return err
}

// itemLife is how long a message of an open chat lives.
func (c *chatTable) itemLife() time.Duration {
	return c.s.opts.Timing.ChatIdleTimeout + c.s.opts.Timing.ChatIdleTimeout/4
}

// renew gives an open chat its whole time of silence again. It is called with the
// lock held.
func (c *chatTable) renew(ctx context.Context, lc *liveChat) {
	idle := c.s.opts.Timing.ChatIdleTimeout
	if idle == 0 || lc.state == nil || lc.state.status == ChatClosed || now().Sub(lc.saved) <= idle/16 {
		return
	}
	next := *lc.state
	if err := c.save(ctx, lc, &next); err != nil {
		c.s.opts.Logger.WarnContext(ctx, "arc: the time of a chat cannot be extended", "error", err)
	}
}

// chatTaken refuses an id that another chat of the caller has.
func chatTaken() *Error { return fieldError(ErrInvalidParams, "chatId", "names an open chat") }

// fault is the error that a caller gets for an action that is refused.
func (st *chatState) refuses(id string, a ChatAction) *Error {
	var status ChatStatus
	if st != nil {
		status = st.status
	}
	switch _, err := status.Next(a); err {
	case nil:
		return nil
	case ErrInvalidParams:
		return chatTaken()
	default:
		return idFault(err.(Code), "chatId", id)
	}
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
	p, err := typed(call, (*reader).startChat)
	if err != nil {
		return nil, err
	}
	at := now()
	if err := c.s.admit("initialMessage", p.InitialMessage, at); err != nil {
		return nil, err
	}
	if p.Stream && c.s.opts.EnableResume && resumes(call) {
		return c.s.streams.resume(ctx, call)
	}
	j := &chatJob{table: c, call: call, first: true, stateless: call.entry.StatelessChats, message: p.InitialMessage, stream: p.Stream}
	j.fresh = &chatState{id: p.ChatID, status: ChatActive, created: at, updated: at, metadata: p.Metadata, mark: call.mark}
	if p.ChatID == "" {
		j.fresh.id = call.id("chat-")
	}
	j.id = j.fresh.id
	if err := c.s.backToOwner(ctx, call, j.id); err != nil {
		return nil, err
	}
	if j.stateless {
		j.chat = &liveChat{} // not shared: it has no entry
		return j.serve(ctx)
	}
	j.chat = c.acquire(c.key(call, j.id))
	if err := j.reserve(ctx); err != nil {
		c.release(j.chat)
		return nil, err
	}
	return j.serve(ctx)
}

// reserve takes the id while the chat is not kept yet (ARC-D34).
func (j *chatJob) reserve(ctx context.Context) error {
	lc := j.chat
	lc.mu.Lock()
	defer lc.mu.Unlock()
	if lc.starting {
		return chatTaken()
	}
	if err := j.table.load(ctx, lc); err != nil {
		return err
	}
	if j.call.isDuplicate && lc.state != nil && lc.state.mark == j.call.mark {
		// This request started the chat, and other messages may be using it.
		if err := j.await(ctx); err != nil {
			return err
		}
		var err error
		if j.reply, err = j.answered(ctx); err != nil {
			lc.pass()
		}
		lc.starting = err == nil
		return err
	}
	if fault := lc.state.refuses(j.id, ChatStart); fault != nil {
		return fault
	}
	lc.starting, lc.busy = true, true
	return nil
}

// message answers a further message of a chat.
func (c *chatTable) message(ctx context.Context, call *Call) (any, error) {
	p, err := typed(call, (*reader).chatMessage)
	if err != nil {
		return nil, err
	}
	if err := c.s.admit("message", p.Message, now()); err != nil {
		return nil, err
	}
	if p.Stream && c.s.opts.EnableResume && resumes(call) {
		return c.s.streams.resume(ctx, call)
	}
	j := &chatJob{table: c, call: call, id: p.ChatID, message: p.Message, stream: p.Stream, chat: c.acquire(c.key(call, p.ChatID))}
	if err := j.take(ctx); err != nil {
		c.release(j.chat)
		return nil, err
	}
	return j.serve(ctx)
}

// take waits for the turn of a message, which resumes a paused chat.
func (j *chatJob) take(ctx context.Context) error {
	c, lc := j.table, j.chat
	lc.mu.Lock()
	defer lc.mu.Unlock()
	if !lc.starting {
		if err := c.load(ctx, lc); err != nil {
			return err
		}
		if fault := lc.state.refuses(j.id, chatMessage); fault != nil {
			return fault
		}
	}
	if err := j.await(ctx); err != nil {
		return err
	}
	err := c.load(ctx, lc)
	if fault := lc.state.refuses(j.id, chatMessage); err == nil && fault != nil {
		err = fault
	}
	if err == nil && j.call.isDuplicate {
		j.reply, err = j.answered(ctx)
	}
	if err == nil && j.reply == nil && lc.state.status == ChatPaused {
		next := *lc.state
		next.status, next.updated = ChatActive, now()
		err = c.save(ctx, lc, &next)
	}
	if err != nil {
		lc.pass()
	}
	return err
}

// await takes the turn after the waiting messages. It is called with the lock
// held and releases it while waiting.
func (j *chatJob) await(ctx context.Context) error {
	lc := j.chat
	if lc.busy {
		if len(lc.waiting) >= j.table.s.opts.Limits.QueueLimit {
			return idFault(ErrChatBufferOverflow, "chatId", j.id)
		}
		if err := lc.wait(ctx, j.id); err != nil {
			return err
		}
	}
	lc.busy = true
	return nil
}

// wait waits for the turn. It is called with the lock held and lets go of it
// while waiting.
func (lc *liveChat) wait(ctx context.Context, id string) error {
	turn := make(chan struct{})
	lc.waiting = append(lc.waiting, turn)
	lc.mu.Unlock()
	var err error
	select {
	case <-turn:
	case <-lc.closed:
		err = idFault(ErrChatAlreadyClosed, "chatId", id)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	lc.mu.Lock()
	if err == nil {
		return nil
	}
	if i := slices.Index(lc.waiting, turn); i >= 0 {
		lc.waiting = slices.Delete(lc.waiting, i, i+1)
	} else {
		lc.pass() // the turn came at the same moment
	}
	return err
}

// pass gives the turn to the next one. It is called with the lock held.
func (lc *liveChat) pass() {
	lc.cancel = nil
	if len(lc.waiting) == 0 {
		lc.busy = false
		return
	}
	next := lc.waiting[0]
	lc.waiting = lc.waiting[1:]
	close(next)
}

// end closes a chat at once: what is being answered is cut off (ARC-D46).
func (c *chatTable) end(ctx context.Context, call *Call) (any, error) {
	p, err := typed(call, (*reader).endChat)
	if err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx)
	lc := c.acquire(c.key(call, p.ChatID))
	defer c.release(lc)
	lc.mu.Lock()
	defer lc.mu.Unlock()
	for {
		if err := c.load(ctx, lc); err != nil {
			return nil, err
		}
		if call.isDuplicate && lc.state != nil && lc.state.status == ChatClosed && lc.state.endMark == call.mark {
			return lc.state.result(nil, true)
		}
		if fault := lc.state.refuses(p.ChatID, chatEnd); fault != nil {
			return nil, fault
		}
		at := now()
		next := *lc.state
		next.status, next.updated, next.closed, next.reason, next.endMark = ChatClosed, at, at, p.Reason, call.mark
		err := c.save(ctx, lc, &next)
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return nil, err
		}
		break
	}
	if lc.cancel != nil {
		lc.cancel(ErrChatAlreadyClosed)
	}
	if !isClosed(lc.closed) {
		close(lc.closed)
	}
	if err := c.db.Expire(ctx, chatItems(lc.key), c.s.opts.Persistence.ChatRetention); err != nil {
		c.s.opts.Logger.WarnContext(ctx, "arc: a closed chat stays in the store", "error", err)
	}
	return lc.state.result(nil, true)
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

// history reads the messages of a chat before the message of a request, which is
// already stored if the request is repeated.
func (c *chatTable) history(ctx context.Context, lc *liveChat, mark string) ([]Message, error) {
	list := []Message{}
	if lc.key == "" { // nothing is kept of a stateless chat
		return list, nil
	}
	var after uint64
	lenient := reader{lenient: true}
	for {
		page, err := c.db.Read(ctx, chatItems(lc.key), after, itemPage)
		if err != nil {
			return nil, err
		}
		for _, rec := range page {
			after = rec.Seq
			if mark != "" && rec.ID == mark+markSaid {
				continue
			}
			v, err := checkJSON(rec.Value)
			if err != nil {
				return nil, err
			}
			if m := lenient.message(v); m != nil {
				list = append(list, *m)
			}
		}
		if len(page) < itemPage {
			return list, nil
		}
	}
}
