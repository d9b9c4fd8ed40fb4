// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import "slices"

// A ThreadState is the state of a negotiation for one participant (8.2).
type ThreadState string

// The states of a thread. The closed ones are final.
const (
	ThreadPending   ThreadState = "pending"
	ThreadOffered   ThreadState = "offered"
	ThreadCountered ThreadState = "countered"
	ThreadAccepted  ThreadState = "closed_accepted"
	ThreadDeclined  ThreadState = "closed_declined"
	ThreadWithdrawn ThreadState = "closed_withdrawn"
)

// closed reports whether the state is final.
func (s ThreadState) closed() bool {
	return s == ThreadAccepted || s == ThreadDeclined || s == ThreadWithdrawn
}

// A Party is one of the two participants of a thread.
type Party string

// The two parties, from the view of one of them.
const (
	PartySelf Party = "self"
	PartyPeer Party = "peer"
)

// A Move is an Offer or a Counter of a thread.
type Move struct {
	ID    string
	Party Party
	Price Money

	sum messageSum
}

// A messageSum distinguishes messages with the same id. That of a move applied by [Thread.Apply]
// directly is zero.
type messageSum [16]byte

// maxMoves bounds the memory of one thread.
const maxMoves = 1000

// A Thread is one negotiation from the view of one participant. The zero value is pending. Only
// [Thread.Apply] changes it.
type Thread struct {
	State ThreadState // "" is ThreadPending

	// Moves are all Offers and Counters of the thread. The last move is outstanding while the
	// thread is open.
	Moves []Move

	// Agreed is the price of a thread in state ThreadAccepted.
	Agreed Money

	// LastMessageID is the id of the last applied message.
	LastMessageID string
	lastBy        Party
	lastSum       messageSum
}

// Outstanding returns the move that awaits an answer, or nil.
func (t *Thread) Outstanding() *Move {
	if t.State != ThreadOffered && t.State != ThreadCountered || len(t.Moves) == 0 {
		return nil
	}
	return &t.Moves[len(t.Moves)-1]
}

// An effect is one cell of the table of 8.2: the state after a body in an open thread and in a
// pending one.
type effect struct {
	pending ThreadState // "" is a conflict
	open    ThreadState // "" is a conflict
	names   bool        // in_reply_to must be the outstanding move
	other   bool        // only the party that did not make the outstanding move may
}

var effects = map[string]effect{
	bodyTypeOffer:    {pending: ThreadOffered},
	bodyTypeCounter:  {open: ThreadCountered, names: true, other: true},
	bodyTypeAccept:   {open: ThreadAccepted, names: true, other: true},
	bodyTypeDecline:  {open: ThreadDeclined, names: true, other: true},
	bodyTypeWithdraw: {open: ThreadWithdrawn},
}

// Apply changes the thread by a message, or returns an error and leaves it unchanged. The rules are
// checked in this order: the thread is closed ([ErrThreadClosed]), the message does not follow the
// outstanding one ([ErrConflict]), the wrong party acts ([ErrNotYourMove]), the price is not the
// outstanding one ([ErrPriceMismatch]) (AIR-D50). The error is [ErrUnknownMessage] for a Withdraw
// whose id is not a move of the thread (AIR-D57). A body outside negotiations changes nothing.
func (t *Thread) Apply(by Party, id, inReplyTo string, body Body) error {
	if !isMove(body) {
		return nil
	}
	o, e := t.Outstanding(), effects[body.BodyType()]
	next := e.open
	if o == nil {
		next = e.pending
	}
	switch {
	case t.State.closed():
		return ErrThreadClosed.err("the negotiation has ended")
	case next == "":
		return ErrConflict.err("the message does not follow what happened in the thread")
	case e.names && inReplyTo != o.ID:
		return ErrConflict.err("in_reply_to is not the outstanding message")
	case e.other && by == o.Party:
		return ErrNotYourMove.err("the other party has to answer")
	}
	switch b := body.(type) {
	case *Withdraw:
		if err := t.mayWithdraw(by, b.WithdrawnID); err != nil {
			return err
		}
	case *Offer:
		return t.move(next, Move{ID: id, Party: by, Price: b.Price})
	case *Counter:
		return t.move(next, Move{ID: id, Party: by, Price: b.Price})
	case *Accept:
		if b.Price != o.Price {
			return ErrPriceMismatch.err("accepted_price is not the outstanding price")
		}
		t.Agreed = b.Price
	}
	t.State, t.LastMessageID = next, id
	return nil
}

func (t *Thread) move(next ThreadState, m Move) error {
	if len(t.Moves) >= maxMoves {
		return ErrConflict.err("too many moves in one thread")
	}
	t.Moves = append(t.Moves[:len(t.Moves):len(t.Moves)], m) // a copy: t may have been copied
	t.State, t.LastMessageID = next, m.ID
	return nil
}

// isUnseen reports whether a body names a message that an open thread has not seen.
func (t *Thread) isUnseen(inReplyTo string, body Body) bool {
	switch b := body.(type) {
	case *Withdraw:
		inReplyTo = b.WithdrawnID
	case *Counter, *Accept, *Decline:
	default:
		return false
	}
	return !t.State.closed() && !slices.ContainsFunc(t.Moves, func(m Move) bool { return m.ID == inReplyTo })
}

func (t *Thread) mayWithdraw(by Party, id string) error {
	for i := len(t.Moves) - 1; i >= 0; i-- {
		m := &t.Moves[i]
		switch {
		case m.ID != id:
			continue
		case m.Party != by:
			return ErrNotYourMove.err("only its sender may withdraw a message")
		case i < len(t.Moves)-1:
			return ErrConflict.err("the message to withdraw was superseded")
		}
		return nil
	}
	return ErrUnknownMessage.err("withdrawn_id is no message of the thread")
}
