// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// What is known is what a plain map with times says.
func TestKnownAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var k known
		type entry struct{ seq, until int64 }
		model := make(map[replayKey]entry)
		now, ttl := int64(1000), int64(50)
		seq := uint64(0)
		for range rapid.IntRange(1, 800).Draw(t, "n") {
			now += rapid.Int64Range(0, 3).Draw(t, "pause")
			var sum replayKey
			binary.BigEndian.PutUint16(sum[:], rapid.Uint16Range(0, 300).Draw(t, "sum"))
			for s, e := range model {
				if e.until < now {
					delete(model, s)
				}
			}
			want, ok := model[sum]
			got, known := k.seq(sum, now)
			require.Equal(t, ok, known)
			require.Equal(t, uint64(want.seq), got)
			require.Len(t, k.seqs, len(model))
			if !ok {
				seq++
				model[sum] = entry{int64(seq), now + ttl}
				k.add(sum, seq, now+ttl)
			}
		}
	})
}

// Spans are a set of positions, in as few pieces as possible.
func TestSpansModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var shared, private spans
		model := make(map[uint64]bool)
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			from := rapid.Uint64Range(1, 40).Draw(t, "from")
			x := span{from, from + rapid.Uint64Range(0, 8).Draw(t, "length")}
			if !shared.covers(x) {
				shared = shared.with(x)
			}
			private = private.grow(x)
			for i := x.from; i <= x.to; i++ {
				model[i] = true
			}
			pieces := 0
			for i := uint64(1); i < 60; i++ {
				require.Equal(t, model[i], shared.covers(span{i, i}), i)
				require.Equal(t, model[i], private.covers(span{i, i}), i)
				if model[i] && !model[i-1] {
					pieces++
				}
				for j := i; j < i+4; j++ {
					all := true
					for k := i; k <= j; k++ {
						all = all && model[k]
					}
					require.Equal(t, all, shared.covers(span{i, j}))
				}
			}
			require.Len(t, shared, pieces)
			back, err := parseSpans(shared.bytes())
			require.NoError(t, err)
			require.Equal(t, shared, back)
			require.Equal(t, shared, private)
		}
	})
	for _, damaged := range [][]byte{{1}, {5, 4}, {0x80}, {1, 0x80}} {
		_, err := parseSpans(damaged)
		require.Error(t, err)
	}
}
