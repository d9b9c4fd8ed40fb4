// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package lines

import (
	"bytes"
	"errors"
	"io"
	"sync"
)

// ErrLineBreak reports a line that was to be written and has an LF inside: it
// would arrive as two.
var ErrLineBreak = errors.New("lines: line contains a line feed")

// A Writer writes lines to a byte stream, each whole and in one write call.
// All its methods may be called from several goroutines: while one call is
// writing, the lines of the others collect, and the next write call takes all
// of them at once.
//
// A Writer has no goroutine and nothing to close. To free callers that are held
// up by a stalled stream, close the stream.
type Writer struct {
	w   io.Writer
	max int

	mu      sync.Mutex // guards everything below
	pending []byte     // lines of the batch that is being collected
	spare   []byte     // the buffer that pending changes places with
	batch   uint64     // number of the batch that is being collected
	done    uint64     // every batch below this number is written
	writing bool       // a caller is in a write call
	err     error      // sticky

	written [2]*sync.Cond // waits for the batch of this parity
	space   *sync.Cond    // waits for pending to become empty
}

// DefaultPending is the bound of a [Writer]'s pending bytes if none is given.
const DefaultPending = 256 << 10

// NewWriter returns a Writer to w. At most pending bytes wait for a write call
// to end, or one line if that is longer; callers with more have to wait. Zero
// or less means [DefaultPending].
func NewWriter(w io.Writer, pending int) *Writer {
	if pending <= 0 {
		pending = DefaultPending
	}
	lw := &Writer{w: w, max: pending}
	lw.written[0] = sync.NewCond(&lw.mu)
	lw.written[1] = sync.NewCond(&lw.mu)
	lw.space = sync.NewCond(&lw.mu)
	return lw
}

// WriteLine writes line and an LF. It returns when the stream has taken them,
// in the order of the calls, and keeps no reference to line. The first error of
// the stream is returned to every call whose line it may have cost, and to all
// later ones. A line with an LF inside is [ErrLineBreak] and changes nothing.
func (w *Writer) WriteLine(line []byte) error {
	if bytes.IndexByte(line, '\n') >= 0 {
		return ErrLineBreak
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.err == nil && len(w.pending) > 0 && len(w.pending)+len(line)+1 > w.max {
		w.space.Wait()
	}
	if w.err != nil {
		return w.err
	}
	w.pending = append(w.pending, line...)
	w.pending = append(w.pending, '\n')
	for mine := w.batch; ; {
		switch {
		case w.done > mine:
			return nil
		case w.err != nil:
			return w.err
		case !w.writing:
			// The line is in the batch being collected: that batch is not written, and no write is
			// running.
			w.flush()
		default:
			w.written[mine&1].Wait()
		}
	}
}

// flush writes the collected batch. It is called with mu held and lets go of it
// for the time of the write.
func (w *Writer) flush() {
	out, mine := w.pending, w.batch
	w.pending, w.spare = w.spare[:0], nil
	w.batch++
	w.writing = true
	w.space.Broadcast()

	err := errPanic // stays if the stream panics, so that no caller hangs
	defer func() {
		w.mu.Lock()
		w.writing = false
		if cap(out) <= keepBuffer {
			w.spare = out
		}
		if err != nil {
			w.err = err
			w.written[0].Broadcast()
			w.written[1].Broadcast()
			w.space.Broadcast()
			return
		}
		w.done = mine + 1
		w.written[mine&1].Broadcast()
		w.written[w.batch&1].Signal() // one caller must write the next batch
	}()
	w.mu.Unlock()
	n, e := w.w.Write(out)
	if e == nil && n != len(out) {
		e = io.ErrShortWrite
	}
	err = e
}

var errPanic = errors.New("lines: the stream panicked while being written to")
