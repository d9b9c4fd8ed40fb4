// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A history is the naive model of a thread: all messages that it accepted.
type history []Message

// want returns the code of the refusal of a message, and whether it is a repetition.
func (h history) want(m Message) (code string, isRepeat bool) {
	if m.Sum != "" && slices.ContainsFunc(h, func(old Message) bool { return old.Sum == m.Sum && old.IsOwn == m.IsOwn }) {
		return "", true
	}
	if len(h) == 0 {
		if m.Kind != "Offer" {
			return "conflict", false
		}
		return "", false
	}
	last := h[len(h)-1]
	switch {
	case last.Kind != "Offer" && last.Kind != "Counter":
		return "thread_closed", false
	case m.Kind == "Offer":
		return "conflict", false
	case m.Kind == "Withdraw":
		at := -1
		for i := range h {
			if h[i].ID == m.Withdrawn {
				at = i
			}
		}
		switch {
		case at < 0:
			return "unknown_message", false
		case h[at].IsOwn != m.IsOwn:
			return "not_your_move", false
		case at < len(h)-1:
			return "conflict", false
		}
	case m.InReplyTo != last.ID:
		return "conflict", false
	case m.IsOwn == last.IsOwn:
		return "not_your_move", false
	case m.Kind == "Accept" && m.Price != last.Price:
		return "price_mismatch", false
	}
	return "", false
}

var closing = map[string]string{"Offer": Offered, "Counter": Countered, "Accept": Accepted, "Decline": Declined, "Withdraw": Withdrawn}

// A thread accepts and refuses messages by the table of 8.2 and its history, and a step leaves earlier values
// as they were.
func TestThreadAgreesWithItsHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h history
		th, earlier, copies := Thread{}, []Thread(nil), [][]Move(nil)
		id := rapid.SampledFrom([]string{"a", "b", "c", "d"})
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			m := Message{
				Kind:      rapid.SampledFrom([]string{"Offer", "Counter", "Counter", "Accept", "Decline", "Withdraw"}).Draw(t, "kind"),
				IsOwn:     rapid.Bool().Draw(t, "own"),
				ID:        id.Draw(t, "id"),
				InReplyTo: id.Draw(t, "reply"), Withdrawn: id.Draw(t, "withdrawn"),
				Price: rapid.SampledFrom([]string{"1", "2"}).Draw(t, "price"),
				Sum:   rapid.SampledFrom([]string{"", "", "x", "y", "z"}).Draw(t, "sum"),
			}
			if len(h) > 0 && rapid.Bool().Draw(t, "fits") {
				last := h[len(h)-1]
				m.InReplyTo, m.Withdrawn, m.IsOwn = last.ID, last.ID, last.IsOwn == (m.Kind == "Withdraw")
			}
			earlier, copies = append(earlier, th), append(copies, slices.Clone(th.Moves))
			next, err := th.Apply(m)
			code, isRepeat := h.want(m)
			if code != "" {
				var r *Refusal
				require.True(t, errors.As(err, &r), "%v", err)
				require.Equal(t, code, r.Code)
				require.Equal(t, th, next)
				continue
			}
			require.NoError(t, err)
			if !isRepeat {
				h = append(h, m)
			}
			th = next
			last := h[len(h)-1]
			require.Equal(t, closing[last.Kind], th.State)
			require.Equal(t, last.ID, th.Last)
			require.Equal(t, th.State == Accepted, th.Agreed != "")
			if o := th.Outstanding(); last.Kind == "Offer" || last.Kind == "Counter" {
				require.Equal(t, Move{last.ID, last.IsOwn, last.Price, last.Sum}, *o)
			} else {
				require.Nil(t, o)
			}
		}
		for i := range earlier {
			if o := earlier[i].Outstanding(); o != nil { // a branch of the history
				_, err := earlier[i].Apply(Message{Kind: "Counter", IsOwn: !o.IsOwn, ID: "branch", InReplyTo: o.ID})
				require.NoError(t, err)
			}
		}
		for i := range earlier {
			require.True(t, slices.Equal(copies[i], earlier[i].Moves))
		}
	})
}

// A message that names an unseen one waits; one that an open thread has seen, and every one in a closed
// thread, does not (AIR-D77).
func TestThreadKnowsWhatItHasSeen(t *testing.T) {
	th, err := Thread{}.Apply(Message{Kind: "Offer", ID: "a", Price: "1"})
	require.NoError(t, err)
	require.False(t, th.IsUnseen(Message{Kind: "Offer", InReplyTo: "x"}))
	require.False(t, th.IsUnseen(Message{Kind: "Counter", InReplyTo: "a"}))
	require.True(t, th.IsUnseen(Message{Kind: "Counter", InReplyTo: "x"}))
	require.True(t, th.IsUnseen(Message{Kind: "Withdraw", InReplyTo: "a", Withdrawn: "x"}))
	require.True(t, Thread{}.IsUnseen(Message{Kind: "Accept", InReplyTo: "a"}))
	th, err = th.Apply(Message{Kind: "Decline", IsOwn: true, InReplyTo: "a"})
	require.NoError(t, err)
	require.False(t, th.IsUnseen(Message{Kind: "Counter", InReplyTo: "x"}))
}

// A thread has at most 1000 moves, and can be ended then. None has a price of over a KiB.
func TestThreadIsBounded(t *testing.T) {
	th, err := Thread{}.Apply(Message{Kind: "Offer", ID: "a"})
	for i := 1; i < maxMoves; i++ {
		require.NoError(t, err)
		th, err = th.Apply(Message{Kind: "Counter", IsOwn: i%2 == 1, ID: "a", InReplyTo: "a"})
	}
	require.NoError(t, err)
	isOwn := !th.Outstanding().IsOwn
	_, err = th.Apply(Message{Kind: "Counter", IsOwn: isOwn, ID: "a", InReplyTo: "a"})
	require.ErrorContains(t, err, "too many moves")
	_, err = th.Apply(Message{Kind: "Decline", IsOwn: isOwn, InReplyTo: "a"})
	require.NoError(t, err)
	_, err = Thread{}.Apply(Message{Kind: "Offer", ID: "a", Price: strings.Repeat("1", maxPrice+1)})
	require.ErrorContains(t, err, "too many digits")
}
