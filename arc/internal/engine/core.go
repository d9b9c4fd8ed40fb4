// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package engine owns the tasks, the chats, the streams and the queued notifications of a server. It knows the
// kernels and the store, and no transport: messages are JSON text, and users' code is called by functions of
// [Options].
//
// The states of a task, of a chat and of its turn, and the queue of waiting tasks, are pure steps (task.go, turn.go,
// places.go). The other files carry out their effects.
package engine

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/journal"
	"github.com/fivewire/fivewire/internal/lazy"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/internal/state"
	"github.com/fivewire/fivewire/store"
)

// Options are what an engine needs of its server. Times and limits have their defaults; a time of zero means no end.
type Options struct {
	Store          store.Store // nil means one in memory
	InstanceID     string
	LeaseTTL       time.Duration
	SingleInstance bool // of the store
	Logger         *slog.Logger
	Life           *life.Life
	Budget         budget.Limits

	Places                                                 Limits // of running tasks
	MaxItems, MaxSubscriptions, ChatQueue                  int
	TaskTimeout, InputTimeout, ChatIdle, WriteTimeout      time.Duration
	TaskRetention, ChatRetention, StreamRetention, Results time.Duration
	Resume                                                 bool // streams are resumable

	// The causes of contexts of handlers.
	Completed, Canceled, TimedOut, ChatClosed, Expired, Closed error

	Serve    func(run *Run) error // runs the handler of a task
	Estimate func(run *Run) (time.Duration, error)
	Agent    func(id string) (Policy, bool)                        // of an agent that serves tasks here
	Events   func(ctx context.Context, agent string, event []byte) // nil unless it is called with each event

	// Fault returns the error of a handler as its caller reads it, with a message. It logs what the caller does not
	// read.
	Fault func(ctx context.Context, q *Request, err error) *wire.Fault

	Webhooks WebhookOptions
}

// An Engine has the parts of a server's state. Its methods, and those of its parts, are safe for concurrent use.
type Engine struct {
	*core
	Tasks    *Tasks
	Chats    *Chats
	Streams  *Streams
	Webhooks *Webhooks
	Router   *Router
	Claims   *Claims
}

// core is what all parts need.
type core struct {
	opts     Options
	db       store.Store
	isShared bool // other processes may use the store
	log      *slog.Logger
	life     *life.Life
	lease    *lease.Lease // of this process
	steps    *journal.Table
	budget   *budget.Budget
	ledger   *ledger
}

// New returns the engine of a process, with its lease in the store.
func New(opts Options) (*Engine, error) {
	c := &core{opts: opts, log: opts.Logger, life: opts.Life, isShared: opts.Store != nil, db: store.NewMemory()}
	if c.isShared {
		c.db = boundedStore{state.Guard(opts.Store)}
	}
	e := &Engine{core: c}
	c.ledger = newLedger(c)
	c.budget = budget.New(opts.Budget, c.ledger.evict)
	ctx, cancel := lazy.WithTimeout(context.Background(), outage)
	defer cancel()
	l, err := lease.Acquire(ctx, c.db, lease.Options{Prefix: prefix, InstanceID: opts.InstanceID, TTL: opts.LeaseTTL,
		Private: !c.isShared || opts.SingleInstance, Logger: c.log, OnLost: func(context.Context) { _ = c.life.Close() }})
	if err != nil {
		return nil, err
	}
	c.lease, c.steps = l, journal.New(c.db, l, prefix, c.log)
	e.Router = NewRouter(c.db)
	e.Webhooks = newWebhooks(c)
	e.Tasks = newTasks(c, e.Webhooks, e.Router)
	e.Claims = newClaims(c)
	e.Streams = newStreams(c, e.Claims)
	e.Chats = newChats(c, e.Router, e.Streams, e.Claims)
	c.ledger.remove = e.remove
	e.Webhooks.open()
	l.Listen(taskTopic, e.Tasks.listen)
	l.Listen(chatTopic, e.Chats.listen)
	return e, nil
}

// prefix precedes all names in the store.
const prefix = "arc/"

// outage is the longest time for a change of the store.
const outage = 10 * time.Second

// Release ends what outlives all work, and hands unfinished work over to the other processes. If ctx has ended, the
// lease expires.
func (e *Engine) Release(ctx context.Context) {
	e.ledger.close()
	e.Claims.close()
	e.Abandon(ctx)
}

// Abandon is the part of Release that does not need the end of all work.
func (e *Engine) Abandon(ctx context.Context) {
	e.Webhooks.close(ctx)
	if err := e.lease.Release(ctx); err != nil {
		e.log.WarnContext(ctx, "arc: lease not released", "err", err)
	}
}

// Ready returns an error while the process has no lease.
func (e *Engine) Ready() error { return context.Cause(e.lease.Context()) }

// WaitRecovered waits until the unfinished work of failed processes is taken over.
func (e *Engine) WaitRecovered(ctx context.Context) error {
	err := e.lease.WaitRecovered(ctx)
	if errors.Is(err, lease.ErrClosed) {
		return e.opts.Closed
	}
	return err
}

// Usage returns the present use of the resources.
func (e *Engine) Usage() []budget.Usage {
	e.ledger.sweep()
	return e.budget.Usage()
}

// Scope returns the budget of an account.
func (c *core) Scope(account string) *budget.Scope { return c.budget.Scope(account, "") }

// IsShared reports whether other processes may use the store.
func (c *core) IsShared() bool { return c.isShared }

// remove deletes an ended object. Its items are first: afterwards its id may be used again.
func (e *Engine) remove(ctx context.Context, kind objectKind, name string) error {
	switch kind {
	case taskObject:
		return errors.Join(e.db.Expire(ctx, taskItems(name), 0), e.db.Expire(ctx, taskMetadata(name), 0), e.db.Delete(ctx, taskKey(name), 0))
	case chatObject:
		return errors.Join(e.db.Expire(ctx, chatItems(name), 0), e.db.Delete(ctx, chatKey(name), 0))
	}
	return e.Streams.kept.Remove(ctx, name)
}

// A Request is what a request about a task or a chat has, apart from its params.
type Request struct {
	Method    string
	Agent     string // the handling agent
	Target    string // the requested agent or group
	Caller    string // the requesting agent
	ID        string // of the request, as JSON
	TraceID   string
	Principal string // the owner; empty without authentication
	Account   string // of the budgets
	Params    []byte
	Identity  []byte // of the principal, for a run in another process
	Attempt   Attempt
	Place     *Place        // the places that the request holds
	Webhook   *Subscription // in another protocol, that the request adds; nil without one. It has URL, Events and Dialect
	Tag       any           // for the handler

	key   string       // of a streamed request, its hash
	claim *streamClaim // of a streamed request
}

// startWork enters a task into the index of this process, before its record is created. With a private store no other
// process looks for it.
func (c *core) startWork(ctx context.Context, agent, id string) (lease.Owner, error) {
	if !c.isShared {
		return c.lease.Owner(), nil
	}
	ctx, cancel := lazy.WithTimeout(ctx, outage)
	defer cancel()
	return c.lease.Start(ctx, taskKind(agent), id)
}

// finishWork removes a task from the index.
func (c *core) finishWork(ctx context.Context, owner lease.Owner, agent, id string) {
	if !c.isShared {
		return
	}
	ctx, cancel := lazy.WithTimeout(ctx, outage)
	defer cancel()
	if err := c.lease.Finish(ctx, owner, taskKind(agent), id); err != nil {
		c.log.WarnContext(ctx, "arc: index entry not removed", "agent", agent, "task", id, "err", err)
	}
}

// notify informs the owner of work in another process.
func (c *core) notify(ctx context.Context, owner lease.Owner, topic, id string) error {
	if owner == "" || owner == c.lease.Owner() {
		return nil
	}
	ctx, cancel := lazy.WithTimeout(ctx, outage)
	defer cancel()
	return c.lease.Tell(ctx, owner, topic, []byte(id))
}

// unavailable returns the error of a process that has lost its lease.
func (c *core) unavailable(agent string, err error) error {
	if !errors.Is(err, lease.ErrLost) && !errors.Is(err, lease.ErrClosed) {
		return err
	}
	fault := wire.NewFault(wire.AgentNotAvailable, "agentId", agent)
	fault.Cause = err
	return fault
}

// durable returns the context of changes that are made although their caller has left. It ends with the lease: then
// the next owner of the work reads the state.
func (c *core) durable() context.Context { return c.lease.Context() }

// read returns an entry that modify has written.
func (c *core) read(ctx context.Context, key string) (store.Entry, error) {
	e, err := c.db.Get(ctx, key)
	if err == nil && c.isShared {
		e, err = store.Content(e)
	}
	return e, err
}

// modify reads, changes and writes the value of a key. The change is made once, even if answers of the store are lost.
// After an error nothing has changed, unless ctx has ended.
func (c *core) modify(ctx context.Context, key string, ttl time.Duration, change func(old store.Entry, isFound bool) ([]byte, error)) (store.Entry, error) {
	if !c.isShared {
		return c.modifyPrivate(ctx, key, ttl, change)
	}
	for delay := 10 * time.Millisecond; ; delay = min(2*delay, time.Second) {
		e, err := store.Modify(ctx, c.db, key, ttl, change)
		_, isFailure := errors.AsType[*storeFailure](err)
		if !isFailure || errors.Is(err, store.ErrUnknown) || retry.Sleep(ctx, delay) != nil {
			return e, c.lost(ctx, err)
		}
	}
}

// lost names the end of the lease as the cause of an error.
func (c *core) lost(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && (errors.Is(cause, lease.ErrLost) || errors.Is(cause, lease.ErrClosed)) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

func (c *core) modifyPrivate(ctx context.Context, key string, ttl time.Duration, change func(old store.Entry, isFound bool) ([]byte, error)) (store.Entry, error) {
	for {
		old, err := c.db.Get(ctx, key)
		isFound := err == nil
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return old, err
		}
		value, err := change(old, isFound)
		switch {
		case errors.Is(err, store.ErrUnchanged):
			return old, nil
		case err != nil:
			return store.Entry{}, err
		case isFound:
			old.Revision, err = c.db.Update(ctx, key, value, old.Revision, ttl)
		default:
			old.Revision, err = c.db.Create(ctx, key, value, ttl)
		}
		if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrExists) {
			continue
		}
		old.Key, old.Value = key, value
		return old, err
	}
}

// persist repeats a change with an id or a revision until the store answers, or ctx ends.
func (c *core) persist(ctx context.Context, op func(ctx context.Context) error) error {
	for delay := 10 * time.Millisecond; ; delay = min(2*delay, time.Second) {
		err := op(ctx)
		if _, isFailure := errors.AsType[*storeFailure](err); !isFailure || retry.Sleep(ctx, delay) != nil {
			return c.lost(ctx, err)
		}
	}
}

// Refused returns the error of a refused reservation for a call to an agent: rate limit exceeded for requests, else capacity exceeded.
func Refused(agent string, err error) error {
	b, ok := errors.AsType[*budget.Error](err)
	if !ok {
		return err // the context ended
	}
	o := wire.Open(nil)
	fault := &wire.Fault{Code: wire.AgentCapacityExceeded, Cause: err}
	if b.Resource == budget.Requests {
		fault.Code = wire.RateLimitExceeded
	} else if agent != "" {
		o.Text("agentId", agent)
	}
	o.Text("resource", b.Resource.String())
	o.Text("scope", b.Scope)
	o.Int("retryAfter", RetrySeconds(b.RetryAfter))
	fault.Details = o.Close()
	return fault
}

// RetrySeconds is the value of Retry-After: whole seconds, at least 1 (ARC-D15).
func RetrySeconds(d time.Duration) int64 { return max(1, int64((d+time.Second-1)/time.Second)) }

// Hash names a list of foreign texts by a short text of known form.
func Hash(texts ...string) string {
	var array [512]byte
	b := array[:0]
	for _, s := range texts {
		b = append(strconv.AppendInt(b, int64(len(s)), 10), ':')
		b = append(b, s...)
	}
	sum := sha256.Sum256(b)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// A Moment is a time in a record, in nanoseconds since 1970; zero means none.
type Moment int64

// Now is the present time.
func Now() Moment { return Moment(time.Now().UnixNano()) }

// Time returns the time.
func (m Moment) Time() time.Time {
	if m == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(m)).UTC()
}

// Sub returns the time since another moment.
func (m Moment) Sub(o Moment) time.Duration { return time.Duration(m - o) }

// isPast reports whether the time d since another moment has passed. It has, too, if that is of a clock that is ahead.
func (m Moment) isPast(o Moment, d time.Duration) bool { return m < o || m.Sub(o) >= d }

// appendMoment writes a time as the member of an object.
func appendMoment(o *wire.Object, name string, m Moment) { o.Time(name, m.Time()) }
