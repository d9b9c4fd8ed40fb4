// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package outbox

import (
	"context"
	"errors"
	"time"

	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/statekey"
	"github.com/fivewire/fivewire/store"
)

// errNoSender ends a change that needs an index entry before the record.
var errNoSender = errors.New("outbox: no sender")

// Put adds an item to a stream. While the id is known, another Put with it has no further effect;
// an empty id is always new. After nil the item is sent or becomes a dead letter, also after a
// failure of any instance. Over a bound of the stream, the error is a *[budget.Error]. After
// another error the item may be sent; to find out, repeat Put with the id.
func (o *Outbox) Put(ctx context.Context, stream, id string, item []byte) error {
	logID := "=" + id
	if id == "" {
		logID = randid.New("+")
	}
	return wrap("put", stream, o.put(ctx, stream, logID, header{ID: id}.encode(item)))
}

// A put is one call of Put.
type put struct {
	*Outbox
	stream, key string
	id          string // in the log
	value       []byte
	isAppended  bool
	isCounted   bool
	owner       lease.Owner // of an index entry by this call
	rec         record      // as written
}

func (o *Outbox) put(ctx context.Context, stream, logID string, value []byte) error {
	p := &put{Outbox: o, stream: stream, key: statekey.Join(stream), id: logID, value: value}
	o.mu.Lock()
	isClosed := o.isClosed
	o.mu.Unlock()
	if isClosed {
		return ErrClosed
	}
	if isDone, err := p.putLocal(ctx); isDone || err != nil {
		return err
	}
	for {
		_, _, err := o.edit(ctx, p.key, o.recordTTL(), func(rec *record, _ store.Revision) error { return p.touch(ctx, rec) })
		switch {
		case errors.Is(err, errNoSender):
			if p.owner, err = o.lease.Start(ctx, workKind(stream), stream); err != nil {
				return err
			}
		case errors.Is(err, store.ErrUnknown) && ctx.Err() == nil && !errors.Is(err, store.ErrClosed):
			p.isCounted = true // other changes since may hide its own
		default:
			return p.finish(ctx, err)
		}
	}
}

// putLocal puts an item for a sender in the only instance of the store, without a change of the
// record. It reports false if there is no such sender.
func (p *put) putLocal(ctx context.Context) (isDone bool, err error) {
	p.mu.Lock()
	s := p.senders[p.key]
	if !p.opts.Private || s == nil || !s.isOpen {
		p.mu.Unlock()
		return false, nil
	}
	rec := s.rec
	rec.add(s.unsaved)
	p.mu.Unlock()
	err = p.append(ctx, &rec)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil || p.senders[p.key] != s || !s.isOpen {
		return false, err
	}
	if !p.isCounted {
		s.unsaved.add(counts{Puts: 1, Bytes: size(p.value)})
	}
	p.wakeLocked(s)
	return true, nil
}

// append appends the item once, unless a bound is reached.
func (p *put) append(ctx context.Context, rec *record) error {
	if p.isAppended {
		return nil
	}
	e := &budget.Error{Scope: "stream", RetryAfter: min(max(rec.Delay, time.Second), time.Minute)}
	switch {
	case rec.Puts-rec.Sent >= p.opts.MaxItems:
		e.Resource, e.Limit, e.Used = budget.Items, p.opts.MaxItems, rec.Puts-rec.Sent
		return e
	case rec.Bytes > p.opts.MaxBytes-size(p.value):
		e.Resource, e.Limit, e.Used = budget.Storage, p.opts.MaxBytes, rec.Bytes
		return e
	}
	attempts := 0
	err := store.Persist(ctx, func(ctx context.Context) error {
		attempts++
		_, err := p.db.Append(ctx, p.path("items", p.key), p.id, p.value, p.life)
		return err
	})
	if errors.Is(err, store.ErrDuplicate) {
		p.isCounted, err = attempts == 1, nil
	}
	p.isAppended = err == nil
	return err
}

// touch appends the item and then changes the record. The new revision shows the sender that the
// queue may not be empty.
func (p *put) touch(ctx context.Context, rec *record) error {
	if err := p.append(ctx, rec); err != nil {
		return err
	}
	owner := p.lease.Owner()
	p.mu.Lock()
	s := p.senders[p.key]
	isServed := s != nil && s.owner == owner && s.starts > 0
	p.mu.Unlock()
	if rec.Owner == "" && p.owner == "" || rec.Owner == owner && p.owner != owner && !rec.Own && !isServed {
		return errNoSender
	}
	if rec.Owner == "" {
		rec.take(p.stream, p.owner)
	}
	if !p.isCounted {
		rec.add(counts{Puts: 1, Bytes: size(p.value)})
	}
	p.rec = *rec
	return nil
}

// finish wakes the sender after the change of its record.
func (p *put) finish(ctx context.Context, err error) error {
	owner, epoch := p.epoch()
	starts := 0
	if p.owner == owner {
		starts = 1
	}
	switch {
	case err == nil && p.rec.Owner == owner, starts == 1 && errors.Is(err, store.ErrUnknown):
		p.serve(p.key, p.stream, owner, epoch, starts)
	case p.owner != "":
		_ = p.lease.Finish(context.WithoutCancel(ctx), p.owner, workKind(p.stream), p.stream) // or it is repeated
	}
	if err == nil && p.rec.Owner != owner && !p.rec.Busy {
		err = p.lease.Tell(ctx, p.rec.Owner, topic, []byte(p.key))
	}
	return err
}
