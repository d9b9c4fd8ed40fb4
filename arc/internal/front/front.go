// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package front gives servers of other protocols access to the checks of an arc.Server.
package front

import (
	"context"
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

// TaskRetention returns how long server keeps tasks after their end; zero means without a bound. Package arc sets
// it when it is initialized.
var TaskRetention func(server any) time.Duration

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
