// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package kerneltest is a service on the kernels of state, and the tests of their behavior together. The
// service has jobs with inputs and notifications, calls with recorded outcomes, streams, and sessions
// that one process holds. Any number of its processes share a store. Only tests import the package.
package kerneltest

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/journal"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/once"
	"github.com/fivewire/fivewire/internal/outbox"
	"github.com/fivewire/fivewire/internal/state"
	"github.com/fivewire/fivewire/internal/streamlog"
	"github.com/fivewire/fivewire/store"
)

const (
	keep      = 30 * 24 * time.Hour // time to live of the record of an unfinished job
	retention = time.Hour           // of a job that has ended
)

var (
	errOverload    = errors.New("kerneltest: overload")
	errInterrupted = errors.New("interrupted")
	errNotHeld     = errors.New("kerneltest: session of another process")
)

// An options value configures a process.
type options struct {
	ttl      time.Duration
	handlers map[string]handler // of jobs, by kind
	noRerun  map[string]bool    // kinds whose jobs fail if they are cut off
	post     func(ctx context.Context, item outbox.Item) outbox.Verdict
	receive  func(session, id, data string) // a message of a session
	maxJobs  int                            // that run; zero means no limit
}

// A handler runs a job.
type handler func(ctx context.Context, j *job) (string, error)

// A job is passed to its handler.
type job struct {
	*journal.Run
	id, params string
	process    *process
}

// A record is the state of a job.
type record struct {
	Kind, Params string
	Owner        lease.Owner // empty after the end
	Result, Err  string
}

// A process is one instance of the service.
type process struct {
	o       options
	db      store.Store
	plan    *fault.Plan
	lease   *lease.Lease
	calls   *once.Table
	outbox  *outbox.Outbox
	streams *streamlog.Table
	runs    *journal.Table
	wg      sync.WaitGroup

	mu       sync.Mutex // guards all below
	running  map[string]bool
	sessions map[string]lease.Owner
	isEnding bool // no handler starts, and parked runs stay parked
}

// newProcess starts a process with a view of db that has the faults of plan.
func newProcess(ctx context.Context, db store.Store, plan *fault.Plan, o options) (*process, error) {
	logger := slog.New(slog.DiscardHandler)
	p := &process{o: o, db: fault.Store(db, plan), plan: plan}
	p.running, p.sessions = map[string]bool{}, map[string]lease.Owner{}
	l, err := lease.Acquire(ctx, p.db, lease.Options{Prefix: "k/", TTL: o.ttl, Logger: logger})
	if err != nil {
		return nil, err
	}
	p.lease = l
	p.calls = once.New(p.db, l, once.Options{Prefix: "k/", Logger: logger})
	p.outbox = outbox.New(p.db, l, outbox.Options{Prefix: "k/", Logger: logger})
	p.streams = streamlog.New(p.db, l, "k/")
	p.runs = journal.New(p.db, l, "k/", logger)
	p.outbox.Send("hook", o.post)
	p.outbox.Send("inbox", p.receive)
	l.Adopt("job", p.adoptJob)
	l.Adopt("session", p.adoptSession)
	return p, nil
}

// shutdown ends a process in order.
func (p *process) shutdown(ctx context.Context) error {
	p.mu.Lock()
	p.isEnding = true
	p.mu.Unlock()
	p.runs.Park()
	done := make(chan struct{})
	go func() {
		p.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		return ctx.Err()
	}
	return errors.Join(p.outbox.Shutdown(ctx), p.calls.Close(), p.lease.Release(ctx))
}

// crash ends a process without any change of the store.
func (p *process) crash() {
	p.plan.Crash()
	_ = p.lease.Release(context.Background())
	_ = p.calls.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = p.outbox.Shutdown(ctx)
	p.plan.Close()
}

// submit creates a job once for a key of a principal and returns its id.
func (p *process) submit(ctx context.Context, principal, key, kind, params string) (string, error) {
	k := once.Key{Principal: principal, Scope: "submit", ID: key, Digest: sha256.Sum256([]byte(kind + "\n" + params))}
	id, _, err := p.calls.Do(ctx, k, once.Repeat, func(_ context.Context, c once.Claim) (once.Result, error) {
		if n := p.count(); p.o.maxJobs > 0 && n >= p.o.maxJobs {
			return once.Result{Forget: true}, errOverload
		}
		id := "job-" + c.Token
		epoch := p.lease.Context() // the end of the caller's context does not leave a job without a process
		err := p.create(epoch, id, record{Kind: kind, Params: params})
		for err != nil && epoch.Err() == nil && !errors.Is(err, store.ErrClosed) {
			time.Sleep(p.o.ttl / 100)
			err = p.create(epoch, id, record{Kind: kind, Params: params})
		}
		return once.Result{Data: []byte(id)}, err
	})
	return string(id), err
}

func (p *process) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.running)
}

// create creates the record of a job and starts it. Another attempt may have created it.
func (p *process) create(epoch context.Context, id string, rec record) error {
	owner, err := p.lease.Start(epoch, "job", id)
	if err != nil {
		return err
	}
	isOwn := false
	_, err = p.edit(epoch, id, keep, func(old *record) error {
		isOwn = old.Kind == ""
		if !isOwn {
			return store.ErrUnchanged
		}
		*old = rec
		old.Owner = owner
		return nil
	})
	if err == nil && !isOwn {
		return p.lease.Finish(epoch, owner, "job", id)
	}
	if err == nil {
		p.start(epoch, id, owner)
	}
	return err
}

// edit changes the record of a job, which has no kind if it is absent.
func (p *process) edit(ctx context.Context, id string, ttl time.Duration, change func(rec *record) error) (rec record, err error) {
	_, err = store.Modify(ctx, p.db, "k/job/"+id, ttl, func(old store.Entry, found bool) (value []byte, err error) {
		rec = record{}
		if found {
			err = json.Unmarshal(old.Value, &rec)
		}
		if err == nil {
			err = change(&rec)
		}
		if err != nil {
			return nil, err
		}
		return json.Marshal(rec)
	})
	return rec, err
}

func (p *process) get(ctx context.Context, id string) (rec record, err error) {
	e, err := p.db.Get(ctx, "k/job/"+id)
	if err == nil {
		e, err = store.Content(e)
	}
	if err == nil {
		err = json.Unmarshal(e.Value, &rec)
	}
	return rec, err
}

// start runs the handler of a job of this process.
func (p *process) start(epoch context.Context, id string, owner lease.Owner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.isEnding {
		p.wg.Go(func() { p.run(epoch, id, owner) })
	}
}

func (p *process) run(epoch context.Context, id string, owner lease.Owner) {
	rec, err := p.get(epoch, id)
	for err != nil && epoch.Err() == nil && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrClosed) {
		time.Sleep(p.o.ttl / 10)
		rec, err = p.get(epoch, id)
	}
	if err != nil || rec.Owner != owner {
		return
	}
	r, err := p.runs.Open(epoch, id, journal.RunOptions{OnWait: func(isWaiting bool) { p.place(id, !isWaiting) }})
	for errors.Is(err, journal.ErrBusy) && epoch.Err() == nil {
		time.Sleep(p.o.ttl / 10)
		r, err = p.runs.Open(epoch, id, journal.RunOptions{OnWait: func(isWaiting bool) { p.place(id, !isWaiting) }})
	}
	result := ""
	if err == nil {
		p.place(id, true)
		err = guard.Call("handler", func() (err error) {
			result, err = p.o.handlers[rec.Kind](r.Context(), &job{Run: r, id: id, params: rec.Params, process: p})
			return err
		})
		p.place(id, false)
		isCut := r.Context().Err() != nil
		r.Close()
		if isCut {
			return // parked, or without its lease
		}
	}
	p.end(epoch, id, owner, result, err)
}

// place counts the jobs that run and do not wait.
func (p *process) place(id string, isRunning bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.running, id)
	if isRunning {
		p.running[id] = true
	}
}

// end ends a job, unless another process owns it.
func (p *process) end(epoch context.Context, id string, owner lease.Owner, result string, cause error) {
	for epoch.Err() == nil {
		rec, err := p.edit(epoch, id, retention, func(rec *record) error {
			if rec.Owner != owner {
				return lease.ErrLost
			}
			rec.Owner, rec.Params, rec.Result = "", "", result
			if cause != nil {
				rec.Err = cause.Error()
			}
			return nil
		})
		if err == nil {
			err = p.follow(epoch, id, rec)
		}
		if err == nil {
			err = p.lease.Finish(epoch, owner, "job", id)
		}
		if err == nil || errors.Is(err, lease.ErrLost) || errors.Is(err, store.ErrClosed) {
			return
		}
		time.Sleep(p.o.ttl / 10)
	}
}

// follow does what follows from the end of a job. It may be repeated.
func (p *process) follow(ctx context.Context, id string, rec record) error {
	err := p.outbox.Put(ctx, "hook/"+rec.Kind, id, []byte(cmp.Or(rec.Err, rec.Result)))
	return errors.Join(err, p.runs.Expire(ctx, id, retention))
}

func (p *process) adoptJob(ctx context.Context, id string, _, to lease.Owner) (lease.Found, error) {
	found := lease.Taken
	rec, err := p.edit(ctx, id, keep, func(rec *record) error {
		isAlive, err := p.lease.Alive(ctx, rec.Owner)
		found = lease.Taken
		switch {
		case err != nil:
			return err
		case rec.Kind == "":
			found = lease.Absent
		case rec.Owner == "":
			found = lease.Ended
		case isAlive && rec.Owner != to:
			found = lease.Held
		}
		if found != lease.Taken {
			return store.ErrUnchanged
		}
		rec.Owner = to
		return nil
	})
	if err == nil && found == lease.Ended {
		err = p.follow(ctx, id, rec)
	}
	if err != nil || found != lease.Taken {
		return found, err
	}
	isParked, hasEntries, err := p.runs.Adopt(ctx, id, func() { p.start(ctx, id, to) })
	if err != nil || isParked {
		return found, err
	}
	if hasEntries && p.o.noRerun[rec.Kind] {
		p.wg.Go(func() { p.end(ctx, id, to, "", errInterrupted) })
		return found, nil
	}
	p.start(ctx, id, to)
	return found, nil
}

// input delivers an input to a job in any process.
func (p *process) input(ctx context.Context, id, inputID, data string) error {
	_, err := p.runs.Deliver(ctx, id, inputID, []byte(data), func(ctx context.Context) (lease.Owner, error) {
		rec, err := p.get(ctx, id)
		return rec.Owner, err
	})
	return err
}

// open makes the process the holder of a new session.
func (p *process) open(ctx context.Context, session string) error {
	owner, err := p.lease.Start(ctx, "session", session)
	if err != nil {
		return err
	}
	return p.hold(ctx, session, owner)
}

// hold makes owner the holder of a session in its record, and this process the receiver of its messages.
func (p *process) hold(ctx context.Context, session string, owner lease.Owner) error {
	_, err := store.Modify(ctx, p.db, "k/session/"+state.Join(session), keep, func(old store.Entry, _ bool) ([]byte, error) {
		if from := lease.Owner(old.Value); from != "" && from != owner {
			if isAlive, err := p.lease.Alive(ctx, from); err != nil || isAlive {
				return nil, cmp.Or(err, errNotHeld)
			}
		}
		return []byte(owner), nil
	})
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.sessions[session] = owner
	p.mu.Unlock()
	return p.outbox.Own(ctx, "inbox/"+session)
}

func (p *process) adoptSession(ctx context.Context, session string, _, to lease.Owner) (lease.Found, error) {
	err := p.hold(ctx, session, to)
	if errors.Is(err, errNotHeld) {
		return lease.Held, nil
	}
	return lease.Taken, err
}

// send puts a message for a session, whichever process holds it.
func (p *process) send(ctx context.Context, session, id, data string) error {
	return p.outbox.Put(ctx, "inbox/"+session, id, []byte(data))
}

// receive passes a message to the session, if this process holds it.
func (p *process) receive(_ context.Context, item outbox.Item) outbox.Verdict {
	session := item.Stream[len("inbox/"):]
	p.mu.Lock()
	owner, isHeld := p.sessions[session]
	p.mu.Unlock()
	if !isHeld || owner != p.lease.Owner() {
		return outbox.Later(0, errNotHeld)
	}
	p.o.receive(session, item.ID, string(item.Data))
	return outbox.Done()
}

// stream runs a handler that writes a stream. The stream ends with its process.
func (p *process) stream(id, principal string, o streamlog.Options, f func(ctx context.Context, w *streamlog.Writer) error) error {
	epoch := p.lease.Context()
	w, err := p.streams.Create(epoch, id, principal, o)
	if err != nil {
		return err
	}
	p.wg.Go(func() {
		if err := guard.Call("handler", func() error { return f(epoch, w) }); err != nil {
			w.Cut(err)
		}
		_ = w.Finish(epoch, nil)
	})
	return nil
}

// read returns the items of a stream after a number as text, until its end.
func (p *process) read(ctx context.Context, id, principal string, after uint64) (items []string, err error) {
	r, err := p.streams.Read(ctx, id, principal, after)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	for {
		page, err := r.Next(ctx, nil)
		for _, item := range page {
			items = append(items, fmt.Sprint(item.N, " ", string(item.Data)))
		}
		if err != nil {
			return items, err
		}
	}
}
