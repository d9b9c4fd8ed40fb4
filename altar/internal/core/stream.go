// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"math"
	"slices"
	"time"
)

// Credits of a Runtime (ALT-D37).
const (
	firstCredit  = 8       // of a dispatched call
	maxCredit    = 64      // chunks beyond the base
	maxInAdvance = 1 << 20 // bytes beyond the base, by the longest chunk
	firstReserve = 1 << 10 // bytes that are reserved for each chunk of the first credit
	shareOfRoom  = 8       // a credit for more than one chunk takes at most this part of the free memory
)

// chunkCost is what a chunk counts besides its payload.
const chunkCost = 64

// maxShort bounds the bytes of a payload that is copied.
const maxShort = 256

// NoCredit is the credit of a reader without a bound.
const NoCredit = math.MaxInt64

func (c *Chunk) cost() int { return c.Size + chunkCost }

// A Stream holds the accepted chunks of one call at a Host in a ring. Each reader has a
// place in it: the id of the next chunk that it gets. All chunks from the base on, the
// lowest place, are kept, and before it the last ones up to a number of bytes.
type Stream struct {
	order   Order
	retain  int // bytes before the base
	ring    []kept
	start   time.Time // when the ring was made
	first   int64     // id of ring[0]
	next    int64     // id after the last one of the ring
	fresh   any       // the data of the last chunk of the ring, until its readers have had their turn
	block   []byte    // of the payloads of short chunks
	base    int64
	given   int64 // the highest place that a reader had
	before  int   // bytes of the ring before base
	bytes   int   // of the ring
	longest int   // payload
	window
	last    Chunk // of the ring, once the stream has ended
	isEnded bool
	readers []*Reader
}

// A window is the credit of the sender, and the bytes that are reserved for each chunk within it.
type window struct {
	grant   int64
	reserve int
}

var firstWindow = window{firstCredit, firstReserve}

// A kept is what a chunk leaves in the ring, so that many small ones need little memory.
type kept struct {
	payload []byte
	size    int
	at      int64 // of its arrival; nanoseconds after Stream.start
}

func (k *kept) cost() int { return k.size + chunkCost }

// A Reader is a connection that waits for a call, with its place in the [Stream].
type Reader struct {
	Conn      *Conn
	Collector Collector // nil: the reader gets the chunks
	Data      any       // opaque

	call      *Call
	place     int64
	credit    int64
	from      int64 // chunks before are not wanted
	moved     time.Time
	stall     Timer // runs while a chunk waits for the connection
	isStalled bool  // the queue of the connection had no space
	collected int   // bytes of the Collector

	seat link[Reader]
}

// Place returns the id of the next chunk of a reader.
func (r *Reader) Place() int64 { return r.place }

// Credit returns the credit of a reader.
func (r *Reader) Credit() int64 { return r.credit }

// NewStream returns a stream that keeps so many bytes before the base.
func NewStream(retain int) *Stream { return &Stream{retain: retain, window: firstWindow} }

// Restart drops all chunks: another sender begins with chunk 0. No reader has a chunk yet.
func (s *Stream) Restart() {
	*s = Stream{retain: s.retain, window: firstWindow, readers: s.readers, base: s.base}
}

// Accept takes a chunk of the sender. Its verdict is Final, with the final chunk, once that is due:
// it is not in the ring before End.
func (s *Stream) Accept(c Chunk, now time.Time) (v Verdict, final Chunk) {
	if s.isEnded {
		return Late, Chunk{}
	}
	if s.order.AddNext(c.ID, c.Final) {
		s.longest = max(s.longest, c.Size)
		if c.Final {
			return Final, c
		}
		s.add(c, now)
		return Accepted, Chunk{}
	}
	if v = s.order.Add(c, now); v != Accepted {
		return v, Chunk{}
	}
	s.longest = max(s.longest, c.Size)
	for next, ok := s.order.Next(now); ok; next, ok = s.order.Next(now) {
		if next.Final {
			return Final, next
		}
		s.add(next, now)
	}
	return Accepted, Chunk{}
}

func (s *Stream) add(c Chunk, now time.Time) {
	if s.ring == nil {
		s.ring, s.start = make([]kept, 0, 32), now
	}
	s.ring = append(s.ring, kept{s.keep(c.Payload), c.Size, int64(now.Sub(s.start))})
	s.next, s.fresh = c.ID+1, c.Data
	s.bytes += c.cost()
	if c.ID < s.base { // no reader needs it
		s.before += c.cost()
		s.trim()
	}
}

// keep returns a payload for the ring. A short one is copied, so that it keeps no message in memory.
func (s *Stream) keep(payload []byte) []byte {
	n := len(payload)
	if n > maxShort || payload == nil {
		return payload
	}
	if cap(s.block)-len(s.block) < n {
		s.block = make([]byte, 0, max(n, min(16*cap(s.ring), 4*maxShort)))
	}
	s.block = append(s.block, payload...)
	return s.block[len(s.block)-n : len(s.block) : len(s.block)]
}

// End adds the last chunk of the stream, of the sender or of the Host. Its id is Next.
func (s *Stream) End(c Chunk, now time.Time) {
	if !s.isEnded {
		s.order = Order{next: s.order.next, isDone: true}
		s.add(c, now)
		s.last, s.isEnded = c, true
	}
}

// Restored returns an ended stream with the kept chunks. The last of them is final.
func Restored(chunks []Chunk) *Stream {
	s := &Stream{}
	for i, c := range chunks {
		if i == 0 {
			s.first, s.next = c.ID, c.ID
		}
		s.add(c, time.Time{})
	}
	s.last, s.base, s.before, s.isEnded = chunks[len(chunks)-1], s.next, s.bytes, true
	return s
}

// Truncate drops the chunks that no reader has.
func (s *Stream) Truncate() {
	if s.isEnded {
		return
	}
	for s.next > max(s.given, s.first) {
		last := len(s.ring) - 1
		s.bytes -= s.ring[last].cost()
		s.ring[last] = kept{}
		s.ring = s.ring[:last]
		s.next--
	}
	s.fresh = nil
	s.count()
}

// First returns the id of the first chunk of the ring.
func (s *Stream) First() int64 { return s.first }

// Next returns the id after the last chunk of the ring.
func (s *Stream) Next() int64 { return s.next }

// Given returns the highest place that a reader had.
func (s *Stream) Given() int64 { return s.given }

// Order returns the order of the received chunks.
func (s *Stream) Order() *Order { return &s.order }

// Bytes returns the held bytes.
func (s *Stream) Bytes() int {
	_, waiting := s.order.end()
	return s.bytes + waiting
}

// Reserved returns the bytes for the chunks that the sender may send.
func (s *Stream) Reserved() int {
	if s.isEnded || s.order.hasFinal {
		return 0
	}
	return s.ahead(s.grant) * s.reserve
}

// ahead returns the number of chunks below a credit that were not received, and that a reader still needs.
func (s *Stream) ahead(credit int64) int {
	next, _ := s.order.end()
	return int(min(maxCredit, max(0, credit-max(next, s.base))))
}

// Unread returns the bytes from the base on.
func (s *Stream) Unread() int { return s.bytes - s.before }

// Last returns the final chunk of a stream that has ended. Of another it returns nil.
func (s *Stream) Last() *Chunk {
	if !s.isEnded {
		return nil
	}
	return &s.last
}

// Chunks calls f with the ids and the payloads of the chunks of the ring in order.
func (s *Stream) Chunks(f func(id int64, payload []byte)) {
	for i := range s.ring {
		f(s.first+int64(i), s.ring[i].payload)
	}
}

// Attach adds a reader that gets the chunks from an id on, and of an ended stream at least
// the last one. It reports false if they are not kept.
func (s *Stream) Attach(r *Reader, from, credit int64, now time.Time) bool {
	if s.isEnded {
		from = min(from, s.next-1)
	}
	if from < s.first {
		return false
	}
	r.place, r.credit, r.moved = from, credit, now
	s.readers = append(s.readers, r)
	s.rebase()
	return true
}

// Detach removes a reader. Without any the base stays.
func (s *Stream) Detach(r *Reader) {
	if i := slices.Index(s.readers, r); i >= 0 {
		s.readers = slices.Delete(s.readers, i, i+1)
		s.rebase()
	}
}

// Grant raises the credit of a reader. It never falls.
func (s *Stream) Grant(r *Reader, credit int64) { r.credit = max(r.credit, credit) }

// Peek returns the next chunk of a reader, if its credit permits it. A final chunk needs
// none. The chunk has its data if it is the last one, and final or just received.
func (s *Stream) Peek(r *Reader) (c Chunk, ok bool) {
	k := s.at(r.place)
	switch {
	case k == nil:
		return Chunk{}, false
	case s.isEnded && r.place == s.next-1:
		return s.last, true
	case r.place >= r.credit:
		return Chunk{}, false
	}
	c = Chunk{ID: r.place, Size: k.size, Payload: k.payload}
	if r.place == s.next-1 {
		c.Data = s.fresh
	}
	return c, true
}

func (s *Stream) at(id int64) *kept {
	if id < s.first || id >= s.next {
		return nil
	}
	return &s.ring[id-s.first]
}

// Take moves a reader beyond the chunk of Peek.
func (s *Stream) Take(r *Reader, now time.Time) {
	wasLowest := r.place == s.base
	r.place++
	r.moved = now
	s.given = max(s.given, r.place)
	if wasLowest {
		s.rebase()
	}
}

// Stalled reports whether a chunk waits for a reader, and since when the reader has not moved.
func (s *Stream) Stalled(r *Reader) (since time.Time, isStalled bool) {
	c := s.at(r.place)
	if c == nil {
		return time.Time{}, false
	}
	if at := s.start.Add(time.Duration(c.at)); at.After(r.moved) {
		return at, true
	}
	return r.moved, true
}

// Lowest returns a reader with the lowest place, or nil.
func (s *Stream) Lowest() (lowest *Reader) {
	for _, r := range s.readers {
		if lowest == nil || r.place < lowest.place {
			lowest = r
		}
	}
	return lowest
}

// rebase moves the base to the lowest place.
func (s *Stream) rebase() {
	lowest := s.Lowest()
	if lowest == nil || lowest.place == s.base {
		return
	}
	from := s.base
	s.base = lowest.place
	if s.base < from {
		s.count()
		return
	}
	for id := max(from, s.first); id < min(s.base, s.next); id++ {
		s.before += s.at(id).cost()
	}
	s.trim()
}

// count sums up the bytes before the base.
func (s *Stream) count() {
	s.before = 0
	for i := range s.ring {
		if s.first+int64(i) < s.base {
			s.before += s.ring[i].cost()
		}
	}
}

// trim drops the oldest chunks before the base, but never the last one of all.
func (s *Stream) trim() { s.trimTo(s.retain, len(s.ring)-1) }

// Forget drops the chunks that are kept for repeats only, and reports whether there were any.
func (s *Stream) Forget() bool {
	first := s.first
	s.trimTo(0, len(s.ring))
	return s.first > first
}

// trimTo drops the oldest chunks before the base, up to limit, until retain bytes of them are left.
func (s *Stream) trimTo(retain, limit int) {
	if s.isEnded { // its record has what was kept at the end
		return
	}
	n := 0
	for ; s.before > retain && n < limit && s.first+int64(n) < s.base; n++ {
		s.before -= s.ring[n].cost()
		s.bytes -= s.ring[n].cost()
		s.ring[n] = kept{}
	}
	s.first += int64(n)
	s.ring = s.ring[n:]
}

// HasCredit reports whether the sender may send its next chunk.
func (s *Stream) HasCredit() bool {
	next, _ := s.order.end()
	return next < s.grant
}

// Credit returns the credit of the sender.
func (s *Stream) Credit() int64 { return s.grant }

// Raise raises the credit of the sender at the end of an event, and reports whether it has
// changed enough. The credit is smaller while few bytes of memory are free.
func (s *Stream) Raise(free int64) (credit int64, isRaised bool) {
	if s.isEnded || s.order.hasFinal {
		return s.grant, false
	}
	ahead := int64(maxCredit)
	if s.longest > 0 {
		ahead = int64(min(maxCredit, max(1, maxInAdvance/s.longest)))
	}
	base, reserve := min(s.base, math.MaxInt64-maxCredit), s.longest+chunkCost
	for ahead > 1 && int64(s.ahead(base+ahead)*reserve) > free/shareOfRoom+int64(s.Reserved()) {
		ahead /= 2
	}
	credit = base + ahead
	if credit < s.grant+max(1, ahead/2) {
		return s.grant, false
	}
	s.window = window{credit, reserve}
	return credit, true
}
