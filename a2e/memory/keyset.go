// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"bytes"
	"encoding/binary"
	"slices"
	"sort"
)

const (
	leafBytes   = 1024 // of a leaf with two keys or more
	leafSlack   = 64   // bytes that a leaf grows by
	blockLeaves = 256
)

// A keySet is a sorted set of keys, each with a number. Within a leaf, a key holds only the bytes after
// those that it shares with the key before it: uvarint(shared), uvarint(rest), rest, uvarint(number).
// The leaves are in blocks, so that a split moves few of them.
type keySet struct {
	blocks [][][]byte
}

// A leafReader reads the keys of a leaf in order.
type leafReader struct {
	rest   []byte
	key    []byte // valid until next
	number uint64
}

func (r *leafReader) next() bool {
	if len(r.rest) == 0 {
		return false
	}
	shared, rest := r.item()
	r.key = append(r.key[:shared], rest...)
	return true
}

// item reads a key without the bytes that it shares with the previous key.
func (r *leafReader) item() (shared int, rest []byte) {
	shared = int(r.uvarint())
	n := r.uvarint()
	rest = r.rest[:n]
	r.rest = r.rest[n:]
	r.number = r.uvarint()
	return shared, rest
}

func (r *leafReader) uvarint() uint64 {
	if b := r.rest[0]; b < 0x80 {
		r.rest = r.rest[1:]
		return uint64(b)
	}
	x, n := binary.Uvarint(r.rest)
	r.rest = r.rest[n:]
	return x
}

// appendItem appends a key that follows another one.
func appendItem(dst, before, key []byte, number uint64) []byte {
	shared := sharedBytes(before, key)
	return appendPart(dst, shared, key[shared:], number)
}

func appendPart(dst []byte, shared int, rest []byte, number uint64) []byte {
	dst = binary.AppendUvarint(dst, uint64(shared))
	dst = binary.AppendUvarint(dst, uint64(len(rest)))
	dst = append(dst, rest...)
	return binary.AppendUvarint(dst, number)
}

// leafOf returns the block and the index of the leaf that a key belongs to.
func (s *keySet) leafOf(key []byte) (b, i int) {
	b = max(sort.Search(len(s.blocks), func(b int) bool { return beginsAfter(s.blocks[b][0], key) })-1, 0)
	block := s.blocks[b]
	return b, max(sort.Search(len(block), func(i int) bool { return beginsAfter(block[i], key) })-1, 0)
}

// beginsAfter reports whether the first key of a leaf is greater than key.
func beginsAfter(leaf, key []byte) bool {
	r := leafReader{rest: leaf}
	_, first := r.item() // it shares nothing
	return bytes.Compare(first, key) > 0
}

// A position is where a key is in a leaf, or would be.
type position struct {
	start, end int // of its item; equal if the leaf has no such key
	shared     int // bytes with the key before it
}

// seek returns the position of a key. It compares only the bytes that a key does not share with the previous
// key.
func seek(leaf, key []byte) position {
	r := leafReader{rest: leaf}
	p := position{}
	for len(r.rest) > 0 {
		p.start = len(leaf) - len(r.rest)
		shared, rest := r.item()
		if shared < p.shared {
			p.end = p.start
			return p
		}
		if shared > p.shared {
			continue // smaller than key, as the previous key is
		}
		n := shared + sharedBytes(rest, key[shared:])
		switch {
		case n-shared == len(rest) && n == len(key):
			p.end = len(leaf) - len(r.rest)
			return p
		case n == len(key) || n-shared < len(rest) && rest[n-shared] > key[n]:
			p.end = p.start
			return p
		}
		p.shared = n
	}
	p.start, p.end = len(leaf), len(leaf)
	return p
}

func sharedBytes(a, b []byte) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// set adds a key, or replaces its number.
func (s *keySet) set(key []byte, number uint64) {
	if len(s.blocks) == 0 {
		s.blocks = append(s.blocks, [][]byte{appendItem(nil, nil, key, number)})
		return
	}
	b, i := s.leafOf(key)
	leaf := s.blocks[b][i]
	p := seek(leaf, key)
	var space [128]byte
	items := appendPart(space[:0], p.shared, key[p.shared:], number)
	end := p.end
	if p.start == p.end && end < len(leaf) { // the following key may share more with the new one
		r := leafReader{rest: leaf[end:]}
		if shared, rest := r.item(); shared == p.shared {
			n := sharedBytes(rest, key[shared:])
			items = appendPart(items, shared+n, rest[n:], r.number)
			end = len(leaf) - len(r.rest)
		}
	}
	s.replace(b, i, p.start, end, items)
	if len(s.blocks[b][i]) > leafBytes {
		s.split(b, i)
	}
}

// remove removes a key if it is in the set.
func (s *keySet) remove(key []byte) {
	if len(s.blocks) == 0 {
		return
	}
	b, i := s.leafOf(key)
	leaf := s.blocks[b][i]
	p := seek(leaf, key)
	if p.start == p.end {
		return
	}
	var items []byte
	end := p.end
	if end < len(leaf) { // the following key may share more with the removed key than with the previous key
		r := leafReader{rest: leaf[end:]}
		if shared, rest := r.item(); shared > p.shared {
			items = appendPart(nil, p.shared, slices.Concat(key[p.shared:shared], rest), r.number)
			end = len(leaf) - len(r.rest)
		}
	}
	s.replace(b, i, p.start, end, items)
	if len(s.blocks[b][i]) == 0 {
		s.blocks[b] = slices.Delete(s.blocks[b], i, i+1)
	}
	if len(s.blocks[b]) == 0 {
		s.blocks = slices.Delete(s.blocks, b, b+1)
	}
}

// replace replaces a part of a leaf.
func (s *keySet) replace(b, i, start, end int, items []byte) {
	leaf := s.blocks[b][i]
	if need := len(leaf) - (end - start) + len(items); need > cap(leaf) {
		grown := make([]byte, len(leaf), need+leafSlack)
		copy(grown, leaf)
		leaf = grown
	}
	s.blocks[b][i] = slices.Replace(leaf, start, end, items...)
}

// split makes two leaves of one with two keys or more.
func (s *keySet) split(b, i int) {
	leaf := s.blocks[b][i]
	r := leafReader{rest: leaf}
	r.next()
	for len(leaf)-len(r.rest) < len(leaf)/2 && len(r.rest) > 0 {
		r.next()
	}
	at := len(leaf) - len(r.rest)
	if !r.next() {
		return
	}
	right := append(appendItem(nil, nil, r.key, r.number), r.rest...)
	s.blocks[b][i] = slices.Clone(leaf[:at])
	block := slices.Insert(s.blocks[b], i+1, right)
	s.blocks[b] = block
	if n := len(block); n > blockLeaves {
		s.blocks[b] = slices.Clone(block[:n/2])
		s.blocks = slices.Insert(s.blocks, b+1, slices.Clone(block[n/2:]))
	}
}

// ascend calls f with each key that begins with a prefix, in order, until f returns false. The key is
// valid during the call.
func (s *keySet) ascend(prefix []byte, f func(key []byte, number uint64) bool) {
	if len(s.blocks) == 0 {
		return
	}
	b, i := s.leafOf(prefix)
	r := leafReader{}
	for ; b < len(s.blocks); b++ {
		for _, leaf := range s.blocks[b][i:] {
			for r.rest = leaf; r.next(); {
				if bytes.HasPrefix(r.key, prefix) {
					if !f(r.key, r.number) {
						return
					}
				} else if bytes.Compare(r.key, prefix) > 0 {
					return
				}
			}
		}
		i = 0
	}
}

// sweep removes the keys that keep refuses, and packs the leaves.
func (s *keySet) sweep(keep func(key []byte) bool) {
	var packed keySet
	var leaf, before []byte
	add := func() {
		if last := len(packed.blocks) - 1; last >= 0 && len(packed.blocks[last]) < blockLeaves/2 {
			packed.blocks[last] = append(packed.blocks[last], slices.Clone(leaf))
		} else {
			packed.blocks = append(packed.blocks, [][]byte{slices.Clone(leaf)})
		}
		leaf, before = leaf[:0], before[:0]
	}
	r := leafReader{}
	for b, block := range s.blocks {
		for _, old := range block {
			for r.rest = old; r.next(); {
				if !keep(r.key) {
					continue
				}
				if len(leaf) > leafBytes*7/8 {
					add()
				}
				leaf = appendItem(leaf, before, r.key, r.number)
				before = append(before[:0], r.key...)
			}
		}
		s.blocks[b] = nil
	}
	if len(leaf) > 0 {
		add()
	}
	*s = packed
}
