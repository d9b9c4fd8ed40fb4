// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"slices"
	"sort"
)

// chunkSize is the most elements of one chunk. Larger chunks make insertion
// move more, smaller ones make the list of chunks longer.
const chunkSize = 128

// A sorted keeps elements in ascending order of their keys, each key once. It
// is a list of short sorted lists: two binary searches find a place, and
// insertion and deletion move at most one chunk plus, rarely, the list of
// chunks. Appending fills chunks completely. The zero value is ready for use.
type sorted[K cmp.Ordered, T interface{ key() K }] struct {
	chunks [][]T // none of them empty
	spare  []T   // a chunk that emptied, for the next that is needed
}

// find returns the place of the first element whose key is k or more. Past the
// end that is len(s.chunks), 0.
func (s *sorted[K, T]) find(k K) (c, i int) {
	c = sort.Search(len(s.chunks), func(c int) bool {
		chunk := s.chunks[c]
		return chunk[len(chunk)-1].key() >= k
	})
	if c < len(s.chunks) {
		chunk := s.chunks[c]
		i = sort.Search(len(chunk), func(i int) bool { return chunk[i].key() >= k })
	}
	return c, i
}

// insert adds e, whose key must be new.
func (s *sorted[K, T]) insert(e T) {
	c, i := s.find(e.key())
	if c == len(s.chunks) { // behind everything: the way of every stream
		if c == 0 || len(s.chunks[c-1]) == chunkSize {
			s.chunks = append(s.chunks, append(s.spare, e))
			s.spare = nil
			return
		}
		c--
		i = len(s.chunks[c])
	}
	if len(s.chunks[c]) == chunkSize {
		const half = chunkSize / 2
		s.chunks = slices.Insert(s.chunks, c+1, append(make([]T, 0, chunkSize), s.chunks[c][half:]...))
		clear(s.chunks[c][half:])
		s.chunks[c] = s.chunks[c][:half]
		if i > half {
			c, i = c+1, i-half
		}
	}
	s.chunks[c] = slices.Insert(s.chunks[c], i, e)
}

// remove takes out the element with key k and reports whether there was one.
func (s *sorted[K, T]) remove(k K) bool {
	c, i := s.find(k)
	if c == len(s.chunks) || s.chunks[c][i].key() != k {
		return false
	}
	chunk := slices.Delete(s.chunks[c], i, i+1)
	s.chunks[c] = chunk
	switch {
	case len(chunk) == 0:
		s.spare = chunk
		s.chunks = slices.Delete(s.chunks, c, c+1)
	case len(chunk) > chunkSize/4:
	case c > 0 && len(s.chunks[c-1])+len(chunk) <= chunkSize/2:
		s.merge(c - 1)
	case c+1 < len(s.chunks) && len(chunk)+len(s.chunks[c+1]) <= chunkSize/2:
		s.merge(c)
	}
	return true
}

// merge puts the chunk after c into c. Without it, removal here and there would
// leave many chunks of one element.
func (s *sorted[K, T]) merge(c int) {
	s.chunks[c] = append(s.chunks[c], s.chunks[c+1]...)
	s.chunks = slices.Delete(s.chunks, c+1, c+2)
}

// get returns the element with key k.
func (s *sorted[K, T]) get(k K) (e T, ok bool) {
	c, i := s.find(k)
	if c == len(s.chunks) || s.chunks[c][i].key() != k {
		return e, false
	}
	return s.chunks[c][i], true
}

// ascend calls yield for every element whose key is k or more, in order, until
// it returns false. The elements must not change during the call.
func (s *sorted[K, T]) ascend(k K, yield func(T) bool) {
	for c, i := s.find(k); c < len(s.chunks); c, i = c+1, 0 {
		for _, e := range s.chunks[c][i:] {
			if !yield(e) {
				return
			}
		}
	}
}

// atLeast returns how many elements have the key k or more, but max at most.
func (s *sorted[K, T]) atLeast(k K, max int) int {
	c, i := s.find(k)
	n := -i
	for ; c < len(s.chunks) && n < max; c++ {
		n += len(s.chunks[c])
	}
	return min(n, max)
}

// empty reports whether s holds nothing.
func (s *sorted[K, T]) empty() bool { return len(s.chunks) == 0 }
