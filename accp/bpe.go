// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"strconv"
)

// A BPE merges byte pairs by rank, as the published vocabularies do. It may be
// used by several goroutines.
type BPE struct {
	ranks   map[string]int
	longest int // bytes of the longest token
	split   func(string) []string
}

// NewBPE returns a BPE that knows these tokens, the lowest rank first. Split cuts
// a text into the pieces that are merged separately; the published vocabularies
// each have a rule of their own. Nil takes a text as one piece.
func NewBPE(tokens [][]byte, split func(string) []string) *BPE {
	b := &BPE{ranks: make(map[string]int, len(tokens)), split: split}
	for i, t := range tokens {
		b.learn(t, i)
	}
	return b
}

func (b *BPE) learn(token []byte, rank int) {
	b.ranks[string(token)] = rank
	b.longest = max(b.longest, len(token))
}

// maxRankLine bounds one line of a rank file.
const maxRankLine = 4096

// LoadBPE reads a rank file as published for the tiktoken vocabularies: on each
// line a token in base64, a space and its rank.
func LoadBPE(r io.Reader, split func(string) []string) (*BPE, error) {
	b := &BPE{ranks: map[string]int{}, split: split}
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, maxRankLine), maxRankLine)
	for line := 1; s.Scan(); line++ {
		if len(s.Bytes()) == 0 {
			continue
		}
		coded, rank, ok := bytes.Cut(s.Bytes(), []byte{' '})
		n, err := strconv.Atoi(string(rank))
		token := make([]byte, base64.StdEncoding.DecodedLen(len(coded)))
		k, err2 := base64.StdEncoding.Decode(token, coded)
		if !ok || err != nil || err2 != nil || n < 0 || k == 0 {
			return nil, fmt.Errorf("accp: rank file: line %d is malformed", line)
		}
		b.learn(token[:k], n)
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("accp: rank file: %w", err)
	}
	return b, nil
}

// Count returns how many tokens Encode would return.
func (b *BPE) Count(text string) int {
	var buf [smallPiece]int32
	n := 0
	for _, piece := range b.pieces(text) {
		n += len(b.merge(piece, buf[:0]))
	}
	return n
}

// Encode returns the ranks of the tokens of text. A byte that no token covers is
// -1.
func (b *BPE) Encode(text string) []int {
	var buf [smallPiece]int32
	var out []int
	for _, piece := range b.pieces(text) {
		at := int32(0)
		for _, end := range b.merge(piece, buf[:0]) {
			rank, ok := b.ranks[piece[at:end]]
			if !ok {
				rank = -1
			}
			out = append(out, rank)
			at = end
		}
	}
	return out
}

func (b *BPE) pieces(text string) []string {
	switch {
	case text == "":
		return nil
	case b.split == nil:
		return []string{text}
	}
	return b.split(text)
}

// smallPiece is the length up to which looking at all pairs after every merge is
// faster than keeping them in order.
const smallPiece = 48

// noRank is worse than any rank.
const noRank = int(^uint(0) >> 1)

// rank returns the rank of a token that a merge would make.
func (b *BPE) rank(s string) int {
	if len(s) > b.longest {
		return noRank
	}
	if r, ok := b.ranks[s]; ok {
		return r
	}
	return noRank
}

// merge appends to ends where the tokens of a piece end: the pair with the lowest
// rank is merged first, the leftmost of equal ones.
func (b *BPE) merge(piece string, ends []int32) []int32 {
	if b.rank(piece) != noRank {
		return append(ends, int32(len(piece)))
	}
	if len(piece) > smallPiece {
		return b.mergeLong(piece, ends)
	}
	for i := range len(piece) {
		ends = append(ends, int32(i+1))
	}
	for len(ends) > 1 {
		best, at := noRank, 0
		start := int32(0)
		for i := 0; i+1 < len(ends); i++ {
			if r := b.rank(piece[start:ends[i+1]]); r < best {
				best, at = r, i
			}
			start = ends[i]
		}
		if best == noRank {
			break
		}
		ends = append(ends[:at], ends[at+1:]...)
	}
	return ends
}

// A pair of neighbouring tokens that could be merged.
type pair struct {
	rank       int
	start, end int32
}

// mergeLong is merge with the pairs in a heap and the tokens in a list, so that its
// time is that of sorting: a piece without breaks may be as long as a frame.
func (b *BPE) mergeLong(piece string, ends []int32) []int32 {
	n := int32(len(piece))
	next := make([]int32, n+1) // where the token that begins here ends; 0 if none does
	prev := make([]int32, n+1) // where the token before the one that begins here begins
	heap := make(pairHeap, 0, n)
	for i := range n {
		next[i], prev[i] = i+1, i-1
	}
	for i := range n - 1 {
		if r := b.rank(piece[i : i+2]); r != noRank {
			heap = append(heap, pair{r, i, i + 2})
		}
	}
	for i := len(heap)/2 - 1; i >= 0; i-- {
		heap.down(i)
	}
	for len(heap) > 0 {
		p := heap.pop()
		mid := next[p.start]
		if mid == 0 || mid >= n || next[mid] != p.end {
			continue // one of the two was merged with another meanwhile
		}
		next[p.start], next[mid] = p.end, 0
		if p.end < n {
			prev[p.end] = p.start
			if r := b.rank(piece[p.start:next[p.end]]); r != noRank {
				heap.push(pair{r, p.start, next[p.end]})
			}
		}
		if before := prev[p.start]; before >= 0 {
			if r := b.rank(piece[before:p.end]); r != noRank {
				heap.push(pair{r, before, p.end})
			}
		}
	}
	for i := int32(0); i < n; i = next[i] {
		ends = append(ends, next[i])
	}
	return ends
}

// A pairHeap has the pair to be merged next at its beginning.
type pairHeap []pair

func (h pairHeap) less(i, j int) bool {
	return h[i].rank < h[j].rank || h[i].rank == h[j].rank && h[i].start < h[j].start
}

func (h *pairHeap) push(p pair) {
	*h = append(*h, p)
	s := *h
	for i := len(s) - 1; i > 0; {
		up := (i - 1) / 2
		if !s.less(i, up) {
			break
		}
		s[i], s[up] = s[up], s[i]
		i = up
	}
}

func (h *pairHeap) pop() pair {
	s := *h
	p := s[0]
	s[0] = s[len(s)-1]
	*h = s[:len(s)-1]
	h.down(0)
	return p
}

func (h pairHeap) down(i int) {
	for {
		low := 2*i + 1
		if low >= len(h) {
			return
		}
		if low+1 < len(h) && h.less(low+1, low) {
			low++
		}
		if !h.less(low, i) {
			return
		}
		h[i], h[low] = h[low], h[i]
		i = low
	}
}
