// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/air/internal/exchange"
	"github.com/fivewire/fivewire/air/internal/server"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/randid"
)

// maxDocumentTTL is the maximum lifetime of a cached document, before jitter (AIR-026).
const maxDocumentTTL = 60 * time.Second

// maxLookups bounds the requests to the registry at a time.
const maxLookups = 16

// ResolverOptions adjusts a [Resolver]. The zero value is right for production.
type ResolverOptions struct {
	// RegistryURL is the base URL of the registry. Empty means [DefaultRegistryURL].
	RegistryURL string

	// HTTPClient fetches the documents. Nil means a client that connects to public addresses only.
	// Redirects are never followed. An [http.Transport] is copied and guarded as well. Of another transport only the
	// host names are checked: a name that resolves to a private address is not noticed.
	HTTPClient *http.Client

	// CacheTTL is the lifetime of a cached document, with a jitter of a sixth. Zero means 60 s,
	// which is also the maximum; a negative value
	// disables the cache. Use 15 s if a replaced key must be detected sooner (AIR-030).
	CacheTTL time.Duration

	// MaxCacheEntries bounds the cache. Zero means 10,000; a negative value removes the bound.
	MaxCacheEntries int

	// AllowLoopback accepts a registry and inboxes on this machine, for tests.
	AllowLoopback bool

	// AllowPrivate accepts private addresses, for closed networks.
	AllowPrivate bool

	// Transport, if set, changes the transport of a client that the package makes, here and in a [Client] with this
	// resolver: for a proxy, certificates or connection limits. The checks of addresses stay.
	Transport func(*http.Transport)

	// Logger receives failed lookups. Nil means slog.Default().
	Logger *slog.Logger

	random func() float64 // numbers from 0 up to 1 for the jitter; nil means math/rand
}

// A Resolver fetches DID documents and caches them for about a minute. Concurrent callers for the
// same agent share one request; there are at most 16 requests at a time, and further callers wait
// within their contexts. All methods are safe for concurrent use.
type Resolver struct {
	opts   ResolverOptions
	client *exchange.Client
	log    *slog.Logger

	slots   chan struct{} // of lookups in progress (AIR-D40)
	faults  server.LogLevels
	mu      sync.Mutex
	entries map[string]cached // by AIR ID, never by DID or URL (AIR-029); guarded by mu
	swept   time.Time         // the last search for expired entries; guarded by mu
	flights map[string]*flight
}

type cached struct {
	doc       *Document // nil: the registry does not know the agent
	requested time.Time
	fetched   time.Time
	expires   time.Time

	did     string // the subject of the fields below
	pub     *PublicKey
	bad     error
	inbox   string // URL
	noInbox error
}

// key returns the signing key of did. Validating a point is expensive, so it happens once for the
// subject of the document.
func (c *cached) key(did string) (*PublicKey, error) {
	if did == c.did {
		return c.pub, c.bad
	}
	return c.doc.SigningKey(did)
}

// endpoint returns the URL of the inbox of did, which every push needs.
func (c *cached) endpoint(did string) (string, error) {
	if did == c.did {
		return c.inbox, c.noInbox
	}
	e, err := c.doc.Inbox(did, nil)
	return e.URL, err
}

type flight struct {
	done       chan struct{}
	entry      cached
	err        error
	isCanceled bool // the context of its caller ended, so waiters must retry
}

// NewResolver returns a resolver with an empty cache. It does no I/O.
func NewResolver(opts *ResolverOptions) (*Resolver, error) {
	r := &Resolver{
		entries: make(map[string]cached), flights: make(map[string]*flight), slots: make(chan struct{}, maxLookups),
	}
	if opts != nil {
		r.opts = *opts
	}
	o := &r.opts
	o.CacheTTL = option.Or(o.CacheTTL, maxDocumentTTL, time.Nanosecond)
	if o.CacheTTL > maxDocumentTTL {
		return nil, fmt.Errorf("air: resolver: CacheTTL %v over %v", o.CacheTTL, maxDocumentTTL)
	}
	o.MaxCacheEntries = option.Count(o.MaxCacheEntries, 10_000)
	if o.random == nil {
		o.random = randid.Rand().Float64
	}
	if _, err := documentURL(o.RegistryURL, "AIR-0000-0000-0000"); err != nil {
		return nil, err
	}
	if o.RegistryURL != "" {
		if _, err := parseEndpoint(o.RegistryURL, r.endpointOptions("")); err != nil {
			return nil, err
		}
	}
	r.log = logger(o.Logger)
	r.client = exchange.New(r.clientOptions(o.HTTPClient))
	return r, nil
}

// Close closes the idle connections.
func (r *Resolver) Close() error {
	r.client.Close()
	return nil
}

// clientOptions returns those of a client that may connect to what the resolver may.
func (r *Resolver) clientOptions(c *http.Client) exchange.Options {
	o := &r.opts
	return exchange.Options{HTTPClient: c, AllowLoopback: o.AllowLoopback, AllowPrivate: o.AllowPrivate, Transport: o.Transport}
}

func logger(l *slog.Logger) *slog.Logger { return cmp.Or(l, slog.Default()) }

func (r *Resolver) endpointOptions(d Dialect) *EndpointOptions {
	return &EndpointOptions{AllowLoopback: r.opts.AllowLoopback, AllowPrivate: r.opts.AllowPrivate, Dialect: d}
}

// Resolve returns the document of an agent, from the cache if it has not expired. The error is
// [ErrNotFound] if the registry does not have the agent or did has no AIR ID, and [ErrBadGateway]
// if the registry is unreachable or its response is invalid. In the last case the error is
// [ErrBadDocument] as well.
//
// Resolve does not check that the document is that of did; the methods of [Document] do.
func (r *Resolver) Resolve(ctx context.Context, did string) (*Document, error) {
	e, err := r.resolve(ctx, did, lookup{})
	return e.doc, err
}

// Invalidate removes the document of an agent from the cache (AIR-028). Later callers do not use a
// response that is in flight.
func (r *Resolver) Invalidate(airID string) {
	r.mu.Lock()
	delete(r.entries, airID)
	delete(r.flights, airID)
	r.mu.Unlock()
}

// missingTTL is how long an unknown agent is not looked up again for received mail (AIR-D40).
const missingTTL = 10 * time.Second

// A lookup is what a caller needs of an entry.
type lookup struct {
	notBefore  time.Time // fetched after this time, past HTTP caches too; zero means the cache suffices
	isReceived bool      // for received mail, for which unknown agents are cached
}

// resolve returns an entry.
func (r *Resolver) resolve(ctx context.Context, did string, l lookup) (cached, error) {
	airID := airIDOf(did)
	if airID == "" {
		return cached{}, ErrNotFound.err("the DID holds no AIR ID")
	}
	for {
		r.mu.Lock()
		e, ok := r.entries[airID]
		if ok && time.Now().Before(e.expires) && (e.doc == nil && l.isReceived || e.doc != nil && e.fetched.After(l.notBefore)) {
			r.mu.Unlock()
			if e.doc == nil {
				return cached{}, errUnknownAgent()
			}
			return e, nil
		}
		f, waiting := r.flights[airID]
		if !waiting {
			f = &flight{done: make(chan struct{})}
			r.flights[airID] = f
		}
		r.mu.Unlock()
		if !waiting {
			r.runFlight(ctx, airID, f, !l.notBefore.IsZero())
			return f.entry, f.err
		}
		select {
		case <-f.done:
			if !f.isCanceled {
				return f.entry, f.err
			}
		case <-ctx.Done():
			return cached{}, ErrBadGateway.because("the registry did not answer in time", ctx.Err())
		}
	}
}

// runFlight sends the request for all waiting callers.
func (r *Resolver) runFlight(ctx context.Context, airID string, f *flight, isForced bool) {
	defer func() {
		r.mu.Lock()
		current := r.flights[airID] == f
		if current {
			delete(r.flights, airID)
		}
		switch {
		case !current: // invalidated during the request
		case f.err == nil && f.entry.doc != nil:
			r.insertLocked(airID, f.entry)
		case errors.Is(f.err, ErrNotFound):
			now := time.Now()
			r.insertLocked(airID, cached{fetched: now, expires: now.Add(missingTTL)})
		}
		r.mu.Unlock()
		close(f.done)
	}()
	f.isCanceled = true // also if the transport ends the goroutine
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		f.err = ErrBadGateway.because("the registry did not answer in time", ctx.Err())
		return
	}
	f.entry, f.err = r.fetch(ctx, airID, isForced)
	var p *guard.PanicError
	if errors.As(f.err, &p) {
		logPanic(ctx, r.log, f.err)
		f.err = ErrBadGateway.because("the registry is out of reach", f.err)
	}
	f.isCanceled = f.err != nil && ctx.Err() != nil
}

// sweepInterval is the time between two searches for expired entries in a full cache, which may be large.
const sweepInterval = time.Second

// insertLocked adds an entry. A full cache evicts the expired entries that sweepLocked finds, or a random one. r.mu
// must be held.
func (r *Resolver) insertLocked(airID string, e cached) {
	if _, ok := r.entries[airID]; !ok && len(r.entries) >= r.opts.MaxCacheEntries {
		r.sweepLocked()
		for id := range r.entries {
			if len(r.entries) < r.opts.MaxCacheEntries {
				break
			}
			delete(r.entries, id)
		}
	}
	r.entries[strings.Clone(airID)] = e // not part of an envelope, which it would keep alive
}

// sweepLocked removes the expired entries, at most once in sweepInterval. r.mu must be held.
func (r *Resolver) sweepLocked() {
	now := time.Now()
	if now.Sub(r.swept) < sweepInterval {
		return
	}
	r.swept = now
	for id, e := range r.entries {
		if !now.Before(e.expires) {
			delete(r.entries, id)
		}
	}
}

// errUnknownAgent returns the error of a 404 of the registry.
func errUnknownAgent() error {
	return &Error{Code: ErrNotFound, Message: "the registry does not know the agent", Remote: true}
}

func (r *Resolver) fetch(ctx context.Context, airID string, isForced bool) (cached, error) {
	var e cached
	requested := time.Now()
	u, err := documentURL(r.opts.RegistryURL, airID)
	if err != nil {
		return e, err
	}
	req := &exchange.Request{Op: "document", Method: http.MethodGet, URL: u, Limit: maxDocument}
	if isForced {
		req.Header = http.Header{"Cache-Control": {"no-cache"}}
	}
	res, err := r.client.Do(ctx, req)
	if err != nil {
		r.log.Log(ctx, r.faults.Level("fetch"), "air: document not fetched", "agent", airID, "err", err)
		return e, ErrBadGateway.because("the registry is out of reach", err)
	}
	switch res.Status {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusGone:
		return e, errUnknownAgent()
	default:
		r.log.Log(ctx, r.faults.Level("status"), "air: document not fetched", "agent", airID, "status", res.Status)
		return e, ErrBadGateway.because("the registry is out of reach", fmt.Errorf("status %d", res.Status))
	}
	doc, err := DecodeDocument(res.Body)
	if err != nil {
		r.log.Log(ctx, r.faults.Level("document"), "air: document not readable", "agent", airID, "err", err)
		return e, ErrBadGateway.because("the registry is out of reach", err)
	}
	now := time.Now()
	// A sixth of the TTL either way: 50 to 70 s of 60 (AIR-026, AIR-D59).
	life := r.opts.CacheTTL + time.Duration((2*r.opts.random()-1)*float64(r.opts.CacheTTL)/6)
	e = cached{doc: doc, requested: requested, fetched: now, expires: now.Add(life), did: doc.ID}
	e.pub, e.bad = doc.SigningKey(doc.ID)
	inbox, err := doc.Inbox(doc.ID, r.endpointOptions(""))
	e.inbox, e.noInbox = inbox.URL, err
	return e, nil
}
