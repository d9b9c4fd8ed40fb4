// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package outbox keeps durable queues. Any instance puts items into a stream. One instance at a
// time, the sender of the stream, passes them in strict order to a function.
//
// The record of a sender names its owner. Put appends an item and then creates or changes the
// record; only then it returns. A sender ends its record with the revision that it held before it
// found the queue empty, so it ends only if no item was put since. The index of package lease
// leads survivors to the records of failed owners.
package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/statekey"
	"github.com/fivewire/fivewire/store"
)

// ErrClosed reports use after Shutdown.
var ErrClosed = errors.New("outbox: closed")

var errRunning = errors.New("outbox: function of an earlier epoch is still running")

const (
	maxAttempts = 64             // at once
	spare       = 24 * time.Hour // that an item outlives MaxAge
	topic       = "outbox"       // of messages: a key, and a slash and an owner that requests the stream
)

// Options configure an Outbox. Zero is the default.
type Options struct {
	Prefix  string       // of keys and streams, for example "arc/": that of the lease
	Private bool         // no other instance uses the store and the prefix, as for the lease
	Logger  *slog.Logger // nil means slog.Default()

	// MaxAge bounds how long an item waits: if an attempt fails later, the item becomes a dead
	// letter. Ids are known for MaxAge and a day. Zero means 30 days; a negative value means
	// 100 years.
	MaxAge time.Duration

	// MaxItems and MaxBytes bound the items that wait in a stream, and its dead letters. An item
	// counts its length, its id and about 80 bytes. Concurrent calls of Put may exceed a bound by
	// an item each, and the sender reports progress every 64 items. Zero means 10,000 and 64 MiB;
	// a negative value removes the bound.
	MaxItems, MaxBytes int64
}

// An Item is passed to the function of Send. Data must not be changed.
type Item struct {
	Stream  string
	ID      string // as given to Put
	Seq     uint64 // position in the stream
	Attempt int    // 1 or more; a restart continues the count
	Data    []byte
	First   time.Time // of Put, by the clock of the store
}

type sendFunc = func(ctx context.Context, item Item) Verdict

// An Outbox sends items for one instance. All methods are safe for concurrent use.
type Outbox struct {
	db    store.Store
	lease *lease.Lease
	opts  Options
	life  time.Duration // of items and their ids
	base  context.Context
	stop  context.CancelCauseFunc
	wg    sync.WaitGroup // of turns

	mu       sync.Mutex // guards all below
	funcs    map[string]sendFunc
	senders  map[string]*sender // by key; those with work here
	due      []*sender
	running  int
	owner    lease.Owner // of the newest sender
	isClosed bool
}

// New returns the Outbox of an instance. A lease has one Outbox.
func New(db store.Store, l *lease.Lease, o Options) *Outbox {
	if o.MaxAge < 0 {
		o.MaxAge = 100 * 365 * 24 * time.Hour
	}
	o.MaxAge = cmp.Or(o.MaxAge, 30*24*time.Hour)
	o.MaxItems, o.MaxBytes = bound(o.MaxItems, 10_000), bound(o.MaxBytes, 64<<20)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	b := &Outbox{db: db, lease: l, opts: o, life: o.MaxAge + spare, funcs: map[string]sendFunc{}, senders: map[string]*sender{}}
	b.base, b.stop = context.WithCancelCause(context.Background())
	l.Listen(topic, b.receive)
	return b
}

func bound(n, standard int64) int64 {
	if n < 0 {
		return math.MaxInt64
	}
	return cmp.Or(n, standard)
}

// Send registers the function for the streams of a kind: the part of their names before the first
// slash. An instance that puts items registers their kind, since it may become their sender; until
// then they wait. For one stream f is not called twice at once, unless an instance that has lost
// its lease is still in its last attempt. The context ends when f must return. A panic of f makes
// the item a dead letter.
func (o *Outbox) Send(kind string, f func(ctx context.Context, item Item) Verdict) {
	o.mu.Lock()
	o.funcs[kind] = f
	for _, s := range o.senders {
		o.wakeLocked(s)
	}
	o.mu.Unlock()
	o.lease.Adopt(workKind(kind), func(ctx context.Context, stream string, _, to lease.Owner) (lease.Found, error) {
		found, _, err := o.take(ctx, stream, to, false)
		if err == nil && found == lease.Taken {
			o.serve(statekey.Join(stream), stream, to, ctx, 1)
		}
		return found, err
	})
}

// Shutdown ends all sending after the attempts in progress. If ctx ends first, Shutdown cuts them
// and returns its error. Items and records stay in the store for other instances.
func (o *Outbox) Shutdown(ctx context.Context) error {
	defer o.stop(ErrClosed)
	o.mu.Lock()
	o.isClosed, o.due = true, nil
	for _, s := range o.senders {
		o.removeLocked(s)
	}
	o.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		o.wg.Wait()
		close(ended)
	}()
	return await(ctx, ended)
}

// Own makes the instance the sender of a stream, ahead of any item and until Close or the end of
// the epoch of the lease. The latest Own wins: an earlier sender ends after its attempt. The
// record has no index entry, since the object that receives the items has one: an instance that
// adopts the object calls Own.
func (o *Outbox) Own(ctx context.Context, stream string) error {
	key := statekey.Join(stream)
	for delay := 25 * time.Millisecond; ; delay = min(2*delay, time.Second) {
		owner, epoch := o.epoch()
		found, holder, err := o.take(ctx, stream, owner, true)
		switch {
		case errors.Is(err, errRunning):
			err = nil
		case err == nil && found == lease.Held:
			err = o.lease.Tell(ctx, holder, topic, []byte(key+"/"+string(owner)))
		case err == nil && o.serve(key, stream, owner, epoch, 0) == nil:
			err = cmp.Or(context.Cause(epoch), ErrClosed)
		}
		if err == nil && found == lease.Held {
			err = await(ctx, time.After(delay))
		}
		if err != nil || found != lease.Held {
			return wrap("own", stream, err)
		}
	}
}

// take makes owner the sender of a stream, by Own or after the failure of the former owner. It
// returns lease.Held with the owner that is alive.
func (o *Outbox) take(ctx context.Context, stream string, owner lease.Owner, isOwn bool) (found lease.Found, holder lease.Owner, err error) {
	key := statekey.Join(stream)
	o.mu.Lock()
	s := o.senders[key]
	isRunning := s != nil && s.owner != owner && s.state == stateRunning
	isServed := s != nil && s.owner == owner && s.starts > 0
	if s != nil && isOwn {
		s.isClosing = false
	}
	o.mu.Unlock()
	if isRunning {
		return lease.Held, owner, errRunning
	}
	_, _, err = o.edit(ctx, key, o.recordTTL(), func(rec *record, _ store.Revision) (err error) {
		found, holder = lease.Taken, rec.Owner
		isAlive := false
		if holder != "" {
			isAlive, err = o.lease.Alive(ctx, holder)
		}
		switch {
		case err != nil:
			return err
		case holder == owner && isOwn:
			rec.Own = true
			return nil
		case holder == owner && !isServed: // by an earlier change
			return store.ErrUnchanged
		case isAlive:
			found = lease.Held
			return store.ErrUnchanged
		case !isOwn && (holder == "" || rec.Own):
			found = lease.Absent // a creation, or the end of Own, may still land
			return store.ErrUnchanged
		}
		rec.take(stream, owner)
		rec.Own = isOwn
		return nil
	})
	return found, holder, err
}

// Close ends Own: the sender ends once the queue is empty. If ctx ends first, Close returns its
// error, and the rest is still sent, by survivors too. Without a sender here Close does nothing.
func (o *Outbox) Close(ctx context.Context, stream string) error {
	key := statekey.Join(stream)
	o.mu.Lock()
	s := o.senders[key]
	o.mu.Unlock()
	if s == nil {
		return nil
	}
	err := o.startWork(ctx, stream, s.owner) // for the survivors
	if err != nil {
		return wrap("close", stream, err)
	}
	o.mu.Lock()
	s.isClosing = true
	o.mu.Unlock()
	o.serve(key, stream, s.owner, s.ctx, 1)
	err = await(ctx, s.done)
	if err == nil && !s.isEnded {
		err = cmp.Or(context.Cause(s.ctx), ErrClosed)
	}
	return wrap("close", stream, err)
}

// receive handles a message of another instance.
func (o *Outbox) receive(data []byte) {
	key, requester, _ := strings.Cut(string(data), "/")
	owner, epoch := o.epoch()
	s := o.serve(key, "", owner, epoch, 0)
	if s != nil && requester != "" {
		o.mu.Lock()
		defer o.mu.Unlock()
		s.requester = lease.Owner(requester)
		o.wakeLocked(s)
	}
}

// epoch returns the current owner and its context.
func (o *Outbox) epoch() (lease.Owner, context.Context) {
	for {
		owner, ctx := o.lease.Owner(), o.lease.Context()
		if owner == o.lease.Owner() {
			return owner, ctx
		}
	}
}

// startWork writes an index entry of owner.
func (o *Outbox) startWork(ctx context.Context, stream string, owner lease.Owner) error {
	current, err := o.lease.Start(ctx, workKind(stream), stream)
	if err == nil && current != owner {
		return errors.Join(lease.ErrLost, o.lease.Finish(ctx, current, workKind(stream), stream))
	}
	return err
}

// workKind returns the kind of the index entry of a stream. There is one for each kind of stream,
// since an instance adopts only what it has a function for.
func workKind(stream string) string { return "outbox:" + kindOf(stream) }

func kindOf(stream string) string {
	kind, _, _ := strings.Cut(stream, "/")
	return kind
}

// path returns a key or stream of the store; part comes from statekey.Join.
func (o *Outbox) path(name, part string) string { return o.opts.Prefix + "outbox/" + name + "/" + part }

func wrap(op, stream string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("outbox: %s %q: %w", op, stream, err)
}

func await[T any](ctx context.Context, ch <-chan T) error {
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
