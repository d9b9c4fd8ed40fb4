// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/altar/internal/cluster"
	"github.com/fivewire/fivewire/altar/internal/core"
	"github.com/fivewire/fivewire/altar/internal/form"
	"github.com/fivewire/fivewire/altar/internal/ledger"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/netguard"
	"github.com/fivewire/fivewire/internal/state"
)

// A Host routes tool calls from clients to Runtimes (ALT-010). It keeps the contracts, and checks,
// authorizes and records every call. All methods are safe for concurrent use.
type Host struct {
	opts      HostOptions
	origins   httpx.Origins
	ctx       context.Context // of the hooks; ends with Close
	stop      context.CancelFunc
	startedAt time.Time
	life      *life.Life // connections and goroutines
	budget    *budget.Budget
	places    *budget.Budget // of connections
	ledger    ledger.Ledger
	scratch   sync.Pool // of *[]byte, for fingerprints
	manifest  atomic.Pointer[contracts]

	clientQueue, httpQueue, runtimeQueue queueLimit // of connections

	// Each of these has its own lock.
	shards   [core.Shards]shard
	ids      idTable
	outcomes outcomes
	endedIDs tombstones // of sessions
	conns    connTable
	peers    peers
	audits   auditor
	clock    clock
	drain    drain

	timersMu sync.Mutex
	timers   core.Timers // of the Host; guarded by timersMu

	// These change with all shards locked.
	fleet        fleet
	judged       []*core.Call
	accepted     []*hostConn // streams of other Hosts
	isOfferStale bool

	timerSeq                 atomic.Uint64 // numbers of timers
	created                  atomic.Uint64
	live                     atomic.Int64 // sessions
	isClosed                 atomic.Bool
	invalidFrames, dropCount atomic.Uint64
}

// contracts is a manifest made ready.
type contracts struct {
	list   []*contract
	byName map[string]*contract
}

type contract struct {
	*Contract
	check   *validator
	returns *field // nil: anything
	digest  string
}

// NewHost returns a Host that trusts the contracts of a manifest. It fails if the
// manifest or an option is invalid, and if [Auth] lacks an Authorizer, or both an
// Authenticator and AllowAnonymous.
func NewHost(m *Manifest, opts *HostOptions) (*Host, error) {
	h := &Host{startedAt: time.Now(), fleet: newFleet()}
	if opts != nil {
		h.opts = *opts
	}
	if err := h.opts.Auth.validate(); err != nil {
		return nil, err
	}
	if h.opts.Level < 0 || h.opts.Level > 2 {
		return nil, fmt.Errorf("altar: host: invalid Level %d", h.opts.Level)
	}
	h.opts.withDefaults()
	if _, ok := parseSemver(h.opts.ProtocolVersion); !ok {
		return nil, fmt.Errorf("altar: invalid version %q", h.opts.ProtocolVersion)
	}
	manifest, err := h.load(m)
	if err != nil {
		return nil, err
	}
	h.manifest.Store(manifest)
	h.origins = httpx.Origins{AllowedOrigins: h.opts.AllowedOrigins, AllowedHosts: h.opts.AllowedHosts}
	if err := netguard.CheckOrigins(h.opts.AllowedOrigins); err != nil {
		return nil, fmt.Errorf("altar: host: %w", err)
	}
	limits := h.opts.Limits.budget(h.opts.Logger)
	h.budget = budget.New(limits, nil)
	h.places = budget.New(budget.Limits{Items: limits.Items, Logger: h.opts.Logger}, nil)
	h.ctx, h.stop = context.WithCancel(context.Background())
	h.life = life.New(life.Options{Logger: h.opts.Logger, Closed: ErrClosed})
	h.clientQueue = queueLimit{h.opts.Limits.ClientQueueLimit, h.opts.Limits.MaxClientQueue}
	// A lost response over HTTP costs the chunks in its queue. A repeat finds them.
	h.httpQueue = queueLimit{h.clientQueue.messages, min(h.clientQueue.bytes, h.opts.Limits.MaxStoredChunks/2)}
	h.runtimeQueue = queueLimit{h.opts.Limits.RuntimeQueueLimit, h.opts.Limits.MaxRuntimeQueue}
	h.clock.start = h.startedAt
	h.clock.clear()
	h.clock.fire = h.fireTimers
	h.drain.idle = make(chan struct{})
	h.conns.all, h.peers.byID = make(map[*hostConn]bool), make(map[string]*peer)
	h.timers = core.NewTimers(&h.timerSeq)
	h.endedIDs.list = core.NewTombstones(maxEnded, maxAllEnded)
	h.ids.seed = maphash.MakeSeed()
	h.outcomes.init(h)
	h.fleet.forget.Event = timerFunc(h.forgetRuntimes)
	env := core.Env{Limits: h.opts.coreLimits(), IDs: &h.ids, Outcomes: &h.outcomes, Registry: &core.Registry{}, HasAudit: h.opts.Audit != nil, HasRouter: h.opts.Router != nil}
	for i := range h.shards {
		own := env
		own.Messages = new(hostMessages)
		h.shards[i].index, h.shards[i].core = i, core.NewShard(i, &own, &h.timerSeq)
	}
	h.ledger = ledger.Memory{}
	network := h.opts.Cluster
	if db := state.Guard(h.opts.Persistence.Store); db != nil {
		h.opts.Persistence.Store = db
		shared := ledger.NewShared(h.ctx, h.ledgerOptions())
		h.ledger = shared
		_ = h.life.Go("store", func(context.Context) { h.ledger.Run() })
		if network == nil {
			network = cluster.NewStored(db, shared.Lease)
		}
	}
	if network != nil {
		_ = h.life.Go("cluster", func(ctx context.Context) { h.join(ctx, network) })
	}
	return h, nil
}

// ledgerOptions returns the options of the ledger in a store.
func (h *Host) ledgerOptions() ledger.Options {
	p := &h.opts.Persistence
	return ledger.Options{
		Store: p.Store, HostID: h.opts.ID, Logger: h.opts.Logger,
		StoreTimeout: p.StoreTimeout, LeaseTTL: p.LeaseTTL, OutcomeTTL: p.ResultTTL, TombstoneTTL: p.TombstoneTTL,
		OnBegin: func(all []ledger.Fulfillment) {
			now := h.lockAll()
			defer h.unlockAll()
			for _, f := range all {
				h.broadcast(now, &core.Event{Kind: core.Fulfilled, Change: h.restored(f)})
			}
		},
		OnOwner: func() {
			h.lockAll()
			defer h.unlockAll()
			h.isOfferStale = true
		},
		OnSessionEnd: h.destroyedElsewhere, Runtimes: h.runtimeIDs, Go: h.backgroundIn,
	}
}

// background runs f in a goroutine that Close waits for, unless the Host is closed.
func (h *Host) background(f func()) {
	h.backgroundIn(func(context.Context) { f() })
}

// backgroundIn is background with the context of the goroutine, which Close ends.
func (h *Host) backgroundIn(f func(ctx context.Context)) {
	if !h.isClosed.Load() {
		_ = h.life.Go("background", f)
	}
}

func (h *Host) logError(what string, err error) {
	h.opts.Logger.ErrorContext(h.ctx, "altar: "+what, "err", err)
}

func (h *Host) load(m *Manifest) (*contracts, error) {
	if m == nil {
		return nil, errors.New("altar: host: missing Manifest")
	}
	if err := m.Validate(); err != nil {
		return nil, err
	}
	out := &contracts{byName: make(map[string]*contract, len(m.Contracts))}
	for i, c := range m.Contracts {
		if c.Streaming && h.opts.Level < 2 {
			return nil, &ContractError{Reason: reasonInvalidValue, Path: form.PointerIndex("/contracts", i) + "/streaming"}
		}
		own := *c
		v, err := newValidator(&own, validation{h.opts.DropUnknown, h.opts.AllowNonFinite})
		if err != nil {
			return nil, err
		}
		returns, err := h.loadReturns(own.Name)
		if err != nil {
			return nil, err
		}
		made := &contract{Contract: &own, check: v, returns: returns, digest: own.digest()}
		out.list = append(out.list, made)
		out.byName[own.Name] = made
	}
	for name := range h.opts.ResultTypes {
		if !out.has(name) { // perhaps misspelt: the results are not checked
			h.opts.Logger.WarnContext(context.Background(), "altar: result type without a contract", "contract", name)
		}
	}
	return out, nil
}

// loadReturns compiles what results of a contract must be.
func (h *Host) loadReturns(name string) (*field, error) {
	p, ok := h.opts.ResultTypes[name]
	if !ok {
		return nil, nil
	}
	p.Name = "result"
	if err := (&Contract{Name: name, Parameters: []Parameter{p}}).Validate(); err != nil {
		return nil, fmt.Errorf("altar: result type of %s: %w", name, err)
	}
	return &compile([]Parameter{p}).fields[0], nil
}

func (c *contracts) has(name string) bool { return c.byName[name] != nil }

// reserved reports whether a runtime id would make names ambiguous (ALT-D14).
func (c *contracts) reserved(id string) bool {
	for _, k := range c.list {
		if len(k.Name) > len(id) && k.Name[len(id)] == '/' && k.Name[:len(id)] == id && c.has(k.Name[len(id)+1:]) {
			return true
		}
	}
	return false
}

// ReplaceManifest replaces the whole manifest, or fails and keeps the old one. Calls in flight keep
// their old contract. Fulfilments of removed contracts are dropped, and all Runtimes get new
// fulfilment requests for all sessions (ALT-D12).
func (h *Host) ReplaceManifest(m *Manifest) error {
	next, err := h.load(m)
	if err != nil {
		return err
	}
	now := h.lockAll()
	defer h.unlockAll()
	h.audit(&h.shards[0], now, &AuditRecord{Operation: "manifest.reloaded"}, nil)
	h.manifest.Store(next)
	h.broadcast(now, &core.Event{Kind: core.Fulfilled, Change: func(r *core.Registry) *core.Registry { return r.Keep(next.has) }})
	h.peers.mu.Lock()
	for _, p := range h.peers.byID {
		h.matchOffers(p, now)
	}
	h.peers.mu.Unlock()
	for _, rt := range h.fleet.order {
		h.requestAll(rt, true, now)
	}
	return nil
}

// guard runs a hook and turns its panic into an error (ALT-D34).
func (h *Host) guard(what string, hook func() error) error {
	err := guard.Call(what, hook)
	if err == nil {
		return nil
	}
	var p *guard.PanicError
	if errors.As(err, &p) {
		h.opts.Logger.ErrorContext(h.ctx, "altar: hook panicked", "hook", what, "err", p, "stack", string(p.Stack))
		return Errorf(ErrInternal, reasonHookPanic, "the Host failed")
	}
	return err
}

// refusal returns the error of a hook as it is sent.
func (h *Host) refusal(what string, err error, reason Reason, message string) *Error {
	var e *Error
	if errors.As(err, &e) && e.Remote {
		h.opts.Logger.WarnContext(h.ctx, "altar: hook returned the error of another server", "hook", what, "err", err)
		return Errorf(ErrInternal, "", "the Host failed at another server")
	}
	if e != nil {
		if _, bad := appendMessage(nil, &ErrorMessage{Err: e}, false); bad == nil {
			return e
		}
	}
	h.opts.Logger.InfoContext(h.ctx, "altar: request refused", "hook", what, "err", err)
	return &Error{Code: ErrAuthorizationFailed, Message: message, Details: appendDetails(nil, reason, ""), Cause: err}
}

// Shutdown refuses new calls, waits for the calls in flight, and closes the Host. It does not wait for
// peers that leave their connections open, and gives queued messages WriteTimeout. If ctx ends first, the
// Host is closed at once and the error of ctx is returned.
func (h *Host) Shutdown(ctx context.Context) error {
	h.lockAll()
	h.drain.start()
	h.isOfferStale = true
	h.unlockAll()
	var err error
	select {
	case <-h.drain.idle:
		err = h.flush(ctx)
	case <-ctx.Done():
		err = ctx.Err()
	}
	return errors.Join(err, h.Close())
}

// flush gives the connections the chance to send what is queued. It returns the error of ctx if that ends first.
func (h *Host) flush(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, h.opts.Timing.WriteTimeout)
	defer cancel()
	all := h.conns.list(false)
	for _, c := range all {
		c.out.end(goodbyeDraining, nil)
		if c.inProcess && c.out.len() == 0 {
			c.cut() // the peer may not receive, or not close its side
		}
	}
	for _, c := range all {
		select {
		case <-c.removed:
		case <-bounded.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Ready returns [ErrClosed] once a shutdown has begun, an error if another process has taken the ID of the Host, and
// nil otherwise.
func (h *Host) Ready() error {
	if h.isClosed.Load() || h.drain.isStarted.Load() {
		return ErrClosed
	}
	return h.ledger.Ready()
}

// Close ends all connections at once and waits until no goroutine of the Host is
// left, for at most a second: it does not wait longer for a hook that ignores its
// context. It may be called more than once.
func (h *Host) Close() error {
	h.isClosed.Store(true)
	h.clock.close()
	all := h.conns.list(true)
	for _, c := range all {
		// Stop the output first: a client must not receive an error about a Runtime that was
		// disconnected by Close itself.
		c.out.close()
	}
	h.stop()
	for _, c := range all {
		go c.cut() // a peer may take a second to close
	}
	return h.life.Close()
}
