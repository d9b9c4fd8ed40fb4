// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package outbox keeps durable queues. Any instance puts items into a stream, and exactly one
// instance at a time, the sender of the stream, passes them in strict order to a function.
//
// The record of a sender names its owner. Put appends an item, and then creates the record or
// changes it, so that the sender cannot end unnoticed; only then it returns. The sender ends the
// record with the revision that it held before it found the queue empty. The index of package
// lease leads survivors to the records of failed owners.
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

const (
	maxSenders = 64 // attempts at once
	topic      = "outbox"
	yieldMark  = "/" // ends a message that requests the stream
	spare      = 24 * time.Hour
	never      = -1 // the next turn begins after a signal
)

// Options configure an Outbox. Zero is the default.
type Options struct {
	// Prefix of keys and streams, for example "arc/": that of the lease.
	Prefix string

	// MaxAge bounds how long an item waits. An attempt that fails later makes it a dead
	// letter. The id of an item is known for MaxAge and a day. Zero means 30 days; a
	// negative value means 100 years.
	MaxAge time.Duration

	// MaxItems and MaxBytes bound the items that wait in a stream, and its dead letters. An
	// item counts its length, that of its id, and about 80. Concurrent calls of Put may exceed a
	// bound by one item each; since progress is stored late, Put may refuse items from 7/8
	// of a bound on. Zero means 10,000 and 64 MiB; a negative value removes the bound.
	MaxItems, MaxBytes int64

	// Private means that no other instance uses the store and the prefix, as for the lease.
	Private bool

	// Logger receives retries, dead letters and lost items. Nil means slog.Default().
	Logger *slog.Logger
}

// An Item is passed to the function of Send. Data must not be changed.
type Item struct {
	Stream  string
	ID      string    // as given to Put
	Seq     uint64    // position in the stream
	Attempt int       // 1 or more; stored, so that a restart continues the count
	Data    []byte    //
	First   time.Time // of Put, by the clock of the store
}

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
	senders  map[string]*sender // by key; one for each stream with work here
	due      []*sender
	running  int
	owner    lease.Owner // of the newest sender
	isClosed bool
}

type sendFunc = func(context.Context, Item) Verdict

// New returns the Outbox of an instance. A lease has one Outbox.
func New(db store.Store, l *lease.Lease, o Options) *Outbox {
	o.MaxAge = cmp.Or(o.MaxAge, 30*24*time.Hour)
	if o.MaxAge < 0 {
		o.MaxAge = 100 * 365 * 24 * time.Hour
	}
	o.MaxItems, o.MaxBytes = bound(o.MaxItems, 10_000), bound(o.MaxBytes, 64<<20)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	b := &Outbox{db: db, lease: l, opts: o, life: o.MaxAge + spare,
		funcs: map[string]sendFunc{}, senders: map[string]*sender{}}
	b.base, b.stop = context.WithCancelCause(context.Background())
	l.Listen(topic, b.receive)
	return b
}

func bound(n, standard int64) int64 {
	if n = cmp.Or(n, standard); n < 0 {
		return math.MaxInt64
	}
	return n
}

// Send registers the function for the streams of a kind, the part of their names before the
// first slash. The instance adopts streams of failed instances, so each instance that puts
// items of a kind registers it; items without a function wait. For one stream f is never called
// twice at once, unless an owner that lost its lease is still in its last attempt. The context
// ends when f must return. A panic of f makes the item a dead letter.
func (o *Outbox) Send(kind string, f func(ctx context.Context, item Item) Verdict) {
	o.mu.Lock()
	o.funcs[kind] = f
	for _, s := range o.senders {
		o.wakeLocked(s)
	}
	o.mu.Unlock()
	o.lease.Adopt(workKind(kind), o.adopt)
}

// Shutdown ends all sending after the attempts in progress. If ctx ends first, Shutdown cuts
// them and returns its error. Items and records stay in the store.
func (o *Outbox) Shutdown(ctx context.Context) error {
	o.mu.Lock()
	o.isClosed, o.due = true, nil
	for _, s := range o.senders {
		o.removeLocked(s)
	}
	o.mu.Unlock()
	defer o.stop(ErrClosed)
	ended := make(chan struct{})
	go func() {
		o.wg.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Own makes the instance the sender of a stream, ahead of any item and until Close or the end of
// the epoch of the lease. Another live sender first ends its attempt in progress; the latest Own
// wins. The record has no index entry, since the object that receives the items has one: the
// instance that adopts the object calls Own again.
func (o *Outbox) Own(ctx context.Context, stream string) error {
	key := statekey.Join(stream)
	for delay := 25 * time.Millisecond; ; delay = min(2*delay, time.Second) {
		owner, epoch := o.epoch()
		holder, err := o.claim(ctx, stream, owner)
		switch {
		case err == nil && holder == "":
			if o.serve(key, stream, owner, epoch, 0) == nil {
				err = cmp.Or(context.Cause(epoch), ErrClosed)
			}
			return wrap("own", stream, err)
		case err == nil && holder != owner:
			err = o.lease.Tell(ctx, holder, topic, []byte(key+yieldMark))
		}
		if err == nil {
			err = sleep(ctx, delay)
		}
		if err != nil {
			return wrap("own", stream, err)
		}
	}
}

// claim makes owner the sender, or returns the live owner that has to end first. That is owner if
// a function of an earlier epoch is still running.
func (o *Outbox) claim(ctx context.Context, stream string, owner lease.Owner) (holder lease.Owner, err error) {
	key := statekey.Join(stream)
	if o.isRunning(key, owner) {
		return owner, nil
	}
	isAlive, err := o.lease.Alive(ctx, owner)
	if err != nil || !isAlive {
		return "", cmp.Or(err, lease.ErrLost)
	}
	_, err = store.Modify(ctx, o.db, o.path("sender", key), 2*o.life, func(old store.Entry, _ bool) ([]byte, error) {
		rec, err := decode(old)
		if err != nil {
			return nil, err
		}
		isAlive, err := false, error(nil)
		if rec.Owner != "" && rec.Owner != owner && !rec.Free {
			isAlive, err = o.lease.Alive(ctx, rec.Owner)
		}
		holder = ""
		switch {
		case err != nil:
			return nil, err
		case isAlive:
			holder = rec.Owner
			return nil, store.ErrUnchanged
		case rec.Owner != owner:
			rec.take(stream, owner)
		}
		rec.Own = true
		return rec.encode(), nil
	})
	return holder, err
}

// Close ends Own: the sender ends once the queue is empty. If ctx ends first, Close returns its
// error; the rest is still sent, by survivors too. If the instance is not the sender of the
// stream, Close does nothing. The ids of items stay known until they expire.
func (o *Outbox) Close(ctx context.Context, stream string) error {
	key := statekey.Join(stream)
	o.mu.Lock()
	s := o.senders[key]
	o.mu.Unlock()
	if s == nil {
		return nil
	}
	if err := o.startWork(ctx, stream, s.owner); err != nil { // survivors may have to send the rest
		return wrap("close", stream, err)
	}
	_, err := store.Modify(ctx, o.db, o.path("sender", key), 2*o.life, func(old store.Entry, _ bool) ([]byte, error) {
		rec, err := decode(old)
		if err != nil || rec.Owner != s.owner || !rec.Own {
			return nil, cmp.Or(err, store.ErrUnchanged)
		}
		rec.Own = false
		return rec.encode(), nil
	})
	o.mu.Lock()
	s.isClosing = true
	o.mu.Unlock()
	o.serve(key, stream, s.owner, s.ctx, 1)
	if err == nil {
		select {
		case <-s.done:
			err = s.err()
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	return wrap("close", stream, err)
}

// adopt takes over the record of a failed sender.
func (o *Outbox) adopt(ctx context.Context, stream string, _, to lease.Owner) (found lease.Found, err error) {
	key := statekey.Join(stream)
	if o.isRunning(key, to) {
		return 0, errors.New("outbox: function of an earlier epoch is still running")
	}
	_, err = store.Modify(ctx, o.db, o.path("sender", key), 2*o.life, func(old store.Entry, _ bool) ([]byte, error) {
		rec, err := decode(old)
		isAlive := false
		if err == nil && rec.Owner != "" {
			isAlive, err = o.lease.Alive(ctx, rec.Owner)
		}
		switch {
		case err != nil:
			return nil, err
		case rec.Owner == "":
			found = lease.Absent // a creation may still land
		case rec.Owner == to && !o.isServed(key, to):
			found = lease.Taken
		case isAlive:
			found = lease.Held
		case rec.Own:
			found = lease.Absent // the end of Own may still land
		default:
			found = lease.Taken
			rec.take(stream, to)
			return rec.encode(), nil
		}
		return nil, store.ErrUnchanged
	})
	if err == nil && found == lease.Taken {
		o.serve(key, stream, to, ctx, 1)
	}
	return found, err
}

// receive handles the message of another instance: an item was put, or the stream is requested.
func (o *Outbox) receive(data []byte) {
	key, isYielding := strings.CutSuffix(string(data), yieldMark)
	owner, epoch := o.epoch()
	s := o.serve(key, "", owner, epoch, 0)
	if s == nil || !isYielding {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	s.isYielding = true
	o.wakeLocked(s)
}

// startWork writes an index entry of owner.
func (o *Outbox) startWork(ctx context.Context, stream string, owner lease.Owner) error {
	current, err := o.lease.Start(ctx, workKind(stream), stream)
	if err == nil && current != owner {
		err = errors.Join(lease.ErrLost, o.lease.Finish(ctx, current, workKind(stream), stream))
	}
	return err
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

// path returns a key or stream of the store; part comes from statekey.Join.
func (o *Outbox) path(name, part string) string { return o.opts.Prefix + "outbox/" + name + "/" + part }

func kindOf(stream string) string {
	kind, _, _ := strings.Cut(stream, "/")
	return kind
}

// workKind returns the kind of the index entry of a stream. Each kind of stream has one, since an
// instance adopts only what it has a function for.
func workKind(stream string) string { return "outbox:" + kindOf(stream) }

func wrap(op, stream string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("outbox: %s %q: %w", op, stream, err)
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
