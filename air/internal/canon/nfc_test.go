// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package canon

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"golang.org/x/text/unicode/norm"
)

// The plain algorithm must agree with the library on every character and on
// everything that the library treats as the standard says (AIR-D04, AIR-D69).
func TestPlainNFCAgreesOnEveryCharacter(t *testing.T) {
	for r := rune(0); r <= utf8.MaxRune; r++ {
		if r >= 0xd800 && r <= 0xdfff {
			continue
		}
		s := string(r)
		if got, want := string(appendPlainNFC(nil, []byte(s))), norm.NFC.String(s); got != want {
			t.Fatalf("U+%04X: got %+q, want %+q", r, got, want)
		}
		if quickNFC([]byte(s)) && norm.NFC.String(s) != s {
			t.Fatalf("U+%04X is called safe and is not", r)
		}
	}
}

func TestPlainNFCAgreesOnMixtures(t *testing.T) {
	pools := [][]rune{nil, {0x1100, 0x1161, 0x11a8, 0xac00, 0xac01, 0x9c7, 0x9be, 0x9d7, 0xdd9, 0xdca, 0xdcf, 0x344, 0x1f82}, nil, nil}
	for r := rune(0x41); r < 0x3100; r++ {
		if p := norm.NFC.PropertiesString(string(r)); p.CCC() != 0 {
			pools[0] = append(pools[0], r)
		} else if p.Decomposition() != nil {
			pools[2] = append(pools[2], r)
		} else if r < 0x100 {
			pools[3] = append(pools[3], r)
		}
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 60000 {
		var b strings.Builder
		for range 1 + rnd.IntN(6) {
			p := pools[rnd.IntN(len(pools))]
			b.WriteRune(p[rnd.IntN(len(p))])
		}
		s := b.String()
		want := norm.NFC.String(s)
		require.Equalf(t, want, string(appendPlainNFC(nil, []byte(s))), "%+q", s)
		require.Equalf(t, want, string(appendNFC(nil, []byte(s))), "%+q", s)
		if quickNFC([]byte(s)) {
			require.Equalf(t, want, s, "%+q", s)
		}
	}
}

// Nothing is inserted into a run of marks, however long (AIR-D04).
func TestLongRunsOfMarks(t *testing.T) {
	for _, n := range []int{29, 30, 31, 32, 60, 61, 500} {
		marks := strings.Repeat("\u0301", n)
		require.Equal(t, "á"+marks[2:], string(appendNFC(nil, []byte("a"+marks))))
		mixed := strings.Repeat("\u0301\u0323", n)
		want := "\u1ea1" + strings.Repeat("\u0323", n-1) + strings.Repeat("\u0301", n)
		require.Equal(t, want, string(appendNFC(nil, []byte("a"+mixed))))
		require.Equal(t, want, string(appendNFC(nil, []byte(want))))
	}
}

func TestQuickNFCNeedsValidText(t *testing.T) {
	for _, s := range []string{"\xff", "\xc2", "\xe4\xb8", "\xed\xa0\x80", "\xed\x9f", "\xf0\x9f\x98", "\xc0\x80", "\xe5\x20\x80", "\x80", "\xf0\x9f\x98\x20", "\xe2\x80"} {
		require.Falsef(t, quickNFC([]byte(s)), "%q", s)
	}
}
