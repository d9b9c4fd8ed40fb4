// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package lines

import (
	"bufio"
	"bytes"
	"testing"

	"github.com/fivewire/fivewire/internal/bench/pair"
)

// The base is bufio.Reader.ReadSlice with a buffer that holds every line.
func BenchmarkPairReader(b *testing.B) {
	r := NewReader(&repeat{text: append(bytes.Repeat([]byte("x"), 300), '\n')}, 1<<20)
	br := bufio.NewReaderSize(&repeat{text: append(bytes.Repeat([]byte("x"), 300), '\n')}, minBuffer)
	pair.Ratio(b,
		pair.Loop(func() {
			if _, err := r.Next(); err != nil {
				b.Fatal(err)
			}
		}),
		pair.Loop(func() {
			if _, err := br.ReadSlice('\n'); err != nil {
				b.Fatal(err)
			}
		}))
}
