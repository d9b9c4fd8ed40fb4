// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/once"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/internal/streamlog"
	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/store"
)

// Claims are the window of ARC-D48: a repeated request of the same caller, with the same params, gets the stored
// answer.
type Claims struct {
	*core
	table *once.Table
	named *once.Table // of requests with a key; its scope is not used in the other one
}

// nameTTL is how long a key names its request at least.
const nameTTL = 24 * time.Hour

func newClaims(c *core) *Claims {
	results := option.Or(c.opts.Results, nameTTL, nameTTL)
	newTable := func(retention time.Duration) *once.Table {
		o := once.Options{Prefix: prefix, Retention: retention, MaxOutcome: -1, Logger: c.log}
		if !c.isShared {
			return once.New(nil, nil, o)
		}
		return once.New(c.db, c.lease, o)
	}
	return &Claims{c, newTable(results), newTable(max(results, nameTTL))}
}

func (c *Claims) close() {
	_ = c.table.Close() // returns no error
	_ = c.named.Close()
}

// HasWindow reports whether the answer to each request is stored.
func (c *Claims) HasWindow() bool { return c.opts.Results > 0 }

// hash identifies a request within its principal. Params are equal as JSON values.
func (q *Request) hash() string {
	params := strictjson.AppendCanonical(nil, strictjson.Value(q.Params))
	return Hash(q.Principal, q.Caller, q.Target, q.Method, q.ID, string(params))
}

// errNotStored ends the wait for the store after the work of a request.
var errNotStored = errors.New("arc: answer not stored")

// Errors of Answer for the caller.
var (
	ErrReused = once.ErrReused // the key was used for another request
	ErrBusy   = once.ErrBusy   // too many repeats wait
)

// Answer calls f unless an earlier attempt of the request was answered, and returns the answer of f or the stored one.
// f reports whether a later attempt will be answered alike. New objects have ids that derive from the attempt. A key
// of the transport, if there is one, identifies the request.
func (c *Claims) Answer(ctx context.Context, q *Request, key string, f func(ctx context.Context, a Attempt) (answer []byte, isKept bool)) (answer []byte, isReplayed bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var late *time.Timer
	table, k := c.table, once.Key{Principal: q.Principal, Scope: "answer", ID: q.hash()}
	if key != "" {
		caller := cmp.Or(q.Principal, q.Account) // transports give the same ids to different callers
		table, k = c.named, once.Key{Principal: caller, Scope: "named", ID: Hash(q.Target, key), Digest: sha256.Sum256([]byte(q.hash()))}
	}
	answer, isReplayed, err = table.Do(ctx, k, once.Repeat, func(ctx context.Context, claim once.Claim) (once.Result, error) {
		answer, isKept := f(ctx, attemptOf(claim))
		if !isKept || ctx.Err() != nil { // the caller left, or another attempt may not meet the error
			return once.Result{Retry: true}, nil
		}
		late = time.AfterFunc(outage, func() { cancel(errNotStored) })
		return once.Result{Data: answer}, nil
	})
	if late != nil {
		late.Stop()
	}
	return answer, isReplayed, c.unavailable(q.Target, err)
}

// An Attempt is one of those to run a request, or the only one. Its objects and items have ids that derive from the
// token, so that the next attempt finds them.
type Attempt struct {
	Token      string // the same for all attempts of a request; empty if there is one at most
	Number     int
	IsRepeated bool // an earlier attempt may have made everything
}

func attemptOf(c once.Claim) Attempt { return Attempt{c.Token, c.Attempt, c.Redelivered} }

// OrNew returns the attempt that a change belongs to. If a is empty, no request repeats the change, but a process that
// shares its store may have to repeat the write.
func (a Attempt) OrNew(isShared bool) Attempt {
	if a.Token == "" && isShared {
		a.Token = randid.New("")
	}
	return a
}

// ID returns the id of an object that the request makes.
func (a Attempt) ID(prefix string) string {
	if a.Token == "" {
		return randid.New(prefix)
	}
	return prefix + a.Token
}

// stream returns the id of the stream that the attempt writes.
func (a Attempt) stream() string {
	if a.IsRepeated && a.Token != "" {
		return "stream-" + a.Token + "-" + strconv.Itoa(a.Number)
	}
	return a.ID("stream-")
}

// The names of the items that an attempt adds to a chat. The item of a task.send has none.
const (
	questionName = "/question"
	answerName   = "/answer"
	partName     = "/part" // of an incomplete answer
)

// item returns the id of an item, which is the same for all attempts, or "".
func (a Attempt) item(name string) string {
	if a.Token == "" {
		return ""
	}
	return a.Token + name
}

// ownItem returns the id of an item that differs among attempts.
func (a Attempt) ownItem(name string) string {
	if a.Number == 0 {
		return a.item(name)
	}
	return a.item(name + "/" + strconv.Itoa(a.Number))
}

// find returns the index of an item of any attempt, or -1.
func (a Attempt) find(list []store.Record, name string) int { return findItem(list, a.item(name)) }

// findItem returns the index of an item with an id, or -1.
func findItem(list []store.Record, id string) int {
	return slices.IndexFunc(list, func(r store.Record) bool { return id != "" && strings.HasPrefix(r.ID, id+"/") })
}

// A streamClaim is the claim of a streamed request whose answer may be resumed, until its end.
type streamClaim struct {
	isRetried chan bool     // the result
	done      chan struct{} // closed after err is set
	err       error         // of the claim
	cancel    context.CancelCauseFunc
}

// end ends a claim once: as that of a complete stream, or as one whose request a later attempt may repeat.
func (s *streamClaim) end(isRetried bool) {
	if s == nil {
		return
	}
	select {
	case s.isRetried <- isRetried:
	default:
	}
	late := time.AfterFunc(outage, func() { s.cancel(errNotStored) })
	defer late.Stop()
	<-s.done
}

// claimStream claims a streamed request, unless f can attach to the stream of an earlier attempt. Then f has been
// called with its id, and the claim is nil.
func (c *Claims) claimStream(ctx context.Context, q *Request, f func(id string) error) (a Attempt, claim *streamClaim, err error) {
	key := once.Key{Principal: q.Principal, Scope: "stream", ID: q.hash()}
	own := &streamClaim{isRetried: make(chan bool, 1), done: make(chan struct{})}
	free, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	own.cancel = cancel
	claimed := make(chan once.Claim, 1)
	go func() { // until the end of own
		defer close(own.done)
		_, _, own.err = c.table.Do(free, key, once.Repeat, func(_ context.Context, got once.Claim) (once.Result, error) {
			claimed <- got
			return once.Result{Retry: <-own.isRetried}, nil
		})
	}()
	defer func() {
		if claim == nil {
			cancel(context.Canceled)
			own.end(true)
		}
	}()
	done := own.done
	for n := 1; ; n++ {
		select {
		case got := <-claimed:
			return attemptOf(got), own, nil
		case <-done:
			if own.err != nil {
				return a, nil, c.unavailable(q.Target, own.err)
			}
			done = nil
		case <-time.After(retry.Delay(n, 25*time.Millisecond, time.Second)):
		case <-ctx.Done():
			return a, nil, context.Cause(ctx)
		}
		bounded, stop := context.WithTimeout(ctx, outage)
		state, earlier, err := c.table.Peek(bounded, key)
		stop()
		switch {
		case err != nil:
			return a, nil, c.unavailable(q.Target, err)
		case state == once.StateAbsent && done != nil:
			continue
		}
		err = f(attemptOf(earlier).stream())
		if state == once.StateRunning && errors.Is(err, streamlog.ErrUnknown) { // its turn has not come
			continue
		}
		return a, nil, err
	}
}

// refusedStream returns the error of a resumption that is refused (ARC-D73).
func refusedStream(err error) error {
	issue := ""
	switch _, isGap := errors.AsType[*streamlog.GapError](err); {
	case isGap:
		issue = "gap"
	case errors.Is(err, streamlog.ErrAhead):
		issue = "ahead"
	case errors.Is(err, streamlog.ErrUnknown):
		issue = "unknown"
	default:
		return err
	}
	fault := wire.FieldFault(wire.ChatTimeout, "Last-Event-ID", issue)
	fault.Message, fault.Cause = "The stream can no longer be resumed", err
	return fault
}
