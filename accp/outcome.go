// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/once"
	"github.com/fivewire/fivewire/internal/streamlog"
	"github.com/fivewire/fivewire/store"
)

// Outcomes are the recorded answers of a server to requests (ACCP-D72).
type outcomes struct {
	db    store.Store // nil: in memory
	opt   once.Options
	lease lease.Options // of the process

	tables atomic.Pointer[outcomeTables] // nil unless open; changed with turn only

	turn     chan struct{} // holds an element while the fields below are used; a waiting request ends with its context
	instance *lease.Lease  // guarded by turn
	isClosed bool          // guarded by turn
}

// OutcomeTables have the requests of a server.
type outcomeTables struct {
	table   *once.Table
	streams *streamlog.Table // of running handlers; nil without a store
}

// lock waits for the turn of the caller, and returns the function that ends it.
func (o *outcomes) lock(ctx context.Context) (unlock func(), err error) {
	select {
	case o.turn <- struct{}{}:
		return func() { <-o.turn }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// open returns the tables. With a store the first call acquires a lease.
func (o *outcomes) open(ctx context.Context) (*outcomeTables, error) {
	if t := o.tables.Load(); t != nil {
		return t, nil
	}
	unlock, err := o.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	t := o.tables.Load()
	switch {
	case o.isClosed:
		return nil, once.ErrClosed
	case t != nil:
		return t, nil
	case o.db == nil:
		t = &outcomeTables{table: once.New(nil, nil, o.opt)}
	default:
		o.instance, err = lease.Acquire(ctx, o.db, o.lease)
		if err != nil {
			return nil, err
		}
		t = &outcomeTables{once.New(o.db, o.instance, o.opt), streamlog.New(o.db, o.instance, o.opt.Prefix)}
	}
	o.tables.Store(t)
	return t, nil
}

// close closes the table, after a drain when the ends of its requests are stored, and releases the lease. If ctx ends
// first, since a request waits for the store, the table is closed later, and the lease expires.
func (o *outcomes) close(ctx context.Context, isDrain bool) error {
	done := make(chan error, 1)
	go func() { done <- o.end(ctx, isDrain) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (o *outcomes) end(ctx context.Context, isDrain bool) (err error) {
	if t := o.tables.Load(); t != nil && !isDrain {
		_ = t.table.Close() // also ends the wait of a drain, which has the turn
	}
	o.turn <- struct{}{}
	defer func() { <-o.turn }()
	o.isClosed = true
	t := o.tables.Load()
	if t == nil {
		return nil
	}
	defer o.tables.Store(nil)
	if isDrain {
		err = t.table.Shutdown(ctx)
	} else {
		err = t.table.Close()
	}
	if o.instance != nil {
		err = errors.Join(err, o.instance.Release(ctx))
	}
	return err
}

// An outcomeKey names a request.
type outcomeKey struct {
	once.Key
	isTry         bool // the frame repeats a request
	isTransaction bool
	isIdempotent  bool // the handler may run again
}

// policy decides about a repeat after the process of the handler has failed.
func (k *outcomeKey) policy() once.Policy {
	if k.isIdempotent {
		return once.Repeat
	}
	return once.AtMostOnce
}

// outcomeKey returns the name of a request, and false for other messages and for those of a session
// without id. The id is that of its last frame.
func (s *responder) outcomeKey(e *exchange, c *caller, m *Message, mid string) (k outcomeKey, ok bool, err error) {
	if s.outcomes == nil || m.Intent != IntentReq {
		return k, false, nil
	}
	if v, found := m.Meta.Ext.Get("try"); found {
		if n, isInt := v.Int(); !isInt || n < 2 {
			return k, false, fail(ErrInvalidType, "try must be an integer from 2")
		}
		k.isTry = true
	}
	h, _ := s.find(m)
	_, k.isIdempotent = h.(idempotentHandler)
	session := e.session.id
	k.Principal = e.session.owner
	if c.principal != nil {
		k.Principal = "principal/" + c.name
	}
	d, err := digits(Value{kind: KindMap, list: m.Params})
	if err != nil {
		return k, false, nil
	}
	if id, found := m.Params.Get("transaction_id"); found && m.schema() == schemaTransaction && id.kind != KindRef {
		k.isTransaction, k.Digest, k.ID = true, sha256.Sum256(d[:]), "transaction/"
		if c.principal == nil {
			k.ID += session + "/" + m.From + "/"
		}
		k.ID += id.kind.String() + "/" + id.text
		k.Aliases = []string{"mid/" + session + "/" + m.From + "/" + mid}
		return k, session != "" || c.principal != nil, nil
	}
	// Both names are in one piece of memory.
	names := "mid/" + session + "/" + m.From + "/" + mid + "request/" + session + "/" + m.From + "/" + m.Op + "/" + m.Chain() + "/" + string(d[:])
	n := len("mid/") + len(session) + len("/") + len(m.From) + len("/") + len(mid)
	e.alias[0], k.ID = names[:n], names[n:]
	k.Aliases = e.alias[:]
	return k, session != "", nil
}

// runOnce runs the handler of a request, or repeats the messages by which it answered before.
func (s *responder) runOnce(ctx context.Context, e *exchange, k outcomeKey) error {
	t, err := s.outcomes.open(ctx)
	if err != nil {
		return e.fail(&Error{Code: ErrInternal, Message: "opening the outcomes", Cause: err}, e.received.Message)
	}
	if !k.isTry && !k.isTransaction && isKnown(ctx, t.table, k) {
		return s.run(ctx, e) // another request of the chain
	}
	if isWhole, err := s.followRunning(ctx, e, k); isWhole || err != nil {
		return err
	}
	if k.isTransaction && e.resume == nil {
		var end func()
		ctx, end = e.detach(ctx, s.timing.ResumeWindow)
		defer end()
	}
	hasRun := false
	var rerr error
	following, other := e.followElsewhere(ctx, t.streams, k)
	defer other.close()
	data, _, err := t.table.Do(following, k.Key, k.policy(), func(ctx context.Context, _ once.Claim) (once.Result, error) {
		if other.stop() {
			return once.Result{Forget: true}, nil
		}
		hasRun = true
		var out once.Result
		var err error
		out, rerr, err = s.runRecorded(ctx, e, k, t.streams)
		return out, err
	})
	isWhole := other.stop()
	switch {
	case hasRun:
		return rerr
	case isWhole:
		return nil
	case err == nil:
		return s.replayOutcome(e, e.received.Message, other.unsent(data))
	case errors.Is(err, once.ErrReused), errors.Is(err, once.ErrNotRetained):
		err = &Error{Code: ErrDuplicate, Message: "the request was made before", Cause: err}
	case ctx.Err() == nil:
		err = &Error{Code: ErrInternal, Message: "the outcome is unknown", Cause: err}
	}
	return e.fail(err, e.received.Message)
}

// replayOutcome answers m by a recorded outcome, unless the caller has no memory for it.
func (s *responder) replayOutcome(e *exchange, m *Message, data []byte) error {
	hold, err := s.reserve(e.caller, int64(len(data)))
	if err != nil {
		return e.fail(err, m)
	}
	defer hold.Release()
	return e.replay(data)
}

// followRunning sends the messages of the handler that runs for a request in this process. It reports whether
// the whole answer was sent.
func (s *responder) followRunning(ctx context.Context, e *exchange, k outcomeKey) (isWhole bool, err error) {
	rec := s.runs.find(&k.Key)
	if rec == nil {
		return false, nil
	}
	isWhole, err = e.follow(ctx, rec)
	if err != nil {
		e.record.end(outcomeFailed, err)
	}
	return isWhole, err
}

// isKnown reports whether there is an outcome, or a running handler, of a request.
func isKnown(ctx context.Context, table *once.Table, k outcomeKey) bool {
	state, _, err := table.Peek(ctx, k.Key)
	return err == nil && state != once.StateAbsent
}

// runRecorded runs the handler of a request and returns its outcome, the error of the answer, and the error
// of the outcome.
func (s *responder) runRecorded(
	ctx context.Context, e *exchange, k outcomeKey, streams *streamlog.Table,
) (result once.Result, rerr, err error) {
	rec := &recorder{key: k, resume: e.resume, responder: s, caller: e.caller, streams: streams}
	s.runs.add(rec)
	defer s.runs.remove(rec)
	e.recorder = rec
	defer func() { e.recorder = nil }()
	rerr = s.run(ctx, e)
	if k.isTransaction && !k.isIdempotent && e.isInterrupted && !rec.isComplete {
		return once.Result{}, rerr, errInterrupted // it may have had its effect
	}
	return once.Result{Data: rec.data, Forget: !rec.isComplete, Drop: rec.isDropped}, rerr, nil
}

// errInterrupted is the outcome of a transaction whose handler returned an error after the end of its context.
var errInterrupted = errors.New("accp: the handler was interrupted")

// isRemembered reports whether the outcome of the request with a repeated frame is known or awaited. It invites the
// peer to repeat the request, so a run that ends without an outcome is not followed by another one, unless the handler is
// idempotent.
func (s *responder) isRemembered(ctx context.Context, e *exchange, c *caller, frame []byte) bool {
	m, err := e.session.codec.Decode(frame)
	if err != nil {
		return false
	}
	k, _, err := s.outcomeKey(e, c, m, m.Meta.MID)
	if err != nil || k.Aliases == nil {
		return false
	}
	t, err := s.outcomes.open(ctx)
	if err != nil {
		return false
	}
	k.Pin = !k.isTransaction && !k.isIdempotent // a failed transaction may be sent again
	state, claim, err := t.table.Peek(ctx, k.Key)
	// The last part of a transaction in parts has its id only in the outcome.
	isPart := errors.Is(err, once.ErrReused) && !k.isTransaction
	return isPart || err == nil && state != once.StateAbsent && !claim.Dropped
}

// fail answers m by an error.
func (e *exchange) fail(err error, m *Message) error {
	e.record.end(outcomeFailed, err)
	e.failed = true
	return e.sendError(err, m)
}

// replay sends recorded messages in new envelopes.
func (e *exchange) replay(data []byte) error {
	for line := range bytes.Lines(data) {
		m, err := storedCodec.DecodeRaw(bytes.TrimSuffix(line, []byte("\n")))
		if err != nil {
			return err
		}
		m.From, m.Meta = "", nil
		answer(m, e.received.Message)
		e.failed = m.Intent == IntentFail
		if err := e.out(e.session, m); err != nil {
			return err
		}
	}
	return nil
}

// follow sends the messages of a running handler as they are recorded. It reports whether the whole
// answer was sent. The handler continues at least as long as it is followed.
func (e *exchange) follow(ctx context.Context, rec *recorder) (isWhole bool, err error) {
	rec.begin()
	defer rec.end(false)
	if rec.resume != nil {
		rec.resume.attach()
		defer func() { rec.resume.detach(context.Cause(ctx)) }()
	}
	for sent := 0; ; {
		data, changed, isAnswered := rec.after(sent)
		if err := e.replay(data); err != nil {
			return false, err
		}
		sent += len(data)
		if changed == nil {
			return isAnswered, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// A recorder keeps the messages by which a handler answers.
type recorder struct {
	key       outcomeKey // of the request
	resume    *resume    // nil: the handler ends with its request
	responder *responder
	caller    *caller
	streams   *streamlog.Table // nil without a store

	hasFailed atomic.Bool // with an error that is not recorded

	capacity int // of data within the reserved memory; used by add only

	mu         sync.Mutex
	hold       budget.Hold // of the memory for data, until the handler and the readers have ended
	readers    int         // repeats that send data
	data       []byte
	isDropped  bool          // data is too long, or there was no memory for it
	isAnswered bool          // the last message ends the answer
	isComplete bool          // and is no error of a retryable code
	isFinal    bool          // the complete answer was not sent, so later messages report that
	isEnded    bool          // the handler has returned
	isPublic   bool          // readers in other processes can follow
	changed    chan struct{} // closed by the next change; nil if it is not awaited
}

// add records a message of the handler, which was sent or not.
func (r *recorder) add(m *Message, isSent bool) {
	c := *m
	c.Meta = nil
	if c.From == "" {
		c.From = "a" // replaced by the sender
	}
	data, err := storedCodec.AppendRaw(slices.Grow(r.data, 256), &c) // only add changes r.data
	hasRoom := r.makeRoom(len(data) - len(r.data))
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.notifyLocked()
	if r.isFinal {
		return
	}
	if err != nil {
		r.isAnswered, r.isComplete = false, false
		return
	}
	if hasRoom {
		r.data = append(data, '\n')
	} else if r.data, r.isDropped = nil, true; r.resume != nil {
		r.resume.drop()
	}
	r.isAnswered = last(IntentReq, m) || m.Intent == IntentAck
	r.isComplete = r.isAnswered && !isTemporary(m)
	r.isFinal = r.isComplete && !isSent
}

// makeRoom reserves memory for n more bytes. After a failure, it releases the memory unless a reader sends from it.
func (r *recorder) makeRoom(n int) bool {
	n += len(r.data) + 1
	isFit := !r.isDropped && n <= maxOutcome
	if isFit && n > r.capacity {
		hold, err := r.hold, error(nil) // only makeRoom changes it
		if r.capacity == 0 {
			hold, err = r.responder.reserve(r.caller, int64(2*n))
		} else {
			err = hold.Resize(int64(2 * n))
		}
		r.capacity, isFit = 2*n, err == nil
		r.mu.Lock()
		r.hold = hold
		r.mu.Unlock()
	}
	if !isFit {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.readers == 0 {
			r.hold.Release()
		}
	}
	return isFit
}

// isTemporary reports whether m is an error of a retryable code. Such an error is not recorded as an outcome.
func isTemporary(m *Message) bool {
	return m.Intent == IntentFail && Code(m.Params.Text("code")).Info().Retryable
}

// begin adds a reader.
func (r *recorder) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readers++
}

// end reports the end of the handler to the readers, or removes a reader.
func (r *recorder) end(isHandler bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if isHandler {
		r.isEnded = true
		r.notifyLocked()
	} else {
		r.readers--
	}
	if r.isEnded && r.readers == 0 {
		r.hold.Release()
	}
}

// notifyLocked wakes the readers. r.mu must be held.
func (r *recorder) notifyLocked() {
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

// after returns the messages after the first n bytes, a channel that is closed by the next change, or nil
// after the last message, and whether the answer is whole. One that is too long is not.
func (r *recorder) after(n int) (data []byte, changed <-chan struct{}, isAnswered bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.isDropped:
		return nil, nil, false
	case r.isEnded:
		return r.data[n:], nil, r.isAnswered
	case r.changed == nil:
		r.changed = make(chan struct{})
	}
	return r.data[n:], r.changed, r.isAnswered
}

const (
	maxOutcome         = 1 << 20 // bytes; of a longer answer only its existence is kept
	maxOutcomes        = 16 << 20
	maxOutcomesOfOwner = 4 << 20
)

// usage returns the memory of the table. It waits for no store.
func (o *outcomes) usage() Usage {
	u := Usage{Resource: "outcomes", Scope: "all", Limit: maxOutcomes}
	if t := o.tables.Load(); t != nil {
		u.Used = t.table.Size()
	}
	return u
}
