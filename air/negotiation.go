// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"context"
	"errors"
	"time"
)

// A Negotiation makes the moves of one party in one thread. It takes ids and prices from the
// current state of the thread, and refuses illegal moves before they are signed. Its methods are
// safe for concurrent use.
//
// In a [Handler] that is called again for a move, Counter, Accept and Decline with its context continue the answer of an earlier
// call, whatever their arguments: they send the one in the outbox. If it was delivered, they return a Receipt without an Envelope.
type Negotiation struct {
	client   *Client
	threadID string
	peer     string
	seal     bool
}

// NewNegotiation returns the negotiation with a peer in a thread: a new one if threadID is empty,
// else that of a received envelope. The client needs [ClientOptions.ThreadStore], shared with the
// [Inbox] that receives the peer's moves. If seal is set, the moves are sealed.
func (c *Client) NewNegotiation(peer, threadID string, seal bool) *Negotiation {
	if threadID == "" {
		threadID = NewID()
	}
	return &Negotiation{client: c, threadID: threadID, peer: peer, seal: seal}
}

// ThreadID returns the id of the thread.
func (n *Negotiation) ThreadID() string { return n.threadID }

var errNoThreads = errors.New("air: negotiation: ClientOptions.ThreadStore missing")

// Thread returns the state of the negotiation.
func (n *Negotiation) Thread(ctx context.Context) (Thread, error) {
	if n.client.opts.ThreadStore == nil {
		return Thread{}, errNoThreads
	}
	return n.client.opts.ThreadStore.Get(ctx, n.threadID, n.peer)
}

// Offer opens the negotiation.
func (n *Negotiation) Offer(ctx context.Context, description string, price Money, expires time.Time) (*Receipt, error) {
	return n.send(ctx, "", &Offer{Description: description, Price: price, Expires: expires})
}

// Counter responds to the outstanding message with another price.
func (n *Negotiation) Counter(ctx context.Context, description string, price Money, expires time.Time) (*Receipt, error) {
	return n.reply(ctx, func(Move) Body {
		return &Counter{Description: description, Price: price, Expires: expires}
	})
}

// Accept agrees to the outstanding price.
func (n *Negotiation) Accept(ctx context.Context) (*Receipt, error) {
	return n.reply(ctx, func(o Move) Body { return &Accept{Price: o.Price} })
}

// Decline ends the negotiation; the reason may be empty.
func (n *Negotiation) Decline(ctx context.Context, reason string) (*Receipt, error) {
	return n.reply(ctx, func(Move) Body { return &Decline{Reason: reason} })
}

// Withdraw retracts the agent's outstanding message; the reason may be empty.
func (n *Negotiation) Withdraw(ctx context.Context, reason string) (*Receipt, error) {
	return n.answer(ctx, func(o Move) Body { return &Withdraw{WithdrawnID: o.ID, Reason: reason} })
}

// reply sends an answer, or continues that of an earlier call of the handler.
func (n *Negotiation) reply(ctx context.Context, body func(Move) Body) (*Receipt, error) {
	env, isRepeated := ctx.Value(repeatedKey{}).(*Envelope)
	if !isRepeated || env.From != n.peer || env.ThreadID != n.threadID {
		return n.answer(ctx, body)
	}
	th, err := n.Thread(ctx)
	switch {
	case err != nil:
		return nil, err
	case th.isAnswered(env.ID):
		return &Receipt{}, nil
	case n.client.outbox == nil:
		return n.answer(ctx, body)
	}
	m, err := n.client.outbox.queuedAnswer(ctx, n.peer, n.threadID, env.ID)
	switch {
	case err != nil:
		return nil, err
	case m == nil:
		return n.answer(ctx, body)
	}
	d := &Draft{ID: m.ID, To: m.To, ThreadID: m.ThreadID, InReplyTo: m.InReplyTo, Body: &Raw{JSON: m.Body}}
	return n.client.Send(ctx, d, &SendOptions{Seal: m.IsSealed || n.client.opts.RequireSealed})
}

// answer sends a body that refers to the outstanding message.
func (n *Negotiation) answer(ctx context.Context, body func(Move) Body) (*Receipt, error) {
	th, err := n.Thread(ctx)
	if err != nil {
		return nil, err
	}
	switch {
	case th.state.IsClosed():
		return nil, ErrThreadClosed.err("the negotiation has ended")
	case len(th.Moves) == 0:
		return nil, ErrConflict.err("there is nothing to answer yet")
	}
	o := th.Moves[len(th.Moves)-1]
	return n.send(ctx, o.ID, body(o))
}

func (n *Negotiation) send(ctx context.Context, inReplyTo string, body Body) (*Receipt, error) {
	if n.client.opts.ThreadStore == nil {
		return nil, errNoThreads
	}
	return n.client.Send(ctx, &Draft{To: n.peer, ThreadID: n.threadID, InReplyTo: inReplyTo, Body: body}, &SendOptions{Seal: n.seal})
}
