// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/retry"
)

// AgentOptions adjusts an [Agent]. The zero value is right for production, except that a restart loses
// what only a Store keeps.
type AgentOptions struct {
	Auth        Auth
	Limits      Limits
	Persistence Persistence // its Store also keeps the outbox
	Timing      Timing

	// Resolver resolves this agent and its peers. Nil means a new resolver with default options.
	Resolver *Resolver

	// HTTPClient pushes and pulls. Nil means a client that connects to public addresses, or to those
	// that the Resolver allows. Redirects are never followed.
	HTTPClient *http.Client

	// Direct states that the program serves [Agent.Handler]: Run does not poll. Otherwise Run polls the
	// mailbox in the agent's own document.
	Direct bool

	// ClientAddr returns the address of a caller of [Agent.Handler] for the limits, as that of [InboxOptions] does.
	ClientAddr func(*http.Request) string

	// Secrets returns the secret for an origin, for pushes and for pulls, "" for none; see
	// [ClientOptions]. Nil means none. A relay that verifies signatures needs none.
	Secrets func(origin string) string

	// Profile selects validation and signature form. Empty means ProfileSpec for sent and
	// ProfileInterop for received envelopes.
	Profile Profile

	// Dialect is the dialect of the own relay. Empty means DialectSpec.
	Dialect Dialect

	// BodyTypes are the body types besides those of the specification that the agent sends and
	// receives; [AnyBodyType] permits all.
	BodyTypes []string

	// RequireSealed refuses to send plain bodies, which every relay can read.
	RequireSealed bool

	// PublishKey, if set, is called by Rotate with the new identity, which it stores and registers. An
	// error ends the rotation.
	PublishKey func(ctx context.Context, next *Identity) error

	// Middleware wraps the handler, and Interceptors wraps Send, the first outermost.
	Middleware   []Middleware
	Interceptors []Interceptor

	// OnOutcome, if set, is called after every attempt whose envelope the handler did not take. It may
	// be called concurrently and must not change the result.
	OnOutcome func(ctx context.Context, r *ReceiveResult)

	// Audit, if set, is called after every received envelope. It may be called concurrently.
	Audit func(ctx context.Context, r *AuditRecord)

	// Logger receives events that no error reports. Nil means slog.Default().
	Logger *slog.Logger
}

// An Agent sends and receives the envelopes of one identity: a [Client], an [Inbox] and a [Poller] with
// the same resolver, threads and store. All methods are safe for concurrent use. Shutdown or Close
// ends it.
type Agent struct {
	// Client has the outbox, [Client.SendEach] and [Client.NewNegotiation]. It must not be replaced.
	*Client

	// Inbox has the dead letters and the state for operators. It is nil without a handler and must not
	// be replaced.
	Inbox *Inbox

	opts AgentOptions
	life *life.Life
	turn chan struct{} // full during a rotation

	ownResolver *Resolver // nil if the resolver was given

	mu     sync.Mutex
	poller *Poller // of Run; guarded by mu
}

// NewAgent returns an agent. A nil handler means that it only sends. It does no I/O; with a Store it
// begins to in the background.
func NewAgent(id *Identity, h Handler, opts *AgentOptions) (*Agent, error) {
	a := &Agent{turn: make(chan struct{}, 1)}
	if opts != nil {
		a.opts = *opts
	}
	o := &a.opts
	o.Logger = logger(o.Logger)
	switch {
	case id.isZero():
		return nil, errors.New("air: agent: identity missing")
	case h == nil && o.Direct:
		return nil, errors.New("air: agent: Direct needs a handler")
	}
	if err := checkWord("dialect", o.Dialect, DialectSpec, DialectDeployed, DialectAuto); err != nil {
		return nil, err
	}
	if o.Resolver == nil {
		var err error
		if a.ownResolver, err = NewResolver(&ResolverOptions{HTTPClient: o.HTTPClient, Logger: o.Logger}); err != nil {
			return nil, err
		}
		o.Resolver = a.ownResolver
	}
	if o.Persistence.ThreadStore == nil {
		threads := &ThreadStoreOptions{}
		if o.Persistence.Store != nil {
			threads.Store = o.Persistence.Store
		}
		var err error
		if o.Persistence.ThreadStore, err = NewThreadStore(id.did, threads); err != nil {
			return nil, err
		}
	}
	err := a.connect(id, h)
	if err != nil {
		return nil, err
	}
	a.life = life.New(life.Options{Closed: ErrClosed, Logger: o.Logger})
	return a, nil
}

// connect makes the inbox if there is a handler, and the client.
func (a *Agent) connect(id *Identity, h Handler) (err error) {
	o := &a.opts
	c := &ClientOptions{
		Resolver: o.Resolver, HTTPClient: o.HTTPClient, Profile: o.Profile, BodyTypes: slices.Clone(o.BodyTypes),
		Secrets: o.Secrets, RequireSealed: o.RequireSealed, MaxMessage: o.Limits.MaxMessage,
		ThreadStore: o.Persistence.ThreadStore, KeyPolicy: o.Auth.KeyPolicy, ResendEvery: o.Timing.ResendEvery,
		Retry: &RetryPolicy{Timeout: o.Timing.RequestTimeout}, Interceptors: o.Interceptors, Logger: o.Logger,
	}
	if o.Persistence.Store != nil {
		c.Outbox, c.isAlone = o.Persistence.Store, o.Persistence.SingleInstance
	}
	if h != nil {
		a.Inbox, err = NewInbox(id, h, &InboxOptions{
			Auth: o.Auth, Limits: o.Limits, Persistence: o.Persistence, Timing: o.Timing,
			Resolver: o.Resolver, Profile: o.Profile, BodyTypes: o.BodyTypes,
			ClientAddr: o.ClientAddr, Middleware: o.Middleware, OnOutcome: o.OnOutcome, Audit: o.Audit, Logger: o.Logger,
		})
		if err != nil {
			return err
		}
		c.instance = a.Inbox.receiver.instance
	}
	if a.Client, err = NewClient(id, c); err != nil && a.Inbox != nil {
		err = errors.Join(err, a.Inbox.Close())
	}
	return err
}

// Send signs a message to an agent, a DID, and delivers it as [Client.Send] does. For a reply within a
// thread use [Client.NewNegotiation], or [Client.Send] with a [Draft].
func (a *Agent) Send(ctx context.Context, to string, body Body, opts *SendOptions) (*Receipt, error) {
	return a.Client.Send(ctx, &Draft{To: to, Body: body}, opts)
}

// Handler returns the [http.Handler] for direct delivery, which receives one envelope at any path. Without
// a handler of envelopes it answers 404.
func (a *Agent) Handler() http.Handler {
	if a.Inbox == nil {
		return http.NotFoundHandler()
	}
	return a.Inbox
}

// Run fetches the mail of the agent until ctx ends, and returns its error, or [ErrClosed] once the agent is
// closed. The mailbox is the one in the agent's document; if the document names another one, Run
// continues there, and fetches from the former one for two more minutes. Run returns the error of the third consecutive permanent failure, as [Poller.Run]
// does, such as a document without a mailbox. With Direct or without a handler it only waits. It must
// be called once at a time.
func (a *Agent) Run(ctx context.Context) error {
	w, err := a.life.Start(ctx, life.Idle)
	if err != nil {
		return err
	}
	defer w.Finish()
	if a.opts.Direct || a.Inbox == nil {
		<-w.Done()
		return context.Cause(w)
	}
	for failures, permanents := 0, 0; ; failures++ {
		endpoint, err := a.Client.endpoint(w, a.Client.did)
		if permanents++; !isPermanentLookup(err) {
			permanents = 0
		}
		switch {
		case w.Err() != nil:
			return context.Cause(w)
		case err == nil:
			if err = a.poll(w, endpoint); err != nil {
				return err
			}
			failures = -1 // the mailbox has moved
			continue
		case permanents == maxPermanents:
			return err
		}
		if failures == 0 {
			a.opts.Logger.WarnContext(w, "air: own mailbox not found", "agent", a.Client.did, "err", err)
		}
		if retry.Sleep(w, min(pollInterval<<min(failures, 8), maxPollDelay)) != nil {
			return context.Cause(w)
		}
	}
}

// isPermanentLookup reports whether the registry has answered that the agent has no usable mailbox.
func isPermanentLookup(err error) bool {
	return errors.Is(err, ErrNotFound) || errors.Is(err, ErrUnreachable) || errors.Is(err, ErrBadEndpoint)
}

// moveInterval is the interval at which the agent's document is resolved. moveGrace is how long the mail of a former mailbox is
// fetched: senders may have the old document for 70 s.
const (
	moveInterval = time.Minute
	moveGrace    = 2 * time.Minute
)

// poll fetches the mail of one mailbox. It returns nil if the document names another one, and fetches for some more time then.
func (a *Agent) poll(ctx context.Context, endpoint string) error {
	o, r := &a.opts, a.opts.Resolver
	po := &PollerOptions{
		Dialect: o.Dialect, HTTPClient: o.HTTPClient, Logger: o.Logger, secrets: o.Secrets,
		AllowLoopback: r.opts.AllowLoopback, AllowPrivate: r.opts.AllowPrivate, Transport: r.opts.Transport,
	}
	p, err := NewPoller(a.Inbox, endpoint, po)
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.poller = p
	a.mu.Unlock()
	running, stop := context.WithCancel(ctx)
	ran := make(chan error, 1)
	err = a.life.Go("poller", func(context.Context) {
		defer func() { _ = p.Close() }()
		ran <- p.Run(running)
	})
	if err != nil {
		stop()
		return errors.Join(err, p.Close())
	}
	watched, cancel := context.WithCancel(ctx)
	defer cancel()
	isMoved := make(chan bool, 1)
	go func() { isMoved <- a.waitMoved(watched, endpoint) }()
	select {
	case moved := <-isMoved:
		if moved {
			time.AfterFunc(moveGrace, stop)
			return nil
		}
		stop()
		return <-ran
	case err = <-ran:
		stop()
	}
	cancel()
	if <-isMoved || ctx.Err() == nil && a.Inbox.life.Ready() == nil && a.isMoved(ctx, endpoint) {
		return nil
	}
	return err
}

// waitMoved returns true once the document names another mailbox, and false at the end of ctx.
func (a *Agent) waitMoved(ctx context.Context, endpoint string) bool {
	for retry.Sleep(ctx, moveInterval) == nil {
		if a.isMoved(ctx, endpoint) {
			return true
		}
	}
	return false
}

func (a *Agent) isMoved(ctx context.Context, endpoint string) bool {
	present, err := a.Client.endpoint(ctx, a.Client.did)
	return err == nil && present != endpoint
}

// Rotate replaces the key by that of a new seed of 32 bytes, while the agent runs. Bodies sealed to the
// old key can still be opened. PublishKey is called before the change, and bodies sealed to the new key can be
// opened from then on; without it the registry must have the new key already. The published registry changes
// no keys: see [github.com/fivewire/fivewire/air/registry.Client.RotateKey].
func (a *Agent) Rotate(ctx context.Context, seed []byte) error {
	w, err := a.life.Start(ctx, life.Request)
	if err != nil {
		return err
	}
	defer w.Finish()
	select {
	case a.turn <- struct{}{}:
	case <-w.Done():
		return context.Cause(w)
	}
	defer func() { <-a.turn }()
	next, err := a.Client.id.Load().Rotate(seed)
	if err != nil {
		return err
	}
	if a.Inbox != nil {
		a.Inbox.self.next.Store(next)
	}
	a.Client.rotated.Store(time.Now().UnixNano())
	if a.opts.PublishKey != nil {
		if err := guard.Call("PublishKey", func() error { return a.opts.PublishKey(w, next) }); err != nil {
			return err
		}
	}
	if a.Inbox != nil {
		a.Inbox.self.id.Store(next) // first, so that a reply to a new form can be opened
	}
	a.Client.id.Store(next)
	a.Client.rotated.Store(time.Now().UnixNano())
	a.opts.Resolver.Invalidate(next.airID)
	return nil
}

// Shutdown stops fetching mail, waits for running handlers and deliveries, and releases the lease. If
// ctx ends first, it cuts them and returns the error of ctx at once. It does not close the Store.
func (a *Agent) Shutdown(ctx context.Context) error {
	var err error
	a.mu.Lock()
	p := a.poller
	a.mu.Unlock()
	if p != nil {
		err = p.Shutdown(ctx)
	}
	if a.Inbox != nil {
		err = errors.Join(err, a.Inbox.Shutdown(ctx))
	}
	err = errors.Join(err, a.Client.Shutdown(ctx), a.life.Shutdown(ctx))
	if err != nil {
		return errors.Join(err, a.closeIdle())
	}
	return a.Close()
}

// Close cuts all handlers and deliveries, and waits for them at most one second.
func (a *Agent) Close() error {
	parts := []func() error{a.life.Close, a.Client.Close}
	if a.Inbox != nil {
		parts = append(parts, a.Inbox.Close)
	}
	errs := make([]error, len(parts))
	var wg sync.WaitGroup
	for i, end := range parts {
		wg.Go(func() { errs[i] = end() })
	}
	wg.Wait()
	return errors.Join(append(errs, a.closeIdle())...)
}

// closeIdle closes the idle connections of the resolver, unless that was given.
func (a *Agent) closeIdle() error {
	if a.ownResolver == nil {
		return nil
	}
	return a.ownResolver.Close()
}
