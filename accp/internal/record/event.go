// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package record keeps a session in a store: its events in a log, from time to time a snapshot of the whole, and
// the data to read it again. Processes that share a session append to one log; the number of an entry decides
// which of them is first.
package record

import (
	"encoding/binary"

	"github.com/fivewire/fivewire/accp/internal/order"
	"github.com/fivewire/fivewire/accp/internal/tier"
	"github.com/fivewire/fivewire/internal/jsonmap"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// An Event is the change of a session by one frame, one message or one checkpoint. Values of the protocol are in canonical
// text.
type Event struct {
	Sender    string `json:"sender,omitzero"` // of a frame with a number
	Seq       int64  `json:"seq,omitzero"`    // the last one of a message in parts
	IsExact   bool   `json:"exact,omitzero"`  // the number replaces a higher one
	IsStarted bool   `json:"started,omitzero"`

	Seen      order.Mark `json:"seen,omitzero"`   // of a message id
	IsChange  bool       `json:"change,omitzero"` // of the state by a delta of the peer
	Cancelled order.Mark `json:"cancelled,omitzero"`

	Version int64  `json:"version,omitzero"` // of the shared state
	State   string `json:"state,omitzero"`
	Delta   string `json:"delta,omitzero"`

	Tiers   tier.Change `json:"tiers,omitzero"`
	Schemas string      `json:"schemas,omitzero"` // the custom schemas, if they have changed
}

// ApplyNumbers applies the numbers and marks of e.
func (e *Event) ApplyNumbers(s *order.State) {
	if e.Sender != "" {
		s.IsStarted = s.IsStarted || e.IsStarted
		s.Use(e.Sender, e.Seq, e.IsExact)
	}
	if e.Seen != 0 {
		s.Seen.Add(e.Seen)
		if e.IsChange {
			s.Changes.Add(e.Seen)
		}
	}
	if e.Cancelled != 0 {
		s.Cancelled.Add(e.Cancelled)
	}
}

// A Snapshot is a whole session.
type Snapshot struct {
	IsStarted bool       `json:"started"`
	High      int64      `json:"high"`
	Senders   []sender   `json:"senders"` // the oldest first
	Seen      []byte     `json:"seen"`
	Cancelled []byte     `json:"cancelled"`
	Changes   []byte     `json:"changes"`
	Version   int64      `json:"version"`
	State     string     `json:"state"`
	Tiers     tier.State `json:"tiers"`
	Schemas   string     `json:"schemas"`
}

type sender struct {
	Name string `json:"name"`
	Last int64  `json:"last"`
}

// SetNumbers sets the numbers and marks of a snapshot.
func (s *Snapshot) SetNumbers(o *order.State) {
	s.IsStarted, s.High = o.IsStarted, o.High
	for name, last := range o.Last.All() {
		s.Senders = append(s.Senders, sender{name, last})
	}
	s.Seen, s.Cancelled, s.Changes = pack(&o.Seen), pack(&o.Cancelled), pack(&o.Changes)
}

// Numbers returns the numbers of a snapshot, with the bounds of a state.
func (s *Snapshot) Numbers(bounds *order.State) (order.State, error) {
	o := bounds.Reset()
	for _, x := range s.Senders {
		o.Use(x.Name, x.Last, false)
	}
	o.IsStarted, o.High = s.IsStarted, s.High
	for w, marks := range map[*order.Window][]byte{&o.Seen: s.Seen, &o.Cancelled: s.Cancelled, &o.Changes: s.Changes} {
		if len(marks)%8 != 0 {
			return o, ErrDamaged
		}
		for ; len(marks) > 0; marks = marks[8:] {
			w.Add(order.Mark(binary.BigEndian.Uint64(marks)))
		}
	}
	return o, nil
}

func pack(w *order.Window) []byte {
	out := make([]byte, 0, 8*w.Len())
	for _, m := range w.Marks() {
		out = binary.BigEndian.AppendUint64(out, uint64(m))
	}
	return out
}

// maxDepth bounds the depth of an entry.
const maxDepth = 16

func decode(data []byte, dst any) error {
	c := strictjson.NewCursor(data, strictjson.Options{MaxDepth: maxDepth})
	f := jsonmap.Read(c, dst)
	if c.Err() != nil || f != nil {
		return ErrDamaged
	}
	return nil
}
