// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/streamlog"
)

// A streamConn is a connection that reads a stream.
type streamConn struct {
	s          *Server
	x          *exchange
	logs       *streamlog.Table
	owner      string
	id         string // of the stream
	isNumbered bool   // events have ids
	run        *streamRun
	fault      *Error // of an error event
	last       []byte // data of the last event
	items      [streamBatch]streamlog.Item

	mu       sync.Mutex // guards all below; the user's sink is called with it held, to discard it
	sink     EventSink
	hasBegun bool
	isPlain  bool
}

// resume follows a stream behind event n, if r was opened.
func (c *streamConn) resume(ctx context.Context, r *streamlog.Reader, n uint64, err error) error {
	if err != nil {
		return lostStream(err)
	}
	c.sink = c.x.begin()
	return c.follow(ctx, r, n)
}

// follow sends the events of a stream until its end. Its error is a plain answer unless events were
// sent. It wraps errNoReader if the reader has disconnected.
func (c *streamConn) follow(ctx context.Context, r *streamlog.Reader, after uint64) (err error) {
	defer func() {
		r.Close()
		c.x.streamed = !c.discard()
	}()
	items := c.items[:0]
	for isClosing := false; ; {
		items, err = r.Next(ctx, items)
		for i := 0; i < len(items) && err == nil; i++ {
			err = c.send(ctx, items[i])
		}
		switch {
		case err == nil:
			continue
		case errors.Is(err, io.EOF) && c.last == nil && after > 0: // behind the last event, which is sent again
			r.Close()
			after--
			if r, err = c.logs.Read(ctx, c.id, c.owner, after); err != nil {
				return lostStream(err)
			}
			continue
		case ctx.Err() != nil && errors.Is(context.Cause(ctx), ErrClosed) && !isClosing:
			isClosing = true
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeoutCause(context.WithoutCancel(ctx), streamGrace, ErrClosed)
			defer cancel()
			continue
		}
		return c.finish(ctx, err)
	}
}

// send sends an item. An error in place of the first event is a plain answer if nothing was sent (ARC-D23).
func (c *streamConn) send(ctx context.Context, item streamlog.Item) error {
	name, data := eventName(item.Data[0]), item.Data[1:]
	if name == wire.EventError {
		c.fault = c.faultIn(data)
		if item.N == 1 && c.discard() {
			return errPlain
		}
	}
	return c.event(ctx, name, item.N, data)
}

func eventName(kind byte) string {
	switch kind {
	case wire.EventDone[0]:
		return wire.EventDone
	case wire.EventError[0]:
		return wire.EventError
	}
	return wire.EventChunk
}

// faultIn returns the error of an event.
func (c *streamConn) faultIn(data []byte) *Error {
	if c.run != nil && c.run.fault != nil {
		return c.run.fault
	}
	v, err := wire.Check(data)
	if err != nil {
		return asError(err)
	}
	e := streamFault(v, data)
	e.Remote = false // an event of this server
	return e
}

// event sends an event; the number zero gives it no id.
func (c *streamConn) event(ctx context.Context, name string, n uint64, data []byte) error {
	c.mu.Lock()
	c.hasBegun = true
	c.mu.Unlock()
	id := ""
	if c.isNumbered && n > 0 {
		id = c.id + "." + strconv.FormatUint(n, 10)
	}
	if err := c.sink.Send(ctx, name, id, data); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("%w: %w", errNoReader, err)
	}
	c.last = data
	c.x.sent += len(data)
	return nil
}

// discard ends the connection as a stream and reports true, unless it has begun.
func (c *streamConn) discard() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.hasBegun && !c.isPlain {
		c.isPlain = c.sink.Discard()
		c.hasBegun = !c.isPlain
	}
	return c.isPlain
}

// finish ends a connection whose stream has ended with err.
func (c *streamConn) finish(ctx context.Context, err error) error {
	if errors.Is(err, io.EOF) {
		if c.run != nil {
			c.run.finished.Wait() // the turn ends before the answer
		}
		if c.fault != nil {
			return c.fault
		}
		return nil
	}
	var cut *streamlog.CutError
	var gap *streamlog.GapError
	var fault *Error
	switch {
	case errors.Is(err, errPlain):
		return c.fault
	case errors.As(err, &cut):
		return c.fail(ctx, cut.N, c.cutFault(cut.Cause))
	case errors.As(err, &gap):
		return c.fail(ctx, 0, c.s.internal(ctx, &c.x.call, err))
	case errors.As(context.Cause(ctx), &fault): // the token of the caller has expired
		return c.fail(context.WithoutCancel(ctx), 0, fault)
	case ctx.Err() != nil && errors.Is(context.Cause(ctx), ErrClosed):
		if c.discard() {
			return c.s.draining(c.x)
		}
		return errNoReader
	case errors.Is(err, streamlog.ErrSlowReader):
		return fmt.Errorf("%w: %w", errNoReader, ErrSlowReader)
	case ctx.Err() != nil && !errors.Is(err, errNoReader):
		return fmt.Errorf("%w: %w", errNoReader, err)
	}
	return err // of the store
}

// cutFault returns the error of a stream that ended without its handler.
func (c *streamConn) cutFault(cause error) *Error {
	switch {
	case errors.Is(cause, streamlog.ErrNoReader):
		return &Error{Code: ErrChatTimeout, Message: "The stream had no reader for too long", Cause: cause}
	case errors.Is(cause, lease.ErrLost):
		return &Error{Code: ErrAgentNotAvailable, Message: ErrAgentNotAvailable.Message(), Cause: cause}
	}
	return &Error{Code: ErrInternal, Message: ErrInternal.Message(), Cause: cause}
}

// fail ends the connection with an error, which has the number n in the stream unless n is zero.
func (c *streamConn) fail(ctx context.Context, n uint64, fault *Error) error {
	if n <= 1 && c.discard() {
		return fault
	}
	text, err := fault.MarshalJSON()
	if err != nil {
		return err
	}
	if err := c.event(ctx, wire.EventError, n, wire.AppendError(nil, c.chatID(ctx, n), text)); err != nil {
		return err
	}
	return fault
}

// chatID returns the chat of the stream, which the event before number n has.
func (c *streamConn) chatID(ctx context.Context, n uint64) string {
	data := c.last
	if data == nil && n > 1 {
		r, err := c.logs.Read(ctx, c.id, c.owner, n-2)
		if err == nil {
			defer r.Close()
			if items, err := r.Next(ctx, nil); err == nil {
				data = items[0].Data[1:]
			}
		}
	}
	if data == nil {
		data = c.x.call.Params
	}
	v, _ := wire.Check(data)
	id, _ := v.Get("chatId").Text()
	return id
}
