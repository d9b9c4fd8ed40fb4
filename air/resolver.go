// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/fivewire/fivewire/air/internal/web"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// maxDocumentTTL is the longest that a document may be used without resolving it
// again, before jitter (AIR-026).
const maxDocumentTTL = 60 * time.Second

// ResolverOptions adjusts a [Resolver]. The zero value is right for production.
type ResolverOptions struct {
	// RegistryURL is the base URL of the registry. Empty means [DefaultRegistryURL].
	RegistryURL string

	// HTTPClient fetches the documents. Nil means one that connects to public
	// addresses only. No redirect is followed in any case.
	HTTPClient *http.Client

	// CacheTTL is how long a document is used, give or take a sixth at random for each
	// one. Zero means 60 s; 15 s is right where a key must not be trusted longer
	// (AIR-030). More than [MaxDocumentTTL] is refused.
	CacheTTL time.Duration

	// MaxCacheEntries bounds the cache. Zero means 10,000.
	MaxCacheEntries int

	// AllowLoopback accepts a registry and inboxes on this machine, for tests.
	AllowLoopback bool

	// AllowPrivate accepts private addresses, for closed networks.
	AllowPrivate bool

	// Random returns numbers from 0 up to 1 for the jitter. Nil means math/rand.
	Random func() float64

	// Logger receives what lookups find. Nil is silent.
	Logger *slog.Logger
}

// A Resolver fetches DID documents and keeps them for about a minute. Several
// callers that ask for the same agent at once share one request. All methods
// may be called from several goroutines.
type Resolver struct {
	opts   ResolverOptions
	client *http.Client
	log    *slog.Logger

	mu      sync.Mutex
	entries map[string]cached // by AIR ID, never by DID or URL (AIR-029); guarded by mu
	flights map[string]*flight
}

type cached struct {
	doc     *Document
	fetched time.Time
	expires time.Time

	did string // whose key was taken out of the document when it was fetched
	pub *PublicKey
	bad error
}

// key is the signing key of did. Checking a point is expensive, so that of the
// document's own agent is checked once.
func (c *cached) key(did string) (*PublicKey, error) {
	if did == c.did {
		return c.pub, c.bad
	}
	return c.doc.SigningKey(did)
}

type flight struct {
	done  chan struct{}
	entry cached
	err   error
	ended bool // by the context of its caller, so that others must try themselves
}

// NewResolver returns a resolver with an empty cache. It does no I/O.
func NewResolver(opts *ResolverOptions) (*Resolver, error) {
	r := &Resolver{entries: make(map[string]cached), flights: make(map[string]*flight)}
	if opts != nil {
		r.opts = *opts
	}
	o := &r.opts
	if o.CacheTTL == 0 {
		o.CacheTTL = maxDocumentTTL
	}
	if o.CacheTTL < 0 || o.CacheTTL > maxDocumentTTL {
		return nil, fmt.Errorf("air: a document TTL of %v: at most %v is allowed", o.CacheTTL, maxDocumentTTL)
	}
	if o.MaxCacheEntries <= 0 {
		o.MaxCacheEntries = 10000
	}
	if o.Random == nil {
		o.Random = rand.Float64
	}
	if _, err := DocumentURL(o.RegistryURL, "AIR-0000-0000-0000"); err != nil {
		return nil, err
	}
	if o.RegistryURL != "" {
		if _, err := ParseEndpoint(o.RegistryURL, r.endpointOptions("")); err != nil {
			return nil, err
		}
	}
	r.log = logger(o.Logger)
	r.client = web.Client(o.HTTPClient, o.AllowLoopback, o.AllowPrivate)
	return r, nil
}

func logger(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	return l
}

func (r *Resolver) endpointOptions(d Dialect) *EndpointOptions {
	return &EndpointOptions{AllowLoopback: r.opts.AllowLoopback, AllowPrivate: r.opts.AllowPrivate, Dialect: d}
}

// Resolve returns the document of an agent, from the cache if that holds one that
// is still alive. The errors are [ErrNotFound] if the registry does not know the
// agent or did holds no AIR ID, and [ErrBadGateway] if the registry cannot be
// reached or answers with something that is no document, in which case the error
// is [ErrBadDocument] as well.
//
// That the document is the one of did is not checked here: its methods do.
func (r *Resolver) Resolve(ctx context.Context, did string) (*Document, error) {
	e, err := r.resolve(ctx, did, time.Time{})
	return e.doc, err
}

// Invalidate forgets the document of an agent (AIR-028). What is being fetched at
// that moment may be as old, so that is not used by anybody who asks later.
func (r *Resolver) Invalidate(airID string) {
	r.mu.Lock()
	delete(r.entries, airID)
	delete(r.flights, airID)
	r.mu.Unlock()
}

// resolve returns an entry that was fetched after notBefore.
func (r *Resolver) resolve(ctx context.Context, did string, notBefore time.Time) (cached, error) {
	airID := airIDOf(did)
	if airID == "" {
		return cached{}, ErrNotFound.err("the DID holds no AIR ID")
	}
	for {
		r.mu.Lock()
		if e, ok := r.entries[airID]; ok {
			if time.Now().Before(e.expires) && e.fetched.After(notBefore) {
				r.mu.Unlock()
				return e, nil
			}
		}
		f, waiting := r.flights[airID]
		if !waiting {
			f = &flight{done: make(chan struct{})}
			r.flights[airID] = f
		}
		r.mu.Unlock()
		if !waiting {
			r.fly(ctx, airID, f)
			return f.entry, f.err
		}
		select {
		case <-f.done:
			if !f.ended {
				return f.entry, f.err
			}
		case <-ctx.Done():
			return cached{}, ErrBadGateway.because("the registry did not answer in time", ctx.Err())
		}
	}
}

// fly makes the request for everybody who waits for it.
func (r *Resolver) fly(ctx context.Context, airID string, f *flight) {
	defer func() {
		r.mu.Lock()
		current := r.flights[airID] == f
		if current {
			delete(r.flights, airID)
		}
		switch {
		case !current: // invalidated meanwhile
		case f.err == nil && f.entry.doc != nil:
			r.insert(airID, f.entry)
		case errors.Is(f.err, ErrNotFound):
			delete(r.entries, airID) // the agent is gone
		}
		r.mu.Unlock()
		close(f.done)
	}()
	f.ended = true // also if the transport panics
	f.entry, f.err = r.fetch(ctx, airID)
	f.ended = f.err != nil && ctx.Err() != nil
}

// insert makes room if necessary: first by what has expired, then at random.
func (r *Resolver) insert(airID string, e cached) {
	if _, ok := r.entries[airID]; !ok && len(r.entries) >= r.opts.MaxCacheEntries {
		now := time.Now()
		for id, old := range r.entries {
			if !now.Before(old.expires) {
				delete(r.entries, id)
			}
		}
		for id := range r.entries {
			if len(r.entries) < r.opts.MaxCacheEntries {
				break
			}
			delete(r.entries, id)
		}
	}
	r.entries[airID] = e
}

func (r *Resolver) fetch(ctx context.Context, airID string) (cached, error) {
	var e cached
	u, err := DocumentURL(r.opts.RegistryURL, airID)
	if err != nil {
		return e, err
	}
	res, err := web.Exchange(ctx, r.client, http.MethodGet, u, nil, "", maxDocument)
	if err != nil {
		r.log.DebugContext(ctx, "air: document not fetched", "air_id", airID, "err", err)
		return e, ErrBadGateway.because("the registry is out of reach", err)
	}
	switch res.Status {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusGone:
		return e, ErrNotFound.err("the registry does not know the agent")
	default:
		r.log.DebugContext(ctx, "air: document not fetched", "air_id", airID, "status", res.Status)
		return e, ErrBadGateway.because("the registry is out of reach", fmt.Errorf("status %d", res.Status))
	}
	doc, err := DecodeDocument(res.Body)
	if err != nil {
		r.log.DebugContext(ctx, "air: document not readable", "air_id", airID, "err", err)
		return e, ErrBadGateway.because("the registry is out of reach", err)
	}
	now := time.Now()
	// A sixth of the TTL to both sides: 50 to 70 s of 60 (AIR-026, AIR-D59).
	life := r.opts.CacheTTL + time.Duration((2*r.opts.Random()-1)*float64(r.opts.CacheTTL)/6)
	e = cached{doc: doc, fetched: now, expires: now.Add(life), did: doc.ID}
	e.pub, e.bad = doc.SigningKey(doc.ID)
	return e, nil
}

// TrustScore asks for an agent's trust score where its document says, and returns
// the answer: a JSON object, read strictly, whose members the specification
// leaves to the registry. Scores are never part of an envelope (AIR-005). An agent
// without that service is [ErrUnreachable].
func (r *Resolver) TrustScore(ctx context.Context, did string) ([]byte, error) {
	doc, err := r.Resolve(ctx, did)
	if err != nil {
		return nil, err
	}
	if doc.ID != did {
		return nil, ErrNotFound.err("the document is that of another agent")
	}
	text, ok := doc.Service(ServiceTrustScore)
	if !ok {
		return nil, ErrUnreachable.err("the document names no trust score")
	}
	e, err := ParseEndpoint(text, r.endpointOptions(""))
	if err != nil {
		return nil, err
	}
	res, err := web.Exchange(ctx, r.client, http.MethodGet, e.URL, nil, "", maxAnswer)
	if err != nil {
		return nil, ErrBadGateway.because("the trust score is out of reach", err)
	}
	if res.Status != http.StatusOK {
		return nil, ErrBadGateway.because("the trust score is out of reach", fmt.Errorf("status %d", res.Status))
	}
	v, err := strictjson.Check(res.Body, strictjson.Options{MaxDepth: maxDepth})
	if err != nil || !v.IsObject() {
		return nil, ErrBadDocument.because("the trust score is not a JSON object", err)
	}
	return v, nil
}
