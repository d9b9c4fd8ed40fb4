// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/fivewire/fivewire/arc/internal/engine"
)

// answerOnce answers a call, or repeats the stored answer. New tasks, chats and
// subscriptions have ids that derive from its claim, so that another attempt finds them.
func (s *Server) answerOnce(ctx context.Context, x *exchange) *ServerResponse {
	call := &x.call
	var a *ServerResponse
	data, isReplayed, err := s.engine.Claims.Answer(ctx, x.request(call), x.in.RequestKey, func(ctx context.Context, attempt engine.Attempt) ([]byte, bool) {
		x.attempt = attempt
		if err := s.routeAgain(ctx, call); err != nil {
			a = s.failure(x, s.internal(ctx, call, err))
			return nil, false
		}
		a = s.run(ctx, x)
		return storedAnswer(a), a.Error == nil || !engine.IsPassing(int64(a.Error.Code))
	})
	if err == nil && (isReplayed || a == nil) {
		a, err = readAnswer(data)
	}
	switch {
	case err == nil:
		return a
	case errors.Is(err, engine.ErrReused):
		return s.failure(x, &Error{Code: ErrInvalidParams, Message: "Request key used for another request"})
	case errors.Is(err, engine.ErrBusy):
		return s.failure(x, agentFault(ErrAgentCapacityExceeded, call.TargetAgent))
	}
	return s.failure(x, s.faultOf(ctx, call, err))
}

// routeAgain routes another attempt of a request to the instance of a group that has what the first
// attempt made.
func (s *Server) routeAgain(ctx context.Context, call *Call) error {
	a := call.x.attempt
	if !a.IsRepeated || call.Agent == call.TargetAgent {
		return nil
	}
	for _, kind := range [][2]string{{"taskId", a.ID("task-")}, {"chatId", a.ID("chat-")}} {
		owner, err := s.boundTo(ctx, call, kind[0], kind[1])
		if err != nil {
			return err
		}
		if e := s.registry.lookup(owner); e != nil && (*e.methods.Load())[call.Method] != nil {
			call.Agent, call.entry, call.x.agent = owner, e, owner
			call.method = (*e.methods.Load())[call.Method]
		}
	}
	return nil
}

// storedAnswer is the code of the error, a line feed, and the envelope.
func storedAnswer(a *ServerResponse) []byte {
	var code int64
	if a.Error != nil {
		code = int64(a.Error.Code)
	}
	return append(append(strconv.AppendInt(nil, code, 10), '\n'), a.Data...)
}

func readAnswer(b []byte) (*ServerResponse, error) {
	head, data, _ := bytes.Cut(b, []byte("\n"))
	a := &ServerResponse{Data: data}
	if string(head) != "0" {
		res, err := DecodeResponse(data, "")
		if err != nil {
			return nil, fmt.Errorf("arc: stored answer: %w", err)
		}
		a.Error = res.Error
		a.Error.Remote = false
	}
	return a, nil
}
