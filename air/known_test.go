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
		for range rapid.IntRange(1, 2000).Draw(t, "n") {
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
