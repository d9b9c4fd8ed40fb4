// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"maps"
	"net/http"
	"sync"

	"github.com/fivewire/fivewire/arc/internal/engine"
	"github.com/fivewire/fivewire/arc/internal/front"
	"github.com/fivewire/fivewire/arc/internal/wire"
)

func init() {
	front.SetDialect = func(server any, name string, encode front.EncodeFunc) {
		server.(*Server).sender.dialects.Store(name, encode)
	}
	front.Subscribe = func(request any, w *front.Webhook) {
		request.(*ServerRequest).webhook = &engine.Subscription{URL: w.CallbackURL, Events: dialectEvents,
			Dialect: &engine.Dialect{Name: w.Dialect, ID: w.ID, Data: w.Data}}
	}
	front.Webhooks = func(ctx context.Context, server, request any, dialect string) ([]front.Webhook, error) {
		return server.(*Server).webhooks(ctx, request.(*ServerRequest), dialect)
	}
	front.Unsubscribe = func(ctx context.Context, server, request any, w *front.Webhook) error {
		return server.(*Server).unsubscribe(ctx, request.(*ServerRequest), w)
	}
}

// dialectEvents are the events of a subscription in another protocol: each change once.
var dialectEvents = []string{string(EventTaskStarted), string(EventTaskPaused), string(EventTaskResumed), string(EventTaskCompleted),
	string(EventTaskFailed), string(EventTaskCanceled), string(EventNewMessage), string(EventNewArtifact)}

// A dialects has the forms of notifications that this process writes besides ARC: a [front.EncodeFunc] by name.
type dialects = sync.Map

// encode returns the body of a delivery in its dialect, or nil if it has none there, and adds fields to the header.
func (s *sender) encode(d *engine.Delivery, h http.Header) ([]byte, error) {
	encode, ok := s.dialects.Load(d.Dialect.Name)
	if !ok {
		return nil, engine.ErrNotHere
	}
	v, err := wire.Check(d.Body)
	if err != nil {
		return nil, err
	}
	n, err := read[Notification](v.Get("params"))
	if err != nil {
		return nil, err
	}
	body, fields, err := encode.(front.EncodeFunc)(n, d.TraceID, d.Dialect.Data)
	maps.Copy(h, fields)
	return body, err
}

// subscribed answers a request for task.info of a caller that may use task.subscribe, and returns the task.
func (s *Server) subscribed(ctx context.Context, in *ServerRequest) (id string, err error) {
	x := &exchange{in: in}
	if id, err = s.watched(ctx, x); err != nil {
		return "", err
	}
	if fault := s.permitSubscription(ctx, &x.call); fault != nil {
		return "", fault
	}
	return id, nil
}

// permitSubscription checks whether the caller of a request may use task.subscribe, too.
func (s *Server) permitSubscription(ctx context.Context, call *Call) *Error {
	if call.Method == MethodTaskSubscribe {
		return nil
	}
	subscription := *call
	subscription.Method = MethodTaskSubscribe
	return s.permit(ctx, &subscription)
}

// webhooks implements [front.Webhooks].
func (s *Server) webhooks(ctx context.Context, in *ServerRequest, dialect string) (list []front.Webhook, err error) {
	id, err := s.subscribed(ctx, in)
	if err != nil {
		return nil, err
	}
	subs, err := s.engine.Tasks.Subscriptions(ctx, id, dialect)
	for _, sub := range subs {
		list = append(list, front.Webhook{ID: sub.Dialect.ID, CallbackURL: sub.URL, Dialect: dialect, Data: sub.Dialect.Data})
	}
	return list, public(err)
}

// unsubscribe implements [front.Unsubscribe].
func (s *Server) unsubscribe(ctx context.Context, in *ServerRequest, w *front.Webhook) error {
	id, err := s.subscribed(ctx, in)
	if err != nil {
		return err
	}
	return public(s.engine.Tasks.Unsubscribe(ctx, id, &engine.Dialect{Name: w.Dialect, ID: w.ID}))
}
