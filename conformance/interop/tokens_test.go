// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package interop_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/tokenizer/cl100k"
	"github.com/fivewire/fivewire/accp/tokenizer/o200k"
	"github.com/stretchr/testify/require"
)

// Counts of tokens against those of tiktoken, which defines them, and of js-tiktoken.

var counters = map[string]accp.TokenCounter{"o200k_base": o200k.Counter{}, "cl100k_base": cl100k.Counter{}}

// tokenTexts are texts of many kinds: frames, programs, prose, and characters of all planes.
func tokenTexts() []string {
	r := rand.New(rand.NewPCG(200, 100))
	pieces := []string{
		" ", "  ", "\t", "\n", "\r\n", "\n\n ", " \n", "\u00a0", "\u3000", "a", "the", " the", "The", "THE", "don't", "DON'T", "we'Ve", "'s", "'S", "İ'ſ", "naïve", "straße",
		"0", "12", "123", "1234", "3.14159", "1_000", "-", "->", "=>", "{", "}", "();", "::", "//", "/*", "*/", "/\n", ".\r\n/", "...", "!?", "<|endoftext|>", "<|fim_prefix|>", "\x00", "\x7f",
		"@planner>req:analyze{text:\"x\",n:3}[mid:49679033e07c,seq:3,ts:1714000000]", "func main() {\n\tfmt.Println(\"hi\")\n}\n", "SELECT * FROM t WHERE a = 'b';",
		"Über", "été", "日本語の文章", "中文字符", "한국어", "ภาษาไทย", "हिन्दी", "العربية", "עברית", "Ελληνικά", "Русский", "🎉", "👩‍👩‍👧", "🇩🇪", "\u0301", "e\u0301", "Ⅷ", "٣", "½", "ʰ", "ǅ", "𝔸", "𐐷", "\U000e0041", "\uffff", "\U0010ffff",
	}
	texts := append([]string{""}, pieces...)
	for range 3000 {
		var b strings.Builder
		for range 1 + r.IntN(20) {
			if r.IntN(3) > 0 {
				b.WriteString(pieces[r.IntN(len(pieces))])
				continue
			}
			c := rune(r.IntN(0x110000))
			if r.IntN(2) == 0 {
				c = rune(r.IntN(0x3000))
			}
			if c < 0xd800 || c >= 0xe000 {
				b.WriteRune(c)
			}
		}
		texts = append(texts, b.String())
	}
	for _, n := range []int{100, 1000, 5000} {
		texts = append(texts, strings.Repeat("a", n), strings.Repeat(" ", n), strings.Repeat("ab \n", n), strings.Repeat("語", n/10))
	}
	return texts
}

func TestTokens(t *testing.T) {
	t.Parallel()
	texts := tokenTexts()
	sent := make([][]byte, len(texts))
	for i, text := range texts {
		sent[i] = []byte(text)
	}
	compare := func(t *testing.T, p *peer) {
		t.Helper()
		for name, c := range counters {
			var peerCounts []int
			p.into(&peerCounts, request{"op": "count", "name": name, "texts": sent})
			require.Len(t, peerCounts, len(texts))
			wrong, later := 0, 0
			for i, text := range texts {
				switch ours := c.Count(text); {
				case ours == peerCounts[i]:
				case strings.ContainsFunc(text, unassigned):
					later++
				default:
					if wrong++; wrong < 6 {
						t.Errorf("%s: %d, theirs %d: %+q", name, ours, peerCounts[i], text)
					}
				}
			}
			require.Zero(t, wrong)
			require.LessOrEqual(t, later, 3, "few characters became letters after Unicode 15.0, which ours counts by")
		}
	}
	t.Run("tiktoken", func(t *testing.T) {
		t.Parallel()
		p := python(t, "tokens.py")
		dir := filepath.Join(peers(t, "node"), "node", "node_modules", "js-tiktoken", "dist", "ranks")
		ranks := map[string]string{}
		for name := range counters {
			ranks[name] = filepath.Join(dir, name+".js")
			_, err := os.Stat(ranks[name])
			require.NoError(t, err)
		}
		var accepted []string
		p.into(&accepted, request{"op": "load", "ranks": ranks, "folder": t.TempDir()})
		require.Len(t, accepted, 2, "the vocabularies have the hash sums of the published ones")
		compare(t, p)
	})
	t.Run("js-tiktoken", func(t *testing.T) {
		t.Parallel()
		compare(t, node(t, "tokens.mjs"))
	})
}

// unassigned reports whether a character is unassigned in Unicode 15.0.
func unassigned(r rune) bool {
	return !unicode.In(r, unicode.L, unicode.M, unicode.N, unicode.P, unicode.S, unicode.Z, unicode.Cc, unicode.Cf, unicode.Co, unicode.Cs)
}
