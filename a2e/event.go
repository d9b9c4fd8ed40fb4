// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import "encoding/json"

// An Order says how the number of an event follows those before it (A2E-D29).
type Order string

// The orders of events.
const (
	OrderOK      Order = "ok"      // the first one, or one more than the highest so far
	OrderGap     Order = "gap"     // larger than that
	OrderRepeat  Order = "repeat"  // the highest so far again
	OrderRegress Order = "regress" // smaller
)

// A Sequence labels the numbers of the events of one request. The zero value is
// ready for the first one.
type Sequence struct {
	last  int64
	begun bool
}

// Next returns the label of the next number in order of arrival.
func (s *Sequence) Next(seq int64) Order {
	switch {
	case !s.begun:
		s.begun, s.last = true, seq
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

// Header returns what every event holds, whatever its type. Of an event of an
// unknown type only what is well-formed is filled in.
func (e Event) Header() EventBody { return eventInfo(e.Message) }

func eventInfo(m *Message) EventBody {
	if b, ok := m.Body.(interface{ EventInfo() EventBody }); ok {
		return b.EventInfo()
	}
	b := *New[EventBody]()
	if kind := textMember(m, "kind"); kind != "" {
		b.Kind = kind
	}
	b.ReqID = textMember(m, "req_id")
	if v := memberOf(m, "data"); v.IsValid() {
		b.Data, _ = v.Interface().(json.RawMessage)
	} else if v := m.Extra.text.Get("data"); v.IsObject() {
		b.Data = json.RawMessage(v)
	}
	if v := memberOf(m, "seq"); v.IsValid() && v.CanInt() {
		b.Seq = v.Int()
	} else {
		b.Seq, _ = m.Extra.text.Get("seq").Int()
	}
	return b
}
