// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/streamlog"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// A Sink receives the events of a streamed answer. An error of Send means that the reader has disconnected. Discard
// ends the stream and returns true if nothing was sent.
type Sink interface {
	Send(ctx context.Context, name, id string, data []byte) error
	Discard() bool
}

// Streams are those of a server (ARC-D73). The handler writes to a stream, and each connection reads it. An item is the
// first letter of the name of an event and its data.
type Streams struct {
	*core
	claims *Claims
	plain  *streamlog.Table // streams that end with their only reader
	kept   *streamlog.Table // resumable ones
}

// A streamRun is the handler of a stream.
type streamRun struct {
	s     *Streams
	id    string
	w     *streamlog.Writer
	work  life.Work
	q     Request
	conn  Connection // of the request that started the handler
	place Place
	claim *streamClaim // of the request, or nil

	isCounted      bool // by the ledger
	size, reserved int  // bytes; guarded by the caller of Turn.Append
	chunk          []byte

	fault    *wire.Fault    // the plain answer, if there is one; set before the end of the stream
	finished sync.WaitGroup // the handler
}

const (
	streamBatch = 16                     // events that a connection takes at once
	streamGrace = 500 * time.Millisecond // for the last events after the server was closed
	storedLog   = 16 << 20               // bytes that a resumable stream retains in a store
	memoryLog   = 1 << 20                // and in memory
	aheadBytes  = 64 << 10               // reserved ahead, to reserve once for several events
)

// Errors of streams.
var (
	ErrNoReader = errors.New("arc: stream: reader disconnected") // the cause of a context, and the error of a connection
	errPlain    = errors.New("arc: stream: plain answer")        // ends a connection whose answer is its fault
	errAborted  = errors.New("arc: stream: aborted")             // ends a stream whose handler left no end
)

func newStreams(c *core, cl *Claims) *Streams {
	s := &Streams{core: c, claims: cl, plain: streamlog.New(nil, nil, "")}
	s.kept = s.plain
	if c.isShared { // without resumable streams, too: those of failed processes are taken over
		s.kept = streamlog.New(c.db, c.lease, prefix)
	}
	return s
}

// options returns the options of a stream and its table.
func (s *Streams) options() (*streamlog.Table, streamlog.Options) {
	o := streamlog.Options{SlowTimeout: s.opts.WriteTimeout}
	if !s.opts.Resume {
		o.Retain = -1
		return s.plain, o
	}
	o.Resumable, o.Grace, o.Retention = true, s.opts.StreamRetention, s.opts.StreamRetention
	return s.kept, o
}

// serve runs the handler of a turn that writes a stream, and follows it.
func (s *Streams) serve(ctx context.Context, t *Turn) (*Connection, error) {
	logs, o := s.options()
	r := &streamRun{s: s, id: t.attempt.stream(), q: *t.q}
	r.q.Params, t.q = nil, &r.q
	owner := ""
	if o.Resumable {
		owner = t.q.key
	}
	conn := &r.conn
	*conn = Connection{s: s, q: &r.q, logs: logs, owner: owner, id: r.id, isNumbered: o.Resumable, run: r, chat: t.id}
	reader, err := r.open(ctx, logs, owner, o)
	if err != nil {
		t.drop()
		return nil, err
	}
	r.claim, r.q.claim = r.q.claim, nil // until the handler returns
	r.place, r.q.Place.isKept = *r.q.Place, true
	r.q.Place = &r.place
	conn.sink, t.run = t.m.Host.Open(), r
	r.finished.Add(1)
	go r.serve(t)
	if o.Resumable {
		go r.watch()
	}
	err = conn.follow(ctx, reader, 0)
	if err != nil && !o.Resumable {
		r.work.Cancel(err)
	}
	return conn, err
}

// open creates the stream, with its first reader.
func (r *streamRun) open(ctx context.Context, logs *streamlog.Table, owner string, o streamlog.Options) (reader *streamlog.Reader, err error) {
	if err = r.work.Start(context.WithoutCancel(ctx), r.s.life, life.Part); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			r.s.ledger.drop(streamObject, r.id)
			r.work.Finish()
		}
	}()
	if o.Resumable {
		if err = r.s.ledger.add(streamObject, r.id, &r.q, 0); err != nil {
			return nil, err
		}
		r.isCounted = true
	}
	if r.w, err = logs.Create(ctx, r.id, owner, o); err == nil {
		if reader, err = logs.Read(ctx, r.id, owner, 0); err != nil {
			r.w.Cut(errAborted)
		}
	}
	return reader, err
}

// count counts n more bytes of a resumable stream, up to those that it retains.
func (r *streamRun) count(n int) error {
	limit := memoryLog
	if r.s.isShared {
		limit = storedLog
	}
	size := min(r.size+n+itemBytes, limit)
	if r.isCounted && size > r.reserved {
		ahead := min(size+aheadBytes, limit)
		if err := r.s.ledger.grow(streamObject, r.id, ahead-r.reserved); err != nil {
			return err
		}
		r.reserved = ahead
	}
	r.size = size
	return nil
}

// item returns the item of an event. Small items share memory.
func (r *streamRun) item(name string, data []byte) []byte {
	const chunkLimit = 8 << 10 // bytes that an item may keep from being freed
	n := 1 + len(data)
	if cap(r.chunk)-len(r.chunk) < n {
		r.chunk = make([]byte, 0, max(n, min(chunkLimit, max(chunkLimit/8, 4*cap(r.chunk)))))
	}
	start := len(r.chunk)
	r.chunk = append(append(r.chunk, name[0]), data...)
	return r.chunk[start:len(r.chunk):len(r.chunk)]
}

func (r *streamRun) append(ctx context.Context, name string, data []byte) error {
	_, err := r.w.Append(ctx, r.item(name, data))
	return err
}

func (r *streamRun) finish(ctx context.Context, name string, data []byte) error {
	return r.w.Finish(ctx, r.item(name, data))
}

// serve runs the handler.
func (r *streamRun) serve(t *Turn) {
	r.work.Run("chat handler", func(context.Context) error {
		defer r.finished.Done()
		defer func() {
			r.claim.end(true) // after a panic
			r.place.Release()
		}()
		defer r.s.ledger.end(streamObject, r.id, r.s.opts.StreamRetention)
		defer r.w.Cut(errAborted)               // no effect after another end
		_, _ = t.answer(&r.work, r.work.Cancel) // the stream has the answer
		return nil
	}, func(err error) {
		if err != nil { // a panic
			_ = r.s.opts.Fault(context.WithoutCancel(&r.work), &r.q, err)
		}
	})
}

// watch ends the context of the handler of a stream that accepts no events.
func (r *streamRun) watch() {
	select {
	case <-r.w.Done():
		r.work.Cancel(ErrNoReader)
	case <-r.work.Done():
	}
}

// earlier answers a streamed request for an earlier stream: with Last-Event-ID, or because it is repeated. Otherwise it
// claims the request.
func (s *Streams) earlier(ctx context.Context, q *Request, host Host, lastEventID string) (c *Connection, isAnswered bool, err error) {
	if !s.opts.Resume {
		return nil, false, nil
	}
	q.key = q.hash()
	c = &Connection{s: s, q: q, logs: s.kept, owner: q.key, isNumbered: true}
	c.chat, _ = strictjson.Value(q.Params).Get("chatId").Text()
	var r *streamlog.Reader
	after := uint64(0)
	attach := func(id string) (err error) {
		c.id = id
		r, err = c.logs.Read(ctx, id, c.owner, after)
		return err
	}
	switch {
	case lastEventID != "":
		id, n, ok := wire.ParseEventID(lastEventID)
		if err = streamlog.ErrUnknown; ok {
			after = n
			err = attach(id)
		}
	case !s.claims.HasWindow():
		return nil, false, nil
	default:
		q.Attempt, q.claim, err = s.claims.claimStream(ctx, q, attach)
		if q.claim != nil {
			return nil, false, nil
		}
	}
	if err != nil {
		return nil, true, refusedStream(err)
	}
	c.sink = host.Open()
	return c, true, c.follow(ctx, r, after)
}

// A Connection reads a stream for one reader.
type Connection struct {
	s          *Streams
	q          *Request
	logs       *streamlog.Table
	owner      string
	id         string // of the stream
	isNumbered bool   // events have ids
	run        *streamRun
	chat       string
	fault      *wire.Fault // of an error event
	last       []byte      // data of the last event
	items      [streamBatch]streamlog.Item

	Sent       int  // bytes
	IsStreamed bool // the answer went to the sink

	mu       sync.Mutex // guards all below; the user's sink is called with it held, to discard it
	sink     Sink
	hasBegun bool
	isPlain  bool
}

// follow sends the events of a stream until its end. Its error is a plain answer unless events were sent. It wraps
// ErrNoReader if the reader has disconnected.
func (c *Connection) follow(ctx context.Context, r *streamlog.Reader, after uint64) (err error) {
	defer func() {
		r.Close()
		c.IsStreamed = !c.discard()
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
				return refusedStream(err)
			}
			continue
		case ctx.Err() != nil && errors.Is(context.Cause(ctx), c.s.opts.Closed) && !isClosing:
			isClosing = true
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeoutCause(context.WithoutCancel(ctx), streamGrace, c.s.opts.Closed)
			defer cancel()
			continue
		}
		return c.finish(ctx, err)
	}
}

// send sends an item. An error in place of the first event is a plain answer if nothing was sent (ARC-D23).
func (c *Connection) send(ctx context.Context, item streamlog.Item) error {
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
func (c *Connection) faultIn(data []byte) *wire.Fault {
	if c.run != nil && c.run.fault != nil {
		return c.run.fault
	}
	v := strictjson.Value(data).Get("error")
	code, _ := v.Get("code").Int()
	message, _ := v.Get("message").Text()
	return &wire.Fault{Code: code, Message: message, Details: v.Get("details")}
}

// event sends an event; the number zero gives it no id.
func (c *Connection) event(ctx context.Context, name string, n uint64, data []byte) error {
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
		return fmt.Errorf("%w: %w", ErrNoReader, err)
	}
	c.last = data
	c.Sent += len(data)
	return nil
}

// discard ends the connection as a stream and reports true, unless it has begun.
func (c *Connection) discard() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.hasBegun && !c.isPlain {
		c.isPlain = c.sink.Discard()
		c.hasBegun = !c.isPlain
	}
	return c.isPlain
}

// finish ends a connection whose stream has ended with err.
func (c *Connection) finish(ctx context.Context, err error) error {
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
	switch cause := context.Cause(ctx); {
	case errors.Is(err, errPlain):
		return c.fault
	case errors.As(err, &cut):
		return c.fail(ctx, cut.N, c.cutFault(cut.Cause))
	case errors.As(err, &gap):
		return c.fail(ctx, 0, c.s.opts.Fault(ctx, c.q, err))
	case errors.Is(cause, c.s.opts.Expired): // the token of the caller
		return c.fail(context.WithoutCancel(ctx), 0, c.s.opts.Fault(ctx, c.q, cause))
	case ctx.Err() != nil && errors.Is(cause, c.s.opts.Closed):
		if c.discard() {
			return wire.NewFault(wire.AgentNotAvailable, "agentId", c.q.Target)
		}
		return ErrNoReader
	case errors.Is(err, streamlog.ErrSlowReader), ctx.Err() != nil && !errors.Is(err, ErrNoReader):
		return fmt.Errorf("%w: %w", ErrNoReader, err)
	}
	return err // of the store
}

// cutFault returns the error of a stream that ended without its handler.
func (c *Connection) cutFault(cause error) *wire.Fault {
	f := &wire.Fault{Code: wire.Internal, Cause: cause}
	switch {
	case errors.Is(cause, streamlog.ErrNoReader):
		f.Code, f.Message = wire.ChatTimeout, "The stream had no reader for too long"
	case errors.Is(cause, lease.ErrLost):
		f.Code = wire.AgentNotAvailable
	}
	return c.s.opts.Fault(context.Background(), c.q, f)
}

// fail ends the connection with an error, which has the number n in the stream unless n is zero.
func (c *Connection) fail(ctx context.Context, n uint64, fault *wire.Fault) error {
	if n <= 1 && c.discard() {
		return fault
	}
	if err := c.event(ctx, wire.EventError, n, wire.AppendError(nil, c.chatID(ctx, n), fault.JSON())); err != nil {
		return err
	}
	return fault
}

// chatID returns the chat of the stream, which the event before number n has.
func (c *Connection) chatID(ctx context.Context, n uint64) string {
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
	if id, _ := strictjson.Value(data).Get("chatId").Text(); id != "" {
		return id
	}
	return c.chat
}
