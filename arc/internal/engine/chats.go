// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/state"
	"github.com/fivewire/fivewire/store"
)

// Chats keep the chats of a server. The store holds the state of a chat under one key and its messages in a stream.
// Each chat in use has an entry in memory that gives the turn to one message (ARC-D46). Between processes a turn is a
// claim in the store (ARC-D78).
type Chats struct {
	*core
	router  *Router
	streams *Streams
	claims  *Claims

	mu   sync.Mutex
	live map[string]*chat // by key; guarded by mu
}

// A chat is the entry of a chat in use.
type chat struct {
	key  string
	refs int // guarded by Chats.mu

	mu     sync.Mutex              // guards all that follows
	turn   turn[chan struct{}]     // a waiting message has a channel that is closed at its turn
	cancel context.CancelCauseFunc // ends the handler that has the turn
	closed chan struct{}           // closed with the chat
}

func newChats(c *core, r *Router, s *Streams, cl *Claims) *Chats {
	return &Chats{core: c, router: r, streams: s, claims: cl, live: map[string]*chat{}}
}

func chatKey(key string) string   { return prefix + "chat/" + key }
func chatItems(key string) string { return prefix + "said/" + key }
func turnKey(key string) string   { return prefix + "turn/" + key }

// keyOf returns the key of a chat, which contains its owner, so that ids of different callers never collide (ARC-D34,
// ARC-D36).
func keyOf(q *Request, id string) string { return Hash(q.Agent, q.Principal, id) }

// Has reports whether there is a chat.
func (c *Chats) Has(ctx context.Context, q *Request, id string) (bool, error) {
	_, err := c.db.Get(ctx, chatKey(keyOf(q, id)))
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

func (c *Chats) acquire(key string) *chat {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch := c.live[key]
	if ch == nil {
		ch = &chat{key: key, closed: make(chan struct{})}
		c.live[key] = ch
	}
	ch.refs++
	return ch
}

func (c *Chats) release(ch *chat) {
	if ch.key == "" { // of a stateless chat
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if ch.refs--; ch.refs == 0 {
		delete(c.live, ch.key)
	}
}

// A ChatMessage is a chat.start or a chat.message.
type ChatMessage struct {
	ChatID                           string // of a chat.start: empty if the server chooses one
	IsStart, IsStateless, IsStreamed bool
	Message                          []byte // JSON
	Metadata                         []byte // of a chat.start, or nil
	Host                             Host
}

// A Host has what a message needs outside the engine.
type Host interface {
	// Open returns where the events of a streamed answer go. It is called once.
	Open() Sink

	// Serve runs the handler of the chat. It returns the whole answer as JSON, also with an error after which the answer
	// so far is kept, or nil if it is not kept.
	Serve(ctx context.Context, t *Turn) ([]byte, error)
}

// Answer answers a message of a chat in its turn. It returns the result of the method, or nil if the answer went to the
// sink, and then an error that the sink got, too.
func (c *Chats) Answer(ctx context.Context, q *Request, m *ChatMessage, lastEventID string) ([]byte, *Connection, error) {
	if m.IsStreamed {
		conn, isAnswered, err := c.streams.earlier(ctx, q, m.Host, lastEventID)
		if isAnswered || err != nil {
			return nil, conn, err
		}
	}
	t := &Turn{c: c, q: q, m: m, id: m.ChatID, attempt: q.Attempt.OrNew(c.isShared)}
	if m.IsStart {
		at := Now()
		if t.id == "" {
			t.id = q.Attempt.ID("chat-")
		}
		t.first = chatState{ID: t.id, Status: active, Created: at, Updated: at, Metadata: m.Metadata}
		t.fresh = &t.first
	}
	if m.IsStateless {
		t.chat = &t.unshared // it has no entry
		return t.serve(ctx)
	}
	t.chat = c.acquire(keyOf(q, t.id))
	t.rec = chatRecord{c: c, key: t.chat.key, id: t.id}
	err := error(nil)
	if m.IsStart {
		err = t.reserve(ctx)
	} else {
		err = t.take(ctx)
	}
	if err != nil {
		q.claim.end(true)
		c.release(t.chat)
		return nil, nil, err
	}
	return t.serve(ctx)
}

// End closes a chat at once: what is being answered is cut off (ARC-D46). It returns the result of chat.end.
func (c *Chats) End(ctx context.Context, q *Request, id, reason string) ([]byte, error) {
	ch := c.acquire(keyOf(q, id))
	defer c.release(ch)
	r := chatRecord{c: c, key: ch.key, id: id}
	st, err := r.end(reason, q.Attempt)
	if err != nil {
		return nil, err
	}
	ch.mu.Lock()
	ch.cutLocked(c.opts.ChatClosed)
	ch.mu.Unlock()
	c.cutElsewhere(ch.key)
	if ttl := c.opts.ChatRetention; ttl > 0 {
		if err := c.db.Expire(c.durable(), chatItems(ch.key), ttl); err != nil {
			c.log.WarnContext(ctx, "arc: closed chat not expired", "chat", id, "err", err)
		}
	}
	return st.result(nil, true), nil
}

// cutLocked ends the turn and the queue of a chat that was ended. ch.mu must be held.
func (ch *chat) cutLocked(cause error) {
	if ch.cancel != nil {
		ch.cancel(cause)
	}
	if !ch.turn.IsEnded() {
		ch.turn.End()
		close(ch.closed)
	}
}

const chatTopic = "chat" // of messages to the owner of a turn whose chat was ended

// cutElsewhere informs the process that has the turn of a chat about its end.
func (c *Chats) cutElsewhere(key string) {
	if !c.isShared {
		return
	}
	e, err := c.read(c.durable(), turnKey(key))
	if err == nil {
		err = c.notify(c.durable(), lease.Owner(e.Value), chatTopic, key)
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		c.log.WarnContext(c.durable(), "arc: process of chat not notified", "err", err)
	}
}

// listen cuts a turn whose chat another process has ended.
func (c *Chats) listen(data []byte) {
	_ = c.life.Go("chat", func(ctx context.Context) { // not in a shutdown
		c.mu.Lock()
		ch := c.live[string(data)]
		if ch != nil {
			ch.refs++
		}
		c.mu.Unlock()
		if ch == nil {
			return
		}
		defer c.release(ch)
		r := chatRecord{c: c, key: ch.key}
		if st, err := r.load(ctx); err != nil || st == nil || st.Status != closed {
			return
		}
		ch.mu.Lock()
		defer ch.mu.Unlock()
		ch.cutLocked(c.opts.ChatClosed)
	})
}

// turnTTL is the lifetime of the record of a turn, which names its owner. Between two turns the record is empty.
const turnTTL = 30 * 24 * time.Hour

// errTurnTaken reports that another process has the turn.
var errTurnTaken = errors.New("arc: chat: another process has the turn")

// tryClaim takes the turn of a chat for this process, unless a live process has it. An owner of this process is left
// from a change that was in doubt. After a claim whose outcome is unknown it frees the turn. The new revision refuses a
// claim in transit.
func (t *Turn) tryClaim(ctx context.Context) error {
	l := t.c.lease
	own := l.Owner()
	ctx, cancel := context.WithTimeout(ctx, outage)
	defer cancel()
	_, err := store.Modify(ctx, t.c.db, turnKey(t.chat.key), turnTTL, func(old store.Entry, _ bool) ([]byte, error) {
		if holder := lease.Owner(old.Value); holder != "" && holder != own {
			isAlive, err := l.Alive(ctx, holder)
			if err == nil && isAlive {
				err = errTurnTaken
			}
			if err != nil {
				return nil, err
			}
		}
		return []byte(own), nil
	})
	if err != nil && !errors.Is(err, errTurnTaken) {
		t.free(true)
	}
	return err
}

// claim waits until this process has the turn. The message must have it within the process.
func (t *Turn) claim(ctx context.Context) error {
	if !t.c.isShared {
		return nil
	}
	for delay := 25 * time.Millisecond; ; delay = min(2*delay, time.Second) {
		err := t.tryClaim(ctx)
		if !errors.Is(err, errTurnTaken) {
			return err
		}
		select {
		case <-time.After(delay):
		case <-t.chat.closed:
			return t.closedFault()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// claimNew takes the turn of a chat that is to begin. Another process may be beginning it.
func (t *Turn) claimNew(ctx context.Context) error {
	if !t.c.isShared {
		return nil
	}
	err := t.tryClaim(ctx)
	if errors.Is(err, errTurnTaken) {
		return errChatTaken
	}
	return err
}

// unclaim frees the turn for other processes.
func (t *Turn) unclaim() {
	if t.c.isShared && !t.m.IsStateless {
		t.free(false)
	}
}

// free frees a turn of this process. It repeats this until the store takes it, since no other process takes the turn
// from a living one, or until a shutdown or the loss of the lease. A free turn gets a new revision if isForced.
func (t *Turn) free(isForced bool) {
	for delay := 25 * time.Millisecond; ; delay = min(2*delay, time.Second) {
		err := t.tryFree(isForced)
		if err == nil {
			return
		}
		if t.c.life.Ready() != nil || t.c.lease.Context().Err() != nil {
			t.c.log.WarnContext(t.c.durable(), "arc: turn not freed", "chat", t.id, "err", err)
			return
		}
		time.Sleep(delay)
	}
}

func (t *Turn) tryFree(isForced bool) error {
	own := t.c.lease.Owner()
	ctx, cancel := context.WithTimeout(context.Background(), outage)
	defer cancel()
	_, err := store.Modify(ctx, t.c.db, turnKey(t.chat.key), state.LandTime, func(old store.Entry, _ bool) ([]byte, error) {
		if lease.Owner(old.Value) == own || isForced && len(old.Value) == 0 {
			return []byte{}, nil
		}
		return nil, store.ErrUnchanged
	})
	return err
}

// A chatState is everything about a chat but its messages.
type chatState struct {
	ID       string          `json:"id"`
	Status   string          `json:"status"`
	Created  Moment          `json:"created,omitempty"`
	Updated  Moment          `json:"updated,omitempty"`
	Closed   Moment          `json:"closed,omitempty"`
	Renewed  Moment          `json:"renewed,omitempty"` // when the messages got their time to live
	Reason   string          `json:"reason,omitempty"`
	Metadata json.RawMessage `json:"metadata,omitempty"`
	Last     uint64          `json:"last,omitempty"` // position of the newest message, see readItems
}

// errChatTaken refuses an id that another chat of the caller has.
var errChatTaken error = wire.FieldFault(wire.InvalidParams, "chatId", "names an open chat")

// refuses returns the error that a caller gets for an action that is refused.
func (st *chatState) refuses(id string, a ChatAction) error {
	status := ""
	if st != nil {
		status = st.Status
	}
	if _, ok := NextChat(status, a); ok {
		return nil
	}
	return ChatRefusal(id, status)
}

// ChatRefusal is the error of an action that a chat in a state refuses. Without a state it does not exist.
func ChatRefusal(id, status string) error {
	switch status {
	case "":
		return noChat(wire.ChatNotFound, id)
	case closed:
		return noChat(wire.ChatAlreadyClosed, id)
	}
	return errChatTaken
}

func noChat(code int64, id string) error { return wire.NewFault(code, "chatId", id) }

// result is the result of the chat methods.
func (st *chatState) result(answer []byte, isUpdated bool) []byte {
	o := wire.Open(make([]byte, 0, 256+len(answer)))
	o.Text("type", "chat")
	o.Object("chat")
	o.Text("chatId", st.ID)
	o.Text("status", st.Status)
	if answer != nil {
		o.Raw("message", answer)
	}
	appendMoment(&o, "createdAt", st.Created)
	switch {
	case st.Status == closed && st.Closed != 0:
		appendMoment(&o, "closedAt", st.Closed)
		o.OptText("reason", st.Reason)
	case isUpdated:
		appendMoment(&o, "updatedAt", st.Updated)
	}
	o.End()
	return o.Close()
}
