// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import "slices"

// The states of a thread. The closed ones are final.
const (
	Pending   = "pending"
	Offered   = "offered"
	Countered = "countered"
	Accepted  = "closed_accepted"
	Declined  = "closed_declined"
	Withdrawn = "closed_withdrawn"
)

// A Message is an event of a thread. The price is canonical JSON.
type Message struct {
	Kind      string // the type of the body
	IsOwn     bool   // sent by the participant whose view the thread is
	ID        string
	InReplyTo string
	Withdrawn string // of a Withdraw
	Price     string // of an Offer, a Counter and an Accept

	// Sum distinguishes messages with the same id. Without one no repetition is recognized.
	Sum string
}

// A Move is an Offer or a Counter of a thread.
type Move struct {
	ID    string `json:"id"`
	IsOwn bool   `json:"own,omitempty"`
	Price string `json:"price"`
	Sum   string `json:"sum,omitempty"`
}

// A Thread is one negotiation from the view of one participant (8.2). A step changes no array of an
// earlier value.
type Thread struct {
	State   string `json:"state"`
	Moves   []Move `json:"moves,omitempty"`
	Agreed  string `json:"agreed,omitempty"` // the price of an accepted thread
	Last    string `json:"last"`             // the id of the last message
	LastOwn bool   `json:"own,omitempty"`
	LastSum string `json:"sum,omitempty"`
}

// Bounds of the memory of one thread. A price in an envelope may have any length.
const (
	maxMoves = 1000
	maxPrice = 1 << 10 // bytes
)

// Outstanding returns the move that awaits an answer, or nil.
func (t Thread) Outstanding() *Move {
	if t.State != Offered && t.State != Countered || len(t.Moves) == 0 {
		return nil
	}
	return &t.Moves[len(t.Moves)-1]
}

// IsClosed reports whether the state is final.
func (t Thread) IsClosed() bool {
	return t.State == Accepted || t.State == Declined || t.State == Withdrawn
}

// An effect is one cell of the table of 8.2: the state after a body in an open thread and in a
// pending one.
type effect struct {
	pending string // "" is a conflict
	open    string // "" is a conflict
	names   bool   // in_reply_to must be the outstanding move
	other   bool   // only the party that did not make the outstanding move may
}

var effects = map[string]effect{
	"Offer":    {pending: Offered},
	"Counter":  {open: Countered, names: true, other: true},
	"Accept":   {open: Accepted, names: true, other: true},
	"Decline":  {open: Declined, names: true, other: true},
	"Withdraw": {open: Withdrawn},
}

// Apply returns the thread after a message, or a [Refusal]. A repetition changes nothing. The rules are
// checked in this order: the thread is closed, the message does not follow the outstanding one, the wrong
// party acts, the price is not the outstanding one (AIR-D50). A Withdraw has its own rules (AIR-D57).
func (t Thread) Apply(m Message) (Thread, error) {
	if t.Has(&m) {
		return t, nil
	}
	next, err := t.next(&m)
	if err != nil {
		return t, err
	}
	if next == Accepted {
		t.Agreed = m.Price
	}
	if next == Offered || next == Countered {
		t.Moves = append(slices.Clip(t.Moves), Move{ID: m.ID, IsOwn: m.IsOwn, Price: m.Price, Sum: m.Sum})
	}
	t.State, t.Last, t.LastOwn, t.LastSum = next, m.ID, m.IsOwn, m.Sum
	return t, nil
}

// next returns the state after a message.
func (t *Thread) next(m *Message) (string, error) {
	o, e := t.Outstanding(), effects[m.Kind]
	next := e.open
	if o == nil {
		next = e.pending
	}
	switch {
	case t.IsClosed():
		return "", refuse("thread_closed", "the negotiation has ended")
	case next == "":
		return "", refuse("conflict", "the message does not follow what happened in the thread")
	case e.names && m.InReplyTo != o.ID:
		return "", refuse("conflict", "in_reply_to is not the outstanding message")
	case e.other && m.IsOwn == o.IsOwn:
		return "", refuse("not_your_move", "the other party has to answer")
	case next == Accepted && m.Price != o.Price:
		return "", refuse("price_mismatch", "accepted_price is not the outstanding price")
	case next == Countered && len(t.Moves) >= maxMoves:
		return "", refuse("conflict", "too many moves in one thread")
	case len(m.Price) > maxPrice:
		return "", refuse("conflict", "the price has too many digits for a thread")
	case next == Withdrawn:
		return next, t.mayWithdraw(m)
	}
	return next, nil
}

// Has reports whether the message was applied: as a move, or as the last message.
func (t Thread) Has(m *Message) bool {
	isMove := func(v Move) bool { return v.Sum == m.Sum && v.IsOwn == m.IsOwn }
	return m.Sum != "" && (t.LastSum == m.Sum && t.LastOwn == m.IsOwn || slices.ContainsFunc(t.Moves, isMove))
}

// IsUnseen reports whether a message names one that an open thread has not seen.
func (t Thread) IsUnseen(m Message) bool {
	named := m.InReplyTo
	switch m.Kind {
	case "Withdraw":
		named = m.Withdrawn
	case "Offer":
		return false
	}
	return !t.IsClosed() && !slices.ContainsFunc(t.Moves, func(v Move) bool { return v.ID == named })
}

func (t Thread) mayWithdraw(m *Message) error {
	for i, v := range slices.Backward(t.Moves) {
		switch {
		case v.ID != m.Withdrawn:
			continue
		case v.IsOwn != m.IsOwn:
			return refuse("not_your_move", "only its sender may withdraw a message")
		case i < len(t.Moves)-1:
			return refuse("conflict", "the message to withdraw was superseded")
		}
		return nil
	}
	return refuse("unknown_message", "withdrawn_id is no message of the thread")
}
