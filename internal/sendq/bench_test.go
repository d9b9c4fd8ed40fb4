// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sendq

import (
	"io"
	"os"
	"sync"
	"testing"

	"github.com/fivewire/fivewire/internal/bench/pair"
)

// A locked writer appends each message to a buffer under a mutex and writes the buffer.
type locked struct {
	mu  sync.Mutex
	buf []byte
	w   io.Writer
}

func (l *locked) put(m []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf = append(l.buf, m...)
	if l.w == nil {
		return nil
	}
	_, err := l.w.Write(l.buf)
	l.buf = l.buf[:0]
	return err
}

// BenchmarkPairPut adds messages while a write is in progress. The base appends to a buffer
// under a mutex.
func BenchmarkPairPut(b *testing.B) {
	const run = 150 // messages until the buffers are empty again: one chunk
	m := msg(300)
	q := New(io.Discard, Options{})
	q.isWriting = true
	var base locked
	n, k := 0, 0
	pair.Ratio(b,
		pair.Loop(func() {
			if err := q.Put(m, 0); err != nil {
				b.Fatal(err)
			}
			if n++; n%run == 0 {
				q.drain() // the writer
				q.isWriting = true
			}
		}),
		pair.Loop(func() {
			_ = base.put(m)
			if k++; k%run == 0 {
				base.buf = base.buf[:0]
			}
		}))
}

// BenchmarkPairWrite writes messages to a pipe. The base writes under a mutex.
func BenchmarkPairWrite(b *testing.B) {
	m := msg(300)
	q, base := New(sink(b), Options{}), &locked{w: sink(b)}
	pair.Ratio(b,
		pair.Loop(func() { _ = q.Write(b.Context(), m, 0) }),
		pair.Loop(func() { _ = base.put(m) }))
}

// BenchmarkPairPutPipe is BenchmarkPairWrite with Put and 64 callers.
func BenchmarkPairPutPipe(b *testing.B) {
	m := msg(300)
	q, base := New(sink(b), Options{}), &locked{w: sink(b)}
	pair.RatioCallers(b, 64,
		func(int64) error { return q.PutWait(b.Context(), m, 0) },
		func(int64) error { return base.put(m) })
}

// sink returns the end of a pipe whose other end is read.
func sink(b *testing.B) io.Writer {
	r, w, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(io.Discard, r)
	}()
	b.Cleanup(func() {
		_ = w.Close()
		<-done
		_ = r.Close()
	})
	return w
}
