// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/sendq"
)

const (
	largestSpare = 64 << 10         // bytes of a buffer that is reused
	largestCopy  = 16 << 10         // bytes of a message that a queue copies
	defaultStall = 30 * time.Second // of one write
)

// A lineQueue sends lines over a stream (A2E-D56). Each line ends with its LF.
type lineQueue struct {
	queue  *sendq.Queue
	rw     io.ReadWriteCloser
	once   sync.Once
	closed chan struct{} // after the end of the stream
}

// newLineQueue returns a queue that ends the stream of a peer that does not read.
func newLineQueue(rw io.ReadWriteCloser, timeout time.Duration, onCut func(error)) *lineQueue {
	o := &lineQueue{rw: rw, closed: make(chan struct{})}
	o.queue = sendq.New(rw, sendq.Options{WriteTimeout: timeout, OnCut: func(err error) {
		onCut(err) // before the reader, whose error of the closed stream says less
		o.close()
	}})
	return o
}

// close starts the end of the stream.
func (o *lineQueue) close() {
	o.once.Do(func() {
		go func() {
			defer close(o.closed)
			_ = guard.Call("stream", o.rw.Close)
		}()
	})
}

// finish writes the queued lines until ctx ends, and closes the stream.
func (o *lineQueue) finish(ctx context.Context) {
	_ = o.queue.Close(ctx)
	o.close()
}

func (o *lineQueue) put(line []byte, space sendq.Reservation) error {
	return sendError(o.queue.Put(line, space))
}

func (o *lineQueue) putControl(line []byte, isUrgent bool) error {
	return sendError(o.queue.PutControl(line, position(isUrgent)))
}

// waitControl is putControl with a wait for space, until the queue ends.
func (o *lineQueue) waitControl(line []byte, isUrgent bool) error {
	return sendError(o.queue.PutControlWait(context.Background(), line, position(isUrgent)))
}

// position returns the number of lines that a line of the reader follows.
func position(isUrgent bool) uint64 {
	if isUrgent {
		return 0
	}
	return math.MaxUint64 // all lines so far
}

func (o *lineQueue) reserve(ctx context.Context, n int) (sendq.Reservation, error) {
	space, err := o.queue.ReserveWait(ctx, n)
	return space, waitError(ctx, err)
}

func (o *lineQueue) release(space sendq.Reservation) { o.queue.Release(space) }

// send is put for a caller that waits for space.
func (o *lineQueue) send(ctx context.Context, line []byte) error {
	return waitError(ctx, o.queue.PutWait(ctx, line, 0))
}

// sendError marks the end of a connection by [ErrClosed].
func sendError(err error) error {
	switch {
	case err == nil, errors.Is(err, sendq.ErrFull):
		return err
	case errors.Is(err, sendq.ErrClosed):
		return ErrClosed
	}
	return fmt.Errorf("%w: %w", ErrClosed, err)
}

func waitError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	return sendError(err)
}

// A lineSplitter turns written bytes into lines, for transports of whole messages.
type lineSplitter struct{ rest []byte }

// write calls send for each complete line, without its LF.
func (l *lineSplitter) write(b []byte, send func(line []byte) error) (n int, err error) {
	for part := range bytes.Lines(b) {
		line := part
		if len(l.rest) > 0 || part[len(part)-1] != '\n' {
			l.rest = append(l.rest, part...)
			line = l.rest
		}
		if line, isComplete := bytes.CutSuffix(line, []byte{'\n'}); isComplete {
			l.rest = nil
			if err := send(line); err != nil {
				return n, err
			}
		}
		n += len(part)
	}
	return n, nil
}
