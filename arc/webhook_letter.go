// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/store"
)

// DeadLetters iterates over the notifications that were given up, of all processes that share the
// store. An error comes once and last.
func (s *Server) DeadLetters(ctx context.Context) iter.Seq2[DeadLetter, error] {
	return func(yield func(DeadLetter, error) bool) {
		for l, err := range s.outbox.box.Dead(ctx) {
			if err != nil {
				yield(DeadLetter{}, fmt.Errorf("arc: dead letters: %w", err))
				return
			}
			d, err := decodeDelivery(l.Data)
			if err != nil || d.isEnd {
				continue // logged when it was given up
			}
			d.letterID = letterID(l.Stream, l.Seq)
			if !yield(d.letter(d.madeAttempts(l.Attempt, l.Reason), errors.New(cmp.Or(l.Last, l.Reason))), nil) {
				return
			}
		}
	}
}

// Redeliver queues a dead letter again, with all attempts. It returns [store.ErrNotFound] if the
// letter is absent.
func (s *Server) Redeliver(ctx context.Context, id string) error {
	stream, seq, err := parseLetterID(id)
	if err == nil {
		err = s.outbox.box.Redeliver(ctx, stream, seq)
	}
	if err != nil {
		return fmt.Errorf("arc: redeliver: %w", err)
	}
	return nil
}

// Discard removes a dead letter. It returns [store.ErrNotFound] for an id of another form.
func (s *Server) Discard(ctx context.Context, id string) error {
	stream, seq, err := parseLetterID(id)
	if err == nil {
		err = s.outbox.box.Drop(ctx, stream, seq)
	}
	if err != nil {
		return fmt.Errorf("arc: discard: %w", err)
	}
	return nil
}

func letterID(stream string, seq uint64) string { return stream + "#" + strconv.FormatUint(seq, 10) }

func parseLetterID(id string) (stream string, seq uint64, err error) {
	i := strings.LastIndexByte(id, '#')
	if i >= 0 {
		seq, err = strconv.ParseUint(id[i+1:], 10, 64)
	}
	if i < 0 || err != nil || !strings.HasPrefix(id, webhookKind) {
		return "", 0, fmt.Errorf("no dead letter %q: %w", id, store.ErrNotFound)
	}
	return id[:i], seq, nil
}

// encode returns the record of a delivery: the request of ARC-D42, preceded by the values of the
// headers.
func (d *delivery) encode(n *Notification) ([]byte, error) {
	w := writer{b: make([]byte, 0, 768)}
	w.open()
	w.text("sub", d.SubscriptionID)
	w.optText("task", d.taskID)
	if d.isEnd {
		w.flag("end", true)
		w.close()
		return w.b, w.err
	}
	if d.isStatic {
		w.flag("static", true)
	}
	id := NewID()
	text, _ := strictjson.Value(id).Text()
	d.ID = text
	w.text("url", d.URL)
	w.text("target", d.Target)
	w.text("id", text)
	w.text("event", string(d.Event))
	w.text("agent", d.Agent)
	w.optText("traceId", d.TraceID)
	w.key("body")
	start := len(w.b)
	w.open()
	w.text("arc", ProtocolVersion)
	w.key("id")
	w.b = append(w.b, id...)
	w.text("method", MethodTaskNotification)
	w.text("requestAgent", d.Agent)
	w.text("targetAgent", d.Target)
	w.optText("traceId", d.TraceID)
	w.key("params")
	w.object("params", n)
	w.close()
	d.Body = w.b[start:len(w.b):len(w.b)]
	w.close()
	return w.b, w.err
}

func decodeDelivery(record []byte) (*delivery, error) {
	r, err := readStored(record)
	if err != nil {
		return nil, err
	}
	d := &delivery{ID: r.text("id"), SubscriptionID: r.text("sub"), taskID: r.text("task"), isStatic: r.flag("static"),
		isEnd: r.flag("end"), URL: r.text("url"), Event: Event(r.text("event")), Agent: r.text("agent"),
		Target: r.text("target"), TraceID: r.text("traceId"), Body: r.v.Get("body")}
	attempts, _ := r.v.Get("attempts").Int()
	age, _ := r.v.Get("age").Int()
	wait, _ := r.v.Get("wait").Int()
	d.attempts, d.age, d.wait = int(attempts), time.Duration(age)*time.Millisecond, time.Duration(wait)*time.Millisecond
	return d, nil
}

// letter returns a delivery as a dead letter.
func (d *delivery) letter(attempts int, err error) DeadLetter {
	return DeadLetter{ID: d.letterID, SubscriptionID: d.SubscriptionID, CallbackURL: d.URL, Event: d.Event,
		Body: d.Body, Attempts: attempts, Err: err}
}
