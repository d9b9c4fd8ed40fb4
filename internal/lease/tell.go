// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fivewire/fivewire/internal/backoff"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/statekey"
	"github.com/fivewire/fivewire/store"
)

const (
	maxData    = 1 << 10
	maxTopic   = 255
	maxInbox   = 1024
	messageTTL = time.Hour
	releases   = "" // topic of released leases
)

type message struct {
	topic string
	data  []byte
}

// Tell sends at most 1 KiB of data to the function that an owner registered for
// the topic. The messages of one caller arrive in order, while the owner's epoch
// lives. An error means that the message was not accepted; after
// [store.ErrUnknown] it may still arrive. A message to the own epoch stays in the
// process, where at most 1,024 wait.
func (l *Lease) Tell(ctx context.Context, to Owner, topic string, data []byte) error {
	switch {
	case topic == releases || len(topic) > maxTopic || len(data) > maxData:
		return fmt.Errorf("lease: tell: topic of %d bytes and data of %d, want 1 to %d and at most %d: %w",
			len(topic), len(data), maxTopic, maxData, store.ErrInvalid)
	case l.base.Err() != nil:
		return context.Cause(l.base)
	case to == l.Owner():
		select {
		case l.inbox <- message{topic, append([]byte(nil), data...)}:
			return nil
		default:
			return fmt.Errorf("lease: tell: %d messages in the queue", maxInbox)
		}
	case l.opts.Private:
		return fmt.Errorf("lease: tell %s: %w", to, ErrLost)
	}
	return l.send(ctx, to, message{topic, data})
}

// send appends a message to the stream of an owner.
func (l *Lease) send(ctx context.Context, to Owner, m message) error {
	id := randid.New("")
	value := statekey.Value(string([]byte{byte(len(m.topic))}) + m.topic + string(m.data))
	err := store.Persist(ctx, func(ctx context.Context) error {
		_, err := l.db.Append(ctx, l.key("tell", string(to)), id, value, messageTTL)
		return err
	})
	if err != nil && !errors.Is(err, store.ErrDuplicate) {
		return fmt.Errorf("lease: tell %s: %w", to, err)
	}
	return nil
}

// Listen registers the function of a topic. All functions are called one after
// the other in one goroutine, so none of them may block. A message for a topic
// without a function is dropped.
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
			if f == nil {
				continue
			}
			err := guard.Call("topic "+m.topic, func() error {
				f(m.data)
				return nil
			})
			if err != nil {
				l.opts.Logger.ErrorContext(l.base, "lease: message failed", "topic", m.topic, "err", err)
			}
		}
	}
}

// receive reads the stream of an epoch while that lives. It is the only Wait of
// the process.
func (l *Lease) receive(e *epoch) {
	stream := l.key("tell", string(e.owner))
	delays := backoff.Backoff{Base: 100 * time.Millisecond, Max: l.opts.TTL / 10, Jitter: 0.5}
	var after uint64
	failures := 0
	for e.ctx.Err() == nil {
		err := l.db.Wait(e.ctx, stream, after)
		var records []store.Record
		if err == nil {
			records, err = l.db.Read(e.ctx, stream, after, 0)
		}
		for _, rec := range records {
			after = rec.Seq
			l.pass(e.ctx, rec.Value)
			_ = l.db.Ack(e.ctx, stream, rec.Seq) // what is left expires
		}
		failures++
		if err == nil {
			failures = 0
		}
		if failures == 1 && e.ctx.Err() == nil {
			l.opts.Logger.WarnContext(e.ctx, "lease: messages not read", "instance", l.name, "err", err)
		}
		if failures > 0 {
			_ = delays.Wait(e.ctx, failures)
		}
	}
}

// pass puts a stored message into the inbox.
func (l *Lease) pass(ctx context.Context, value []byte) {
	data, err := statekey.Data(value)
	n := 0
	if len(data) > 0 {
		n = 1 + int(data[0])
	}
	switch {
	case n == 0 || n > len(data):
		l.opts.Logger.WarnContext(ctx, "lease: message skipped", "instance", l.name, "err", err)
	case n == 1:
		l.signal()
	default:
		select {
		case l.inbox <- message{string(data[1:n]), data[n:]}:
		case <-ctx.Done():
		}
	}
}
