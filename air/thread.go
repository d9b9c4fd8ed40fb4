// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"

	"github.com/fivewire/fivewire/air/internal/core"
)

// A ThreadState is the state of a negotiation for one participant (8.2).
type ThreadState string

// The states of a thread. The closed ones are final.
const (
	ThreadPending   ThreadState = core.Pending
	ThreadOffered   ThreadState = core.Offered
	ThreadCountered ThreadState = core.Countered
	ThreadAccepted  ThreadState = core.Accepted
	ThreadDeclined  ThreadState = core.Declined
	ThreadWithdrawn ThreadState = core.Withdrawn
)

// A Move is an Offer or a Counter of a thread.
type Move struct {
	ID    string
	IsOwn bool // made by the agent itself, not by its peer
	Price Money
}

// A Thread is one negotiation from the view of one participant.
type Thread struct {
	State ThreadState // "" is ThreadPending

	// Moves are all Offers and Counters of the thread. While the thread is open, the last move is
	// outstanding: it awaits an answer.
	Moves []Move

	// Agreed is the price of a thread in state ThreadAccepted.
	Agreed Money

	// LastMessageID is the id of the last applied message.
	LastMessageID string

	state core.Thread
}

func threadOf(s core.Thread) Thread {
	t := Thread{State: ThreadState(s.State), LastMessageID: s.Last, state: s}
	t.Agreed, _ = parseMoney(s.Agreed)
	for _, m := range s.Moves {
		price, _ := parseMoney(m.Price)
		t.Moves = append(t.Moves, Move{ID: m.ID, IsOwn: m.IsOwn, Price: price})
	}
	return t
}

// isMove reports whether a body is an event of a thread.
func isMove(b Body) bool {
	_, isRaw := b.(*Raw)
	return !isRaw && isNegotiation(b.bodyType())
}

// messageOf returns the event of a body that isMove reports.
func messageOf(isOwn bool, id, inReplyTo string, body Body) core.Message {
	m := core.Message{Kind: body.bodyType(), IsOwn: isOwn, ID: id, InReplyTo: inReplyTo, Sum: sumOf(id, inReplyTo, body)}
	switch b := body.(type) {
	case *Withdraw:
		m.Withdrawn = b.WithdrawnID
	case *Offer:
		m.Price = string(b.Price.appendJSON(nil))
	case *Counter:
		m.Price = string(b.Price.appendJSON(nil))
	case *Accept:
		m.Price = string(b.Price.appendJSON(nil))
	}
	return m
}

// sumOf is a hash of a message, which all its forms share (AIR-D83). The id does not suffice: ids are
// compared only as long as nonces are stored, and threads live longer.
func sumOf(id, inReplyTo string, body Body) string {
	h := sha256.New()
	h.Write([]byte(id + "\x00" + inReplyTo + "\x00"))
	h.Write(body.appendJSON(nil))
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// isAnswered reports whether the agent has answered a move of its peer.
func (t *Thread) isAnswered(moveID string) bool {
	at := slices.IndexFunc(t.Moves, func(m Move) bool { return m.ID == moveID && !m.IsOwn })
	return at >= 0 && (at+1 < len(t.Moves) || t.state.IsClosed() && t.state.LastOwn)
}

// refused returns the [*Error] of a refusal, or err.
func refused(err error) error {
	var r *core.Refusal
	if errors.As(err, &r) {
		return Code(r.Code).err(r.Detail)
	}
	return err
}
