// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/bench/floor"
	"github.com/fivewire/fivewire/internal/bench/pair"
	"github.com/fivewire/fivewire/internal/bench/sample"
	"github.com/fivewire/fivewire/internal/race"
)

func BenchmarkDecodeRequest(b *testing.B) {
	for _, s := range sample.Sizes {
		in := sample.Encode(sample.New(s.N))
		b.Run("size="+s.Name+"/lib=sdk", func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(in)))
			for b.Loop() {
				if _, err := DecodeRequest(in); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("size="+s.Name+"/lib=floor", func(b *testing.B) {
			b.SetBytes(int64(len(in)))
			for b.Loop() {
				var h floor.Head
				if err := floor.Peel(in, &h); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// The ratio to the floor of reading a request's head.
func BenchmarkPairDecodeRequest(b *testing.B) {
	for _, s := range sample.Sizes {
		in := sample.Encode(sample.New(s.N))
		b.Run("size="+s.Name+"/lib=sdk", func(b *testing.B) {
			pair.Ratio(b,
				pair.Loop(func() { _, _ = DecodeRequest(in) }),
				pair.Loop(func() { var h floor.Head; _ = floor.Peel(in, &h) }))
		})
	}
}

// The goals that are counts: two allocations a request, and none for a response
// but its own.
func TestDecodeAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	in := sample.Encode(sample.New(300))
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() {
		if _, err := DecodeRequest(in); err != nil {
			t.Fatal(err)
		}
	}), 2.0)
	req, err := DecodeRequest(in)
	require.NoError(t, err)
	buf := make([]byte, 0, 1024)
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() {
		if buf, err = AppendRequest(buf[:0], req); err != nil {
			t.Fatal(err)
		}
	}), 0.0)
}
