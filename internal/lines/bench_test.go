// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package lines

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"
	"testing"

	"github.com/fivewire/fivewire/internal/bench/pair"
)

// sink returns a kernel pipe that something empties.
func sink(b *testing.B) io.Writer {
	r, w, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		io.Copy(io.Discard, r)
		close(done)
	}()
	b.Cleanup(func() {
		w.Close()
		<-done
		r.Close()
	})
	return w
}

// The base appends the line end and writes each line under a mutex.
func BenchmarkPairWriter(b *testing.B) {
	line := bytes.Repeat([]byte("x"), 300)
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			w, plain := NewWriter(sink(b), 0), sink(b)
			var mu sync.Mutex
			var buf []byte
			pair.RatioCallers(b, callers,
				func(int64) error { return w.WriteLine(line) },
				func(int64) error {
					mu.Lock()
					defer mu.Unlock()
					buf = append(append(buf[:0], line...), '\n')
					_, err := plain.Write(buf)
					return err
				})
		})
	}
}

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
