// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package order

import (
	"crypto/sha256"
	"encoding/binary"
	"hash/maphash"
)

// A Mark represents an id of any length, so that the memory for the ids of a peer is bounded: the digits of a
// message id, or the start of a hash. No mark is zero.
type Mark uint64

const isMessageID Mark = 1 << 63

// MarkOf returns the mark of an id.
func MarkOf(id string) Mark {
	if m, ok := digits(id); ok {
		return isMessageID | m
	}
	sum := sha256.Sum256([]byte(id))
	return Mark(binary.BigEndian.Uint64(sum[:]))&^isMessageID | 1
}

// digits returns the number of a message id: 12 digits in hex and in lower case.
func digits(id string) (m Mark, ok bool) {
	for i := range len(id) {
		switch c := id[i]; {
		case c >= '0' && c <= '9':
			m = m<<4 | Mark(c-'0')
		case c >= 'a' && c <= 'f':
			m = m<<4 | Mark(c-'a'+10)
		default:
			return 0, false
		}
	}
	return m, len(id) == 12
}

// A Window is the set of the last marks that were added. Create it with [NewWindow].
type Window struct {
	max   int
	next  int    // of the ring, if it is full
	ring  []Mark // the oldest first from next on
	table []uint32
	seed  maphash.Seed
}

// NewWindow returns a window of at most a number of marks.
func NewWindow(maximum int) Window { return Window{max: maximum} }

// Has reports whether the window has a mark.
func (w *Window) Has(m Mark) bool {
	if len(w.table) == 0 {
		return false
	}
	return w.table[w.slot(m)] != 0
}

// slot returns the slot of a mark in the table, or the one for it. A slot has an index of the ring plus one.
func (w *Window) slot(m Mark) int {
	last := len(w.table) - 1
	i := int(maphash.Comparable(w.seed, m)) & last
	for w.table[i] != 0 && w.ring[w.table[i]-1] != m {
		i = (i + 1) & last
	}
	return i
}

// Add adds a mark. It replaces the oldest one if the window is full.
func (w *Window) Add(m Mark) {
	if w.Has(m) {
		return
	}
	at := len(w.ring)
	if at == w.max {
		at = w.next
		w.next = (w.next + 1) % w.max
		w.remove(w.slot(w.ring[at]))
		w.ring[at] = m
	} else {
		w.grow()
		w.ring = append(w.ring, m)
	}
	w.table[w.slot(m)] = uint32(at + 1)
}

// grow makes space for another mark. At most half of the table is in use.
func (w *Window) grow() {
	if len(w.ring) < cap(w.ring) {
		return
	}
	n := min(max(16, 2*len(w.ring)), w.max)
	ring := make([]Mark, len(w.ring), n)
	copy(ring, w.ring)
	w.ring = ring
	size := 32
	for size < 2*n {
		size *= 2
	}
	if len(w.table) == 0 {
		w.seed = maphash.MakeSeed()
	}
	w.table = make([]uint32, size)
	for i, m := range w.ring {
		w.table[w.slot(m)] = uint32(i + 1)
	}
}

// remove empties a slot and moves the marks behind it that cannot stay where they are.
func (w *Window) remove(hole int) {
	last := len(w.table) - 1
	for i := (hole + 1) & last; w.table[i] != 0; i = (i + 1) & last {
		home := int(maphash.Comparable(w.seed, w.ring[w.table[i]-1])) & last
		if (i-home)&last >= (i-hole)&last {
			w.table[hole] = w.table[i]
			hole = i
		}
	}
	w.table[hole] = 0
}

// Len returns the number of marks.
func (w *Window) Len() int { return len(w.ring) }

func (w *Window) bytes() int { return 8*cap(w.ring) + 4*len(w.table) }

// Marks returns the marks, the oldest first.
func (w *Window) Marks() []Mark {
	return append(append(make([]Mark, 0, len(w.ring)), w.ring[w.next:]...), w.ring[:w.next]...)
}
