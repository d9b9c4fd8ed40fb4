// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/internal/calls"
	"github.com/fivewire/fivewire/internal/sendq"
)

// A sink receives the lines that an end of a connection sends, each with its LF. Its methods except reserve never
// block.
type sink interface {
	// put queues a line, or returns [sendq.ErrFull]. Success uses the reservation up.
	put(line []byte, space sendq.Reservation) error

	// putControl queues a line of the reader or of a timer, for which space is left even if put
	// has none. An urgent line precedes all others.
	putControl(line []byte, isUrgent bool) error

	reserve(ctx context.Context, n int) (sendq.Reservation, error) // waits for space
	release(space sendq.Reservation)
}

// maxRefusals is the number of messages of the reader that wait for a peer that does not read. One more ends the
// connection (A2E-D56).
const maxRefusals = 1024

// A conn is one end of a connection, of a [Client] or a [Session]: it sends messages in their order, and holds the
// calls of this end. Its methods except send never block, so that the reader of the connection may call them.
type conn struct {
	codec    *Codec
	log      *slog.Logger
	ctx      context.Context // ends with the connection
	dropped  *atomic.Uint64
	recorder *recorder // of a session
	replies  *calls.Table[*pending]
	overflow func() // ends a connection whose peer takes no refusals

	mu        sync.Mutex // guards everything below
	out       sink
	reads     bounds // what the peer reads
	items     []item // to be sent, in order
	isSending bool   // a goroutine sends the items
	isOver    bool   // overflow was called
}

// An item is a message of the reader or of a timer, or a line behind such messages, and the later steps.
type item struct {
	message  *Message          // to be encoded
	fail     func() *Error     // makes the error to be encoded, without a lock
	line     *[]byte           // encoded, with its LF
	space    sendq.Reservation // of the line of a handler; zero for other lines
	isUrgent bool
	n        int         // length of a line that is queued, without its LF
	then     func(n int) // called with this length when the line is queued
}

// put queues the line of a handler. After success it belongs to the connection. It returns [sendq.ErrFull] if there
// is neither space nor a reservation.
func (c *conn) put(line *[]byte, space sendq.Reservation, then func(n int)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isSending || len(c.items) > 0 {
		if space == 0 {
			return sendq.ErrFull
		}
		c.items = append(c.items, item{line: line, space: space, then: then})
		return nil
	}
	if err := c.out.put(*line, space); err != nil {
		return err
	}
	c.recorder.line("out", *line)
	if then != nil {
		c.items = append(c.items, item{n: len(*line) - 1, then: then})
	}
	freeLine(line)
	return nil
}

// add queues an item. The caller calls flush when it holds no lock.
func (c *conn) add(it item) {
	c.mu.Lock()
	isOver := len(c.items) >= maxRefusals && !c.isOver
	c.isOver = c.isOver || isOver
	if it.message == nil && it.fail == nil || !c.isOver {
		c.items = append(c.items, it)
	}
	c.mu.Unlock()
	if isOver && c.overflow != nil {
		go c.overflow() // it takes locks of the caller
	}
}

// isIdle reports whether no message waits for others.
func (c *conn) isIdle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.isSending && len(c.items) == 0
}

// flush sends the items, unless another goroutine does. No lock is held.
func (c *conn) flush() {
	c.mu.Lock()
	mustSend := !c.isSending && len(c.items) > 0
	c.isSending = c.isSending || mustSend
	c.mu.Unlock()
	if mustSend {
		c.drain()
	}
}

// drain sends the items. If the peer does not read, another goroutine continues, so that the reader does not wait.
func (c *conn) drain() {
	for it, ok := c.next(); ok; it, ok = c.next() {
		if !c.sendItem(&it) {
			go func() {
				c.sendLate(&it)
				c.drain()
			}()
			return
		}
	}
}

func (c *conn) next() (it item, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.items) == 0 {
		c.isSending = false
		return item{}, false
	}
	it = c.items[0]
	c.items[0] = item{}
	if c.items = c.items[1:]; len(c.items) == 0 {
		c.items = nil
	}
	return it, true
}

// sendItem sends an item, and reports false if there is no space for it.
func (c *conn) sendItem(it *item) bool {
	if it.line == nil && (it.message != nil || it.fail != nil) {
		it.line = c.encode(it)
	}
	if it.line != nil {
		if !c.putItem(it) {
			return false
		}
		it.n = len(*it.line) - 1
		freeLine(it.line)
	}
	if it.then != nil {
		it.then(it.n)
	}
	return true
}

// putItem queues the line of an item, and reports false if there is no space for it.
func (c *conn) putItem(it *item) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := error(nil)
	if it.space != 0 {
		err = c.out.put(*it.line, it.space)
	} else {
		err = c.out.putControl(*it.line, it.isUrgent)
	}
	if errors.Is(err, sendq.ErrFull) {
		return false
	}
	c.recorder.line("out", *it.line)
	return true
}

// recordIn records a received line, behind the lines that the peer may answer with it.
func (c *conn) recordIn(line []byte) {
	if c.recorder != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.recorder.line("in", line)
	}
}

// sendLate sends an item of the reader when there is space for it. The queue ends the wait for a peer that does not
// read.
func (c *conn) sendLate(it *item) {
	c.recorder.line("out", *it.line)
	if q, ok := c.sink().(*lineQueue); ok && q.waitControl(*it.line, it.isUrgent) == nil {
		it.n = len(*it.line) - 1
	}
	freeLine(it.line)
	if it.then != nil {
		it.then(it.n)
	}
}

// encode encodes a message of the package. One that cannot be encoded is replaced by an error.
func (c *conn) encode(it *item) *[]byte {
	m := it.message
	if m == nil {
		m = errorMessage(it.fail())
	}
	line, err := c.codec.line(m)
	if err == nil {
		return line
	}
	c.log.ErrorContext(c.ctx, "a2e: message not encoded", "type", m.Type, "err", err)
	e := reasoned(ErrRuntime, ReasonInternal, "internal error")
	e.ReqID = m.ReqID()
	if line, err = c.codec.line(errorMessage(e)); err != nil {
		return nil
	}
	return line
}

func (c *conn) sink() sink {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out
}

// bounds returns the bounds of a message for the peer.
func (c *conn) bounds() bounds {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.codec.within(c.reads)
}

// setReads sets what the peer reads.
func (c *conn) setReads(b bounds) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads = b
}

// boundedLine encodes a message of a handler. The error of a message over the bounds of the peer or of this end is
// for the handler (A2E-D57).
func (c *conn) boundedLine(m *Message, code Code) (*[]byte, error) {
	limit := bounds{}
	if m.Type != typeError && m.Type != typePong {
		limit = c.bounds()
	}
	return c.codec.boundedLine(m, code, limit)
}

// send queues a line, after a wait for space if the peer does not read. The function admit runs just before, and may
// refuse the line. The line belongs to the connection.
func (c *conn) send(ctx context.Context, line *[]byte, admit func(space sendq.Reservation) error) error {
	n, err := len(*line), admit(0)
	for errors.Is(err, sendq.ErrFull) {
		var space sendq.Reservation
		out := c.sink()
		if space, err = out.reserve(ctx, n); err != nil {
			break
		}
		if err = admit(space); err != nil {
			out.release(space)
		}
	}
	if err != nil {
		freeLine(line)
	}
	c.flush()
	return err
}

// message encodes and sends a message of a handler.
func (c *conn) message(ctx context.Context, m *Message, admit func() error) error {
	line, err := c.boundedLine(m, ErrRuntime)
	if err != nil {
		return err
	}
	return c.send(ctx, line, func(space sendq.Reservation) error {
		if err := admit(); err != nil {
			return err
		}
		return c.put(line, space, nil)
	})
}

// call sends a request by send, and waits for its answer.
func (c *conn) call(ctx context.Context, m *Message, send func() error) (*Message, error) {
	p := &pending{want: canonicalType(responseType(m.Type))}
	call, err := c.replies.Add(m.ID, time.Time{}, p)
	if err != nil {
		return nil, fmt.Errorf("a2e: call %s: %w", m.Type, err)
	}
	if err = send(); err == nil {
		if _, err = call.Wait(ctx); err == nil {
			return p.answer, nil
		}
	}
	c.replies.Fail(m.ID, err) // so the slot is free
	return nil, err
}

// answer ends the call of p with a message that is not an event.
func (c *conn) answer(id string, p *pending, m *Message) {
	name := canonicalType(m.Type)
	if c.codec.Host {
		name = hostReading(name)
	}
	switch b, isError := m.Body.(*ErrorBody); {
	case isError && m.Type == typeError:
		c.failCall(id, b.received())
	case p.want != "" && name != p.want:
		c.failCall(id, fmt.Errorf("%w: %s", ErrUnexpectedResponse, clip(m.Type, 100)))
	default:
		p.answer = m
		p.isAnswered.Store(true)
		if !c.replies.Complete(id, p) {
			c.dropped.Add(1)
		}
	}
}

// failCall ends the call of an answer with an error, if it is pending.
func (c *conn) failCall(id string, err error) bool {
	p, ok := c.replies.Get(id)
	if !ok {
		return false
	}
	p.isAnswered.Store(true)
	c.replies.Fail(id, err)
	return true
}

// readLines reads the lines of a stream to its end or until isClosed, each for take, or its error for refuse. It returns
// nil then, and [ErrTruncated] if the stream ended inside a line.
func (c *conn) readLines(in *lineReader, isClosed func() bool, take func(line []byte), refuse func(e *Error)) error {
	var end error
	for {
		line, err := in.next()
		if isClosed() {
			return end
		}
		var e *Error
		switch {
		case err == nil:
			take(line)
		case errors.As(err, &e):
			if refuse(e); e.Reason == reasonTruncated {
				end = ErrTruncated
			}
		case isEnd(err):
			return end
		default:
			return err
		}
	}
}

// isEnd reports whether a read error means the end of the stream.
func isEnd(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe) || errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrClosed)
}
