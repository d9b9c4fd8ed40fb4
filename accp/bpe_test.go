// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/accp"
)

// byTheBook merges as the rule says, one pair after the other.
func byTheBook(ranks map[string]int, text string) []int {
	var parts []string
	for i := range len(text) {
		parts = append(parts, text[i:i+1])
	}
	if _, ok := ranks[text]; ok {
		parts = []string{text}
	}
	for {
		best, at := -1, -1
		for i := 0; i+1 < len(parts); i++ {
			if r, ok := ranks[parts[i]+parts[i+1]]; ok && (best < 0 || r < best) {
				best, at = r, i
			}
		}
		if at < 0 {
			break
		}
		parts = append(append(append([]string{}, parts[:at]...), parts[at]+parts[at+1]), parts[at+2:]...)
	}
	var out []int
	for _, p := range parts {
		r, ok := ranks[p]
		if !ok {
			r = -1
		}
		out = append(out, r)
	}
	return out
}

// Long pieces are merged as short ones are (ACCP-123, ACCP-D39).
func TestBPEByTheBook(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		letters := rapid.StringMatching(`[abc]{1,6}`)
		tokens := rapid.SliceOfNDistinct(letters, 1, 60, rapid.ID).Draw(t, "tokens")
		ranks := map[string]int{}
		var list [][]byte
		for i, tok := range tokens {
			ranks[tok] = i
			list = append(list, []byte(tok))
		}
		text := rapid.StringMatching(`[abcd]{0,200}`).Draw(t, "text")
		b := accp.NewBPE(list, nil)
		want := byTheBook(ranks, text)
		require.Equal(t, want, b.Encode(text))
		require.Equal(t, len(want), b.Count(text))
	})
}

// The time of a long piece grows with its length, not with the square of it.
func TestBPETime(t *testing.T) {
	var list [][]byte
	for n := 1; n <= 64; n *= 2 {
		list = append(list, []byte(strings.Repeat("a", n)))
	}
	b := accp.NewBPE(list, nil)
	fastest := func(n int) time.Duration {
		text := strings.Repeat("a", n)
		best := time.Hour
		for range 3 { // the least disturbed one
			begun := time.Now()
			require.Equal(t, n/64, b.Count(text))
			best = min(best, time.Since(begun))
		}
		return best
	}
	short, long := fastest(4<<10), fastest(128<<10)
	require.Less(t, long, 400*short, "32 times the length; with its square it would be 1024 times the time")
}

func TestLoadBPE(t *testing.T) {
	var file strings.Builder
	for i, tok := range []string{"a", "b", "ab", "abab", " "} {
		fmt.Fprintf(&file, "%s %d\n", base64.StdEncoding.EncodeToString([]byte(tok)), i)
		if i == 2 {
			file.WriteString("\n")
		}
	}
	b, err := accp.LoadBPE(strings.NewReader(file.String()), func(s string) []string { return strings.SplitAfter(s, " ") })
	require.NoError(t, err)
	require.Equal(t, []int{3, 2, 4, 1, 0, 4, -1}, b.Encode("ababab ba x"))
	require.Equal(t, 0, b.Count(""))
	require.Empty(t, b.Encode(""))
	for _, bad := range []string{"YQ==", "YQ== x", "!! 1", "YQ== -1", " 1", "YQ==  1", strings.Repeat("a", 5000)} {
		_, err := accp.LoadBPE(strings.NewReader(bad), nil)
		require.Error(t, err, bad)
	}
}

// The estimate is the same everywhere (ACCP-D39).
func TestApprox(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, "a": 1, "abcdef": 1, "abcdefg": 2, "123": 1, "1234": 2, " ": 0, "  ": 1, "\n": 1, "{}": 1, "{}:": 2,
		"é": 1, "한국": 2, "😀": 2, "a b": 2, "ab12": 2, "\xff": 1,
	} {
		require.Equal(t, want, accp.ApproxCounter{}.Count(text), "%q", text)
	}
	require.Equal(t, 3, accp.TokenCounterFunc(func(s string) int { return len(s) }).Count("abc"))
}
