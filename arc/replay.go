// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/fivewire/fivewire/internal/once"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// newAnswers returns the window of ARC-D48: a repeated request of the same caller, with the same
// params, gets the stored answer.
func newAnswers(s *Server) *once.Table {
	o := once.Options{Prefix: "arc/", Retention: option.Or(s.opts.Persistence.ResultTTL, 24*time.Hour, 24*time.Hour), MaxOutcome: -1, Logger: s.opts.Logger}
	if !s.isShared {
		return once.New(nil, nil, o)
	}
	return once.New(s.opts.Persistence.Store, s.lease, o)
}

// hasWindow reports whether the response to each request is stored (ARC-D48).
func (s *Server) hasWindow() bool { return s.opts.Persistence.ResultTTL > 0 }

// errNotStored ends the wait for the store after the work of a request.
var errNotStored = errors.New("arc: answer not stored")

// requestHash identifies a request within its principal. Params are equal as JSON values.
func requestHash(call *Call) string {
	params := strictjson.AppendCanonical(nil, strictjson.Value(call.Params))
	return hashOf(call.principalID(), call.RequestAgent, call.TargetAgent, call.Method, string(call.ID), string(params))
}

// answerOnce answers a call, or repeats the stored answer. New tasks, chats and
// subscriptions have ids that derive from its claim, so that another attempt finds them.
func (s *Server) answerOnce(ctx context.Context, x *exchange) *ServerResponse {
	call := &x.call
	var a *ServerResponse
	var late *time.Timer
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	key := once.Key{Principal: call.principalID(), Scope: "answer", ID: requestHash(call)}
	if named := x.in.RequestKey; named != "" {
		key = once.Key{Principal: call.principalID(), Scope: "named", ID: hashOf(call.TargetAgent, named), Digest: sha256.Sum256([]byte(requestHash(call)))}
	}
	data, isReplayed, err := s.answers.Do(ctx, key, once.Repeat, func(ctx context.Context, c once.Claim) (once.Result, error) {
		call.claim = c
		if err := s.routeAgain(ctx, call); err != nil {
			a = s.failure(x, s.internal(ctx, call, err))
			return once.Result{Retry: true}, nil
		}
		a = s.run(ctx, x)
		if a.Error != nil && (ctx.Err() != nil || isPassing(a.Error.Code)) {
			return once.Result{Retry: true}, nil // the caller left, or another attempt may not meet the error
		}
		late = time.AfterFunc(outage, func() { cancel(errNotStored) })
		return once.Result{Data: storedAnswer(a)}, nil
	})
	if late != nil {
		late.Stop()
	}
	if err == nil && (isReplayed || a == nil) {
		a, err = readAnswer(data)
	}
	switch {
	case err == nil:
		return a
	case errors.Is(err, once.ErrReused):
		return s.failure(x, &Error{Code: ErrInvalidParams, Message: "Request key used for another request"})
	case errors.Is(err, once.ErrBusy):
		return s.failure(x, agentFault(ErrAgentCapacityExceeded, call.TargetAgent))
	}
	return s.failure(x, s.faultOf(ctx, call, s.unavailable(call.TargetAgent, err)))
}

// routeAgain routes another attempt of a request to the instance of a group that has what the first
// attempt made.
func (s *Server) routeAgain(ctx context.Context, call *Call) error {
	if !call.claim.Redelivered || call.Agent == call.TargetAgent {
		return nil
	}
	for _, kind := range [][2]string{{"taskId", call.id("task-")}, {"chatId", call.id("chat-")}} {
		owner, err := s.boundTo(ctx, call, kind[0], kind[1])
		if err != nil {
			return err
		}
		if e := s.registry.lookup(owner); e != nil && (*e.methods.Load())[call.Method] != nil {
			call.Agent, call.entry, call.out.agent = owner, e, owner
			call.method = (*e.methods.Load())[call.Method]
		}
	}
	return nil
}

// isPassing reports whether a later attempt may not meet an error, which is not stored (ARC-D48).
func isPassing(c Code) bool {
	switch c {
	case ErrInternal, ErrParse, ErrInvalidRequest, ErrAgentNotAvailable, ErrAgentUnreachable, ErrAgentTimeout,
		ErrAgentCapacityExceeded, ErrChatBufferOverflow, ErrRateLimitExceeded:
		return true
	}
	return c <= ErrAuthenticationFailed && c >= ErrTokenInvalid
}

// storedAnswer is the code of the error, a line feed, and the envelope.
func storedAnswer(a *ServerResponse) []byte {
	var code int64
	if a.Error != nil {
		code = int64(a.Error.Code)
	}
	return append(append(appendInt(nil, code), '\n'), a.Data...)
}

func readAnswer(b []byte) (*ServerResponse, error) {
	head, data, _ := bytes.Cut(b, []byte("\n"))
	code, err := strconv.ParseInt(string(head), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("arc: stored answer: %w", err)
	}
	a := &ServerResponse{Data: data}
	if code != 0 {
		res, err := DecodeResponse(data, "")
		if err != nil {
			return nil, fmt.Errorf("arc: stored answer: %w", err)
		}
		a.Error = res.Error
		a.Error.Remote = false
	}
	return a, nil
}
