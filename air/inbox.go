// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/fivewire/fivewire/air/internal/server"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/debugpage"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/netguard"
	"github.com/fivewire/fivewire/internal/once"
	"github.com/fivewire/fivewire/internal/state"
	"github.com/fivewire/fivewire/store"
)

// An Inbox verifies the envelopes of one agent and passes each of them to a [Handler] once
// (sections 6 and 8). It is the [http.Handler] of a synchronous inbox; a [Poller] feeds it from a
// relay. With a Store, Close or Shutdown ends its background work. All methods are safe for concurrent
// use.
type Inbox struct {
	self     self
	opts     InboxOptions
	life     *life.Life
	reports  reports
	receiver receiver
	front    front
}

// NewInbox returns the inbox of an agent. It does no I/O; with a Store it begins to in the background.
func NewInbox(id *Identity, h Handler, opts *InboxOptions) (*Inbox, error) {
	in := &Inbox{}
	if opts != nil {
		in.opts = *opts
	}
	o := &in.opts
	if f, ok := h.(HandlerFunc); id.isZero() || h == nil || ok && f == nil {
		return nil, errors.New("air: inbox: identity or handler missing")
	}
	in.self.did = id.did
	in.self.id.Store(id)
	if err := o.withDefaults(); err != nil {
		return nil, err
	}
	if err := o.connect(id.did); err != nil {
		return nil, err
	}
	h, err := o.wrap(h)
	if err != nil {
		return nil, err
	}
	in.front.origins = server.Origins(o.AllowedOrigins, o.AllowedHosts)
	if err := netguard.CheckOrigins(o.AllowedOrigins); err != nil {
		return nil, fmt.Errorf("air: inbox: %w", err)
	}
	r := &in.receiver
	in.life = life.New(life.Options{Closed: ErrClosed, Logger: o.Logger, Release: r.release, Abandon: r.abandon, Finish: r.releaseLate})
	in.reports.opts, in.reports.log = o, o.Logger
	r.self, r.opts, r.life, r.reports, r.handler, r.threads = &in.self, o, in.life, &in.reports, h, o.Persistence.ThreadStore
	r.verifier = verifier{did: id.did, resolver: o.Resolver, opts: o, reports: &in.reports}
	r.opener = opener{self: &in.self, opts: o}
	in.front.opts, in.front.receiver, in.front.reports = o, r, &in.reports
	in.front.guests = server.NewGuests(o.Limits.RateLimit, o.Limits.AddressRateLimit)
	in.front.budget = budget.New(o.Limits.budget(o.Logger), nil)
	r.persist()
	return in, nil
}

// connect makes what the options lack.
func (o *InboxOptions) connect(did string) (err error) {
	if o.Resolver == nil {
		if o.Resolver, err = NewResolver(nil); err != nil {
			return err
		}
	}
	if o.Persistence.ThreadStore != nil {
		return o.Persistence.ThreadStore.check(did)
	}
	threads := &ThreadStoreOptions{}
	if o.Persistence.Store != nil {
		threads.Store = o.Persistence.Store
	}
	o.Persistence.ThreadStore, err = NewThreadStore(did, threads)
	return err
}

// wrap returns a handler with the middleware.
func (o *InboxOptions) wrap(h Handler) (Handler, error) {
	err := guard.Call("middleware", func() error {
		for _, m := range slices.Backward(o.Middleware) {
			if m == nil {
				return errors.New("air: inbox: nil Middleware")
			}
			if h = m(h); h == nil {
				return errors.New("air: inbox: middleware returned no handler")
			}
		}
		return nil
	})
	return h, err
}

// persist connects the receiver to its store.
func (r *receiver) persist() {
	p := &r.opts.Persistence
	prefix := "air/" + state.Join("inbox", r.self.did) + "/"
	r.ledger.window = newReplayWindow(&r.opts.Limits)
	r.letters.prefix, r.letters.db = prefix+"dead/", p.Store
	claims := once.Options{Prefix: prefix, Retention: memoryTTL, RetryTTL: failedTTL, StoreTimeout: storeTimeout, Logger: r.opts.Logger}
	if p.Store == nil {
		r.letters.db, r.ledger.memory = store.NewMemory(), once.New(nil, nil, claims)
		return
	}
	claims.Retention = max(doneTTL, r.opts.Timing.MaxPullAge+24*time.Hour)
	r.instance = newInstance(p.Store, claims, lease.Options{
		Prefix: prefix, InstanceID: p.InstanceID, TTL: p.LeaseTTL, Private: p.SingleInstance, Logger: r.opts.Logger,
	})
	r.ledger.stored = r.instance
	r.instance.start(r.life, func() { r.instance.box.Send(queueKind, r.receiveQueued) })
}

// release ends the use of the store.
func (r *receiver) release(ctx context.Context) {
	if r.instance != nil {
		r.instance.release(ctx)
		return
	}
	_ = r.ledger.memory.Close()
}

// abandon is release while handlers ignore the end of their contexts. The lease is held until they return, since another
// process would call the handler for the same envelope.
func (r *receiver) abandon(context.Context) {
	if r.instance != nil {
		r.instance.abandon()
	}
}

// releaseLate is release after abandon, once the handlers have returned.
func (r *receiver) releaseLate(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	r.release(ctx)
}

// Shutdown refuses further envelopes and waits for the running handlers. If ctx ends first, it cuts
// them and returns the error of ctx at once.
func (in *Inbox) Shutdown(ctx context.Context) error { return in.life.Shutdown(ctx) }

// Close cuts the running handlers and waits for them at most one second.
func (in *Inbox) Close() error { return in.life.Close() }

// Ready returns [ErrClosed] once a shutdown has begun, and an error while the process has no lease in its Store and so
// handles nothing, for the probe of an orchestrator.
func (in *Inbox) Ready() error {
	err := in.life.Ready()
	if i := in.receiver.instance; err == nil && i != nil {
		err = i.check()
	}
	return err
}

// Usage returns the present use of the resources of [Limits].
func (in *Inbox) Usage() []Usage {
	var list []Usage
	for _, u := range in.front.budget.Usage() {
		if u.Resource == budget.Items.String() && u.Scope == "all" {
			u.Used = int64(in.receiver.ledger.window.nonces.Len())
		}
		list = append(list, Usage(u))
	}
	return list
}

// DebugHandler returns a handler that shows an operator the result of Ready, the [Usage] table and
// the handlers that ignore the end of their context. Its status is 503 unless the inbox is ready.
// It authenticates no caller: serve it on an address that only operators reach.
func (in *Inbox) DebugHandler() http.Handler {
	return debugpage.Handler(debugpage.Server{
		Name: "air: " + in.self.did, Ready: in.Ready, Usage: debugpage.Rows(in.Usage), Stuck: in.life.Stuck,
	})
}

// ServeHTTP receives one pushed envelope at any path (7.2) and answers with the codes of 9.2.
func (in *Inbox) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	httpx.LeaveIf(in.life.Ready(), w)
	in.front.serve(w, r)
}

// Receive runs the steps of 6.2 for one pushed or pulled envelope, and waits for the handler. A pushed
// one is queued if the handler takes long and the inbox has a Store.
func (in *Inbox) Receive(ctx context.Context, data []byte, pulled bool) *ReceiveResult {
	now := time.Now()
	record := AuditRecord{Time: now, Operation: "push", Bytes: int64(len(data))}
	if !pulled {
		return in.receiver.receive(ctx, &arrival{data: data, arrived: now, pulled: now, record: record})
	}
	record.Operation = "pull"
	a := &struct {
		arrival
		round round
	}{arrival: arrival{data: data, via: viaPull, arrived: now, pulled: now, record: record}}
	a.arrival.round = &a.round
	defer in.receiver.ledger.keep(&a.round)
	return in.receiver.receive(ctx, &a.arrival)
}
