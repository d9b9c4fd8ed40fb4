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
	"time"

	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/streamlog"
	"github.com/fivewire/fivewire/store"
)

// A streamTable has the streams of a server (ARC-D73). The handler writes to a stream, and each
// connection reads it. An item is the first letter of the name of an event and its data.
type streamTable struct {
	s     *Server
	plain *streamlog.Table // streams that end with their only reader
	kept  *streamlog.Table // resumable ones
}

// A streamRun is the handler of a stream.
type streamRun struct {
	t     *streamTable
	id    string
	w     *streamlog.Writer
	work  life.Work
	ctx   callCtx // of the handler
	call  Call
	conn  streamConn // of the request that started the handler
	holds holds
	place string

	isCounted      bool // by the ledger
	size, reserved int  // bytes; guarded by the mutex of the ChatWriter

	fault    *Error         // the plain answer, if there is one; set before the end of the stream
	finished sync.WaitGroup // the handler
}

const (
	streamBatch = 16                     // events that a connection takes at once
	streamGrace = 500 * time.Millisecond // for the last events after the server was closed
	openClaim   = 24 * time.Hour         // life of the claim of an open stream
	storedLog   = 16 << 20               // bytes that a resumable stream retains in a store
	memoryLog   = 1 << 20                // and in memory
)

// errNoReader is the cause of a context that ends because no reader is connected.
var errNoReader = errors.New("arc: stream: reader disconnected")

// errPlain ends a connection whose answer is its fault.
var errPlain = errors.New("arc: stream: plain answer")

// errAborted ends a stream whose handler left no end.
var errAborted = errors.New("arc: stream: aborted")

func newStreamTable(s *Server) *streamTable {
	t := &streamTable{s: s, plain: streamlog.New(nil, nil, "")}
	t.kept = t.plain
	if s.isShared { // without EnableResume, too: streams of failed processes are taken over
		t.kept = streamlog.New(s.opts.Persistence.Store, s.lease, "arc/")
	}
	return t
}

// options returns the options of a stream and its table.
func (t *streamTable) options() (*streamlog.Table, streamlog.Options) {
	o := streamlog.Options{SlowTimeout: t.s.opts.Timing.WriteTimeout}
	if !t.s.opts.Persistence.EnableResume {
		o.Retain = -1
		return t.plain, o
	}
	o.Resumable, o.Grace, o.Retention = true, t.s.opts.Persistence.StreamRetention, t.s.opts.Persistence.StreamRetention
	return t.kept, o
}

func streamClaim(owner string) string { return "arc/stream/" + owner }

// serve runs a job that writes a stream, and follows it.
func (t *streamTable) serve(ctx context.Context, j *chatJob) (any, error) {
	x := j.call.out
	logs, o := t.options()
	r := &streamRun{t: t, id: randid.New("stream-"), call: *j.call}
	r.call.out = nil
	owner := ""
	if o.Resumable {
		owner = requestHash(j.call)
	}
	conn := &r.conn
	conn.s, conn.x, conn.logs, conn.owner, conn.id, conn.isNumbered = t.s, x, logs, owner, r.id, o.Resumable
	reader, err := r.open(ctx, logs, owner, o)
	if err != nil {
		j.drop()
		return nil, err
	}
	if other, err := t.claim(ctx, owner, r.id); other != r.id {
		r.w.Cut(errAborted)
		t.s.ledger.remove(streamObject, r.id)
		reader.Close()
		r.work.Finish()
		j.drop()
		if err != nil {
			return nil, err
		}
		conn.id = other
		return nil, conn.resume(ctx, 0)
	}
	r.holds, x.holds = x.holds, holds{} // until the handler returns
	r.place, x.place = x.place, ""
	r.ctx = callCtx{Context: &r.work, call: &r.call}
	conn.run, conn.sink = r, x.begin()
	j.call, j.run = &r.call, r
	r.finished.Add(1)
	go r.serve(j)
	if o.Resumable {
		go r.watch()
	}
	err = conn.follow(ctx, reader, 0)
	if err != nil && !o.Resumable {
		r.work.Cancel(err)
	}
	return nil, err
}

// open creates the stream, with its first reader.
func (r *streamRun) open(ctx context.Context, logs *streamlog.Table, owner string, o streamlog.Options) (reader *streamlog.Reader, err error) {
	err = r.work.Start(context.WithoutCancel(ctx), r.t.s.life, life.Part)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			r.t.s.ledger.remove(streamObject, r.id)
			r.work.Finish()
		}
	}()
	if o.Resumable {
		if err = r.t.s.ledger.add(streamObject, r.id, &r.call, 0); err != nil {
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
	if r.t.s.isShared {
		limit = storedLog
	}
	r.size = min(r.size+n+itemBytes, limit)
	if !r.isCounted || r.size <= r.reserved {
		return nil
	}
	ahead := min(r.size+maxAhead, limit)
	err := r.t.s.ledger.grow(streamObject, r.id, ahead-r.reserved)
	if err == nil {
		r.reserved = ahead
	}
	return err
}

// serve runs the handler.
func (r *streamRun) serve(j *chatJob) {
	r.work.Run("chat handler", func(context.Context) error {
		defer r.finished.Done()
		defer r.release()
		defer r.t.s.ledger.end(streamObject, r.id, r.t.s.opts.Persistence.StreamRetention)
		defer r.w.Cut(errAborted)              // no effect after another end
		_, _ = j.answer(&r.ctx, r.work.Cancel) // the stream has the answer
		return nil
	}, func(err error) {
		if err != nil { // a panic
			_ = r.t.s.internal(context.WithoutCancel(&r.ctx), &r.call, err)
		}
	})
}

func (r *streamRun) release() {
	r.holds.release()
	if r.place != "" {
		r.t.s.registry.router.Done(r.place)
	}
}

// watch ends the context of the handler of a stream that accepts no events.
func (r *streamRun) watch() {
	select {
	case <-r.w.Done():
		r.work.Cancel(errNoReader)
	case <-r.work.Done():
	}
}

// claim makes a stream that of its request, for repeated requests, or returns that of the first
// request (ARC-D48).
func (t *streamTable) claim(ctx context.Context, owner, id string) (string, error) {
	if !t.s.hasWindow() || owner == "" {
		return id, nil
	}
	_, err := t.s.opts.Persistence.Store.Create(ctx, streamClaim(owner), []byte(id), openClaim)
	if !errors.Is(err, store.ErrExists) {
		if err != nil {
			id = ""
		}
		return id, err
	}
	return t.claimed(ctx, owner)
}

// claimed returns the stream of an earlier request with the same content, or "".
func (t *streamTable) claimed(ctx context.Context, owner string) (string, error) {
	entry, err := t.s.opts.Persistence.Store.Get(ctx, streamClaim(owner))
	if errors.Is(err, store.ErrNotFound) {
		return "", nil
	}
	return string(entry.Value), err
}

// finishClaim limits the claim of an ended stream to the window. A refusal that a later attempt does not
// meet leaves no claim.
func (r *streamRun) finishClaim(ctx context.Context) {
	if !r.t.s.hasWindow() || r.conn.owner == "" {
		return
	}
	db, key := r.t.s.opts.Persistence.Store, streamClaim(r.conn.owner)
	entry, err := db.Get(ctx, key)
	switch {
	case err != nil || string(entry.Value) != r.id:
	case r.fault != nil && isPassing(r.fault.Code):
		err = db.Delete(ctx, key, entry.Revision)
	default:
		_, err = db.Update(ctx, key, entry.Value, entry.Revision, r.t.s.opts.Persistence.ResultTTL)
	}
	if err != nil {
		r.t.s.opts.Logger.WarnContext(ctx, "arc: claim of stream not limited", "err", err)
	}
}

// serveEarlier answers a streamed request for an earlier stream: with Last-Event-ID, or because
// it is repeated.
func (t *streamTable) serveEarlier(ctx context.Context, call *Call) (isAnswered bool, err error) {
	x := call.out
	if !t.s.opts.Persistence.EnableResume || !x.streams() {
		return false, nil
	}
	c := &streamConn{s: t.s, x: x, logs: t.kept, owner: requestHash(call), isNumbered: true}
	if last := x.in.LastEventID; last != "" {
		id, n, ok := parseEventID(last)
		if !ok {
			return true, lostStream(streamlog.ErrUnknown)
		}
		c.id = id
		return true, c.resume(ctx, n)
	}
	if !t.s.hasWindow() {
		return false, nil
	}
	c.id, err = t.claimed(ctx, c.owner)
	if c.id == "" || err != nil {
		return false, err
	}
	return true, c.resume(ctx, 0)
}

// lostStream refuses a resumption.
func lostStream(err error) error {
	var gap *streamlog.GapError
	var issue string
	switch {
	case errors.As(err, &gap):
		issue = "gap"
	case errors.Is(err, streamlog.ErrAhead):
		issue = "ahead"
	case errors.Is(err, streamlog.ErrUnknown):
		issue = "unknown"
	default:
		return err
	}
	return &Error{Code: ErrChatTimeout, Message: "The stream can no longer be resumed", Cause: err,
		Details: []byte(`{"field":"Last-Event-ID","issue":"` + issue + `"}`)}
}

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

// resume follows a stream behind event n.
func (c *streamConn) resume(ctx context.Context, n uint64) error {
	r, err := c.logs.Read(ctx, c.id, c.owner, n)
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
	if name == eventError {
		c.fault = c.faultIn(data)
		if item.N == 1 && c.discard() {
			return errPlain
		}
	}
	return c.event(ctx, name, item.N, data)
}

func eventName(kind byte) string {
	switch kind {
	case eventDone[0]:
		return eventDone
	case eventError[0]:
		return eventError
	}
	return eventChunk
}

// faultIn returns the error of an event.
func (c *streamConn) faultIn(data []byte) *Error {
	if c.run != nil && c.run.fault != nil {
		return c.run.fault
	}
	v, err := checkJSON(data)
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
	var w writer
	if err := w.errorEvent(c.chatID(ctx, n), fault); err != nil {
		return err
	}
	if err := c.event(ctx, eventError, n, w.b); err != nil {
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
	v, _ := checkJSON(data)
	id, _ := v.Get("chatId").Text()
	return id
}
