// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/backoff"
	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/store"
)

// A StaticWebhook follows all tasks of a server (ARC-D41).
type StaticWebhook struct {
	ID          string // unique among those of the server; names it in X-ARC-Subscription
	CallbackURL string
	TargetAgent string  // recipient of the notifications
	Events      []Event // empty means all
}

// A subscription is who follows a task, and where the notifications go.
type subscription struct {
	Subscription
	agent    string // the processor
	target   string // the subscriber's requestAgent
	traceID  string
	static   bool // belongs to the server's configuration, not to one task
	instance string
}

func (sub *subscription) encode() ([]byte, error) {
	return encode(func(w *writer) {
		w.open()
		w.text("subscriptionId", sub.ID)
		w.text("taskId", sub.TaskID)
		w.text("callbackUrl", sub.CallbackURL)
		w.key("events")
		w.events(sub.Events)
		w.text("createdAt", string(sub.CreatedAt))
		w.flag("active", sub.Active)
		w.text("agent", sub.agent)
		w.text("target", sub.target)
		w.optText("traceId", sub.traceID)
		w.optText("instance", sub.instance)
		w.close()
	})
}

func decodeSubscription(b []byte) (*subscription, error) {
	r, err := readStored(b)
	if err != nil {
		return nil, err
	}
	sub := &subscription{agent: r.text("agent"), target: r.text("target"), traceID: r.text("traceId"), instance: r.text("instance")}
	sub.ID, sub.TaskID, sub.CallbackURL = r.text("subscriptionId"), r.text("taskId"), r.text("callbackUrl")
	sub.CreatedAt, sub.Active = Timestamp(r.text("createdAt")), r.flag("active")
	for ev := r.v.Get("events").Elements(); ev.Next(); {
		s, _ := ev.Value.Text()
		sub.Events = append(sub.Events, Event(s))
	}
	return sub, nil
}

// An outbox stores and sends notifications: a stream of the store for each
// subscription, with the bodies in order, and a goroutine for each subscription
// with pending items.
type outbox struct {
	s    *Server
	db   store.Store
	send webhookDeliverer

	mu      sync.Mutex
	senders map[string]*sender // by subscription; guarded by mu
}

// A sender is the goroutine of one subscription.
type sender struct {
	sub      *subscription
	hasNew   bool // items were added since the last read of the sender
	finished bool // no more items: the task has ended
	waiting  int  // about how much the stream holds
}

// maxOutbox bounds the pending items of one subscription. Beyond it messages and
// artifacts are dropped; changes of state are not.
const maxOutbox = 10_000

func newOutbox(s *Server) *outbox {
	var w WebhookOptions
	if s.opts.Webhook != nil {
		w = *s.opts.Webhook
	}
	w.logger = s.opts.Logger
	return &outbox{s: s, db: s.opts.Persistence.Store, send: newWebhookSender(&w), senders: map[string]*sender{}}
}

// put keeps a notification to be sent. The number of the event makes a second
// put of the same one have no effect.
func (o *outbox) put(ctx context.Context, sub *subscription, number uint64, n *Notification) error {
	if !o.hasSpace(sub, n.Event) {
		return errors.New("arc: too many notifications wait")
	}
	dedup := fmt.Sprintf("%d", number)
	if sub.static {
		dedup = n.TaskID + "/" + dedup // the stream is shared by all tasks
	}
	record, err := encodeDelivery(sub, n)
	if err != nil {
		return err
	}
	_, err = o.db.Append(ctx, outStream(sub.ID), dedup, record, o.s.opts.Persistence.SubscriptionRetention)
	if errors.Is(err, store.ErrDuplicate) {
		return nil
	}
	if err == nil {
		o.signal(sub, func(sn *sender) { sn.waiting++ })
	}
	return err
}

func (o *outbox) hasSpace(sub *subscription, ev Event) bool {
	if ev != EventNewMessage && ev != EventNewArtifact {
		return true
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	sn := o.senders[sub.ID]
	return sn == nil || sn.waiting < maxOutbox
}

// encodeDelivery returns the record of the stream: the request of ARC-D42, preceded
// by the values of the headers.
func encodeDelivery(sub *subscription, n *Notification) ([]byte, error) {
	id := NewID()
	text, _ := strictjson.Value(id).Text()
	w := writer{b: make([]byte, 0, 768)}
	w.open()
	w.text("id", text)
	w.text("event", string(n.Event))
	w.text("agent", sub.agent)
	w.optText("traceId", sub.traceID)
	w.key("body")
	w.open()
	w.text("arc", ProtocolVersion)
	w.key("id")
	w.b = append(w.b, id...)
	w.text("method", MethodTaskNotification)
	w.text("requestAgent", sub.agent)
	w.text("targetAgent", sub.target)
	w.optText("traceId", sub.traceID)
	w.key("params")
	n.write(&w)
	w.close()
	w.close()
	return w.b, w.err
}

func (sub *subscription) wants(ev Event) bool { return slices.Contains(sub.Events, ev) }

// finish says that nothing more will be put for a subscription: it ends when all
// is sent (e.4).
func (o *outbox) finish(sub *subscription) {
	if !sub.static {
		o.signal(sub, func(sn *sender) { sn.finished = true })
	}
}

// wake starts the sender of a subscription, or makes it look again.
func (o *outbox) signal(sub *subscription, tell func(*sender)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	sn := o.senders[sub.ID]
	if sn == nil {
		if !o.s.begin(partOf) {
			return // cut off: Recover of the next server sends it
		}
		sn = &sender{sub: sub}
		o.senders[sub.ID] = sn
		go o.run(sn)
	}
	sn.hasNew = true
	tell(sn)
}

// run sends the pending items in order and ends when the stream is empty. While the
// store fails it retries until the server is shut down, because no other goroutine
// sends these items.
func (o *outbox) run(sn *sender) {
	defer o.s.end(partOf)
	ctx := o.s.ctx
	wait, failures := backoff.Backoff{Base: time.Second, Max: time.Minute, Jitter: 0.2}, 0
	for {
		o.mu.Lock()
		if !sn.hasNew || ctx.Err() != nil {
			delete(o.senders, sn.sub.ID)
			finished := sn.finished && ctx.Err() == nil
			o.mu.Unlock()
			if finished {
				o.deactivate(ctx, sn.sub)
			}
			return
		}
		sn.hasNew = false
		o.mu.Unlock()
		more, err := o.drain(ctx, sn)
		if failures++; err == nil {
			failures = 0
		} else if ctx.Err() == nil {
			o.s.opts.Logger.ErrorContext(ctx, "arc: cannot read or empty the outbox", "subscription", sn.sub.ID, "error", err)
		}
		if failures > 0 && !o.s.draining() && wait.Wait(ctx, failures) == nil {
			o.mu.Lock()
			sn.hasNew = true
			o.mu.Unlock()
		} else if !more {
			o.mu.Lock()
			delete(o.senders, sn.sub.ID)
			o.mu.Unlock()
			return
		}
	}
}

// drain sends the items of the stream. It returns false if the sender must stop,
// or an error of the store.
func (o *outbox) drain(ctx context.Context, sn *sender) (more bool, err error) {
	for {
		records, err := o.db.Read(ctx, outStream(sn.sub.ID), 0, 16)
		if err != nil {
			return false, err
		}
		if len(records) == 0 {
			return true, nil
		}
		for _, rec := range records {
			switch o.deliver(ctx, sn.sub, rec.Value) {
			case outcomeStopped:
				return false, nil
			case outcomeGone:
				if err := o.db.Expire(ctx, outStream(sn.sub.ID), 0); err != nil {
					o.s.opts.Logger.ErrorContext(ctx, "arc: cannot empty the outbox", "subscription", sn.sub.ID, "error", err)
				}
				if !sn.sub.static {
					o.deactivate(ctx, sn.sub)
					return false, nil
				}
				return true, nil
			}
			if err := o.db.Ack(ctx, outStream(sn.sub.ID), rec.Seq); err != nil {
				return false, err
			}
			o.mu.Lock()
			sn.waiting = max(sn.waiting-1, 0)
			o.mu.Unlock()
		}
	}
}

// deliver sends one record.
func (o *outbox) deliver(ctx context.Context, sub *subscription, record []byte) (out outcome) {
	var err error
	defer func() {
		if err != nil { // a record that cannot be read or sent must not stop the others
			o.s.opts.Logger.ErrorContext(ctx, "arc: notification dropped", "subscription", sub.ID, "error", err)
			out = outcomeDropped
		}
	}()
	defer recovered(&err)
	r, err := readStored(record)
	if err != nil {
		return outcomeDropped
	}
	return o.send.deliver(ctx, &delivery{ID: r.text("id"), SubscriptionID: sub.ID, URL: sub.CallbackURL,
		Event: Event(r.text("event")), Agent: r.text("agent"), Target: sub.target, TraceID: r.text("traceId"),
		Body: r.v.Get("body")})
}

// deactivate ends a subscription permanently.
func (o *outbox) deactivate(ctx context.Context, sub *subscription) {
	key := subKey(sub.TaskID, sub.ID)
	for {
		entry, err := o.db.Get(ctx, key)
		if errors.Is(err, store.ErrNotFound) {
			return
		}
		var stored *subscription
		if err == nil {
			stored, err = decodeSubscription(entry.Value)
		}
		var b []byte
		if err == nil {
			stored.Active = false
			b, err = stored.encode()
		}
		if err == nil {
			_, err = o.db.Update(ctx, key, b, entry.Revision, o.s.opts.Persistence.SubscriptionRetention)
		}
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			o.s.opts.Logger.ErrorContext(ctx, "arc: cannot end a subscription", "subscription", sub.ID, "error", err)
		}
		break
	}
	o.s.tasks.forget(sub)
}

// retention is how long a subscription is kept from now on.
func (o *outbox) retention() time.Duration { return o.s.opts.Persistence.SubscriptionRetention }
