// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/fivewire/fivewire/arc/internal/engine"
	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/jsonmap"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/strictjson"
)

var errNoObject = errors.New("arc: the handler's result is no JSON object")

// resultBytes makes the result of a handler what the envelope carries.
func resultBytes(result any, p Profile) ([]byte, error) {
	switch r := result.(type) {
	case nil:
		return []byte("{}"), nil
	case *ready:
		return r.text, nil
	case *Task:
		return typedResult("task", "task", r)
	case *Chat:
		return typedResult("chat", "chat", r)
	case *Subscription:
		return typedResult(subscriptionType(p), "subscription", r)
	case json.RawMessage:
		return objectBytes(r)
	}
	b, err := guard.Encode(result)
	if err != nil {
		return nil, fmt.Errorf("arc: result: %w", err)
	}
	return objectBytes(b)
}

// typedResult is the result of one of the standard methods.
func typedResult(kind, name string, v any) ([]byte, error) {
	o := wire.Open(nil)
	o.Text("type", kind)
	o.Key(name)
	b, err := jsonmap.Append(o.B, v)
	if err != nil {
		return nil, fmt.Errorf("arc: result: %w", err)
	}
	return append(b, '}'), nil
}

// subscriptionType is the type of the result of task.subscribe (ARC-D32).
func subscriptionType(p Profile) string {
	if p == ProfilePythonSDK {
		return "subscription"
	}
	return "task"
}

func objectBytes(b []byte) ([]byte, error) {
	v, err := wire.Check(b)
	if err != nil {
		return nil, fmt.Errorf("arc: result: %w", err)
	}
	if !v.IsObject() {
		return nil, errNoObject
	}
	return strictjson.AppendCompact(make([]byte, 0, len(v)), v), nil
}

// faultOf makes an error of a handler what the caller reads (ARC-D56). An error of
// another server is an internal error, unless the handler wraps it in an [Error]. A call
// that the end of the server has cut off may be repeated elsewhere.
func (s *Server) faultOf(ctx context.Context, call *Call, err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		if e.Remote { // an error of another server is not one of this server
			return s.internal(ctx, call, err)
		}
		if e.Details != nil {
			if _, bad := wire.Check(e.Details); bad != nil {
				return s.internal(ctx, call, fmt.Errorf("arc: details of an error: %w", bad))
			}
		}
		if e.Message == "" && e.Code.Message() != "" {
			e = &Error{Code: e.Code, Message: e.Code.Message(), Details: e.Details}
		}
		return e
	}
	if f, ok := errors.AsType[*wire.Fault](err); ok {
		return asError(f)
	}
	var c Code
	if errors.As(err, &c) {
		return &Error{Code: c, Message: c.Message()}
	}
	cause := context.Cause(ctx)
	if call != nil && errors.Is(cause, ErrClosed) && (errors.Is(err, cause) || errors.Is(err, context.Canceled)) {
		return agentFault(ErrAgentNotAvailable, call.TargetAgent)
	}
	return s.internal(ctx, call, err)
}

// internal logs an error that is not for the caller, who gets its number only. That a
// caller has disconnected is no failure.
func (s *Server) internal(ctx context.Context, call *Call, err error) *Error {
	id := randid.New("err-")
	level := slog.LevelError
	isLeft := ctx.Err() != nil || call != nil && call.x != nil && call.x.ctx.Context != nil && call.x.ctx.Err() != nil
	if isLeft && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))) || errors.Is(err, engine.ErrNoReader) {
		level = slog.LevelDebug
	}
	attrs := []slog.Attr{slog.String("error_id", id), slog.Any("err", err)}
	if call != nil {
		attrs = append(attrs, slog.String("agent", call.Agent), slog.String("method", call.Method),
			slog.String("request_agent", call.RequestAgent), slog.String("trace_id", call.TraceID))
	}
	var p *guard.PanicError
	if errors.As(err, &p) {
		level = slog.LevelError
		attrs = append(attrs, slog.String("stack", string(p.Stack)))
	}
	s.opts.Logger.LogAttrs(context.WithoutCancel(ctx), level, "arc: request failed", attrs...)
	e := asError(wire.NewFault(wire.Internal, "errorId", id))
	e.Cause = err
	return e
}

// failure is the answer that carries an error.
func (s *Server) failure(x *exchange, e *Error) *ServerResponse {
	if b, ok := errors.AsType[*budget.Error](e.Cause); ok && x.retryAfter == 0 {
		x.retryAfter = b.RetryAfter
	}
	if x.retryAfter == 0 && (e.Code == ErrAgentNotAvailable || e.Code == ErrAgentCapacityExceeded) {
		x.retryAfter = 5 * time.Second // the end of work is not known (ARC-D15)
	}
	x.a = ServerResponse{Data: x.envelope(nil, e), Error: e, RetryAfter: x.retryAfter, InvalidToken: x.badToken}
	return &x.a
}

// envelope writes the response: the result, a compact JSON object, or the error.
// Both members are present, the unused one null (ARC-D05).
func (x *exchange) envelope(result []byte, e *Error) []byte {
	id, target := string(x.req.ID), x.req.RequestAgent
	if id == "" {
		id = `"error"` // ARC-D03
	}
	if target == "" {
		target = "unknown"
	}
	dst := x.out[:0]
	if n := 128 + len(id) + len(x.agent) + len(target) + len(x.req.TraceID) + len(result); n > cap(dst) {
		dst = make([]byte, 0, n)
	}
	o := wire.Open(dst)
	o.Text("arc", ProtocolVersion)
	o.Raw("id", []byte(id))
	o.Text("responseAgent", x.agent)
	o.Text("targetAgent", target)
	o.OptText("traceId", x.req.TraceID)
	if e == nil {
		o.Raw("result", result)
		o.Raw("error", null)
		return o.Close()
	}
	o.Raw("result", null)
	o.Raw("error", e.append(nil))
	return o.Close()
}
