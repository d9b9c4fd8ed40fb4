// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

var (
	// ErrClosed is what a [Writer] answers after Close.
	ErrClosed = errors.New("sse: writer is closed")

	// ErrSlow reports a reader that read nothing, or less than 64 KiB of the pending output, during
	// a whole write timeout.
	ErrSlow = errors.New("sse: reader is too slow")
)

// Values that hold where [WriterOptions] names none.
const (
	DefaultWriteTimeout  = 30 * time.Second
	DefaultMaxPending    = 64 << 10
	DefaultKeepAliveText = "keep-alive"
)

// maxWrite bounds one write call, which has one deadline: a large event must not
// be too slow for its size alone.
const maxWrite = 64 << 10

// WriterOptions adjusts a [Writer]. The zero value sends no keep-alives and is
// otherwise right for production.
type WriterOptions struct {
	// ContentType is the response's media type. Empty means text/event-stream.
	ContentType string

	// WriteTimeout is how long the reader may take nothing while something is
	// waiting for it. Zero means DefaultWriteTimeout.
	WriteTimeout time.Duration

	// KeepAlive is the idle time of the stream after which a comment is sent. Zero means never.
	KeepAlive time.Duration

	// KeepAliveText is the text of that comment. Empty means "keep-alive".
	KeepAliveText string

	// MaxPending bounds the bytes that wait to be written; one event that is
	// larger may wait alone. Zero means DefaultMaxPending.
	MaxPending int
}

// A Writer answers an HTTP request with a stream of events. The response begins with the first of
// Start, Send, Comment or a keep-alive; until then the handler may still send another response,
// after it has closed the Writer.
//
// A goroutine of the Writer writes and flushes the pending output at once: a single event is sent
// without delay, and events that arrive faster than the network accepts them share a flush. When
// MaxPending bytes are pending, senders block.
//
// Each write has a separate deadline, which replaces the server's WriteTimeout, so that the length
// of a stream is not limited and a stalled reader is still detected. A response writer without
// deadlines is supported; Close then waits until its Write returns.
//
// All methods may be called from several goroutines. The first error is permanent, and every later
// call returns it. A Writer must be closed before the handler returns.
type Writer struct {
	w    http.ResponseWriter
	rc   http.ResponseController
	opts WriterOptions

	pokes chan struct{} // tells the goroutine to look
	done  chan struct{} // closed when the goroutine has ended

	mu      sync.Mutex // guards everything below
	pending *buffer    // what waits to be written; nil if nothing does
	start   bool       // the response is to begin even without output
	started bool       // the response has begun
	closing bool
	moved   time.Time     // when the reader last took something
	space   chan struct{} // closed when pending has space; nil without waiters
	err     error         // sticky
}

// NewWriter returns a Writer to the response w, which must not be used otherwise
// until the Writer is closed.
func NewWriter(w http.ResponseWriter, opts *WriterOptions) *Writer {
	sw := &Writer{
		w:     w,
		rc:    *http.NewResponseController(w),
		pokes: make(chan struct{}, 1),
		done:  make(chan struct{}),
	}
	if opts != nil {
		sw.opts = *opts
	}
	o := &sw.opts
	if o.ContentType == "" {
		o.ContentType = "text/event-stream"
	}
	if o.WriteTimeout <= 0 {
		o.WriteTimeout = DefaultWriteTimeout
	}
	if o.KeepAliveText == "" {
		o.KeepAliveText = DefaultKeepAliveText
	}
	if o.MaxPending <= 0 {
		o.MaxPending = DefaultMaxPending
	}
	// An idle stream has no deadline: over HTTP/2 one that passes resets the
	// stream even if nothing is being written. The server's WriteTimeout is such
	// a deadline, too.
	sw.setDeadline(time.Time{})
	go sw.run()
	return sw
}

// Send sends an event, as [AppendEvent] writes it, and keeps no reference to
// data. It returns when the event has been taken over, which is before it is
// written, and waits while too much is waiting already: until ctx ends, or until
// the reader has taken nothing for a write timeout, which is [ErrSlow] and ends
// the stream. An event that cannot be written is [ErrInvalid] and changes
// nothing.
func (w *Writer) Send(ctx context.Context, name, id string, data []byte) error {
	size := len("event: \nid: \ndata: \n\n") + len(name) + len(id) + len(data)
	return w.add(ctx, size, func(dst []byte) ([]byte, error) {
		return AppendEvent(dst, name, id, data)
	})
}

// Comment sends a comment, as [AppendComment] writes it, under the same
// conditions as Send.
func (w *Writer) Comment(ctx context.Context, text string) error {
	return w.add(ctx, len(": \n\n")+len(text), func(dst []byte) ([]byte, error) {
		return AppendComment(dst, text)
	})
}

// Start begins the response: it sends the headers without waiting for the first
// event.
func (w *Writer) Start() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.refused(); err != nil {
		return err
	}
	w.start = true
	w.poke()
	return nil
}

// Started reports whether the response has begun. Before Close the answer may
// already be out of date; after it, false means that the response is untouched.
func (w *Writer) Started() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.started
}

// Done is closed when the stream has ended, by Close or by a failed write. A handler that waits for
// the next event may wait for Done as well.
func (w *Writer) Done() <-chan struct{} { return w.done }

// Err returns the error of the stream, or nil if it has not failed.
func (w *Writer) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Close writes the pending output, ends the Writer's goroutine and returns the error of the stream.
// After it nothing is written; blocked senders get [ErrClosed]. It may be called more than once.
func (w *Writer) Close() error {
	w.mu.Lock()
	w.closing = true
	w.makeRoom()
	w.poke()
	w.mu.Unlock()
	<-w.done
	return w.Err()
}

// add appends to pending once there is room.
func (w *Writer) add(ctx context.Context, size int, appendTo func([]byte) ([]byte, error)) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.wait(ctx, size); err != nil {
		return err
	}
	if w.pending == nil {
		w.pending = buffers.Get().(*buffer)
	}
	out, err := appendTo(w.pending.b)
	w.pending.b = out
	if err != nil {
		return err
	}
	w.poke()
	return nil
}

// wait returns when size more bytes may be added. It is called with mu held and
// lets go of it while waiting.
func (w *Writer) wait(ctx context.Context, size int) error {
	var slow *time.Timer
	for {
		if err := w.refused(); err != nil {
			return err
		}
		if n := w.pending.len(); n == 0 || n+size <= w.opts.MaxPending {
			return nil
		}
		if slow == nil {
			slow = time.NewTimer(w.opts.WriteTimeout)
			defer slow.Stop()
		}
		if w.space == nil {
			w.space = make(chan struct{})
		}
		space := w.space
		w.mu.Unlock()
		select {
		case <-space:
			w.mu.Lock()
		case <-ctx.Done():
			w.mu.Lock()
			return fmt.Errorf("sse: waiting for room: %w", context.Cause(ctx))
		case <-slow.C:
			w.mu.Lock()
			left := w.opts.WriteTimeout - time.Since(w.moved)
			if left <= 0 {
				return w.fail(ErrSlow)
			}
			slow.Reset(left)
		}
	}
}

// refused returns why nothing more is taken. It is called with mu held.
func (w *Writer) refused() error {
	if w.err == nil && w.closing {
		return ErrClosed
	}
	return w.err
}

// fail keeps the first error. It is called with mu held.
func (w *Writer) fail(err error) error {
	if w.err == nil {
		w.err = err
		w.pending = nil
		w.makeRoom()
		w.poke()
	}
	return w.err
}

// makeRoom wakes the waiting senders. It is called with mu held.
func (w *Writer) makeRoom() {
	if w.space != nil {
		close(w.space)
		w.space = nil
	}
}

// look wakes the goroutine.
func (w *Writer) poke() {
	select {
	case w.pokes <- struct{}{}:
	default: // it is awake, or about to be
	}
}

// run is the Writer's goroutine: the only one that touches the response. It ends
// when the Writer is closed and everything is written, or on an error.
func (w *Writer) run() {
	defer close(w.done)
	var silent <-chan time.Time
	var timer *time.Timer
	if w.opts.KeepAlive > 0 {
		timer = time.NewTimer(w.opts.KeepAlive)
		defer timer.Stop()
		silent = timer.C
	}
	for {
		tick := false
		select {
		case <-w.pokes:
		case <-silent:
			tick = true
		}
		wrote, more := w.turn(tick)
		if !more {
			// The remaining writes of the server, the end of the response or another response, get
			// one last deadline; afterwards the server resets it.
			w.setDeadline(time.Now().Add(w.opts.WriteTimeout))
			return
		}
		if timer != nil && wrote {
			timer.Reset(w.opts.KeepAlive)
		}
	}
}

// turn writes the pending output and reports whether anything was written, and whether the
// goroutine continues.
func (w *Writer) turn(tick bool) (wrote, more bool) {
	w.mu.Lock()
	if w.err != nil {
		w.mu.Unlock()
		return false, false
	}
	if tick && w.pending.len() == 0 && !w.closing {
		if w.pending == nil {
			w.pending = buffers.Get().(*buffer)
		}
		out, err := AppendComment(w.pending.b, w.opts.KeepAliveText)
		if err != nil {
			w.fail(err)
			w.mu.Unlock()
			return false, false
		}
		w.pending.b = out
	}
	batch, closing := w.pending, w.closing
	begin := !w.started && (w.start || batch.len() > 0)
	wrote = begin || batch.len() > 0
	w.started = w.started || begin
	w.pending = nil
	w.makeRoom()
	w.mu.Unlock()

	var err error
	if wrote {
		err = w.write(batch.bytes(), begin)
	}
	batch.free()
	if err == nil {
		// closing was read together with pending, so nothing can have come
		// since.
		return wrote, !closing
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail(err)
	return wrote, false
}

// write writes and flushes out, after the headers if the response begins.
func (w *Writer) write(out []byte, begin bool) (err error) {
	defer func() {
		// A panic of a response writer would end the process here, while in a handler the server
		// recovers it.
		if p := recover(); p != nil {
			err = fmt.Errorf("sse: response writer panicked: %v", p)
		}
	}()
	if begin {
		h := w.w.Header()
		values := []string{w.opts.ContentType, "no-cache", "no"} // one piece of memory
		h["Content-Type"], h["Cache-Control"], h["X-Accel-Buffering"] = values[:1:1], values[1:2:2], values[2:]
		w.w.WriteHeader(http.StatusOK)
	}
	for more := true; more; {
		piece := out[:min(len(out), maxWrite)]
		out = out[len(piece):]
		more = len(out) > 0
		started := time.Now()
		w.setDeadline(started.Add(w.opts.WriteTimeout))
		err := w.writePiece(piece, !more)
		now := time.Now()
		if err != nil {
			// HTTP/1 and HTTP/2 report a passed deadline in different ways.
			if now.Sub(started) >= w.opts.WriteTimeout {
				err = fmt.Errorf("%w: %w", ErrSlow, err)
			}
			return err
		}
		w.mu.Lock()
		w.moved = now
		w.mu.Unlock()
	}
	w.setDeadline(time.Time{})
	return nil
}

func (w *Writer) writePiece(p []byte, flush bool) error {
	if len(p) > 0 {
		n, err := w.w.Write(p)
		if err == nil && n != len(p) {
			err = io.ErrShortWrite
		}
		if err != nil {
			return fmt.Errorf("sse: write: %w", err)
		}
	}
	if flush {
		if err := w.rc.Flush(); err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return fmt.Errorf("sse: flush: %w", err)
		}
	}
	return nil
}

// setDeadline ignores errors: a response writer without deadlines is served
// without, and a broken connection shows in the next write.
func (w *Writer) setDeadline(t time.Time) { _ = w.rc.SetWriteDeadline(t) }

// A buffer holds pending output. An idle Writer has none.
type buffer struct{ b []byte }

// buffers is shared by all Writers, as most of them are at rest.
var buffers = sync.Pool{New: func() any { return &buffer{b: make([]byte, 0, 1<<10)} }}

func (b *buffer) bytes() []byte {
	if b == nil {
		return nil
	}
	return b.b
}

func (b *buffer) len() int { return len(b.bytes()) }

// free gives b back, unless it has become large.
func (b *buffer) free() {
	if b != nil && cap(b.b) <= keepData {
		b.b = b.b[:0]
		buffers.Put(b)
	}
}
