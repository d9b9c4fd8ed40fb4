// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/fivewire/fivewire/air/internal/exchange"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/retry"
)

// A RetryPolicy adjusts the attempts of an operation.
type RetryPolicy struct {
	MaxAttempts   int           // zero is the default of the operation; a negative value disables retries
	Base          time.Duration // first delay; zero is the default of the operation; a negative value disables delays
	Max           time.Duration // longest delay; zero means 10 s; a negative value removes the bound
	MaxRetryAfter time.Duration // longest delay that a peer requests; zero is the default of the operation; a negative value means none
	Timeout       time.Duration // time of an attempt; zero is the default of the operation; a negative value removes the bound
}

func (p *RetryPolicy) withDefaults() RetryPolicy {
	var r RetryPolicy
	if p != nil {
		r = *p
	}
	r.MaxAttempts = option.Or(r.MaxAttempts, defaultAttempts, 1)
	r.Base = option.Or(r.Base, time.Second, 0)
	r.Max = option.Duration(r.Max, 10*time.Second)
	r.MaxRetryAfter = option.Or(r.MaxRetryAfter, 5*time.Minute, 0)
	return r
}

// maxFormAge is the age of a form after which an attempt has a new one (AIR-D83).
const maxFormAge = time.Minute

// A push is the delivery of one envelope (table of deliveries, section e).
type push struct {
	client  *Client
	wire    []byte
	receipt Receipt

	body      Body                                     // nil if makeForm is nil
	makeForm  func(context.Context) (*Envelope, error) // nil: the same bytes are sent
	isSealed  bool
	isRepeat  bool // an earlier delivery may have arrived
	refreshed bool // after a key change
}

// deliver sends an envelope until it is delivered or refused.
func (c *Client) deliver(ctx context.Context, p *push) (*Receipt, error) {
	p.client = c
	policy := retry.Policy{MaxAttempts: c.retry.MaxAttempts, Base: -1, MaxRetryAfter: option.Off, Logger: c.log, Subject: "air: push"}
	err := retry.Do(ctx, policy, true, func(ctx context.Context, _ int) error {
		delay, err := p.try(ctx)
		if delay < 0 {
			return retry.Mark(err, retry.Permanent, 0)
		}
		return retry.Mark(err, retry.Unknown, delay)
	})
	var e *Error
	switch {
	case err == nil:
		return &p.receipt, nil
	case !errors.As(err, &e) || retry.ClassOf(err) != retry.Permanent:
		e = p.failure(ErrDeliveryFailed, "ended between two attempts", cmp.Or(ctx.Err(), context.DeadlineExceeded))
	}
	return nil, e
}

func (p *push) failure(code Code, message string, cause error) *Error {
	e := code.because(message, cause)
	e.RemoteStatus, e.Attempts, e.Envelope = p.receipt.Status, p.receipt.Attempts, p.wire
	return e
}

// failed returns the failure with the code of a local error.
func (p *push) failed(err error) *Error {
	e := asError(err)
	return p.failure(e.Code, e.Message, e.Cause)
}

// final is the delay of an error that another attempt would meet again.
const final time.Duration = -1

// try makes one attempt, and a second one after a key change. It returns the delay before the next
// attempt, or final.
func (p *push) try(ctx context.Context) (time.Duration, error) {
	v, err := p.send(ctx)
	if v.Action == actionRefresh && !p.refreshed {
		if err := p.refresh(ctx); err != nil {
			return final, err
		}
		v, err = p.send(ctx)
	}
	c := p.client
	switch {
	case err != nil && v.Action == "":
		return final, err
	case v.Action == actionDelivered:
		return 0, nil
	case v.Action == actionRefresh:
		return final, p.failure(ErrStaleKey, "the recipient reports a stale key again", nil)
	case v.Action == actionRetry:
		delay := time.Duration(min(math.Ldexp(float64(c.retry.Base), p.receipt.Attempts-1), float64(c.retry.Max)))
		if v.HasRetryAfter {
			delay = v.RetryAfter
		}
		if v.HasRetryAfter && delay > c.retry.MaxRetryAfter {
			e := p.failure(v.Code, "the relay asks to come back later", nil)
			e.RetryAfter, e.Remote = delay, true
			return final, e
		}
		return delay, p.failure(v.Code, v.Detail, err)
	case transient(v.Code):
		return final, p.failure(ErrDeliveryFailed, "all attempts failed", err)
	}
	e := p.failure(v.Code, v.Detail, nil)
	e.ThreadID, e.Remote, e.Details = v.ThreadID, true, slices.Clone(json.RawMessage(v.Details))
	return final, e
}

// send makes one request. The verdict is empty if the request was not made or ctx ended.
func (p *push) send(ctx context.Context) (verdict, error) {
	c, r := p.client, &p.receipt
	if isExpired(p.body, time.Now()) { // during the attempts
		return verdict{}, p.failed(errExpired())
	}
	if p.makeForm != nil && (time.Since(r.Envelope.Time) > maxFormAge || p.hasOldKey()) {
		if err := p.renew(ctx); err != nil {
			return verdict{}, err
		}
	}
	endpoint, err := c.endpoint(ctx, r.Envelope.To)
	if err != nil {
		return verdict{}, p.failed(err)
	}
	r.Attempts++
	res, err := c.http.Do(ctx, &exchange.Request{Op: "push", Method: http.MethodPost, URL: endpoint, Body: p.wire, Limit: maxAnswer})
	switch {
	case ctx.Err() != nil:
		return verdict{}, p.failure(ErrDeliveryFailed, "ended before an answer came", ctx.Err())
	case err != nil:
		v := verdict{Code: ErrBadGateway, Action: actionRetry}
		if r.Attempts >= c.retry.MaxAttempts {
			v.Action = actionFail
		}
		return v, err
	}
	r.Status = res.Status
	v := classifyResponse(res.Status, res.Header, res.Body, r.Attempts, c.retry.MaxAttempts, time.Now())
	switch {
	case v.Code == ErrReplay && p.isRepeat:
		v.Action = actionDelivered
	case v.Code == ErrBadSignature && p.makeForm != nil && c.hasRotated(): // the recipient may have another key
		if v.Code = ErrBadGateway; r.Attempts < c.retry.MaxAttempts {
			v.Action = actionRetry
		}
	}
	return v, nil
}

// hasOldKey reports whether the form is signed by a key that the agent has replaced.
func (p *push) hasOldKey() bool {
	if !p.client.hasRotated() {
		return false
	}
	_, err := p.receipt.Envelope.Verify(p.client.id.Load().public, "")
	return err != nil
}

// renew makes a new form of the message.
func (p *push) renew(ctx context.Context) error {
	fresh, err := p.makeForm(ctx)
	if err != nil {
		return p.failed(err)
	}
	p.wire, p.receipt.Envelope = fresh.Bytes(), fresh
	return nil
}

// refresh drops the recipient's document, regardless of the AIR ID in the response (AIR-D44), and
// seals a new envelope.
func (p *push) refresh(ctx context.Context) error {
	p.refreshed = true
	p.client.resolver.Invalidate(airIDOf(p.receipt.Envelope.To))
	if p.isSealed {
		return p.renew(ctx)
	}
	return nil
}
