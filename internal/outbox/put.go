// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package outbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/statekey"
	"github.com/fivewire/fivewire/store"
)

// errNoSender ends a change that has to create a record: its index entry comes first.
var errNoSender = errors.New("outbox: no sender")

// A record is the sender of a stream. An empty value is that of a sender that has ended; it keeps
// a creation in doubt from landing later.
type record struct {
	Stream string
	Owner  lease.Owner
	Own    bool  // by Own
	Free   bool  // no attempt runs, and another instance may call Own
	Busy   bool  // the sender will find what is put without a message
	Slack  int64 // items that a failed owner may have ended in addition
	Saved  time.Time
	counts
	head
}

// The counts of a stream, or a change of them.
type counts struct {
	Puts  int64 // items put
	Sent  int64 // items ended, as stored by the sender
	Bytes int64 // of the items between
}

func (c *counts) add(d counts) {
	c.Puts, c.Sent, c.Bytes = c.Puts+d.Puts, c.Sent+d.Sent, c.Bytes+d.Bytes
}

// settle adapts the counts to an empty queue and returns how many items are missing.
func (r *record) settle() (lost int64) {
	if missing := r.Puts - r.Sent; missing > r.Slack {
		lost = missing
	}
	r.Sent, r.Bytes, r.Slack = max(r.Sent, r.Puts), 0, 0
	return lost
}

// A head is the state of the first item.
type head struct {
	Seq     uint64
	Attempt int
	Delay   time.Duration
	Next    time.Time
	Last    string // error
}

// take changes the owner. Of an owner that was active in the last day no item has expired, so
// items that are missing were sent.
func (r *record) take(stream string, owner lease.Owner) {
	if r.Owner != "" && !r.Free && time.Since(r.Saved) < spare {
		r.Slack += maxUnsaved
	}
	r.Stream, r.Owner, r.Own, r.Free, r.Saved = stream, owner, false, false, time.Now()
}

func (r *record) encode() []byte {
	b, _ := json.Marshal(r) // cannot fail
	return b
}

func decode(e store.Entry) (r record, err error) {
	if len(e.Value) > 0 {
		err = json.Unmarshal(e.Value, &r)
	}
	return r, err
}

// A header precedes the data of an item and of a dead letter.
type header struct {
	ID      string
	Reason  string    `json:",omitempty"`
	Last    string    `json:",omitempty"`
	Attempt int       `json:",omitempty"`
	First   time.Time `json:",omitzero"`
}

// encode returns a stored value: the format, the header as a line of JSON, and the data.
func (h header) encode(data []byte) []byte {
	line, _ := json.Marshal(h) // cannot fail
	return append(append(statekey.Value(string(line)), '\n'), data...)
}

func decodeItem(value []byte) (h header, data []byte, err error) {
	value, err = statekey.Data(value)
	if err == nil {
		line, rest, _ := bytes.Cut(value, []byte{'\n'})
		data, err = rest, json.Unmarshal(line, &h)
	}
	return h, data, err
}

func size(value []byte) int64 { return int64(len(value)) + 64 }

// Put adds an item to a stream. Another Put with the same id has no further effect while the id
// is known. An empty id is always new. After nil the item ends sent or as a dead letter, also
// after a crash of any instance. Over a bound of the stream the error is a *[budget.Error]. After
// another error the item may be sent; to find out, repeat Put with the same id.
func (o *Outbox) Put(ctx context.Context, stream, id string, item []byte) error {
	logID := "=" + id
	if id == "" {
		logID = randid.New("+")
	}
	return wrap("put", stream, o.put(ctx, stream, logID, header{ID: id}.encode(item)))
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
		_, err := store.Modify(ctx, o.db, o.path("sender", p.key), 2*o.life, func(old store.Entry, _ bool) ([]byte, error) {
			return p.touch(ctx, old)
		})
		switch {
		case errors.Is(err, errNoSender):
			p.owner, err = o.lease.Start(ctx, workKind(stream), stream)
			if err != nil {
				return err
			}
		case errors.Is(err, store.ErrUnknown) && ctx.Err() == nil && !errors.Is(err, store.ErrClosed):
			p.isCounted = true // the other changes since may hide its own
		default:
			return p.finish(ctx, err)
		}
	}
}

// A put is one call of Put.
type put struct {
	*Outbox
	stream, key string
	id          string // in the log
	value       []byte
	isAppended  bool
	isCounted   bool
	owner       lease.Owner // of Start
	rec         record      // as written
}

// putLocal puts an item for a sender in the only instance of the store, which needs no change of
// the record. It reports false if there is no such sender.
func (p *put) putLocal(ctx context.Context) (isDone bool, err error) {
	var rec record
	p.mu.Lock()
	s := p.senders[p.key]
	isLocal := p.opts.Private && s != nil && s.isOpen
	if isLocal {
		rec = s.rec
		rec.add(s.unsaved)
	}
	p.mu.Unlock()
	if !isLocal {
		return false, nil
	}
	err = p.append(ctx, &rec)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil || p.senders[p.key] != s || !s.isOpen {
		return false, err
	}
	if !p.isCounted {
		s.unsaved.Puts++
		s.unsaved.Bytes += size(p.value)
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

// touch appends the item and returns the changed record. Its revision shows the sender that the
// queue may not be empty.
func (p *put) touch(ctx context.Context, old store.Entry) ([]byte, error) {
	rec, err := decode(old)
	if err == nil {
		err = p.append(ctx, &rec)
	}
	if err == nil && rec.Owner == "" && p.owner == "" {
		err = errNoSender
	}
	if err != nil {
		return nil, err
	}
	if rec.Owner == "" {
		rec = record{}
		rec.take(p.stream, p.owner)
	}
	if !p.isCounted {
		rec.Puts++
		rec.Bytes += size(p.value)
	}
	p.rec = rec
	return rec.encode(), nil
}

// finish wakes the sender after the change of its record.
func (p *put) finish(ctx context.Context, err error) error {
	owner, epoch := p.epoch()
	isHere := err == nil && p.rec.Owner == owner
	if isHere && p.owner != owner && !p.rec.Own && !p.isServed(p.key, owner) { // its creation was in doubt
		p.owner, err = owner, p.startWork(ctx, p.stream, owner)
		if err != nil {
			return err
		}
	}
	switch {
	case p.owner == owner && (isHere || errors.Is(err, store.ErrUnknown)):
		p.serve(p.key, p.stream, owner, epoch, 1)
	case p.owner != "":
		err = errors.Join(err, p.lease.Finish(context.WithoutCancel(ctx), p.owner, workKind(p.stream), p.stream))
	case isHere:
		p.serve(p.key, p.stream, owner, epoch, 0)
	}
	if err == nil && !isHere && !p.rec.Busy {
		err = p.lease.Tell(ctx, p.rec.Owner, topic, []byte(p.key))
	}
	return err
}
