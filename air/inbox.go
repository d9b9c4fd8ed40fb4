// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/air/internal/canon"
	"github.com/fivewire/fivewire/air/internal/core"
	"github.com/fivewire/fivewire/air/internal/web"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/debugpage"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/state"
	"github.com/fivewire/fivewire/store"
)

// maxPullAge is the longest clock window for pulled mail.
const maxPullAge = 30 * 24 * time.Hour

// refetchAge is the minimum age of a cached document that is fetched again after a signature does
// not verify (AIR-D41).
const refetchAge = 5 * time.Second

// A Delivery is a verified envelope for the application. Its content comes from the canonical form
// that the sender signed.
type Delivery struct {
	Envelope *Envelope
	Body     Body // decrypted if Sealed is set
	Sealed   bool
	Form     Form // of the signature

	// BodyJSON is the body as canonical JSON. Sealed bodies of application types may have floats,
	// which keep their spelling.
	BodyJSON []byte

	// Thread is the negotiation after this message; nil for other bodies.
	Thread *Thread

	// Expired reports whether the expires_at of an Offer or a Counter has passed.
	Expired bool

	// FromRelay reports whether the envelope was pulled from a relay.
	FromRelay bool

	// Redelivered reports whether a process crashed while it was handling this envelope. The
	// application may have seen it. A handler that must act at most once uses Envelope.ID as a key
	// of its actions.
	Redelivered bool

	isHandled bool // the handler was called
}

// A Handler is the application of an [Inbox]. It is called concurrently. An error of [Reject] refuses
// the envelope permanently. Every other error is a failure: the handler is called again with the next
// copy or, for pulled and queued mail, after 5 s, twice as long after each failure, until the envelope
// becomes a dead letter (AIR-D74, AIR-D75).
type Handler interface {
	ServeAIR(ctx context.Context, d *Delivery) error
}

// HandlerFunc makes a function a [Handler].
type HandlerFunc func(ctx context.Context, d *Delivery) error

// ServeAIR calls f.
func (f HandlerFunc) ServeAIR(ctx context.Context, d *Delivery) error { return f(ctx, d) }

// Middleware wraps a [Handler].
type Middleware func(Handler) Handler

// BlockSenders returns a middleware that silently drops envelopes of blocked senders. blocked is
// called with each DID after the signature has verified.
func BlockSenders(blocked func(did string) bool) Middleware {
	return func(next Handler) Handler {
		return HandlerFunc(func(ctx context.Context, d *Delivery) error {
			if blocked(d.Envelope.From) {
				return nil
			}
			return next.ServeAIR(ctx, d)
		})
	}
}

// InboxOptions adjusts an [Inbox]. The zero value is right for production.
type InboxOptions struct {
	Auth        Auth
	Limits      Limits
	Persistence Persistence
	Timing      Timing

	// Resolver resolves the senders' keys. Nil means a new resolver with default options.
	Resolver *Resolver

	// Profile selects the validation of envelopes. Empty means ProfileInterop.
	Profile Profile

	// SignatureForms restricts the accepted forms of signatures. Empty means those of the profile.
	SignatureForms Form

	// BodyTypes are the body types, plain or sealed, that the handler supports besides those of the
	// specification. [AnyBodyType] permits all.
	BodyTypes []string

	// RejectExpired refuses Offers and Counters after their expires_at (AIR-D54).
	RejectExpired bool

	// Unwrap, if set, extracts an envelope from a body of another content type than JSON, such as
	// DIDComm. The result is validated like any other envelope.
	Unwrap func(contentType string, body []byte) ([]byte, error)

	// OnOutcome, if set, is called after every attempt whose envelope the handler did not take. It may
	// be called concurrently and must not change the result.
	OnOutcome func(ctx context.Context, r *ReceiveResult)

	// Audit, if set, is called after every received envelope and every refused request. It may be
	// called concurrently.
	Audit func(ctx context.Context, r *AuditRecord)

	// ClientAddr returns the address of a caller for the limits, for example from a header of a
	// trusted proxy. Nil means the address of the connection; the first push that a proxy has forwarded
	// is then logged as a warning.
	ClientAddr func(*http.Request) string

	// AllowedOrigins are the web origins, such as https://app.example, whose pages may push
	// (AIR-D88); "*" allows all. Empty means the origin of the inbox.
	AllowedOrigins []string

	// AllowedHosts are further host names under which pages may reach an inbox on a loopback address.
	AllowedHosts []string

	// Middleware wraps the handler, the first outermost.
	Middleware []Middleware

	// Logger receives events that no error reports. Nil means slog.Default().
	Logger *slog.Logger
}

// Auth is a group of [InboxOptions].
type Auth struct {
	// PushSecret, if set, is the secret that direct pushes must have.
	PushSecret string

	// KeyPolicy, if set, authorizes each sender's key.
	KeyPolicy KeyPolicy
}

// Limits is a group of [InboxOptions]. A push over a bound of the first group is refused with 429 and
// Retry-After (AIR-D92); others are not affected. The principal of a push is its address, or the
// PushSecret; a pulled envelope counts for MaxItems only. An inbox has no sessions and no queue.
type Limits struct {
	// MaxMemory and MaxMemoryPerPrincipal bound the bytes of pushes in progress. Zero means the lesser
	// of 256 MiB and a third of GOMEMLIMIT, and 64 MiB. A negative value removes the bound.
	// MaxMemoryPerSession has no effect.
	MaxMemory, MaxMemoryPerPrincipal, MaxMemoryPerSession int64

	// MaxStorage, MaxStoragePerPrincipal and MaxStoragePerSession have no effect, whether zero or
	// negative.
	MaxStorage, MaxStoragePerPrincipal, MaxStoragePerSession int64

	// MaxItems bounds the stored nonces in each process, and MaxItemsPerPrincipal those of one sender
	// (AIR-D43). Zero means 1,000,000 and a sixteenth of MaxItems. A negative value removes the bound.
	// MaxItemsPerSession has no effect; see MaxReplayEntries.
	MaxItems, MaxItemsPerPrincipal, MaxItemsPerSession int64

	// MaxConcurrent and MaxConcurrentPerPrincipal bound the pushes that are verified or handled at a
	// time. Zero means 64 and 64. One address has at most half of the free places. A negative value
	// removes the bound. MaxConcurrentPerSession has no effect.
	MaxConcurrent, MaxConcurrentPerPrincipal, MaxConcurrentPerSession int64

	// QueueLimit, QueueLimitPerPrincipal and QueueLimitPerSession have no effect, whether zero or
	// negative: a push does not wait.
	QueueLimit, QueueLimitPerPrincipal, QueueLimitPerSession int64

	// MaxUnauthenticated and MaxUnauthenticatedPerAddress bound the pushes whose signature is not
	// verified yet, unless they have the PushSecret. Zero means 256 and 16. A negative value removes
	// the bound.
	MaxUnauthenticated, MaxUnauthenticatedPerAddress int64

	// RequestRate bounds the pushes of a principal a second. Zero and negative values mean no bound.
	RequestRate float64

	// RequestBurst bounds those at once. Zero and negative values mean those of one second.
	RequestBurst int

	// RateLimit bounds the pushes per minute from one address with one unverified sender, and
	// AddressRateLimit those from one address, for IPv6 its /64. Zero means 100 and 600; a negative
	// value removes the bound (AIR-D71).
	RateLimit, AddressRateLimit int

	// MaxReplayEntries bounds the stored nonces per sender and thread in each process. Zero means
	// 10,000; a negative value removes the bound.
	MaxReplayEntries int

	// MaxMessage bounds an envelope. Zero means 65,536; a negative value removes the
	// bound.
	MaxMessage int

	// MaxAttempts is the number of failures of the handler after which a pulled or queued envelope
	// becomes a dead letter. Zero means 10; a negative value removes the bound.
	MaxAttempts int
}

// Persistence is a group of [InboxOptions].
type Persistence struct {
	// Store keeps nonces, ids, dead letters, queued pushes and threads across restarts, and lets
	// several processes share one inbox. Nil means the memory of this process: dead letters then stay
	// at the relay, and no push is queued.
	Store store.Store

	// InstanceID identifies this process among those that share the Store. A new process with the same
	// id takes over at once. Empty means a random id.
	InstanceID string

	// LeaseTTL is the lifetime of the lease of this process. Others take over its mail after the lease
	// has expired. Zero and negative values mean 15 s.
	LeaseTTL time.Duration

	// SingleInstance states that no other process shares the Store, so nothing waits for a lease.
	SingleInstance bool

	// ThreadStore keeps the negotiations; share it with the [Client] of the same
	// agent. Nil means one in Store.
	ThreadStore *ThreadStore
}

// Timing is a group of [InboxOptions].
type Timing struct {
	// MaxPullAge is the maximum age of pulled envelopes when they arrive, and the lifetime of nonces.
	// Zero and negative values mean 300 s, as specified; more, up to 30 days, needs a Store. Older mail
	// becomes a dead letter (AIR-D68).
	MaxPullAge time.Duration

	// HandlerTimeout bounds one call of the handler. Zero means one minute; a negative value means a
	// day.
	HandlerTimeout time.Duration

	// PushWait is how long a push with a Store waits for the handler. Then the inbox queues the
	// envelope and answers 202 (AIR-D80). Zero and negative values mean 10 s.
	PushWait time.Duration

	// ReadTimeout bounds the arrival of a request body. It never extends the ReadTimeout of the
	// [http.Server]. Zero means one minute; a negative value removes the bound.
	ReadTimeout time.Duration
}

// An Inbox verifies the envelopes of one agent and passes each of them to a [Handler] once
// (sections 6 and 8). It is the [http.Handler] of a synchronous inbox; a [Poller] feeds it from a
// relay. With a Store, Close or Shutdown ends its background work. All methods are safe for concurrent
// use.
type Inbox struct {
	id       atomic.Pointer[Identity]
	did      string
	handler  Handler
	opts     InboxOptions
	resolver *Resolver
	threads  *ThreadStore
	ledger   ledger
	letters  letters
	instance *instance // nil without a Store
	log      *slog.Logger
	life     *life.Life
	guests   *web.Guests
	budget   *budget.Budget
	origins  httpx.Origins
	refusals web.LogLevels
	proxies  web.ProxyWarning
	records  atomic.Uint64 // audit records

	mu    sync.Mutex
	pulls memo[replayKey, pullTime] // of unsettled envelopes; guarded by mu
}

// NewInbox returns the inbox of an agent. It does no I/O; with a Store it begins to in the background.
func NewInbox(id *Identity, h Handler, opts *InboxOptions) (*Inbox, error) {
	in := &Inbox{handler: h}
	if opts != nil {
		in.opts = *opts
	}
	o := &in.opts
	if id == nil || h == nil {
		return nil, errors.New("air: inbox: identity or handler missing")
	}
	in.id.Store(id)
	in.did = id.did
	bad := checkWord("form", o.SignatureForms, FormSpec, FormDeployed)
	if err := errors.Join(o.Profile.check(), bad); err != nil {
		return nil, err
	}
	o.Profile = o.Profile.or(ProfileInterop)
	if o.SignatureForms == "" {
		o.SignatureForms = o.Profile.accepts()
	}
	if err := o.withDefaults(); err != nil {
		return nil, err
	}
	in.resolver = o.Resolver
	if in.resolver == nil {
		var err error
		if in.resolver, err = NewResolver(nil); err != nil {
			return nil, err
		}
	}
	in.threads = o.Persistence.ThreadStore
	var kv store.KV
	if o.Persistence.Store != nil {
		kv = o.Persistence.Store
	}
	if in.threads == nil {
		var err error
		if in.threads, err = NewThreadStore(id.did, &ThreadStoreOptions{Store: kv}); err != nil {
			return nil, err
		}
	}
	in.log = o.Logger
	in.life = life.New(life.Options{Closed: ErrClosed, Logger: o.Logger, Release: func(ctx context.Context) {
		if in.instance != nil {
			in.instance.release(ctx)
		}
	}})
	in.guests = web.NewGuests(o.Limits.RateLimit, o.Limits.AddressRateLimit)
	in.budget = budget.New(o.Limits.budget(o.Logger), nil)
	in.origins = web.Origins(o.AllowedOrigins, o.AllowedHosts)
	in.ledger.window = newReplayWindow(&o.Limits)
	if err := in.wrap(); err != nil {
		return nil, err
	}
	in.persist()
	return in, nil
}

// wrap applies the middleware to the handler.
func (in *Inbox) wrap() error {
	return guard.Call("middleware", func() error {
		for _, m := range slices.Backward(in.opts.Middleware) {
			if in.handler = m(in.handler); in.handler == nil {
				return errors.New("air: inbox: middleware returned no handler")
			}
		}
		return nil
	})
}

// persist connects the inbox to its store.
func (in *Inbox) persist() {
	p := &in.opts.Persistence
	prefix := "air/" + state.Join("inbox", in.did) + "/"
	in.letters.prefix, in.letters.db = prefix+"dead/", p.Store
	if p.Store == nil {
		in.letters.db = store.NewMemory()
		return
	}
	in.instance = &instance{ready: make(chan struct{})}
	in.ledger.shared = &shared{
		db: p.Store, prefix: prefix, ttl: max(doneTTL, in.opts.Timing.MaxPullAge+24*time.Hour), lease: in.instance.current,
	}
	in.instance.start(in.life, p.Store, lease.Options{
		Prefix: prefix, InstanceID: p.InstanceID, TTL: p.LeaseTTL, Private: p.SingleInstance, Logger: in.log,
	}, func() { in.instance.box.Send(queueKind, in.receiveQueued) })
}

func (o *InboxOptions) withDefaults() error {
	o.Limits.MaxMessage = option.Or(o.Limits.MaxMessage, defaultMaxMessage, math.MaxInt32)
	o.Limits.RateLimit = option.Count(o.Limits.RateLimit, 100)
	o.Limits.AddressRateLimit = option.Count(o.Limits.AddressRateLimit, 600)
	o.Limits.MaxConcurrent = cmp.Or(o.Limits.MaxConcurrent, 64)
	o.Limits.MaxConcurrentPerPrincipal = cmp.Or(o.Limits.MaxConcurrentPerPrincipal, 64)
	o.Timing.HandlerTimeout = option.Or(o.Timing.HandlerTimeout, time.Minute, 24*time.Hour)
	o.Timing.ReadTimeout = option.Or(o.Timing.ReadTimeout, time.Minute, 0)
	o.Timing.MaxPullAge = option.Or(o.Timing.MaxPullAge, core.MaxAge, core.MaxAge)
	o.Timing.PushWait = option.Or(o.Timing.PushWait, 10*time.Second, 10*time.Second)
	o.Persistence.LeaseTTL = option.Or(o.Persistence.LeaseTTL, 0, 0)
	o.Limits.MaxAttempts = option.Count(o.Limits.MaxAttempts, 10)
	o.Logger = logger(o.Logger)
	o.BodyTypes = slices.Clone(o.BodyTypes)
	o.Middleware = slices.Clone(o.Middleware)
	switch age := o.Timing.MaxPullAge; {
	case age > core.MaxAge && o.Persistence.Store == nil:
		return errors.New("air: inbox: MaxPullAge above 300 s needs a Store")
	case age > maxPullAge:
		return errors.New("air: inbox: MaxPullAge above 30 days")
	}
	return nil
}

func (l *Limits) budget(log *slog.Logger) budget.Limits {
	return budget.Limits{
		Memory:          budget.Limit{Session: -1, Principal: l.MaxMemoryPerPrincipal, All: l.MaxMemory},
		Storage:         budget.Limit{Session: -1, Principal: -1, All: -1},
		Items:           budget.Limit{Session: -1, Principal: -1, All: l.MaxItems},
		Work:            budget.Limit{Session: -1, Principal: l.MaxConcurrentPerPrincipal, All: l.MaxConcurrent},
		Waiting:         budget.Limit{Session: -1, Principal: -1, All: -1},
		Unauthenticated: budget.Limit{Session: -1, Principal: l.MaxUnauthenticatedPerAddress, All: l.MaxUnauthenticated},
		RequestRate:     l.RequestRate, RequestBurst: l.RequestBurst, Logger: log,
	}
}

// Shutdown refuses further envelopes and waits for the running handlers. If ctx ends first, it cuts
// them and returns the error of ctx at once.
func (in *Inbox) Shutdown(ctx context.Context) error { return in.life.Shutdown(ctx) }

// Close cuts the running handlers and waits for them at most one second.
func (in *Inbox) Close() error { return in.life.Close() }

// Ready returns [ErrClosed] once a shutdown has begun.
func (in *Inbox) Ready() error { return in.life.Ready() }

// Usage returns the present use of the resources of [Limits].
func (in *Inbox) Usage() []Usage {
	var list []Usage
	for _, u := range in.budget.Usage() {
		if u.Resource == budget.Items.String() && u.Scope == "all" {
			u.Used = int64(in.ledger.window.nonces.Len())
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
		Name: "air: " + in.did, Ready: in.Ready, Usage: debugpage.Rows(in.Usage), Stuck: in.life.Stuck,
	})
}

// audit completes and reports a record.
func (in *Inbox) audit(ctx context.Context, r *AuditRecord, e *Error, isHandled bool) {
	if in.opts.Audit == nil {
		return
	}
	r.Seq, r.Duration, r.Outcome = in.records.Add(1), time.Since(r.Time), outcomeOK
	if e != nil {
		r.Code = string(e.Code)
		switch {
		case !isHandled:
			r.Outcome = outcomeRefused
		case ctx.Err() != nil:
			r.Outcome = outcomeCanceled
		default:
			r.Outcome = outcomeFailed
		}
	}
	in.logPanic(ctx, guard.Call("Audit", func() error {
		in.opts.Audit(ctx, r)
		return nil
	}))
}

// logRefusal logs an envelope that is not delivered: a dead letter as a warning, others as one if it is
// the first with its code in a minute.
func (in *Inbox) logRefusal(ctx context.Context, r *AuditRecord, o *ReceiveResult) {
	e, level := o.Err, slog.LevelWarn
	if o.Class != ClassHeld {
		level = in.refusals.Level(string(o.Err.Code))
	}
	in.log.Log(ctx, level, "air: envelope not delivered", "class", string(o.Class),
		"operation", r.Operation, "id", r.Object, "agent", r.Principal, "peer", r.Peer, "code", e.Code, "err", e)
}

// logPanic logs a panic of user code, with its stack.
func (in *Inbox) logPanic(ctx context.Context, err error) {
	logPanic(ctx, in.log, err)
}

func logPanic(ctx context.Context, log *slog.Logger, err error) {
	if err == nil {
		return
	}
	var p *guard.PanicError
	if errors.As(err, &p) {
		log.ErrorContext(ctx, "air: "+p.What+" panicked", "err", err, "stack", string(p.Stack))
	}
}

// ServeHTTP receives one pushed envelope at any path (7.2) and answers with the codes of 9.2.
func (in *Inbox) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	httpx.Bound(w, r, in.opts.Timing.ReadTimeout)
	if web.Preflight(&in.origins, w, r, http.MethodPost) {
		return
	}
	ctx, record := r.Context(), &AuditRecord{Time: time.Now(), Peer: r.RemoteAddr, Operation: "push"}
	a := &arrival{record: record}
	if err := in.admit(w, r, a); err != nil {
		defer a.release()
		o := &ReceiveResult{Data: a.data, Final: true}
		o.Err, o.Class = classify(err, viaPush)
		record.Bytes = int64(len(a.data))
		in.logPanic(ctx, err)
		in.audit(ctx, record, o.Err, false)
		in.logRefusal(ctx, record, o)
		if c := o.Err.Code; c != errMethodCode && c != ErrUnauthorized && c != ErrForbidden {
			in.report(ctx, o)
		}
		writeError(w, err)
		return
	}
	a.arrived, record.Bytes = time.Now(), int64(len(a.data))
	o := in.receiveAs(ctx, a)
	status, text := http.StatusOK, `{"status":"delivered","envelope_id":`
	switch {
	case o.Err != nil && !o.isCopy:
		writeError(w, o.Err)
		return
	case o.Class == ClassLater:
		status, text = http.StatusAccepted, `{"status":"queued","envelope_id":`
	}
	web.WriteJSON(w, status, append(canon.AppendQuoted([]byte(text), o.Envelope.ID), '}'))
}

// admit reads the envelope of a request. The limits of the address follow the secret (AIR-D92).
func (in *Inbox) admit(w http.ResponseWriter, r *http.Request, a *arrival) error {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return errMethod
	}
	if message, ok := web.CheckHeaders(r); !ok {
		return ErrBadRequest.err(message)
	}
	if in.origins.Check(r) != nil {
		return ErrForbidden.err("the origin is not allowed")
	}
	hasSecret := in.opts.Auth.PushSecret != ""
	addr, err := in.identify(r, hasSecret)
	if err != nil {
		return err
	}
	scope, err := in.reserve(a, addr, hasSecret)
	if err != nil {
		return err
	}
	if a.data, err = readBody(w, r, in.opts.Limits.MaxMessage, in.opts.Timing.ReadTimeout); err != nil {
		return err
	}
	if a.memory, err = scope.Reserve(budget.Memory, int64(len(a.data))+perItem); err != nil {
		return overBudget(err)
	}
	if contentType := r.Header.Get("Content-Type"); !web.JSONContent(contentType) {
		if a.data, err = in.unwrap(contentType, a.data); err != nil {
			return err
		}
	}
	if delay := in.guests.Sender(addr, outlineText(a.data, "from")); delay > 0 {
		return limited("too many envelopes of this sender in this minute", delay)
	}
	return nil
}

// identify checks the secret of a caller and counts its address, which it returns.
func (in *Inbox) identify(r *http.Request, hasSecret bool) (string, error) {
	if hasSecret && !web.SecretMatches(r.Header.Get(web.SecretHeader), in.opts.Auth.PushSecret) {
		return "", ErrUnauthorized.err("the secret is missing or wrong")
	}
	if in.opts.ClientAddr == nil && in.proxies.First(r.Header) {
		in.log.WarnContext(r.Context(), web.ProxyMessage, "peer", r.RemoteAddr)
	}
	addr, err := web.Address(r, in.opts.ClientAddr)
	if err != nil {
		return "", err
	}
	if delay := in.guests.Address(addr); delay > 0 {
		return "", limited("too many requests of this address in this minute", delay)
	}
	return addr, nil
}

// perItem is added to the bytes of an envelope in the budget.
const perItem = 64

// reserve takes the place of a push, before its body is read. Every sender of an inbox is a stranger,
// so none is anonymous in the budget: they share all of it.
func (in *Inbox) reserve(a *arrival, addr string, hasSecret bool) (*budget.Scope, error) {
	scope := in.budget.Scope("caller "+addr, "")
	if hasSecret {
		scope = in.budget.Scope("push secret", "")
	}
	_, err := scope.Reserve(budget.Requests, 1)
	if err == nil {
		a.work, err = scope.Reserve(budget.Work, 1)
	}
	if err == nil && !hasSecret {
		a.unverified, err = scope.Reserve(budget.Unauthenticated, 1)
	}
	if err != nil {
		return nil, overBudget(err)
	}
	return scope, nil
}

// overBudget returns the response to a *budget.Error.
func overBudget(err error) *Error {
	message, delay := web.OverBudget(err)
	return limited(message, delay)
}

// unwrap extracts the envelope from a body of another content type.
func (in *Inbox) unwrap(contentType string, data []byte) ([]byte, error) {
	if in.opts.Unwrap == nil {
		return data, ErrInvalidEnvelope.err("not a content type for envelopes")
	}
	var envelope []byte
	err := guard.Call("Unwrap", func() (err error) {
		envelope, err = in.opts.Unwrap(contentType, data)
		return err
	})
	var p *guard.PanicError
	switch {
	case errors.As(err, &p):
		return data, ErrRelay.because("", err)
	case err != nil:
		return nil, ErrInvalidEnvelope.because("the wrapper could not be opened", err)
	}
	return envelope, nil
}

func limited(message string, delay time.Duration) *Error {
	return &Error{Code: ErrRateLimited, Message: message, RetryAfter: delay}
}

// errMethod has a status that the table of codes lacks (AIR-D67).
var errMethod = &Error{Code: errMethodCode, Message: "the method is not allowed here"}

const errMethodCode Code = web.CodeMethod
