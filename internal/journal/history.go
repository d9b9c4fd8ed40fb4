// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"fmt"
	"time"

	"github.com/fivewire/fivewire/internal/state"
	"github.com/fivewire/fivewire/store"
)

// The types of entries.
const (
	typeOpening = "opening" // before the first step; its Writer is part of the ids of steps
	typeInput   = "input"
	typeStep    = "step"
	typeItem    = "item"
	typeAwait   = "await" // the run waits for input N
	typeSleep   = "sleep" // the run waits until End
	typeWait    = "wait"  // the run waits again for input N, or in the sleep with the key Name
	typeWork    = "work"  // the run has the inputs through N, or is past the sleep with the key Name, and does not wait for them
)

// An entry is a record of a journal. Its key is the deduplication id.
type entry struct {
	Type   string        `json:"t"`
	Kind   string        `json:"k,omitempty"` // of an item
	Name   []byte        `json:"n,omitempty"` // of a step or a sleep, the id of an input or an item, or the key of a sleep
	Writer string        `json:"w"`           // random, of one append
	N      int           `json:"i,omitempty"` // of a wait or its end; counted, not stored, for inputs and items
	End    time.Time     `json:"e,omitzero"`  // of a sleep
	Length time.Duration `json:"l,omitempty"` // of a sleep
	key    string
	data   []byte
	isUsed bool // by the handler in this process
}

// check holds an entry to the limit of its size.
func (e *entry) check() error {
	if len(e.data) > maxEntry {
		return fmt.Errorf("%w: entry of %d bytes, want at most %d", ErrTooLarge, len(e.data), maxEntry)
	}
	return nil
}

// left returns how long a sleep lasts, by a clock that may be wrong: at most its length.
func (e *entry) left() time.Duration { return min(time.Until(e.End), e.Length) }

// take returns the data, which e does not hold any longer.
func (e *entry) take() []byte {
	data := bytes.Clone(e.data)
	e.data = nil
	return data
}

// decode returns a stored entry, which shares the memory of its value.
func decode(rec store.Record) (*entry, error) {
	e := &entry{key: rec.ID}
	data, err := state.DecodeWith(rec.Value, e)
	if err != nil {
		return nil, fmt.Errorf("journal: entry %q at position %d: %w", rec.ID, rec.Seq, err)
	}
	e.data = data
	return e, nil
}

// A history is the part of a journal that was read.
type history struct {
	isBrief bool  // without entries and data
	err     error // of the first entry that is malformed or over a limit
	pos     uint64
	count   int
	bytes   int
	expires time.Time // the first entry

	entries map[string]*entry // by key, without inputs
	inputs  []*entry
	numbers map[string]int    // of items, by kind
	last    *entry            // not an input
	await   *entry            // for whose input the run waits, or nil
	sleeps  map[string]*entry // by key, without those that the handler has passed
}

func newHistory(isBrief bool) history {
	return history{isBrief: isBrief, entries: map[string]*entry{}, numbers: map[string]int{}, sleeps: map[string]*entry{}}
}

// fits returns an error if an entry is over a limit.
func (h *history) fits(e *entry) error {
	size := len(e.data) + overhead
	if h.count >= maxEntries || h.bytes+size > maxBytes {
		return fmt.Errorf("%w: entry %d with %d bytes in all, want at most %d and %d",
			ErrTooLarge, h.count+1, h.bytes+size, maxEntries, maxBytes)
	}
	return e.check()
}

// add adds the next entry. After an error it adds nothing.
func (h *history) add(rec store.Record) *entry {
	e, err := decode(rec)
	if err == nil {
		err = h.fits(e)
	}
	if err != nil {
		h.err = err
		return nil
	}
	if h.count == 0 {
		h.expires = rec.Expires
	}
	h.pos, h.count, h.bytes = rec.Seq, h.count+1, h.bytes+len(e.data)+overhead
	h.note(e)
	return e
}

// note changes the state of the run by an entry. An item or the end of a sleep does not end another wait.
func (h *history) note(e *entry) {
	last := e
	switch e.Type {
	case typeInput:
		h.inputs = append(h.inputs, e)
		e.N = len(h.inputs)
		return
	case typeItem:
		h.numbers[e.Kind]++
		e.N = h.numbers[e.Kind]
		if h.isWaiting() {
			last = h.last
		}
	case typeAwait:
		h.await = e
	case typeSleep:
		h.sleeps[e.key] = e
	case typeWait:
		if h.sleeps[string(e.Name)] == nil && (h.await == nil || h.await.N != e.N) { // it has ended since
			last = h.last
		}
	case typeWork:
		isLast := h.last != nil && (h.last.key == string(e.Name) ||
			h.last.Type == typeWait && bytes.Equal(h.last.Name, e.Name))
		delete(h.sleeps, string(e.Name))
		if h.await != nil && e.N >= h.await.N {
			h.await = nil
		}
		switch {
		case len(e.Name) == 0:
		case !isLast:
			last = h.last
		case h.await != nil:
			last = &entry{Type: typeWait, N: h.await.N, key: e.key}
		}
	}
	h.last = last
	if !h.isBrief {
		h.entries[e.key] = e
	}
}

// isWaiting reports whether the run waits, by its last entry.
func (h *history) isWaiting() bool {
	return h.last != nil && (h.last.Type == typeAwait || h.last.Type == typeSleep || h.last.Type == typeWait)
}

// left returns the time until a wait of the run ends, without further inputs.
func (h *history) left() time.Duration {
	if h.await != nil && len(h.inputs) >= h.await.N {
		return 0
	}
	left := never
	for _, e := range h.sleeps {
		left = min(left, max(0, e.left()))
	}
	return left
}
