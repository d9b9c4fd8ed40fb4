// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/once"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/internal/state"
	"github.com/fivewire/fivewire/store"
)

// Resend delivers each message of the outbox once, oldest first, except those that were refused
// permanently and those behind a message of their thread that stays. Up to eight recipients are served at a
// time, so that a silent recipient delays no other. It returns the number of delivered messages
// and the errors of the others. If the outbox is a [store.Store], calls of several processes make one delivery of
// each message in all. That of an [Agent] with a handler makes none
// during the Send of another such process. A silent recipient takes minutes for each of its messages, and
// Resend waits for all; ResendEvery serves the others in time.
func (c *Client) Resend(ctx context.Context) (delivered int, err error) {
	if c.outbox == nil {
		return 0, nil
	}
	return c.resendAll(ctx, false)
}

// resendAll is Resend, or a call by resendLoop, which omits the recipients that an earlier one serves.
func (c *Client) resendAll(ctx context.Context, isLoop bool) (delivered int, err error) {
	list, unreadable, err := c.listQueued(ctx, isLoop)
	if err != nil || len(list) == 0 {
		return 0, cmp.Or(err, unreadable)
	}
	claims, release, err := c.outbox.share(ctx, c.did, c.log)
	if err != nil {
		return 0, err
	}
	defer release()
	var order []string
	queued := make(map[string][]*OutboxMessage)
	for i := range list {
		m := &list[i]
		if queued[m.To] == nil {
			order = append(order, m.To)
		}
		queued[m.To] = append(queued[m.To], m)
	}
	var (
		mu    sync.Mutex
		wg    sync.WaitGroup
		errs  = []error{unreadable}
		slots = make(chan struct{}, maxRecipients)
		kind  = life.Request
	)
	if isLoop {
		kind = life.Idle // a shutdown does not wait, since the messages are in the outbox
	}
	for _, to := range order {
		slots <- struct{}{}
		if isLoop && !c.outbox.serve(to) {
			<-slots
			continue
		}
		wg.Go(func() {
			defer func() { <-slots }()
			if isLoop {
				defer c.outbox.endServe(to)
			}
			n, failures := c.resendTo(ctx, kind, claims, queued[to])
			mu.Lock()
			defer mu.Unlock()
			delivered, errs = delivered+n, append(errs, failures...)
		})
	}
	wg.Wait()
	return delivered, errors.Join(errs...)
}

// listQueued returns the messages to resend, none while an earlier call by resendLoop waits for the store.
func (c *Client) listQueued(ctx context.Context, isLoop bool) (list []OutboxMessage, unreadable, err error) {
	if isLoop {
		if !c.outbox.isListing.CompareAndSwap(false, true) {
			return nil, nil, nil
		}
		defer c.outbox.isListing.Store(false)
	}
	list, unreadable, err = c.outbox.list(ctx)
	isOmitted := func(m OutboxMessage) bool { return !m.Failed.IsZero() || isLoop && c.outbox.isServed(m.To) }
	list = slices.DeleteFunc(list, isOmitted)
	for i := range list {
		list[i].Body = nil // resend reads it: many calls may wait with a list
	}
	return list, unreadable, err
}

// share returns the claims of the threads that processes with the same store deliver at the moment. The caller calls
// release.
func (o *outboxStore) share(ctx context.Context, did string, log *slog.Logger) (claims *once.Table, release func(), err error) {
	db, isShared := o.kv.(store.Store)
	if !isShared {
		claims = once.New(nil, nil, once.Options{Logger: log})
		return claims, func() { _ = claims.Close() }, nil
	}
	prefix := "air/" + state.Join("resend", did) + "/"
	l, err := lease.Acquire(ctx, db, lease.Options{Prefix: prefix, Logger: log})
	if err != nil {
		return nil, nil, fmt.Errorf("air: claiming the outbox: %w", err)
	}
	claims = once.New(db, l, once.Options{Prefix: prefix, StoreTimeout: storeTimeout, Logger: log})
	return claims, func() {
		ctx, cancel := storeContext(ctx)
		defer cancel()
		_ = claims.Shutdown(ctx)
		_ = l.Release(ctx)
	}, nil
}

// maxRecipients is the number of recipients that Resend and SendEach serve at a time.
const maxRecipients = 8

// resendTo delivers the messages to one recipient.
func (c *Client) resendTo(ctx context.Context, kind life.Kind, claims *once.Table, list []*OutboxMessage) (
	delivered int, errs []error) {
	blocked := make(map[replayKey]bool)
	for _, m := range list {
		thread := m.thread()
		if blocked[thread] {
			continue
		}
		var r *Receipt
		var err error
		key := once.Key{Principal: c.did, Scope: "thread", ID: hex.EncodeToString(thread[:])}
		_, _, failed := claims.Do(ctx, key, once.Repeat, func(ctx context.Context, _ once.Claim) (once.Result, error) {
			r, err = c.guarded(ctx, kind, func(ctx context.Context) (*Receipt, error) { return c.resend(ctx, m) })
			return once.Result{Forget: true}, nil
		})
		m.Body = nil
		if err = errors.Join(err, failed); r != nil {
			delivered++
		}
		if err != nil {
			errs = append(errs, err)
			blocked[thread] = r == nil && m.Failed.IsZero()
		}
	}
	return delivered, errs
}

// resend makes one delivery of a message, unless another process has made one since it was listed.
func (c *Client) resend(ctx context.Context, m *OutboxMessage) (*Receipt, error) {
	end, err := c.outbox.turn(ctx, m)
	if err != nil {
		return nil, err
	}
	defer end()
	listed := m.Attempts
	stored, err := c.outbox.waitSender(ctx, m.ID)
	switch {
	case errors.Is(err, store.ErrNotFound): // delivered or discarded
		return nil, nil
	case err != nil:
		return nil, err
	}
	if *m = stored.OutboxMessage; m.Attempts != listed || !m.Failed.IsZero() {
		return nil, ErrDeliveryFailed.err("another process has made a delivery")
	}
	d := &Draft{ID: m.ID, From: c.did, To: m.To, ThreadID: m.ThreadID, InReplyTo: m.InReplyTo, Body: &Raw{JSON: m.Body}}
	body, err := DecodeBody(m.Body, ProfileDeployed)
	if err == nil {
		d.Body = body
	}
	isRepeat := m.Attempted
	if m.Attempted = true; !isRepeat { // stored before the first attempt, as by Send
		err := c.outbox.put(ctx, &queuedMessage{OutboxMessage: *m}, false)
		if errors.Is(err, store.ErrNotFound) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
	}
	r, err := c.deliverDraft(ctx, d, m.IsSealed || c.opts.RequireSealed, nil, isRepeat)
	var unrecorded *unrecordedError
	if errors.As(err, &unrecorded) {
		return nil, err
	}
	return r, errors.Join(err, c.outbox.end(ctx, m, isRepeat, r, err))
}

// resendLoop calls resendAll until the client is closed. A call that takes long, because its recipients do not answer, does
// not delay the next one.
func (c *Client) resendLoop(ctx context.Context) {
	for retry.Sleep(ctx, c.opts.ResendEvery) == nil {
		_ = c.life.Go("resend", func(ctx context.Context) {
			if _, err := c.resendAll(ctx, true); err != nil && ctx.Err() == nil {
				c.log.Log(ctx, c.resends.Level("resend"), "air: messages not delivered", "err", err)
			}
		})
	}
}

func (o *outboxStore) isServed(to string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.served[to]
}

// maxServed is the number of recipients that all calls by resendLoop serve at a time.
const maxServed = 256

// serve reports whether resendLoop does not serve a recipient yet and may serve one more. The caller serves it then, and
// calls endServe.
func (o *outboxStore) serve(to string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.served == nil {
		o.served = make(map[string]bool)
	}
	isFree := !o.served[to] && len(o.served) < maxServed
	if isFree {
		o.served[to] = true
	}
	return isFree
}

func (o *outboxStore) endServe(to string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.served, to)
}
