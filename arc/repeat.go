// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fivewire/fivewire/internal/once"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/internal/streamlog"
	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/store"
)

// answers are the window of ARC-D48: a repeated request of the same caller, with the same params, gets the stored
// answer.
type answers struct{ *once.Table }

func newAnswers(s *Server) answers {
	o := once.Options{Prefix: "arc/", Retention: option.Or(s.opts.Persistence.ResultTTL, 24*time.Hour, 24*time.Hour), MaxOutcome: -1, Logger: s.opts.Logger}
	if !s.isShared {
		return answers{once.New(nil, nil, o)}
	}
	return answers{once.New(s.opts.Persistence.Store, s.lease, o)}
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
		call.attempt = attemptOf(c)
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

// An attempt is one of those to run a request (ARC-D48), or the only one. Its objects and items have ids that derive from
// the token, so that the next attempt finds them.
type attempt struct {
	token      string // the same for all attempts of a request; empty if there is one at most
	number     int
	isRepeated bool // an earlier attempt may have made everything
}

func attemptOf(c once.Claim) attempt { return attempt{c.Token, c.Attempt, c.Redelivered} }

// attemptOr returns the attempt that a change belongs to. If a is empty, no request repeats the change, but a process
// that shares its store may have to repeat the write.
func (s *Server) attemptOr(a attempt) attempt {
	if a.token == "" && s.isShared {
		a.token = randid.New("")
	}
	return a
}

// id returns the id of an object that the call makes.
func (c *Call) id(prefix string) string {
	if c.attempt.token == "" {
		return randid.New(prefix)
	}
	return prefix + c.attempt.token
}

// stream returns the id of the stream that the attempt writes.
func (a attempt) stream() string {
	switch {
	case a.token == "":
		return randid.New("stream-")
	case a.isRepeated:
		return "stream-" + a.token + "-" + strconv.Itoa(a.number)
	}
	return "stream-" + a.token
}

// The names of the items that an attempt adds to a chat. The item of a task.send has none.
const (
	questionName = "/question"
	answerName   = "/answer"
	partName     = "/part" // of an incomplete answer
)

// item returns the id of an item, which is the same for all attempts, or "".
func (a attempt) item(name string) string {
	if a.token == "" {
		return ""
	}
	return a.token + name
}

// ownItem returns the id of an item that differs among attempts.
func (a attempt) ownItem(name string) string {
	if a.number == 0 {
		return a.item(name)
	}
	return a.item(name + "/" + strconv.Itoa(a.number))
}

// find returns the index of an item of any attempt, or -1.
func (a attempt) find(list []store.Record, name string) int { return findItem(list, a.item(name)) }

// findItem returns the index of an item with an id, or -1.
func findItem(list []store.Record, id string) int {
	return slices.IndexFunc(list, func(r store.Record) bool { return id != "" && strings.HasPrefix(r.ID, id+"/") })
}

// routeAgain routes another attempt of a request to the instance of a group that has what the first
// attempt made.
func (s *Server) routeAgain(ctx context.Context, call *Call) error {
	if !call.attempt.isRepeated || call.Agent == call.TargetAgent {
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

// A streamClaim is the claim of a streamed request whose answer may be resumed, until its end (ARC-D48).
type streamClaim struct {
	isRetried chan bool     // the result
	done      chan struct{} // closed after err is set
	err       error         // of the claim
	cancel    context.CancelCauseFunc
}

// end ends a claim once: as that of a complete stream, or as one whose request a later attempt may repeat.
func (c *streamClaim) end(isRetried bool) {
	if c == nil {
		return
	}
	select {
	case c.isRetried <- isRetried:
	default:
	}
	late := time.AfterFunc(outage, func() { c.cancel(errNotStored) })
	defer late.Stop()
	<-c.done
}

// claim claims a streamed request, unless c can follow the stream of an earlier attempt.
func (t *streamTable) claim(ctx context.Context, call *Call, c *streamConn) (isAnswered bool, err error) {
	key := once.Key{Principal: call.principalID(), Scope: "stream", ID: c.owner}
	own := &streamClaim{isRetried: make(chan bool, 1), done: make(chan struct{})}
	free, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	own.cancel = cancel
	claimed := make(chan once.Claim, 1)
	go func() { // until the end of own
		defer close(own.done)
		_, _, own.err = t.s.answers.Do(free, key, once.Repeat, func(_ context.Context, claim once.Claim) (once.Result, error) {
			claimed <- claim
			return once.Result{Retry: <-own.isRetried}, nil
		})
	}()
	defer func() {
		if call.out.claim != own {
			cancel(context.Canceled)
			own.end(true)
		}
	}()
	done := own.done
	for n := 1; ; n++ {
		select {
		case claim := <-claimed:
			call.attempt, call.out.claim = attemptOf(claim), own
			return false, nil
		case <-done:
			if own.err != nil {
				return true, t.s.unavailable(call.TargetAgent, own.err)
			}
			done = nil
		case <-time.After(retry.Delay(n, 25*time.Millisecond, time.Second)):
		case <-ctx.Done():
			return true, context.Cause(ctx)
		}
		bounded, stop := context.WithTimeout(ctx, outage)
		state, earlier, err := t.s.answers.Peek(bounded, key)
		stop()
		switch {
		case err != nil:
			return true, t.s.unavailable(call.TargetAgent, err)
		case state == once.StateAbsent && done != nil:
			continue
		}
		c.id = attemptOf(earlier).stream()
		r, err := c.logs.Read(ctx, c.id, c.owner, 0)
		if state == once.StateRunning && errors.Is(err, streamlog.ErrUnknown) { // its turn has not come
			continue
		}
		cancel(context.Canceled)
		return true, c.resume(ctx, r, 0, err)
	}
}
