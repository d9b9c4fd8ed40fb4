// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package randid

import (
	"encoding/hex"
	"math/big"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/internal/race"
)

func TestForms(t *testing.T) {
	tests := []struct {
		name string
		make func() string
		want string
	}{
		{"no prefix", func() string { return New("") }, `^[0-7][0-9a-hjkmnp-tv-z]{25}$`},
		{"prefix", func() string { return New("task-") }, `^task-[0-7][0-9a-hjkmnp-tv-z]{25}$`},
		{"long prefix", func() string { return New(strings.Repeat("p", 100)) }, `^p{100}[0-7][0-9a-hjkmnp-tv-z]{25}$`},
		{"UUID4", UUID4, `^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`},
		{"UUID4Hex", UUID4Hex, `^[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}$`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			form := regexp.MustCompile(tt.want)
			seen := map[string]bool{}
			var mu sync.Mutex
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					for range 1000 {
						id := tt.make()
						mu.Lock()
						seen[id] = true
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			require.Len(t, seen, 4000, "each once")
			for id := range seen {
				require.Regexp(t, form, id)
			}
		})
	}
}

// Every digit of every place occurs, the first place apart.
func TestSpread(t *testing.T) {
	var places [textLen]map[byte]bool
	for i := range places {
		places[i] = map[byte]bool{}
	}
	for range 2000 {
		id := New("")
		for i := range id {
			places[i][id[i]] = true
		}
	}
	require.Len(t, places[0], 8)
	for i := 1; i < textLen; i++ {
		require.Len(t, places[i], 32, "place %d", i)
	}
}

func TestBase32IsTheNumber(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := [16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "bytes"))
		want := new(big.Int)
		for _, c := range append32(nil, b) {
			want.Add(want.Lsh(want, 5), big.NewInt(int64(strings.IndexByte(alphabet, c))))
		}
		require.Equal(t, hex.EncodeToString(b[:]), hex.EncodeToString(want.FillBytes(make([]byte, 16))))
	})
}

func TestAllocs(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector makes what is read into escape")
	}
	var s string
	for name, make := range map[string]func(){
		"New":      func() { s = New("msg-") },
		"UUID4":    func() { s = UUID4() },
		"UUID4Hex": func() { s = UUID4Hex() },
	} {
		require.LessOrEqual(t, testing.AllocsPerRun(100, make), 1.0, name)
	}
	_ = s
}

func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		New("msg-")
	}
}

func BenchmarkUUID4(b *testing.B) {
	for b.Loop() {
		UUID4()
	}
}
