// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package streamlog

// An entry is one item of a ring. End is the number of bytes counted through it.
type entry struct {
	data []byte
	end  uint64
}

// A ring holds the items first to last. It is empty if first is last + 1.
type ring struct {
	buf         []entry // its length is a power of two, and item n has the index n modulo length
	first, last uint64
	base        uint64 // bytes counted through item first - 1
}

func (r *ring) at(n uint64) *entry { return &r.buf[n&uint64(len(r.buf)-1)] }

// endOf returns the bytes counted through item n, or base if n precedes the ring.
func (r *ring) endOf(n uint64) uint64 {
	if n < r.first {
		return r.base
	}
	return r.at(n).end
}

func (r *ring) push(data []byte) {
	if int(r.last+1-r.first) == len(r.buf) {
		old := *r
		r.buf = make([]entry, max(16, 2*len(old.buf)))
		for n := r.first; n <= r.last; n++ {
			*r.at(n) = *old.at(n)
		}
	}
	end := r.endOf(r.last) + uint64(len(data)+overhead)
	r.last++
	*r.at(r.last) = entry{data, end}
}

// trim removes items through n, oldest first and never the newest, until at most limit bytes are left.
func (r *ring) trim(n uint64, limit int) {
	for n = min(n, r.last-1); r.first <= n && r.endOf(r.last)-r.base > uint64(limit); r.first++ {
		r.base = r.at(r.first).end
		*r.at(r.first) = entry{}
	}
}

// take appends the items after n through last to buf, as far as its capacity and maxBatch permit,
// but at least one.
func (r *ring) take(buf []Item, n, last uint64) []Item {
	for limit := r.endOf(n) + maxBatch; n < last && len(buf) < cap(buf); n++ {
		e := r.at(n + 1)
		if len(buf) > 0 && e.end > limit {
			break
		}
		buf = append(buf, Item{n + 1, e.data})
	}
	return buf
}

// A signal wakes all waiting goroutines. A lock must guard it.
type signal struct{ ch chan struct{} }

// wait returns a channel that the next raise closes.
func (s *signal) wait() <-chan struct{} {
	if s.ch == nil {
		s.ch = make(chan struct{})
	}
	return s.ch
}

func (s *signal) raise() {
	if s.ch != nil {
		close(s.ch)
		s.ch = nil
	}
}
