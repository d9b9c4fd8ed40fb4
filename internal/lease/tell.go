// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/internal/state"
	"github.com/fivewire/fivewire/store"
)

const (
	maxData    = 1 << 10
	maxTopic   = 255
	maxInbox   = 64
	messageTTL = time.Hour
	releases   = "" // topic of released leases
	idLen      = 26 // of an id before the topic
)

type message struct {
	topic string
	data  []byte
}

// Tell sends at most 1 KiB of data to the function that an owner registered for the topic. The
// messages of one caller arrive in order, while the owner's epoch lives. An error means that the
// message was not accepted; after [store.ErrUnknown] it may still arrive. A message to the own
// epoch stays in the process. While 64 messages wait there, Tell waits.
func (l *Lease) Tell(ctx context.Context, to Owner, topic string, data []byte) error {
	switch {
	case topic == releases || len(topic) > maxTopic || len(data) > maxData:
		return fmt.Errorf("lease: tell: topic of %d bytes and data of %d, want 1 to %d and at most %d: %w",
			len(topic), len(data), maxTopic, maxData, store.ErrInvalid)
	case l.base.Err() != nil:
		return context.Cause(l.base)
	case to != l.Owner():
		return l.send(ctx, to, topic, data)
	}
	return l.put(ctx, message{topic, slices.Clone(data)})
}

// put adds a message to the inbox.
func (l *Lease) put(ctx context.Context, m message) error {
	select {
	case l.inbox <- m:
		return nil
	case <-l.base.Done():
		return context.Cause(l.base)
	case <-ctx.Done():
		return fmt.Errorf("lease: tell: %w", context.Cause(ctx))
	}
}

// send appends a message to the stream of an owner.
func (l *Lease) send(ctx context.Context, to Owner, topic string, data []byte) error {
	_, _, err := state.Append(ctx, l.db, l.key("tell", string(to)), randid.New("")+topic, state.Value(string(data)), messageTTL)
	if err != nil {
		return fmt.Errorf("lease: tell %s: %w", to, err)
	}
	return nil
}

// Listen registers the function of a topic. All functions are called one after the other in
// one goroutine, so none of them may block or call Tell. A message for another topic is dropped.
func (l *Lease) Listen(topic string, f func(data []byte)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.topics[topic] = f
}

// runInbox calls the functions of Listen.
func (l *Lease) runInbox() {
	for {
		select {
		case <-l.base.Done():
			return
		case m := <-l.inbox:
			l.mu.Lock()
			f := l.topics[m.topic]
			l.mu.Unlock()
			if f != nil && l.base.Err() == nil { // select may choose the message
				l.call(l.base, "topic "+m.topic, func() { f(m.data) })
			}
		}
	}
}

// receive reads the stream of an epoch while that lives: the only Wait of the process.
func (l *Lease) receive(e *epoch) {
	stream, after := l.key("tell", string(e.owner)), uint64(0)
	for e.ctx.Err() == nil {
		var records []store.Record
		err := l.db.Wait(e.ctx, stream, after)
		if err == nil {
			records, err = l.db.Read(e.ctx, stream, after, 0)
		}
		for _, rec := range records {
			after = rec.Seq
			l.accept(e.ctx, rec)
			_ = l.db.Ack(e.ctx, stream, rec.Seq) // or it expires
		}
		if err != nil {
			_ = retry.Sleep(e.ctx, l.opts.TTL/30)
		}
	}
}

// accept puts a stored message into the inbox.
func (l *Lease) accept(ctx context.Context, rec store.Record) {
	data, err := state.Data(rec.Value)
	switch {
	case err != nil || len(rec.ID) < idLen:
		l.opts.Logger.ErrorContext(ctx, "lease: message skipped", "instance", l.name, "id", rec.ID, "err", err)
	case rec.ID[idLen:] == releases:
		l.signal()
	default:
		_ = l.put(ctx, message{rec.ID[idLen:], data}) // or the epoch has ended
	}
}
