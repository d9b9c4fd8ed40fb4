// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"sync"

	"github.com/fivewire/fivewire/arc/internal/front"
	"github.com/fivewire/fivewire/arc/internal/wire"
)

func init() {
	front.SetDialect = func(server any, name string, encode front.EncodeFunc) {
		server.(*Server).outbox.send.dialects.set(name, encode)
	}
	front.Subscribe = func(request any, w *front.Webhook) { request.(*ServerRequest).webhook = w }
	front.Webhooks = func(ctx context.Context, server, request any, dialect string) ([]front.Webhook, error) {
		return server.(*Server).webhooks(ctx, request.(*ServerRequest), dialect)
	}
	front.Unsubscribe = func(ctx context.Context, server, request any, w *front.Webhook) error {
		return server.(*Server).unsubscribe(ctx, request.(*ServerRequest), w)
	}
}

// A dialect is the form of the notifications of a subscription in another protocol.
type dialect struct {
	name string // empty is ARC
	id   string // of the subscription in that protocol
	data json.RawMessage
}

// dialects are the forms that this process writes.
type dialects struct {
	mu   sync.RWMutex
	list map[string]front.EncodeFunc // guarded by mu
}

func (d *dialects) set(name string, encode front.EncodeFunc) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.list == nil {
		d.list = make(map[string]front.EncodeFunc)
	}
	d.list[name] = encode
}

func (d *dialects) get(name string) front.EncodeFunc {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.list[name]
}

// errNoDialect reports a notification in a form that another process writes.
var errNoDialect = errors.New("arc: webhook: unknown dialect")

// encode returns the body of a delivery in its dialect, and adds fields to the header.
func (s *webhookSender) encode(d *delivery, h http.Header) ([]byte, error) {
	encode := s.dialects.get(d.dialect.name)
	if encode == nil {
		return nil, errNoDialect
	}
	v, err := wire.Check(d.Body)
	if err != nil {
		return nil, err
	}
	n, err := read[Notification](v.Get("params"))
	if err != nil {
		return nil, err
	}
	body, fields, err := encode(n, d.TraceID, d.dialect.data)
	maps.Copy(h, fields)
	return body, err
}

// dialectID returns the id of a subscription for one of another protocol.
func dialectID(taskID string, w *front.Webhook) string {
	sum := sha256.Sum256([]byte(taskID + " " + w.Dialect + " " + w.ID))
	return "sub-" + base64.RawURLEncoding.EncodeToString(sum[:16])
}

// dialectSub returns the subscription of a webhook of a request, or nil if it has none.
func dialectSub(call *Call, st *taskState) *subscription {
	if call.out == nil || call.out.in == nil || call.out.in.webhook == nil {
		return nil
	}
	w := call.out.in.webhook
	sub := &subscription{agent: st.agent, target: call.RequestAgent, traceID: st.traceID, dialect: dialect{w.Dialect, w.ID, w.Data}}
	sub.Subscription = Subscription{ID: dialectID(st.id, w), TaskID: st.id, CallbackURL: w.CallbackURL, Events: dialectEvents,
		CreatedAt: NewTimestamp(now()), Active: true}
	return sub
}

// dialectEvents are the events of a subscription in another protocol: each change once.
var dialectEvents = []Event{EventTaskStarted, EventTaskPaused, EventTaskResumed, EventTaskCompleted, EventTaskFailed, EventTaskCanceled,
	EventNewMessage, EventNewArtifact}

// subscribeNew stores the subscription that the request for a new task adds, before the task, so that it misses no event.
// Without one it returns nil.
func (e *taskEngine) subscribeNew(ctx context.Context, call *Call, st *taskState) (*subscription, error) {
	sub := dialectSub(call, st)
	if sub == nil {
		return nil, nil
	}
	if err := e.s.outbox.send.check(ctx, sub.CallbackURL); err != nil {
		return nil, err
	}
	_, err := e.keepSubscription(ctx, call, sub)
	return sub, err
}

// webhooks implements [front.Webhooks].
func (s *Server) webhooks(ctx context.Context, in *ServerRequest, dialect string) (list []front.Webhook, err error) {
	id, err := s.watched(ctx, &exchange{in: in})
	if err != nil {
		return nil, err
	}
	for entry, err := range s.tasks.db.List(ctx, subsPrefix(id)) {
		var sub *subscription
		if err == nil {
			sub, err = decodeSubscription(entry.Value)
		}
		if err != nil {
			return nil, err
		}
		if sub.dialect.name == dialect && !sub.isRemoved {
			list = append(list, front.Webhook{ID: sub.dialect.id, CallbackURL: sub.CallbackURL, Dialect: dialect, Data: sub.dialect.data})
		}
	}
	return list, nil
}

// unsubscribe implements [front.Unsubscribe].
func (s *Server) unsubscribe(ctx context.Context, in *ServerRequest, w *front.Webhook) error {
	id, err := s.watched(ctx, &exchange{in: in})
	if err != nil {
		return err
	}
	return s.outbox.deactivate(ctx, &subscription{Subscription: Subscription{ID: dialectID(id, w), TaskID: id}}, func(stored *subscription) {
		stored.isRemoved, stored.dialect.data = true, nil
	})
}
