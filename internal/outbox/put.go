// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/state"
	"github.com/fivewire/fivewire/store"
)

// A record is the sender of a stream. Without an owner it has ended and stays for a while, so that
// no creation in doubt lands later.
type record struct {
	Owner lease.Owner
	Mode  mode   `json:",omitempty"`
	Busy  bool   `json:",omitempty"` // the sender finds what is put without a message
	Puts  int64  // items put, as far as their Put changed the record
	Sent  int64  // items that left the queue
	Bytes int64  // of the items between
	Seq   uint64 // position of the last item that left the queue
	head
}

// A head is the state of the first item in the queue.
type head struct {
	Attempt int           `json:",omitempty"`
	Delay   time.Duration `json:",omitempty"`
	Next    time.Time     `json:",omitzero"`
	Last    string        `json:",omitempty"` // error; that of the stream in modeGone
}

// A mode is the condition for the end of a sender.
type mode string

const (
	modeLinger  mode = ""       // the queue was empty for a while
	modeOwned   mode = "owned"  // none
	modeClosing mode = "closed" // the queue is empty
	modeGone    mode = "gone"   // likewise; all items become dead letters
)

// pop counts the first item as sent. A Put that has not yet counted it will not count it.
func (r *record) pop(item store.Record, isBusy bool) {
	r.Seq, r.Sent, r.Busy = item.Seq, r.Sent+1, isBusy
	r.Puts, r.Bytes = max(r.Puts, r.Sent), max(0, r.Bytes-size(item.Value))
	if r.Mode == modeGone {
		r.head = head{Last: r.Last}
	} else {
		r.head = head{}
	}
}

type changeFunc = func(rec *record, rev store.Revision) error

// edit changes the record of a stream by compare-and-set. A ttl of 2 life outlives the items, so
// that their loss is noticed.
func (o *Outbox) edit(ctx context.Context, stream string, ttl time.Duration, change changeFunc) (
	rec record, rev store.Revision, err error) {
	if stream == "" || len(stream) > maxStream {
		return rec, 0, fmt.Errorf("name of %d bytes, want 1 to %d: %w", len(stream), maxStream, store.ErrInvalid)
	}
	key := o.path("sender", stream)
	e, err := store.Modify(ctx, o.db, key, ttl, func(old store.Entry, found bool) (value []byte, err error) {
		rec = record{}
		if found {
			err = json.Unmarshal(old.Value, &rec)
		}
		if err == nil {
			err = change(&rec, old.Revision)
		}
		if err != nil {
			return nil, err
		}
		return json.Marshal(rec)
	})
	return rec, e.Revision, err
}

// size returns the bytes counted for a stored value.
func size(value []byte) int64 { return int64(len(value)) + 64 }

// Put adds an item to a stream. While the id is remembered, another Put with it has no further
// effect; an empty id is always new. After nil the item is sent or becomes a dead letter, also
// after a failure of any instance. Over a bound of the stream, the error is a *[budget.Error].
// After another error the item may be sent; to find out, repeat Put with the id.
func (o *Outbox) Put(ctx context.Context, stream, id string, item []byte) error {
	logID := "=" + id
	if id == "" {
		logID = randid.New("+")
	}
	return wrap("put", stream, o.put(ctx, stream, logID, state.EncodeWith(Item{ID: id}, item)))
}

// Waiting returns the number and the bytes of the items in a stream. It does not count a Put in
// progress.
func (o *Outbox) Waiting(ctx context.Context, stream string) (items, bytes int64, err error) {
	rec, err := o.read(ctx, stream)
	return rec.Puts - rec.Sent, rec.Bytes, wrap("count", stream, err)
}

// Has reports whether a stream has an item that has not left the queue. In contrast to Waiting it is exact after each
// Put that returned nil, repeated or not.
func (o *Outbox) Has(ctx context.Context, stream string) (bool, error) {
	rec, err := o.read(ctx, stream)
	if err != nil {
		return false, wrap("read", stream, err)
	}
	items, err := o.db.Read(ctx, o.path("items", stream), rec.Seq, 1)
	return len(items) > 0, wrap("read", stream, err)
}

// read returns the record of a stream, the zero record if there is none.
func (o *Outbox) read(ctx context.Context, stream string) (rec record, err error) {
	e, err := o.db.Get(ctx, o.path("sender", stream))
	if errors.Is(err, store.ErrNotFound) {
		return rec, nil
	}
	if err == nil {
		e, err = store.Content(e)
	}
	if err == nil {
		err = json.Unmarshal(e.Value, &rec)
	}
	return rec, err
}

// A put is one call of Put.
type put struct {
	*Outbox
	stream, id string // the id in the log
	value      []byte
	seq        uint64 // zero before the append
	isCounted  bool
	owner      lease.Owner // of an index entry by this call
	isOver     bool        // the item has left the queue
}

func (o *Outbox) put(ctx context.Context, stream, logID string, value []byte) error {
	o.mu.Lock()
	isClosed := o.isClosed
	o.mu.Unlock()
	if isClosed {
		return ErrClosed
	}
	p := &put{Outbox: o, stream: stream, id: logID, value: value}
	touch := func(rec *record, _ store.Revision) error { return p.touch(ctx, rec) }
	for {
		rec, _, err := o.edit(ctx, stream, 2*o.life, touch)
		if !errors.Is(err, store.ErrUnknown) || errors.Is(err, store.ErrClosed) || ctx.Err() != nil {
			return p.finish(ctx, rec, err)
		}
		p.isCounted = true // other changes since may hide its own
	}
}

// touch appends the item and then changes the record. The new revision shows the sender that the
// queue may not be empty.
func (p *put) touch(ctx context.Context, rec *record) (err error) {
	if p.seq == 0 {
		err = p.append(ctx, rec)
	}
	p.isOver = err == nil && p.seq <= rec.Seq
	if p.isOver {
		return store.ErrUnchanged
	}
	if err == nil && rec.Owner == "" && p.owner == "" {
		p.owner, err = p.lease.Start(ctx, workKind(p.stream), p.stream)
	}
	if err != nil {
		return err
	}
	if rec.Owner == "" {
		rec.Owner = p.owner
	}
	if !p.isCounted {
		rec.Puts++
		rec.Bytes += size(p.value)
	}
	return nil
}

// append appends the item once, unless a bound is reached.
func (p *put) append(ctx context.Context, rec *record) error {
	e := &budget.Error{Resource: budget.Items, Scope: "stream", Limit: p.opts.MaxItems, Used: rec.Puts - rec.Sent}
	e.RetryAfter = min(max(rec.Delay, time.Second), time.Minute)
	if e.Used >= e.Limit {
		return e
	}
	e.Resource, e.Limit, e.Used = budget.Storage, p.opts.MaxBytes, rec.Bytes
	if e.Used > e.Limit-size(p.value) {
		return e
	}
	seq, isFirst, err := state.Append(ctx, p.db, p.path("items", p.stream), p.id, p.value, p.life)
	p.seq, p.isCounted = seq, !isFirst
	return err
}

// finish wakes the sender after the change of its record.
func (p *put) finish(ctx context.Context, rec record, err error) error {
	owner, epoch := p.epoch()
	isHere := !p.isOver && rec.Owner == owner && (err == nil || errors.Is(err, store.ErrUnknown))
	switch {
	case isHere && p.owner == owner:
		p.serve(p.stream, owner, epoch, 1) // which ends the entry
	case isHere:
		p.serve(p.stream, owner, epoch, 0)
	case p.owner != "":
		_ = p.lease.Finish(context.WithoutCancel(ctx), p.owner, workKind(p.stream), p.stream) // or it is repeated
	}
	if err == nil && !isHere && !p.isOver && !rec.Busy {
		err = p.lease.Tell(ctx, rec.Owner, topic, []byte("/"+p.stream))
	}
	return err
}
