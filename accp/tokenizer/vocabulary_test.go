// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package tokenizer_test

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pkoukk/tiktoken-go-loader/assets"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp/tokenizer/internal/bpe"
)

// tokensOf returns the tokens of a published rank file by their ranks.
func tokensOf(t testing.TB, name string) []string {
	t.Helper()
	file, err := assets.Assets.ReadFile(name + ".tiktoken")
	require.NoError(t, err)
	var tokens []string
	for line := range strings.FieldsFuncSeq(string(file), func(r rune) bool { return r == '\n' }) {
		coded, _, _ := strings.Cut(line, " ")
		token, err := base64.StdEncoding.DecodeString(coded)
		require.NoError(t, err)
		tokens = append(tokens, string(token))
	}
	return tokens
}

func embedded(t testing.TB, folder string) (v bpe.Vocabulary, size int) {
	t.Helper()
	for name, to := range map[string]*string{"tokens": &v.Tokens, "offsets": &v.Offsets, "slots": &v.Slots, "pilots": &v.Pilots} {
		b, err := os.ReadFile(filepath.Join(folder, name+".bin"))
		require.NoError(t, err)
		*to = string(b)
		size += len(b)
	}
	return v, size
}

// The embedded tables are the published vocabulary, and small.
func TestVocabulary(t *testing.T) {
	for name, folder := range map[string]string{"o200k_base": "o200k", "cl100k_base": "cl100k"} {
		t.Run(name, func(t *testing.T) {
			v, size := embedded(t, folder)
			require.Less(t, size, 4<<20)
			tokens := tokensOf(t, name)
			ranks := make(map[string]bool, len(tokens))
			for rank, token := range tokens {
				ranks[token] = true
				if got := v.Rank(token); got != uint32(rank) {
					t.Fatalf("%q has rank %d, want %d", token, got, rank)
				}
			}
			// And nothing else is in it: all pairs of bytes, and tokens cut or grown by
			// a byte.
			check := func(s string) {
				if !ranks[s] && v.Rank(s) != bpe.None {
					t.Fatalf("%q has rank %d", s, v.Rank(s))
				}
			}
			for i := range 1 << 16 {
				check(string([]byte{byte(i >> 8), byte(i)}))
			}
			for i, token := range tokens {
				check(token[1:])
				check(token[:len(token)-1])
				check(token + string([]byte{byte(i)}))
			}
			check("")
			check(strings.Repeat(" ", 255))
			check(strings.Repeat(" ", 256))
			check(strings.Repeat("x", 1<<16))
		})
	}
}
