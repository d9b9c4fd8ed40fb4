// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package front gives servers of other protocols access to the checks of an arc.Server.
package front

import (
	"context"
	"encoding/json"
	"net/http"
	"time"
)

// New returns a handler in front of server, an *arc.Server: it checks the origin and the headers, authenticates
// the caller, and reads the body within the budget of the server, before next. next has the request for the server
// as the value of RequestKey. Package arc sets New when it is initialized.
var New func(server any, opts Options, next http.Handler) http.Handler

// TaskOf returns the agent of a task of server and the group of that agent, or ok false if the task is unknown. It checks
// no caller. Package arc sets TaskOf when it is initialized.
var TaskOf func(ctx context.Context, server any, taskID string) (agent, group string, ok bool, err error)

// HasMethod reports whether an agent of server, or a group, has a method. Package arc sets it when it is initialized.
var HasMethod func(server any, agent, method string) bool

// TaskRetention returns how long server keeps tasks after their end; zero means without a bound. Package arc sets
// it when it is initialized.
var TaskRetention func(server any) time.Duration

// A Webhook is a subscription whose notifications have the form of another protocol.
type Webhook struct {
	ID          string // unique among those of the task
	CallbackURL string
	Dialect     string          // of [SetDialect]
	Data        json.RawMessage // kept with the subscription, for the dialect
}

// An EncodeFunc returns the body and further header fields of a request for a notification, an *arc.Notification, of a
// task with a trace id. No body means that the notification is not sent.
type EncodeFunc func(notification any, traceID string, data json.RawMessage) (body []byte, header http.Header, err error)

// The following functions concern webhooks in another form. A request is an *arc.ServerRequest. Package arc sets them
// when it is initialized.
var (
	// SetDialect adds a form to server. Notifications in a form that no process has wait.
	SetDialect func(server any, name string, encode EncodeFunc)

	// Subscribe makes a request for task.create, task.send or task.subscribe add a webhook, or replace the one with its
	// id. The caller must be permitted to use task.subscribe too.
	Subscribe func(request any, w *Webhook)

	// Webhooks answers a request for task.info, and returns the webhooks of the task with a dialect. The caller must be
	// permitted to use task.subscribe too.
	Webhooks func(ctx context.Context, server, request any, dialect string) ([]Webhook, error)

	// Unsubscribe is Webhooks for one webhook, and removes that. Its waiting notifications are not sent.
	Unsubscribe func(ctx context.Context, server, request any, w *Webhook) error
)

// RequestKey is the key of an *arc.ServerRequest without Data in the context of a request of next. It is not
// authenticated again.
type RequestKey struct{}

// Options adjust New.
type Options struct {
	Methods, Headers string // that pages may use

	// PassRefused passes small requests of callers that are not authenticated on: the server refuses the calls of
	// next for them.
	PassRefused bool
}
