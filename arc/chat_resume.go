// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/store"
)

// A streamTable makes streams resumable. The handler writes to a stream of the
// store, and the connection reads from it, so that another connection can continue
// after a failure. The id of an event names the stream and its position in it.
type streamTable struct {
	s  *Server
	db store.Store

	mu   sync.Mutex
	runs map[string]*streamRun // by token; guarded by mu
}

// A streamRun is a handler that writes into the store.
type streamRun struct {
	token   string
	cancel  context.CancelCauseFunc
	done    chan struct{} // closed when the handler has ended
	err     error         // of the handler; set before done is closed
	empty   bool          // nothing was written; the same
	readers int           // guarded by streamTable.mu
	grace   *time.Timer   // ends a handler without readers; guarded by streamTable.mu
}

func newStreamTable(s *Server) *streamTable {
	return &streamTable{s: s, db: s.opts.Persistence.Store, runs: map[string]*streamRun{}}
}

const streamPrefix = "stream-"

func streamKey(token string) string { return "arc/stream/" + token }
func streamLog(token string) string { return "arc/events/" + token }
func streamOwner(call *Call) string {
	return hashOf(call.principalID(), call.RequestAgent, call.TargetAgent, call.Method, string(call.ID))
}
func eventID(token string, seq uint64) string {
	return token + "." + strconv.FormatUint(seq, 10)
}

// errNoReader is the cause of a context that ends because no reader is connected.
var errNoReader = errors.New("arc: stream: reader disconnected")

// resumes reports whether a call asks for the rest of a stream. Other event ids
// mean nothing here.
func resumes(call *Call) bool { return strings.HasPrefix(call.out.in.LastEventID, streamPrefix) }

// A logSink writes events into the store.
type logSink struct {
	t     *streamTable
	token string
	began bool
}

// Send appends an event: its name, a line feed, its data.
func (l *logSink) Send(ctx context.Context, name, _ string, data []byte) error {
	l.began = true
	record := append(append(make([]byte, 0, len(name)+1+len(data)), name...), '\n')
	_, err := l.t.db.Append(context.WithoutCancel(ctx), streamLog(l.token), "", append(record, data...), l.t.s.opts.Persistence.StreamRetention)
	return err
}

// Discard reports whether nothing was written.
func (l *logSink) Discard() bool { return !l.began }

// serve runs a job whose stream outlives the connection, and follows it.
func (t *streamTable) serve(ctx context.Context, j *chatJob) (any, error) {
	run := &streamRun{token: randid.New(streamPrefix), done: make(chan struct{})}
	drop := func(err error) (any, error) {
		j.chat.mu.Lock()
		if !j.stateless {
			j.chat.starting = false
			j.chat.pass()
		}
		j.chat.mu.Unlock()
		j.table.release(j.chat)
		return nil, err
	}
	if _, err := t.db.Create(ctx, streamKey(run.token), []byte(streamOwner(j.call)), t.s.opts.Persistence.StreamRetention+time.Hour); err != nil {
		return drop(err)
	}
	if !t.s.begin(partOf) {
		return drop(errServerClosed)
	}
	workCtx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	run.cancel = cancel
	stop := context.AfterFunc(t.s.ctx, func() { cancel(errServerClosed) })
	// The connection sends the events that it reads back, so the job gets a copy
	// of the call.
	own := *j.call.out
	call := *j.call
	own.call, call.out = call, &own
	j.call = &call
	workCtx = &callCtx{Context: workCtx, call: &call}
	t.mu.Lock()
	t.runs[run.token] = run
	t.mu.Unlock()
	go func() {
		defer t.s.end(partOf)
		defer stop()
		defer cancel(context.Canceled)
		sink := &logSink{t: t, token: run.token}
		_, run.err = j.answer(workCtx, sink)
		run.empty = !sink.began
		if sink.began {
			if err := sink.Send(workCtx, "", "", nil); err != nil { // the end
				t.s.opts.Logger.ErrorContext(workCtx, "arc: cannot end a stream", "error", err)
			}
		}
		close(run.done)
		t.mu.Lock()
		delete(t.runs, run.token)
		if run.grace != nil {
			run.grace.Stop()
		}
		t.mu.Unlock()
	}()
	out := CallFromContext(ctx).out
	return t.follow(ctx, out, run, run.token, 0)
}

// resume continues a stream of the same request.
func (t *streamTable) resume(ctx context.Context, call *Call) (any, error) {
	token, position, _ := strings.Cut(call.out.in.LastEventID, ".")
	after, err := strconv.ParseUint(position, 10, 64)
	if err != nil || len(token) > maxIDLen || hasControl(token) {
		return nil, lostStream()
	}
	entry, err := t.db.Get(ctx, streamKey(token))
	switch {
	case errors.Is(err, store.ErrNotFound), err == nil && string(entry.Value) != streamOwner(call):
		return nil, lostStream() // the same error for an expired stream and for one of another caller
	case err != nil:
		return nil, err
	}
	t.mu.Lock()
	run := t.runs[token]
	t.mu.Unlock()
	return t.follow(ctx, call.out, run, token, after)
}

func lostStream() *Error {
	return &Error{Code: ErrChatTimeout, Message: "The stream can no longer be resumed", Details: []byte(`{"field":"Last-Event-ID"}`)}
}

// attend counts the readers of a run: without any, it has the grace time left.
func (t *streamTable) attend(run *streamRun, n int) {
	if run == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	run.readers += n
	if run.grace != nil {
		run.grace.Stop()
		run.grace = nil
	}
	if run.readers == 0 && !isClosed(run.done) {
		run.grace = time.AfterFunc(t.s.opts.Persistence.StreamRetention, func() { run.cancel(errNoReader) })
	}
}

// follow sends the events of a run until its end. The run is nil if it has ended
// or belongs to another process.
func (t *streamTable) follow(ctx context.Context, x *exchange, run *streamRun, token string, after uint64) (any, error) {
	t.attend(run, 1)
	defer t.attend(run, -1)
	sink := x.begin()
	waitCtx, stop := context.WithCancel(ctx)
	defer stop()
	if run != nil {
		go func() {
			select {
			case <-run.done:
			case <-waitCtx.Done():
			}
			stop()
		}()
	}
	for {
		isLast := run != nil && isClosed(run.done) // before the last read
		records, err := t.db.Read(ctx, streamLog(token), after, itemPage)
		if err != nil {
			return nil, t.broken(ctx, x, sink, err)
		}
		for _, rec := range records {
			after = rec.Seq
			name, data, _ := bytes.Cut(rec.Value, []byte("\n"))
			if len(name) == 0 { // the end
				x.streamed = true
				return nil, nil
			}
			x.sent += len(data)
			if err := sink.Send(ctx, string(name), eventID(token, rec.Seq), data); err != nil {
				x.streamed = true
				return nil, err
			}
		}
		switch {
		case len(records) > 0:
			continue
		case isLast:
			return nil, t.broken(ctx, x, sink, or(run.err, errNoReader))
		}
		if err := t.wait(waitCtx, run, token, after); err != nil {
			switch {
			case ctx.Err() != nil:
				x.streamed = true
				return nil, context.Cause(ctx)
			case run == nil:
				return nil, t.broken(ctx, x, sink, lostStream())
			case waitCtx.Err() == nil:
				return nil, t.broken(ctx, x, sink, err)
			}
		}
	}
}

// wait waits for further events of a stream. A run in another process has failed
// if it is silent for too long.
func (t *streamTable) wait(ctx context.Context, run *streamRun, token string, after uint64) error {
	if run == nil {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, t.s.opts.Persistence.StreamRetention)
		defer stop()
	}
	return t.db.Wait(ctx, streamLog(token), after)
}

// broken answers with an error: plain if nothing was sent, else in the stream.
func (t *streamTable) broken(ctx context.Context, x *exchange, sink EventSink, err error) error {
	if !x.streamed && x.sent == 0 && sink.Discard() {
		return err
	}
	x.streamed = true
	w := ChatWriter{ctx: ctx, cancel: func(error) {}, sink: sink, legacy: x.legacy}
	return errors.Join(err, w.failed(ctx, t.s.faultOf(ctx, &x.call, err)))
}
