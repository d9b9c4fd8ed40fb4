// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package bpe counts byte pair tokens with vocabularies that lie ready for use in
// the program file: they are looked up where they lie, so there is nothing to
// build before the first count and nothing to keep in memory.
package bpe

import (
	"math"
	"math/bits"
	"sync"
)

// A Vocabulary is a perfect hash table of tokens by their bytes, made by package
// gen. All its parts are read only. The methods allocate nothing but for a piece
// longer than any before it, and may be called from several goroutines.
type Vocabulary struct {
	Tokens  string // the bytes of all tokens, by rank
	Offsets string // by rank: 24 bits where the token begins, 8 bits its length
	Slots   string // 18 bits rank, 14 bits of the hash of the token
	Pilots  string // by bucket: 16 bits that make the slots of its tokens differ
}

// The widths of the fields.
const (
	rankBits = 18
	rankMask = 1<<rankBits - 1
	lenBits  = 8
)

// None is the rank of what is no token.
const None = math.MaxUint32

// Rank returns the rank of a token, or None.
func (v *Vocabulary) Rank(s string) uint32 {
	if len(s) >= 1<<lenBits {
		return None
	}
	h := Hash(s)
	bucket := Reduce(h, len(v.Pilots)/2)
	slot := Slot(h, uint64(load16(v.Pilots, 2*bucket)), len(v.Slots)/4)
	e := load32(v.Slots, 4*slot)
	if e>>rankBits != Mark(h) {
		return None
	}
	rank := e & rankMask
	at := load32(v.Offsets, 4*int(rank))
	if n := int(at & (1<<lenBits - 1)); n != len(s) || v.Tokens[at>>lenBits:][:n] != s {
		return None
	}
	return rank
}

// Hash returns the hash of a token.
func Hash(s string) uint64 {
	const k0, k1 = 0x9e3779b97f4a7c15, 0xd6e8feb86659fd93
	h := uint64(len(s)) * k0
	for len(s) > 8 {
		h = mix(h^load64(s, 0), k1)
		s = s[8:]
	}
	switch n := len(s); {
	case n == 8:
		h ^= load64(s, 0)
	case n >= 4:
		h ^= uint64(load32(s, 0)) | uint64(load32(s, n-4))<<32
	case n > 0:
		h ^= uint64(s[0]) | uint64(s[n/2])<<8 | uint64(s[n-1])<<16
	}
	return mix(h^k1, k0)
}

func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// Reduce returns a number below n that depends on the high bits of h.
func Reduce(h uint64, n int) int {
	hi, _ := bits.Mul64(h, uint64(n))
	return int(hi)
}

// Slot returns the slot of a hash in a table of n, under the pilot of its bucket.
func Slot(h, pilot uint64, n int) int {
	return Reduce(mix(h^(pilot+1)*0xa0761d6478bd642f, 0xe7037ed1a0b428db), n)
}

// Mark returns the bits of a hash that stand in its slot.
func Mark(h uint64) uint32 { return uint32(h) & (1<<(32-rankBits) - 1) }

// The loads read little-endian integers. The compiler makes one instruction of each.

func load16(s string, i int) uint16 {
	s = s[i : i+2]
	return uint16(s[0]) | uint16(s[1])<<8
}

func load32(s string, i int) uint32 {
	s = s[i : i+4]
	return uint32(s[0]) | uint32(s[1])<<8 | uint32(s[2])<<16 | uint32(s[3])<<24
}

func load64(s string, i int) uint64 {
	s = s[i : i+8]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

// shortPiece is the length up to which looking at all pairs for the next one to
// merge is faster than keeping them in a heap.
const shortPiece = 48

// Piece returns how many tokens a piece of text has: one if it is a token, else
// what is left after merging the neighbours with the lowest rank, the leftmost of
// equal ones first, as long as there are any.
func (v *Vocabulary) Piece(s string) int {
	switch {
	case len(s) < 2:
		return len(s)
	case v.Rank(s) != None:
		return 1
	case len(s) == 2:
		return 2
	case len(s) <= shortPiece:
		return v.short(s)
	}
	return v.long(s)
}

// short merges with two small arrays.
func (v *Vocabulary) short(s string) int {
	var start [shortPiece + 1]uint8 // where each part begins
	var rank [shortPiece]uint32     // of each part together with the next one
	n := len(s)
	for i := range n {
		start[i] = uint8(i)
		rank[i] = None
		if i+2 <= n {
			rank[i] = v.Rank(s[i : i+2])
		}
	}
	start[n] = uint8(n)
	pair := func(i int) uint32 {
		if i+2 > n {
			return None
		}
		return v.Rank(s[start[i]:start[i+2]])
	}
	for n > 1 {
		best, at := uint32(None), 0
		for i, r := range rank[:n-1] {
			if r < best {
				best, at = r, i
			}
		}
		if best == None {
			break
		}
		copy(start[at+1:n], start[at+2:n+1])
		copy(rank[at+1:n-1], rank[at+2:n])
		n--
		rank[at] = pair(at)
		if at > 0 {
			rank[at-1] = pair(at - 1)
		}
	}
	return n
}

// A part is a part of a long piece, under the index of its first byte.
type part struct {
	prev, next int32  // the parts beside it; -1 before the first, the length after the last
	rank       uint32 // together with the next one
}

// A scratch is the memory for merging one long piece.
type scratch struct {
	parts []part
	heap  []uint64 // rank and index, the lowest first; stale entries are skipped
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// maxKept bounds the memory that is kept for the next long piece.
const maxKept = 1 << 16

// long merges with a heap, in n log n.
func (v *Vocabulary) long(s string) int {
	sc := scratches.Get().(*scratch)
	if cap(sc.parts) < len(s) {
		sc.parts = make([]part, len(s))
		sc.heap = make([]uint64, 0, len(s))
	}
	parts, heap := sc.parts[:len(s)], sc.heap[:0]
	for i := range parts {
		r := uint32(None)
		if i+2 <= len(s) {
			r = v.Rank(s[i : i+2])
		}
		parts[i] = part{prev: int32(i) - 1, next: int32(i) + 1, rank: r}
		if r != None {
			heap = append(heap, uint64(r)<<32|uint64(i))
		}
	}
	for i := len(heap)/2 - 1; i >= 0; i-- {
		down(heap, i)
	}
	n := len(s)
	for len(heap) > 0 {
		top := heap[0]
		heap[0] = heap[len(heap)-1]
		heap = heap[:len(heap)-1]
		down(heap, 0)
		i := int32(top & math.MaxUint32)
		if parts[i].rank != uint32(top>>32) {
			continue // merged since, or its neighbour was
		}
		gone := parts[i].next
		next := parts[gone].next
		parts[gone].rank = None
		parts[i].next = next
		if int(next) < len(s) {
			parts[next].prev = i
		}
		n--
		for _, k := range [2]int32{i, parts[i].prev} {
			if k < 0 {
				continue
			}
			r := uint32(None)
			if next := parts[k].next; int(next) < len(s) {
				r = v.Rank(s[k:parts[next].next])
			}
			parts[k].rank = r
			if r != None {
				heap = append(heap, uint64(r)<<32|uint64(k))
				up(heap, len(heap)-1)
			}
		}
	}
	if len(s) <= maxKept {
		sc.heap = heap[:0]
		scratches.Put(sc)
	}
	return n
}

func up(h []uint64, i int) {
	for i > 0 {
		p := (i - 1) / 2
		if h[p] <= h[i] {
			return
		}
		h[p], h[i] = h[i], h[p]
		i = p
	}
}

func down(h []uint64, i int) {
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && h[c+1] < h[c] {
			c++
		}
		if h[i] <= h[c] {
			return
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
}
