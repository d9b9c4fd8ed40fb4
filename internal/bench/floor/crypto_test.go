// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package floor

import (
	"bytes"
	"crypto/hkdf"
	"crypto/sha256"
	"strings"
	"testing"

	"github.com/mr-tron/base58"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestHKDF32(t *testing.T) {
	for n := range 64 {
		ikm := sha256.Sum256([]byte{byte(n)})
		info := bytes.Repeat([]byte{byte(n)}, n)
		want, err := hkdf.Key(sha256.New, ikm[:], nil, string(info), 32)
		require.NoError(t, err)
		got := HKDF32(&ikm, info)
		require.Equal(t, want, got[:])
	}
	var ikm [32]byte
	require.Panics(t, func() { HKDF32(&ikm, make([]byte, 64)) })
	info := []byte("context")
	require.Zero(t, testing.AllocsPerRun(10, func() { HKDF32(&ikm, info) }))
}

func TestBase58(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var in, back [64]byte
		zeros := rapid.IntRange(0, 64).Draw(t, "zeros")
		copy(in[zeros:], rapid.SliceOfN(rapid.Byte(), 64-zeros, 64-zeros).Draw(t, "bytes"))
		s := Enc58(nil, &in)
		require.Equal(t, base58.Encode(in[:]), string(s))
		require.True(t, Dec58(&back, s))
		require.Equal(t, in, back)
	})
}

func FuzzDec58(f *testing.F) {
	for _, s := range []string{"", "1111", "0", strings.Repeat("1", 64), strings.Repeat("z", 88), strings.Repeat("z", 91), "z" + strings.Repeat("1", 87)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if len(s) > 200 {
			return
		}
		var out [64]byte
		want, err := base58.Decode(s)
		if !Dec58(&out, []byte(s)) {
			require.False(t, err == nil && len(want) == 64, "refused")
			return
		}
		require.NoError(t, err)
		require.Equal(t, want, out[:])
		require.Equal(t, s, string(Enc58(nil, &out)))
	})
}
