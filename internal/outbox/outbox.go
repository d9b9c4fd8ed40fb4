// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package outbox keeps durable queues. Any instance puts items into a stream. One instance at a
// time, the sender of the stream, passes them in strict order to a function.
//
// The record of a stream names its sender and the position of the last item that left the queue.
// Put appends an item and then creates or changes the record; only then it returns. A sender ends
// its record with the revision that it held before it found the queue empty, so it ends only if
// no item was put since. The index of package lease leads survivors to the records of failed
// owners.
package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/state"
	"github.com/fivewire/fivewire/store"
)

// ErrClosed reports use after Shutdown.
var ErrClosed = errors.New("outbox: closed")

var errRunning = errors.New("outbox: function of an earlier epoch is still running")

const (
	maxStream  = 512            // bytes of a name
	maxText    = 1 << 10        // bytes of a stored error or reason
	spare      = 24 * time.Hour // that an item outlives MaxAge
	reasonGone = "stream closed"
	topic      = "outbox" // of messages: the owner that requests a stream or nothing, a slash, the stream
)

// Options configure an Outbox. Zero is the default.
type Options struct {
	Prefix string       // of keys and streams, for example "arc/": that of the lease
	Logger *slog.Logger // nil means slog.Default()

	// MaxAge bounds how long an item waits: if an attempt fails later, the item becomes a dead
	// letter. Ids are remembered for MaxAge and a day. Zero means 30 days; a negative value means
	// 100 years.
	MaxAge time.Duration

	// MaxItems and MaxBytes bound the items that wait in a stream, and its dead letters. An item
	// counts its length, its id and about 80 bytes. Concurrent calls of Put may exceed a bound by
	// an item each. Zero means 10,000 and 64 MiB; a negative value removes the bound.
	MaxItems, MaxBytes int64

	// MaxLetters bounds the dead letters of a stream as well. Zero means MaxItems.
	MaxLetters int64
}

// An Item is passed to the function of Send. Data must not be changed.
type Item struct {
	Stream  string    `json:",omitempty"`
	ID      string    // as given to Put
	Seq     uint64    `json:",omitempty"` // position in the stream
	Attempt int       `json:",omitempty"` // 1 or more; a restart continues the count
	Data    []byte    `json:"-"`
	First   time.Time `json:",omitzero"` // of Put, by the clock of the store; at most the time of the attempt
}

// A Verdict is the outcome of an attempt. The zero Verdict is Retry after a second.
type Verdict struct {
	kind   verdictKind
	after  time.Duration
	reason string
	last   string // error
}

type verdictKind uint8

const (
	verdictRetry verdictKind = iota
	verdictDone
	verdictLater
	verdictDead
	verdictGone
)

// Done means that the item was sent.
func Done() Verdict { return Verdict{kind: verdictDone} }

// Retry means that the attempt failed with err and is repeated after a delay, by default 1 s.
// Attempts and delay are stored.
func Retry(after time.Duration, err error) Verdict {
	return Verdict{verdictRetry, after, "", textOf(err)}
}

// Later means that no attempt was made because of err, for example an open circuit breaker. The
// function is called again after a delay, by default 1 s.
func Later(after time.Duration, err error) Verdict {
	return Verdict{verdictLater, after, "", textOf(err)}
}

// Dead means that the item becomes a dead letter. A nil err keeps that of the last Retry.
func Dead(reason string, err error) Verdict {
	return Verdict{verdictDead, 0, reason[:min(len(reason), maxText)], textOf(err)}
}

// Gone means that the receiver of the stream has ended: all items in the queue become dead
// letters, and the sender ends.
func Gone(err error) Verdict { return Verdict{verdictGone, 0, reasonGone, textOf(err)} }

type sendFunc = func(ctx context.Context, item Item) Verdict

// An Outbox sends items for one instance. All methods are safe for concurrent use. Streams have
// names of 1 to 512 bytes; the part before the first slash is their kind.
type Outbox struct {
	db    store.Store
	lease *lease.Lease
	opts  Options
	life  time.Duration // of items and their ids
	base  context.Context
	stop  context.CancelFunc
	wg    sync.WaitGroup // of turns

	mu       sync.Mutex // guards all below
	funcs    map[string]sendFunc
	senders  map[string]*sender // by stream; those with work here
	due      []*sender
	running  int
	isClosed bool
}

// New returns the Outbox of an instance. A lease has one Outbox.
func New(db store.Store, l *lease.Lease, o Options) *Outbox {
	o.MaxAge = option.Or(o.MaxAge, 30*24*time.Hour, 100*365*24*time.Hour)
	o.MaxItems, o.MaxBytes = option.Bytes(o.MaxItems, 10_000), option.Bytes(o.MaxBytes, 64<<20)
	o.MaxLetters = option.Bytes(o.MaxLetters, o.MaxItems)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	b := &Outbox{db: state.Guard(db), lease: l, opts: o, life: o.MaxAge + spare,
		funcs: map[string]sendFunc{}, senders: map[string]*sender{}}
	b.base, b.stop = context.WithCancel(context.Background())
	l.Listen(topic, b.receive)
	return b
}

// Send registers the function for the streams of a kind. An instance that puts items registers
// their kind, since it may become their sender; until then they wait. For one stream f is not
// called twice at once, unless an instance that has lost its lease is still in its last attempt.
// The context ends when f must return. A panic of f makes the item a dead letter.
func (o *Outbox) Send(kind string, f func(ctx context.Context, item Item) Verdict) {
	o.mu.Lock()
	o.funcs[kind] = f
	for _, stream := range slices.Sorted(maps.Keys(o.senders)) {
		o.signalLocked(o.senders[stream])
	}
	o.mu.Unlock()
	o.lease.Adopt(workKind(kind), func(epoch context.Context, stream string, _, to lease.Owner) (lease.Found, error) {
		found, _, err := o.acquire(epoch, stream, to, false)
		if err == nil && found == lease.Taken {
			o.serve(stream, to, epoch, 1)
		}
		return found, err
	})
}

// Shutdown ends all sending after the attempts in progress. If ctx ends first, Shutdown cuts them
// and returns its error. Items and records stay in the store for other instances.
func (o *Outbox) Shutdown(ctx context.Context) error {
	defer o.stop()
	o.mu.Lock()
	o.isClosed = true
	for _, s := range o.senders {
		o.removeLocked(s)
	}
	o.mu.Unlock()
	done := make(chan struct{})
	go func() {
		o.wg.Wait()
		close(done)
	}()
	return await(ctx, done)
}

// Own makes the instance the sender of a stream, ahead of any item and until Close or the end of
// the epoch of the lease. The latest Own wins: an earlier sender ends after its attempt. The
// record has no index entry, since the object that receives the items has one: an instance that
// adopts the object calls Own.
func (o *Outbox) Own(ctx context.Context, stream string) error {
	for delay := 25 * time.Millisecond; ; delay = min(2*delay, time.Second) {
		owner, epoch := o.epoch()
		found, holder, err := o.acquire(ctx, stream, owner, true)
		switch {
		case errors.Is(err, errRunning):
			err = nil
		case err == nil && found == lease.Held:
			err = o.lease.Tell(ctx, holder, topic, []byte(string(owner)+"/"+stream))
		case err == nil && o.serve(stream, owner, epoch, 0) == nil:
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

// acquire makes owner the sender of a stream, by Own or after the failure of the former owner. It
// returns lease.Held with another owner that holds its lease.
func (o *Outbox) acquire(ctx context.Context, stream string, owner lease.Owner, isOwn bool) (
	found lease.Found, holder lease.Owner, err error) {
	o.mu.Lock()
	s := o.senders[stream]
	isRunning := s != nil && s.owner != owner && s.isRunning
	o.mu.Unlock()
	if isRunning {
		return lease.Held, owner, errRunning
	}
	_, _, err = o.edit(ctx, stream, 2*o.life, func(rec *record, _ store.Revision) (err error) {
		found, holder = lease.Taken, rec.Owner
		isAlive := false
		if holder != "" && holder != owner {
			isAlive, err = o.lease.Alive(ctx, holder)
		}
		switch {
		case err != nil:
			return err
		case isAlive:
			found = lease.Held
			return store.ErrUnchanged
		case isOwn:
			rec.Mode = modeOwned
		case holder == owner: // by an earlier change
			return store.ErrUnchanged
		case holder == "", rec.Mode == modeOwned:
			found = lease.Absent // a creation, or the end of Own, may still land
			return store.ErrUnchanged
		}
		rec.Owner = owner
		return nil
	})
	return found, holder, err
}

// Close ends Own: the sender ends once the queue is empty. If ctx ends first, Close returns its
// error, and the rest is still sent, by survivors too. Without a sender here Close does nothing.
func (o *Outbox) Close(ctx context.Context, stream string) error {
	o.mu.Lock()
	s := o.senders[stream]
	o.mu.Unlock()
	if s == nil {
		return nil
	}
	s, err := o.startWork(ctx, s) // for the survivors
	if err != nil {
		return wrap("close", stream, err)
	}
	_, _, err = o.edit(ctx, stream, 2*o.life, func(rec *record, _ store.Revision) error {
		if rec.Owner != s.owner || rec.Mode == modeGone {
			return store.ErrUnchanged
		}
		rec.Mode = modeClosing
		return nil
	})
	o.signal(s)
	if err == nil {
		err = await(ctx, s.done)
	}
	if err == nil && !s.isEnded {
		err = cmp.Or(context.Cause(s.epoch), ErrClosed)
	}
	return wrap("close", stream, err)
}

// startWork writes an index entry for a sender, which ends it.
func (o *Outbox) startWork(ctx context.Context, s *sender) (*sender, error) {
	owner, err := o.lease.Start(ctx, workKind(s.stream), s.stream)
	if err == nil && owner != s.owner {
		err = errors.Join(lease.ErrLost, o.lease.Finish(ctx, owner, workKind(s.stream), s.stream))
	}
	if err != nil {
		return nil, err
	}
	s = o.serve(s.stream, owner, s.epoch, 1)
	if s == nil {
		return nil, ErrClosed
	}
	return s, nil
}

// receive handles a message of another instance.
func (o *Outbox) receive(data []byte) {
	requester, stream, _ := strings.Cut(string(data), "/")
	owner, epoch := o.epoch()
	s := o.serve(stream, owner, epoch, 0)
	if s != nil && requester != "" {
		o.mu.Lock()
		defer o.mu.Unlock()
		s.requester = lease.Owner(requester)
		o.signalLocked(s)
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

// workKind returns the kind of the index entry of a stream. There is one for each kind of stream,
// since an instance adopts only streams of kinds with a function.
func workKind(stream string) string { return "outbox:" + kindOf(stream) }

func kindOf(stream string) string {
	kind, _, _ := strings.Cut(stream, "/")
	return kind
}

// path returns a key or stream of the store.
func (o *Outbox) path(name, stream string) string {
	return o.opts.Prefix + "outbox/" + name + "/" + state.Join(stream)
}

func wrap(op, stream string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("outbox: %s %q: %w", op, stream[:min(len(stream), maxStream)], err)
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	return text[:min(len(text), maxText)]
}

func await[T any](ctx context.Context, ch <-chan T) error {
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
