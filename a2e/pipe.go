// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"io"
	"sync"
)

// pipeLimit bounds the unread bytes of one direction of a [Pipe].
const pipeLimit = 1 << 20

// Pipe returns the two ends of a connection within the process: bytes written to one end are read
// from the other. It is bounded: a writer blocks while the other side does not read (A2E-D44).
// Closing an end ends both directions; bytes written before can still be read.
func Pipe() (agent, host io.ReadWriteCloser) {
	a, b := newHalf(), newHalf()
	return &pipeEnd{in: a, out: b}, &pipeEnd{in: b, out: a}
}

type pipeEnd struct{ in, out *half }

func (p *pipeEnd) Read(b []byte) (int, error)  { return p.in.read(b) }
func (p *pipeEnd) Write(b []byte) (int, error) { return p.out.write(b) }

func (p *pipeEnd) Close() error {
	p.out.close(false)
	p.in.close(true)
	return nil
}

// CloseWrite ends the direction away from this end only, like a half-closed network connection.
func (p *pipeEnd) CloseWrite() error {
	p.out.close(false)
	return nil
}

// A half is one direction.
type half struct {
	mu           sync.Mutex
	data         []byte
	writerClosed bool // the remaining data may still be read
	readerClosed bool // data is dropped
	change       *sync.Cond
}

func newHalf() *half {
	h := &half{}
	h.change = sync.NewCond(&h.mu)
	return h
}

func (h *half) read(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.data) == 0 && !h.writerClosed && !h.readerClosed && len(b) > 0 {
		h.change.Wait()
	}
	if h.readerClosed {
		return 0, io.ErrClosedPipe
	}
	n := copy(b, h.data)
	if n == len(h.data) {
		if cap(h.data) > largestSpare {
			h.data = nil
		} else {
			h.data = h.data[:0]
		}
	} else {
		h.data = h.data[n:]
	}
	if n > 0 {
		h.change.Broadcast()
	} else if h.writerClosed && len(b) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

func (h *half) write(b []byte) (n int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(b) > 0 {
		for len(h.data) >= pipeLimit && !h.writerClosed && !h.readerClosed {
			h.change.Wait()
		}
		if h.writerClosed || h.readerClosed {
			return n, io.ErrClosedPipe
		}
		some := min(len(b), pipeLimit-len(h.data))
		h.data = append(h.data, b[:some]...)
		n += some
		b = b[some:]
		h.change.Broadcast()
	}
	return n, nil
}

func (h *half) close(byReader bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if byReader {
		h.readerClosed = true
		h.data = nil
	} else {
		h.writerClosed = true
	}
	h.change.Broadcast()
}
