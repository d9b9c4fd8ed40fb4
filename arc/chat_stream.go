// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/streamlog"
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
	claim *streamClaim // of the request, or nil

	isCounted      bool // by the ledger
	size, reserved int  // bytes; guarded by the mutex of the ChatWriter

	fault    *Error         // the plain answer, if there is one; set before the end of the stream
	finished sync.WaitGroup // the handler
}

const (
	streamBatch = 16                     // events that a connection takes at once
	streamGrace = 500 * time.Millisecond // for the last events after the server was closed
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

// serve runs a job that writes a stream, and follows it.
func (t *streamTable) serve(ctx context.Context, j *chatJob) (any, error) {
	x := j.call.out
	logs, o := t.options()
	r := &streamRun{t: t, id: j.call.attempt.stream(), call: *j.call}
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
	r.claim, x.claim = x.claim, nil // until the handler returns
	r.holds, x.holds = x.holds, holds{}
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
	r.claim.end(true) // after a panic
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

// serveEarlier answers a streamed request for an earlier stream: with Last-Event-ID, or because
// it is repeated. Otherwise it claims the request.
func (t *streamTable) serveEarlier(ctx context.Context, call *Call) (isAnswered bool, err error) {
	x := call.out
	if !t.s.opts.Persistence.EnableResume || !x.streams() {
		return false, nil
	}
	c := &streamConn{s: t.s, x: x, logs: t.kept, owner: requestHash(call), isNumbered: true}
	if last := x.in.LastEventID; last != "" {
		id, n, ok := wire.ParseEventID(last)
		if !ok {
			return true, lostStream(streamlog.ErrUnknown)
		}
		c.id = id
		r, err := c.logs.Read(ctx, c.id, c.owner, n)
		return true, c.resume(ctx, r, n, err)
	}
	if !t.s.hasWindow() {
		return false, nil
	}
	return t.claim(ctx, call, c)
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
