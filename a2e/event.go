// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"cmp"
	"encoding/json"
)

// An Order is the relation of the number of an event to those before it (A2E-D29).
type Order string

// The orders of events.
const (
	OrderOK      Order = "ok"      // the first one, or one more than the highest so far
	OrderGap     Order = "gap"     // larger than that
	OrderRepeat  Order = "repeat"  // the highest so far again
	OrderRegress Order = "regress" // smaller
)

// A sequence labels the numbers of the events of one request. The zero value is
// ready for the first one.
type sequence struct {
	last    int64
	started bool
}

// next returns the label of the next number in order of arrival.
func (s *sequence) next(seq int64) Order {
	switch {
	case !s.started:
		s.started, s.last = true, seq
		return OrderOK
	case seq == s.last:
		return OrderRepeat
	case seq < s.last:
		return OrderRegress
	case seq-1 == s.last:
		s.last = seq
		return OrderOK
	}
	s.last = seq
	return OrderGap
}

// An Event is an event as it arrived at the agent.
type Event struct {
	*Message
	Order Order
}

// Header returns the members common to all events. For an event of an unknown type only the
// well-formed members are set.
func (e Event) Header() EventBody { return eventInfo(e.Message) }

func eventInfo(m *Message) EventBody {
	if b, ok := m.Body.(*EventBody); ok {
		return *b
	}
	b := EventBody{Kind: cmp.Or(textMember(m, "kind"), EventStatus)}
	b.ReqID = textMember(m, "req_id")
	if v := memberOf(m.Body, "data"); v.IsValid() {
		b.Data, _ = v.Interface().(json.RawMessage)
	} else if v := m.Extra.object().Get("data"); v.IsObject() {
		b.Data = json.RawMessage(v)
	}
	if v := memberOf(m.Body, "seq"); v.IsValid() && v.CanInt() {
		b.Seq = v.Int()
	} else {
		b.Seq, _ = m.Extra.object().Get("seq").Int()
	}
	return b
}
