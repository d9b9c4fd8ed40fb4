// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var epoch = time.Unix(0, 0)

// A modelReader is a reader with the chunks that it got.
type modelReader struct {
	Reader
	from, credit, got int64 // got: id of the next chunk
}

// A Stream over random events: each reader gets a contiguous run of the chunks from its place on and
// within its credit, the counted bytes are the held ones, nothing from the base on is missing, and
// the credit of the sender never exceeds what the slowest reader has and 64 more.
func TestStreamModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		retain := rapid.SampledFrom([]int{0, 200, 1 << 20}).Draw(t, "retain")
		s := NewStream(retain)
		var sizes []int // of the accepted chunks in order
		var readers []*modelReader
		base, grant := int64(0), int64(firstCredit)
		check := func() {
			bytes := 0
			for i := s.first; i < s.next; i++ {
				require.Equal(t, sizes[i], s.at(i).size)
				bytes += sizes[i] + chunkCost
			}
			require.Equal(t, bytes, s.bytes, "counted bytes")
			if len(readers) > 0 {
				base = readers[0].got
				for _, r := range readers {
					base = min(base, r.got)
				}
			}
			require.Equal(t, base, s.base)
			require.LessOrEqual(t, s.first, min(base, s.next), "chunks from the base on are kept")
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) { check() },
			"accept": func(t *rapid.T) {
				c := Chunk{ID: s.next, Size: rapid.IntRange(0, 100).Draw(t, "size")}
				v, _ := s.Accept(c, epoch)
				require.Equal(t, Accepted, v)
				sizes = append(sizes, c.Size)
			},
			"swap": func(t *rapid.T) {
				late, early := Chunk{ID: s.next + 1, Size: 2}, Chunk{ID: s.next, Size: 1}
				for _, c := range []Chunk{late, late, early} {
					s.Accept(c, epoch)
				}
				sizes = append(sizes, 1, 2)
			},
			"attach": func(t *rapid.T) {
				r := &modelReader{from: rapid.Int64Range(0, s.next+2).Draw(t, "from"), credit: rapid.Int64Range(0, 20).Draw(t, "credit")}
				r.got = r.from
				isKept := s.Attach(&r.Reader, r.from, r.credit, epoch)
				require.Equal(t, r.from >= s.first, isKept)
				if isKept {
					readers = append(readers, r)
				}
			},
			"read": func(t *rapid.T) {
				if len(readers) == 0 {
					t.Skip()
				}
				r := rapid.SampledFrom(readers).Draw(t, "reader")
				c, ok := s.Peek(&r.Reader)
				if r.got >= s.next || r.got >= r.credit {
					require.False(t, ok)
					return
				}
				require.Equal(t, r.got, c.ID)
				s.Take(&r.Reader, epoch)
				r.got++
			},
			"grant": func(t *rapid.T) {
				if len(readers) == 0 {
					t.Skip()
				}
				r := rapid.SampledFrom(readers).Draw(t, "reader")
				n := rapid.Int64Range(0, 200).Draw(t, "credit")
				s.Grant(&r.Reader, n)
				r.credit = max(r.credit, n)
			},
			"detach": func(t *rapid.T) {
				if len(readers) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(readers)-1).Draw(t, "reader")
				s.Detach(&readers[i].Reader)
				readers = append(readers[:i], readers[i+1:]...)
			},
			"raise": func(t *rapid.T) {
				credit, isRaised := s.Raise(math.MaxInt64)
				if isRaised {
					require.Greater(t, credit, grant)
					require.LessOrEqual(t, credit, s.base+maxCredit)
					grant = credit
				}
				require.Equal(t, grant, s.Credit())
			},
		})
	})
}

// The first final chunk by id ends a stream; later chunks are late.
func TestOrderFinal(t *testing.T) {
	s := NewStream(0)
	v, _ := s.Accept(Chunk{ID: 2, Final: true}, epoch)
	require.Equal(t, Accepted, v)
	v, _ = s.Accept(Chunk{ID: 3}, epoch)
	require.Equal(t, Late, v)
	v, _ = s.Accept(Chunk{ID: 1}, epoch)
	require.Equal(t, Accepted, v)
	_, isRaised := s.Raise(math.MaxInt64)
	require.False(t, isRaised, "no credit once the final chunk was accepted")
	v, final := s.Accept(Chunk{ID: 0}, epoch)
	require.Equal(t, Final, v)
	require.Equal(t, int64(2), final.ID)
	v, _ = s.Accept(Chunk{ID: 40}, epoch)
	require.Equal(t, Late, v)
}

// Chunks within 16 ahead wait for a second; others break the stream.
func TestOrderGap(t *testing.T) {
	var o Order
	require.Equal(t, Gap, o.Add(Chunk{ID: 17}, epoch))
	require.Equal(t, Accepted, o.Add(Chunk{ID: 16}, epoch))
	require.Equal(t, Accepted, o.Add(Chunk{ID: 1}, epoch.Add(time.Millisecond)))
	until, isWaiting := o.Waiting()
	require.True(t, isWaiting)
	require.Equal(t, epoch.Add(gapWait), until)
}

// Large chunks get less credit, but always one.
func TestStreamCreditBySize(t *testing.T) {
	for size, want := range map[int]int64{0: 64, 1: 64, 1 << 14: 64, 1 << 18: 4, 1 << 20: 1, 4 << 20: 1} {
		s := NewStream(1 << 20)
		var r Reader
		require.True(t, s.Attach(&r, 0, NoCredit, epoch))
		for id := range int64(100) {
			s.Accept(Chunk{ID: id, Size: size}, epoch)
			s.Take(&r, epoch)
		}
		credit, isRaised := s.Raise(math.MaxInt64)
		require.True(t, isRaised)
		require.Equal(t, 100+want, credit, "chunks of %d bytes", size)
	}
}

// With little free memory the credit is smaller, down to one chunk.
func TestStreamCreditByMemory(t *testing.T) {
	for free, want := range map[int64]int64{1 << 30: 64, 1 << 20: 64, 1 << 18: 16, 1 << 15: 2, 1 << 10: 1, 0: 1} {
		s := NewStream(0)
		var r Reader
		require.True(t, s.Attach(&r, 0, NoCredit, epoch))
		for id := range int64(8) {
			s.Accept(Chunk{ID: id, Size: 2000 - chunkCost}, epoch)
			s.Take(&r, epoch)
		}
		credit, isRaised := s.Raise(free)
		require.True(t, isRaised)
		require.Equal(t, 8+want, credit, "%d bytes are free", free)
		require.Equal(t, int(want)*2000, s.Reserved())
	}
}

// A reader far ahead of the sender reserves little, also when another one joins.
func TestReservedBytesAreBounded(t *testing.T) {
	s := NewStream(0)
	var ahead, joined Reader
	require.True(t, s.Attach(&ahead, math.MaxInt64-1, NoCredit, epoch))
	s.Accept(Chunk{Size: maxInAdvance}, epoch)
	_, isRaised := s.Raise(math.MaxInt64)
	require.True(t, isRaised)
	require.True(t, s.Attach(&joined, 1, NoCredit, epoch))
	require.Equal(t, maxCredit*(maxInAdvance+chunkCost), s.Reserved())
}

// An end that comes at once drops the chunks that no reader has.
func TestStreamTruncate(t *testing.T) {
	s := NewStream(1 << 20)
	var fast, slow Reader
	require.True(t, s.Attach(&fast, 0, NoCredit, epoch))
	require.True(t, s.Attach(&slow, 0, 0, epoch))
	for id := range int64(5) {
		s.Accept(Chunk{ID: id, Size: 10}, epoch)
	}
	s.Take(&fast, epoch)
	s.Take(&fast, epoch)
	s.Truncate()
	require.Equal(t, int64(2), s.Next())
	s.End(Chunk{ID: 2, Final: true}, epoch)
	var late Reader
	require.True(t, s.Attach(&late, 9, 0, epoch), "at least the last chunk")
	c, ok := s.Peek(&late)
	require.True(t, ok)
	require.Equal(t, int64(2), c.ID, "which needs no credit")
	require.Equal(t, 2*(10+chunkCost)+chunkCost, s.Bytes())
}
