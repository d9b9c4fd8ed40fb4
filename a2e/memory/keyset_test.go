// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A set has the keys of a map, whatever was added, replaced, removed and swept, and its leaves stay
// small.
func TestKeySetIsASortedMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s keySet
		model := map[string]uint64{}
		key := rapid.Custom(func(t *rapid.T) string {
			text := rapid.StringOfN(rapid.SampledFrom([]rune("ab\x00")), 1, 8, -1).Draw(t, "key")
			if rapid.IntRange(0, 99).Draw(t, "isLong") == 0 {
				text += string(bytes.Repeat([]byte("long"), 400))
			}
			return text
		})
		for range rapid.IntRange(0, 600).Draw(t, "n") {
			k := key.Draw(t, "k")
			switch rapid.IntRange(0, 9).Draw(t, "op") {
			case 0:
				s.sweep(func(k []byte) bool { return !bytes.HasSuffix(k, []byte("ab")) })
				maps.DeleteFunc(model, func(k string, _ uint64) bool { return bytes.HasSuffix([]byte(k), []byte("ab")) })
			case 1, 2, 3:
				s.remove([]byte(k))
				delete(model, k)
			default:
				n := rapid.Uint64().Draw(t, "number")
				s.set([]byte(k), n)
				model[k] = n
			}
		}
		for _, prefix := range []string{"", "a", "b\x00", "ab", "c"} {
			var want, got []string
			for _, k := range slices.Sorted(maps.Keys(model)) {
				if bytes.HasPrefix([]byte(k), []byte(prefix)) {
					want = append(want, k)
				}
			}
			s.ascend([]byte(prefix), func(k []byte, n uint64) bool {
				require.Equal(t, model[string(k)], n)
				got = append(got, string(k))
				return true
			})
			require.Equal(t, want, got)
		}
		for _, block := range s.blocks {
			for _, leaf := range block {
				require.True(t, len(leaf) <= leafBytes || bytes.Contains(leaf, []byte("long")))
			}
		}
	})
}

// A set of many blocks has all keys in order.
func TestKeySetOfManyBlocks(t *testing.T) {
	var s keySet
	const n = 40000
	key := func(i int) []byte {
		return binary.BigEndian.AppendUint32([]byte("a long common beginning"), uint32(i)*2654435761)
	}
	for _, i := range rand.Perm(n) {
		s.set(key(i), uint64(i))
	}
	require.Greater(t, len(s.blocks), 1)
	for range 2 {
		var before []byte
		count := 0
		s.ascend(nil, func(k []byte, i uint64) bool {
			require.Positive(t, bytes.Compare(k, before))
			require.Equal(t, key(int(i)), k)
			before = append(before[:0], k...)
			count++
			return true
		})
		require.Equal(t, n, count)
		s.sweep(func([]byte) bool { return true })
	}
	for _, i := range rand.Perm(n) {
		s.remove(key(i))
	}
	require.Empty(t, s.blocks)
}
