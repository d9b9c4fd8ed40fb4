// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/internal/exchange"
	"github.com/fivewire/fivewire/air/internal/name"
	"github.com/fivewire/fivewire/air/internal/server"
	"github.com/fivewire/fivewire/air/internal/signature"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/debugpage"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/seen"
	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/store"
)

// A Directory lists the agents with a mailbox at a [Server].
type Directory interface {
	// LookupDID returns the DID of the agent with that AIR ID, or [air.ErrNotFound]. Another error is
	// answered with 502 (9.1). It is called concurrently.
	LookupDID(ctx context.Context, airID string) (string, error)
}

// DirectoryFunc makes a function a [Directory].
type DirectoryFunc func(ctx context.Context, airID string) (string, error)

// LookupDID calls f.
func (f DirectoryFunc) LookupDID(ctx context.Context, airID string) (string, error) {
	return f(ctx, airID)
}

// NewStaticDirectory returns a directory of the given DIDs.
func NewStaticDirectory(dids ...string) Directory {
	byAIRID := make(map[string]string, len(dids))
	for _, did := range dids {
		byAIRID[name.AIRIDOf(did)] = did
	}
	return DirectoryFunc(func(_ context.Context, airID string) (string, error) {
		if did, ok := byAIRID[airID]; ok {
			return did, nil
		}
		return "", air.Errorf(air.ErrNotFound, "no such agent here")
	})
}

// NewRegistryDirectory returns a directory of the agents in the registry.
func NewRegistryDirectory(r *air.Resolver) Directory {
	return DirectoryFunc(func(ctx context.Context, airID string) (string, error) {
		d, err := r.Resolve(ctx, airID)
		if err != nil {
			return "", err
		}
		if name.AIRIDOf(d.ID) != airID {
			return "", air.Errorf(air.ErrNotFound, "the document is that of another agent")
		}
		return d.ID, nil
	})
}

// ServerOptions adjusts a [Server]. Auth is required: it names the secrets, or opens the relay. So is
// Directory, or AnyRecipient.
type ServerOptions struct {
	Auth        Auth
	Limits      Limits
	Timing      Timing
	Persistence Persistence

	// Directory lists the recipients. Nil needs AnyRecipient.
	Directory Directory

	// AnyRecipient gives every AIR ID a mailbox if there is no Directory, for the DIDs of RecipientHost
	// (AIR-D60).
	AnyRecipient bool

	// RecipientHost is the host in the DIDs of recipients without a Directory. Empty means
	// agentidentityregistry.org.
	RecipientHost string

	// Middleware wraps the handling of each authorized request, the first outermost.
	Middleware []Middleware

	// AllowedOrigins are the web origins, such as https://app.example, whose pages may use this relay
	// (AIR-D88); "*" allows all. Empty means the origin of the relay.
	AllowedOrigins []string

	// AllowedHosts are further host names under which pages may reach a relay on a loopback address.
	AllowedHosts []string

	// PageSize is the number of envelopes in a pull without a limit. Zero means 50, a negative value
	// means 200, the maximum.
	PageSize int

	// Audit, if set, is called after every request except health checks. It may be called
	// concurrently.
	Audit func(ctx context.Context, r *air.AuditRecord)

	// ClientAddr returns the address of a caller for the limits, for example from a header of a
	// trusted proxy. Nil means the address of the connection; the first request that a proxy has
	// forwarded is then logged as a warning.
	ClientAddr func(*http.Request) string

	// Logger receives failures that responses do not report, such as those of the store. Nil means
	// slog.Default().
	Logger *slog.Logger
}

// Auth is a group of [ServerOptions].
type Auth struct {
	// PushSecret is the secret that pushes must have (AIR-091).
	PushSecret string

	// InboxSecret returns the secret for pull and ack of the mailbox of an AIR ID, "" for none. A
	// mailbox without a secret is closed unless AllowAnonymous is set (AIR-D64).
	InboxSecret func(airID string) string

	// Resolver returns the keys of agents that sign their pulls and acks instead of using a secret
	// (AIR-D90). Nil means that signatures open no mailbox.
	Resolver *air.Resolver

	// PublicURL is the origin and path prefix under which callers reach the relay, if a proxy changes
	// host or path: signatures cover both. Empty means those of the request.
	PublicURL string

	// AllowAnonymousPush accepts pushes of every sender if there is no PushSecret. The recipient
	// verifies the signatures.
	AllowAnonymousPush bool

	// AllowAnonymous implies AllowAnonymousPush and serves pull and ack of mailboxes without a secret
	// to every caller, who can then remove mail.
	AllowAnonymous bool
}

// A Handler serves one authorized request. An error is the response; one other than an [*air.Error] is
// an internal error. It is called concurrently.
type Handler interface {
	ServeRelay(w http.ResponseWriter, r *http.Request) error
}

// HandlerFunc makes a function a [Handler].
type HandlerFunc func(w http.ResponseWriter, r *http.Request) error

// ServeRelay calls f.
func (f HandlerFunc) ServeRelay(w http.ResponseWriter, r *http.Request) error { return f(w, r) }

// Middleware wraps a [Handler].
type Middleware func(Handler) Handler

// Limits is a group of [ServerOptions]. A request over a bound of the first group is refused with 429
// and Retry-After (AIR-D86); others are not affected. A principal is the recipient of a request with a
// secret, else the address of the caller. An envelope counts with 64 bytes more than it has until it
// is acknowledged or expires, for the principal that pushed it. Mail that is in the Store since an
// earlier process counts once its mailbox is used, for the recipient.
type Limits struct {
	// MaxMemory and MaxMemoryPerPrincipal bound the bytes of envelopes without a Store and,
	// separately, those of responses in progress, so that a full relay can be emptied.
	// MaxMemoryPerSession bounds one mailbox. Zero means the lesser of 256 MiB and
	// a third of GOMEMLIMIT, 64 MiB, and 64 MiB. A negative value removes the bound.
	MaxMemory, MaxMemoryPerPrincipal, MaxMemoryPerSession int64

	// MaxStorage, MaxStoragePerPrincipal and MaxStoragePerSession bound the bytes of envelopes in a
	// Store, the last one in one mailbox. Zero means 1 GiB, 64 MiB, and 64 MiB. A negative value
	// removes the bound.
	MaxStorage, MaxStoragePerPrincipal, MaxStoragePerSession int64

	// MaxItems and MaxItemsPerPrincipal bound the mailboxes with mail. Zero means 100,000 and 10,000. A
	// negative value removes the bound. MaxItemsPerSession has no effect.
	MaxItems, MaxItemsPerPrincipal, MaxItemsPerSession int64

	// MaxConcurrent and MaxConcurrentPerPrincipal bound the requests at a time, except streams. Zero
	// means 1,024 and 256. A negative value removes the bound. MaxConcurrentPerSession has no effect.
	MaxConcurrent, MaxConcurrentPerPrincipal, MaxConcurrentPerSession int64

	// QueueLimitPerSession bounds the envelopes in one mailbox. Concurrent pushes do not count, and
	// pushes through other relays of the Store count with a delay, so the bound can be exceeded by a
	// few percent. Zero means 10,000; a negative value removes the bound. QueueLimit and
	// QueueLimitPerPrincipal have no effect, since bytes bound the mail of several mailboxes.
	QueueLimit, QueueLimitPerPrincipal, QueueLimitPerSession int64

	// MaxUnauthenticated and MaxUnauthenticatedPerAddress bound the requests whose secret is being
	// checked. Zero means 256 and 16. A negative value removes the bound.
	MaxUnauthenticated, MaxUnauthenticatedPerAddress int64

	// RequestRate bounds the requests of a principal a second. Zero and negative values mean no bound.
	RequestRate float64

	// RequestBurst bounds those at once. Zero and negative values mean those of one second.
	RequestBurst int

	// MaxMessage bounds an envelope in bytes. Zero means 65,536; a negative value means 2 GiB.
	MaxMessage int

	// MaxOutput bounds the bytes of the envelopes in a page or in one part of a stream; further ones
	// follow in the next. A page has at least one. Zero means 16 MiB; a negative value removes the
	// bound.
	MaxOutput int

	// MaxStreams bounds the concurrent streams. Zero means 1,000; a negative value removes the bound.
	MaxStreams int

	// RateLimit bounds the pushes per minute with the PushSecret or, without one, from one address
	// with one unverified sender. Zero means 100; a negative value removes the bound (AIR-D71).
	RateLimit int

	// AddressRateLimit bounds the pushes per minute from one address, for IPv6 its /64, unless there
	// is a PushSecret. Zero means 600; a negative value removes the bound.
	AddressRateLimit int
}

// Timing is a group of [ServerOptions].
type Timing struct {
	// ReadTimeout bounds the arrival of a request body. It never extends the ReadTimeout of the
	// [http.Server]. Zero means one minute; a negative value removes the bound.
	ReadTimeout time.Duration
}

// Persistence is a group of [ServerOptions].
type Persistence struct {
	// Store keeps the mail, and for Retention a hash of every envelope, acknowledged or not, to
	// detect duplicates. Nil means the memory of this process, which a restart loses.
	Store store.Store

	// SingleInstance declares that no other relay uses the Store at the same time. Handed-out
	// positions are then not stored, which saves one of three writes for each envelope. After a
	// restart, an acknowledgement counts once the envelope has been handed out again, and a cursor
	// of an unfinished round is refused, so the round starts over.
	SingleInstance bool

	// Retention is the lifetime of an unacknowledged envelope. Zero means 7 days; a negative value
	// means no end.
	Retention time.Duration
}

func (o *ServerOptions) withDefaults() {
	p, l := &o.Persistence, &o.Limits
	o.RecipientHost = cmp.Or(o.RecipientHost, "agentidentityregistry.org")
	o.PageSize = option.Or(o.PageSize, 50, maxPage)
	l.MaxMessage = option.Or(l.MaxMessage, server.MaxMessage, math.MaxInt32)
	l.MaxOutput = option.Count(l.MaxOutput, 16<<20)
	l.MaxMemoryPerSession = option.Bytes(l.MaxMemoryPerSession, mailboxBytes)
	l.MaxStorage = cmp.Or(l.MaxStorage, 1<<30)
	l.MaxStoragePerPrincipal = cmp.Or(l.MaxStoragePerPrincipal, mailboxBytes)
	l.MaxStoragePerSession = option.Bytes(l.MaxStoragePerSession, mailboxBytes)
	l.QueueLimitPerSession = option.Bytes(l.QueueLimitPerSession, 10_000)
	l.MaxStreams = option.Count(l.MaxStreams, 1000)
	l.RateLimit = option.Count(l.RateLimit, 100)
	l.AddressRateLimit = option.Count(l.AddressRateLimit, 600)
	o.Timing.ReadTimeout = option.Or(o.Timing.ReadTimeout, time.Minute, 0)
	p.Retention = option.Or(p.Retention, 7*24*time.Hour, noEnd)
	o.Logger = cmp.Or(o.Logger, slog.Default())
}

func (l *Limits) budget(log *slog.Logger) budget.Limits {
	return budget.Limits{
		Memory:          budget.Limit{Session: -1, Principal: l.MaxMemoryPerPrincipal, All: l.MaxMemory},
		Storage:         budget.Limit{Session: -1, Principal: l.MaxStoragePerPrincipal, All: l.MaxStorage},
		Items:           budget.Limit{Session: -1, Principal: l.MaxItemsPerPrincipal, All: l.MaxItems},
		Work:            budget.Limit{Session: -1, Principal: l.MaxConcurrentPerPrincipal, All: l.MaxConcurrent},
		Waiting:         budget.Limit{Session: -1, Principal: -1, All: -1},
		Unauthenticated: budget.Limit{Session: -1, Principal: l.MaxUnauthenticatedPerAddress, All: l.MaxUnauthenticated},
		RequestRate:     l.RequestRate, RequestBurst: l.RequestBurst, Logger: log,
	}
}

const (
	maxPage   = 200      // largest limit of a pull
	maxAck    = 500      // ids in one acknowledgement (AIR-D63)
	maxAnswer = 64 << 10 // of an acknowledgement
	maxDepth  = 64       // of JSON
	noEnd     = 100 * 365 * 24 * time.Hour

	// refetchInterval bounds the lookups that forged signatures for one agent cause.
	refetchInterval = 5 * time.Second

	mailboxBytes = 64 << 20
	fullDelay    = time.Minute // before the next attempt of a push without room (AIR-D86)
)

// A Server stores envelopes for agents until they fetch and acknowledge them (section 7). It is an
// [http.Handler] with the paths of the specification and those of the deployed relay, for the same
// mailboxes (AIR-D60):
//
//	POST /inbox/{r}        push
//	GET  /inbox/{r}/pull   pull      GET  /pull/{r}   (a stream with ?stream=1)
//	POST /inbox/{r}/ack    ack       POST /ack/{r}
//	GET  /health
//
// where r is an AIR ID or a DID. It returns envelopes byte for byte as received and verifies no
// signatures (10.1). Its methods are safe for concurrent use.
type Server struct {
	opts     ServerOptions
	boxes    boxes
	budget   *budget.Budget
	output   *budget.Budget // of responses in progress
	stats    stats
	proxies  server.ProxyWarning
	origins  httpx.Origins
	handler  Handler
	guests   *server.Guests
	life     *life.Life
	records  atomic.Uint64 // audit records
	refusals server.LogLevels
	nonces   *seen.Window // of signed requests

	refetches *seen.Window // agents whose document was fetched again after a signature did not verify
	public    *url.URL
	streams   atomic.Int64
}

// NewServer returns a relay. It starts no goroutines, but Close must end its streams. It returns an
// error without secrets unless anonymous callers are allowed, and without a directory unless any
// recipient is.
func NewServer(opts *ServerOptions) (*Server, error) {
	s := &Server{}
	if opts != nil {
		s.opts = *opts
	}
	o := &s.opts
	if err := o.check(); err != nil {
		return nil, err
	}
	o.withDefaults()
	s.boxes.init(o)
	s.budget = budget.New(o.Limits.budget(o.Logger), s.boxes.evict)
	s.boxes.budget = s.budget
	s.output = budget.New(budget.Limits{Memory: o.Limits.budget(nil).Memory, Logger: o.Logger}, nil)
	s.origins = server.Origins(o.AllowedOrigins, o.AllowedHosts)
	s.nonces, s.refetches = seen.New(seen.Options{}), seen.New(seen.Options{})
	public, err := url.Parse(o.Auth.PublicURL)
	if err != nil || (public.Host == "") != (o.Auth.PublicURL == "") {
		return nil, errors.New("air: relay: Auth.PublicURL is not an absolute URL")
	}
	s.public = public
	err = guard.Call("middleware", func() error {
		s.handler = HandlerFunc(s.operate)
		for _, m := range slices.Backward(o.Middleware) {
			if s.handler = m(s.handler); s.handler == nil {
				return errors.New("air: relay: middleware returned no handler")
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.guests = server.NewGuests(o.Limits.RateLimit, o.Limits.AddressRateLimit)
	s.life = life.New(life.Options{Closed: air.ErrClosed, Logger: o.Logger})
	return s, nil
}

// check reports options that open the relay without a word, or that no caller could use.
func (o *ServerOptions) check() error {
	a := &o.Auth
	switch {
	case o.Directory == nil && !o.AnyRecipient:
		return errors.New("air: relay: Directory missing; without one set AnyRecipient")
	case a.AllowAnonymous:
	case a.PushSecret == "" && !a.AllowAnonymousPush:
		return errors.New("air: relay: Auth.PushSecret empty; without one set Auth.AllowAnonymousPush")
	case a.InboxSecret == nil && a.Resolver == nil:
		return errors.New("air: relay: Auth.InboxSecret and Auth.Resolver missing; without one set Auth.AllowAnonymous")
	}
	return nil
}

// Shutdown refuses further requests, waits for the running ones and ends the streams. If ctx ends
// first, it cuts them and returns the error of ctx at once.
func (s *Server) Shutdown(ctx context.Context) error {
	if err := s.life.Shutdown(ctx); err != nil {
		return err
	}
	return s.life.Close()
}

// Close cuts all requests and streams, and waits for them at most one second.
func (s *Server) Close() error { return s.life.Close() }

// Ready returns [air.ErrClosed] once a shutdown has begun.
func (s *Server) Ready() error { return s.life.Ready() }

// Usage returns the present use of the resources of [Limits], the memory of responses as "output",
// and the open streams. The scope "session" is the fullest mailbox.
func (s *Server) Usage() []air.Usage {
	size, count := s.boxes.fullest()
	list := []air.Usage{{Resource: "streams", Scope: "all", Used: s.streams.Load(),
		Limit: server.UsageLimit(int64(s.opts.Limits.MaxStreams), int64(option.None))}}
	for _, u := range s.budget.Usage() {
		switch {
		case u.Scope != "session":
		case u.Resource == s.boxes.resource.String():
			u.Used, u.Limit = size, server.UsageLimit(s.boxes.maxBytes, option.NoBytes)
		case u.Resource == budget.Waiting.String():
			u.Used, u.Limit = count, server.UsageLimit(s.boxes.max, option.NoBytes)
		}
		list = append(list, air.Usage(u))
	}
	for _, u := range s.output.Usage() {
		if u.Resource == budget.Memory.String() && u.Scope != "session" {
			u.Resource = "output"
			list = append(list, air.Usage(u))
		}
	}
	return list
}

// DebugHandler returns a handler that shows an operator the result of Ready, the [air.Usage] table and
// the handlers that ignore the end of their context. Its status is 503 unless the server is ready.
// It authenticates no caller: serve it on an address that only operators reach.
func (s *Server) DebugHandler() http.Handler {
	return debugpage.Handler(debugpage.Server{
		Name: "air: relay", Ready: s.Ready, Usage: debugpage.Rows(s.Usage), Stuck: s.life.Stuck,
	})
}

// A route is a parsed request path.
type route struct {
	op        func(*Server, http.ResponseWriter, *http.Request, *call) error
	method    string
	name      string // of the operation, for the audit
	recipient string
	canStream bool
	pulls     bool // requires the secret of the inbox, not that of senders
}

// A call is an authorized request.
type call struct {
	route
	to        *recipient
	body      []byte // if it was read for a signature
	addr      string // of the caller, as a principal
	principal string // in the budget
}

type callKey struct{}

// operate is the innermost handler.
func (s *Server) operate(w http.ResponseWriter, req *http.Request) error {
	x, ok := req.Context().Value(callKey{}).(*call)
	if !ok {
		return errors.New("air: relay: middleware replaced the context of the request")
	}
	return x.op(s, w, req, x)
}

// ServeHTTP answers one request. The order of the checks is: path, method, secret, recipient, and
// then the parameters of the operation.
func (s *Server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	httpx.Bound(w, req, s.opts.Timing.ReadTimeout)
	rt, isKnown := parseRoute(req.URL.EscapedPath())
	if isKnown && server.Preflight(&s.origins, w, req, rt.method) {
		return
	}
	record := &air.AuditRecord{Time: time.Now(), Peer: req.RemoteAddr, Operation: cmp.Or(rt.name, "unknown"),
		Object: rt.recipient, Bytes: max(req.ContentLength, 0)}
	if rt.canStream && wantsStream(req) {
		record.Operation = "stream"
	}
	var err error
	switch {
	case !isKnown:
		err = air.Errorf(air.ErrNotFound, "no such path")
	case req.Method != rt.method:
		w.Header().Set("Allow", rt.method)
		err = air.Errorf(air.Code(server.CodeMethod), "the method is not allowed here")
	case rt.op == nil:
		server.WriteJSON(w, http.StatusOK, []byte(`{"status":"ok"}`))
		return
	default:
		x := &call{route: rt}
		err = s.work(req, record.Operation, func(ctx context.Context) error {
			return s.serve(w, req.WithContext(ctx), x)
		})
		if x.isAuthenticated() {
			record.Principal = x.principal
		}
	}
	s.stats.count(rt.name, err)
	s.audit(req.Context(), record, err)
	if err != nil {
		s.logError(req.Context(), record, err)
		writeError(w, err)
	}
}

// work runs the operation of a request as a piece of work. A panic is its internal error.
func (s *Server) work(req *http.Request, operation string, f func(context.Context) error) error {
	kind := life.Request
	if operation == "stream" {
		kind = life.Idle
	}
	w, err := s.life.Start(req.Context(), kind)
	if err != nil {
		return because(air.ErrRelay, "", err)
	}
	defer w.Finish()
	err = guard.Call("relay", func() error { return f(w) })
	var e *air.Error
	if errors.As(err, &e) && e.Remote { // of a directory or a middleware
		return because(air.ErrRelay, "", err)
	}
	return err
}

// logError logs a failure as an error, and the first refusal with a code in each minute as a warning.
func (s *Server) logError(ctx context.Context, r *air.AuditRecord, err error) {
	var p *guard.PanicError
	var e *air.Error
	level, message, stack := slog.LevelError, "air: relay failed", ""
	switch {
	case errors.As(err, &p):
		message, stack = "air: "+p.What+" panicked", string(p.Stack)
	case errors.As(err, &e) && e.HTTPStatus() < http.StatusInternalServerError:
		level, message = s.refusals.Level(string(e.Code)), "air: request refused"
	}
	s.opts.Logger.Log(ctx, level, message,
		"operation", r.Operation, "mailbox", r.Object, "peer", r.Peer, "err", err, "stack", stack)
}

// audit completes and reports a record.
func (s *Server) audit(ctx context.Context, r *air.AuditRecord, err error) {
	if s.opts.Audit == nil {
		return
	}
	r.Seq, r.Duration, r.Outcome = s.records.Add(1), time.Since(r.Time), "ok"
	if err != nil {
		var e *air.Error
		if !errors.As(err, &e) {
			e = &air.Error{Code: air.ErrRelay}
		}
		r.Code, r.Outcome = string(e.Code), "refused"
		switch {
		case errors.Is(err, context.Canceled):
			r.Outcome = "canceled"
		case e.HTTPStatus() >= http.StatusInternalServerError:
			r.Outcome = "failed"
		}
	}
	if err := guard.Call("Audit", func() error {
		s.opts.Audit(ctx, r)
		return nil
	}); err != nil {
		s.logError(ctx, r, err)
	}
}

// serve authorizes a request with a known path and method, and calls the handler.
func (s *Server) serve(w http.ResponseWriter, req *http.Request, x *call) error {
	if message, ok := server.CheckHeaders(req); !ok {
		return air.Errorf(air.ErrBadRequest, "%s", message)
	}
	if s.origins.Check(req) != nil {
		return air.Errorf(air.ErrForbidden, "the origin is not allowed")
	}
	isName, err := s.identify(w, req, x)
	if err != nil {
		return err
	}
	scope := s.budget.Scope(x.principal, "")
	if _, err := scope.Reserve(budget.Requests, 1); err != nil {
		return overBudget(err)
	}
	if !x.canStream || !wantsStream(req) { // MaxStreams bounds streams
		place, err := scope.Reserve(budget.Work, 1)
		if err != nil {
			return overBudget(err)
		}
		defer place.Release()
	}
	if !isName {
		return errNoMailbox()
	}
	if err := s.lookUp(req.Context(), x.to); err != nil {
		return err
	}
	if len(s.opts.Middleware) == 0 {
		return x.op(s, w, req, x)
	}
	return s.handler.ServeRelay(w, req.WithContext(context.WithValue(req.Context(), callKey{}, x)))
}

// identify finds the address, the mailbox and the rights of a caller, and counts the address. It reports
// whether the mailbox has a valid name.
func (s *Server) identify(w http.ResponseWriter, req *http.Request, x *call) (isName bool, err error) {
	if s.opts.ClientAddr == nil && s.proxies.First(req.Header) {
		s.opts.Logger.WarnContext(req.Context(), server.ProxyMessage, "peer", req.RemoteAddr)
	}
	if x.addr, err = server.Address(req, s.opts.ClientAddr); err != nil {
		return false, err
	}
	x.to, isName = parseRecipient(x.recipient)
	if err := s.authorize(w, req, x); err != nil {
		return isName, err
	}
	if !x.pulls && !x.isAuthenticated() {
		if delay := s.guests.Address(x.addr); delay > 0 {
			return isName, limited("too many envelopes of this address in this minute", delay)
		}
	}
	return isName, nil
}

// isAuthenticated reports whether the request had a secret.
func (x *call) isAuthenticated() bool { return x.principal != x.addr }

func errNoMailbox() *air.Error { return air.Errorf(air.ErrNotFound, "no such mailbox") }

func parseRoute(path string) (route, bool) {
	path, isAbsolute := strings.CutPrefix(path, "/")
	if !isAbsolute {
		return route{}, false
	}
	if path == "health" {
		return route{method: http.MethodGet}, true
	}
	first, rest, _ := strings.Cut(path, "/")
	recipient, verb, isLong := strings.Cut(rest, "/")
	if isLong {
		first += "/" + verb
	}
	var rt route
	switch first {
	case "inbox":
		rt = route{op: (*Server).servePush, name: "push", method: http.MethodPost}
	case "inbox/pull":
		rt = route{op: (*Server).servePull, name: "pull", method: http.MethodGet, pulls: true}
	case "inbox/ack", "ack":
		rt = route{op: (*Server).serveAck, name: "ack", method: http.MethodPost, pulls: true}
	case "pull":
		rt = route{op: (*Server).serveDeployedPull, name: "pull", canStream: true, method: http.MethodGet, pulls: true}
	default:
		return rt, false
	}
	var err error
	rt.recipient, err = url.PathUnescape(recipient)
	return rt, err == nil && rt.recipient != ""
}

// A recipient is the mailbox of a request.
type recipient struct {
	airID string
	did   string // "" if only the AIR ID is known
	name  string // as in the request
}

// parseRecipient parses an AIR ID or a DID.
func parseRecipient(text string) (*recipient, bool) {
	to := &recipient{name: text}
	if name.IsAIRID(text) {
		to.airID = text
		return to, true
	}
	d, ok := name.ParseDID(text)
	if !ok {
		return to, false
	}
	to.airID, to.did = d.AIRID, text
	return to, true
}

// lookUp completes a recipient from the directory.
func (s *Server) lookUp(ctx context.Context, to *recipient) error {
	if s.opts.Directory == nil {
		if to.did != "" && !s.isLocal(to.did) {
			return errNoMailbox()
		}
		return nil
	}
	var did string
	err := guard.Call("directory", func() (err error) {
		did, err = s.opts.Directory.LookupDID(ctx, to.airID)
		return err
	})
	switch {
	case errors.Is(err, air.ErrNotFound), err == nil && to.did != "" && to.did != did:
		return errNoMailbox()
	case err != nil:
		return because(air.ErrBadGateway, "the directory is out of reach", err)
	}
	to.did = did
	return nil
}

// isLocal reports whether a relay without a directory has a mailbox for a DID.
func (s *Server) isLocal(did string) bool {
	d, ok := name.ParseDID(did)
	return ok && d.Host == s.opts.RecipientHost
}

// authorize checks the secret in constant time, before the directory and the store are used
// (AIR-091, AIR-D64). The address of the caller decides nothing: behind a proxy all are local.
func (s *Server) authorize(w http.ResponseWriter, req *http.Request, x *call) error {
	a := &s.opts.Auth
	want, isOpen := a.PushSecret, a.AllowAnonymous || a.AllowAnonymousPush
	if x.pulls {
		want, isOpen = "", a.AllowAnonymous
		if a.InboxSecret != nil && x.to.airID != "" {
			place, err := s.budget.Scope(x.addr, "").Reserve(budget.Unauthenticated, 1)
			if err != nil {
				return overBudget(err)
			}
			defer place.Release()
			err = guard.Call("inbox secret", func() error {
				want = a.InboxSecret(x.to.airID)
				return nil
			})
			if err != nil {
				return because(air.ErrRelay, "", err)
			}
		}
	}
	switch {
	case server.SecretMatches(req.Header.Get(exchange.SecretHeader), want):
		x.principal = x.to.airID
		return nil
	case x.pulls && a.Resolver != nil && x.to.airID != "" && signature.Is(req.Header):
		return s.verifySignature(w, req, x)
	case want == "" && isOpen:
		x.principal = x.addr
		return nil
	}
	return air.Errorf(air.ErrUnauthorized, "the secret is missing or wrong")
}

// verifySignature authorizes a request that is signed by the agent of the mailbox.
func (s *Server) verifySignature(w http.ResponseWriter, req *http.Request, x *call) error {
	place, err := s.budget.Scope(x.addr, "").Reserve(budget.Unauthenticated, 1)
	if err != nil {
		return overBudget(err)
	}
	defer place.Release()
	if x.method == http.MethodPost {
		if x.body, err = readBody(w, req, maxAnswer, s.opts.Timing.ReadTimeout); err != nil {
			return err
		}
	}
	now, refused := time.Now(), air.Errorf(air.ErrUnauthorized, "the signature of the request is not valid")
	r := signature.Of(req.Method, s.publicURL(req))
	r.Body = x.body
	verify, err := r.Read(req.Header, now)
	if err != nil || name.AIRIDOf(r.DID) != x.to.airID || x.to.did != "" && x.to.did != r.DID {
		return refused
	}
	isValid, err := s.checkKey(req.Context(), r.DID, verify)
	if err == nil && !isValid && s.refetches.Add(r.DID, "", sumID(r.DID), now.Add(refetchInterval)) == nil {
		s.opts.Auth.Resolver.Invalidate(x.to.airID) // the key may have been replaced
		isValid, err = s.checkKey(req.Context(), r.DID, verify)
	}
	if err != nil {
		return because(air.ErrBadGateway, "the registry is out of reach", err)
	}
	if !isValid {
		return refused
	}
	nonce := sumID(r.Nonce)
	if s.nonces.Add(r.DID, "", nonce, now.Add(2*signature.MaxAge)) != nil { // the last check
		return refused
	}
	x.principal = x.to.airID
	return nil
}

// checkKey reports whether a signature verifies with the key of an agent in the registry. The error is
// that of an unreachable registry.
func (s *Server) checkKey(ctx context.Context, did string, verify func(key ed25519.PublicKey) error) (bool, error) {
	doc, err := s.opts.Auth.Resolver.Resolve(ctx, did)
	if errors.Is(err, air.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	key, err := doc.SigningKey(did)
	return err == nil && verify(key.Bytes()) == nil, nil
}

// publicURL returns the URL that the caller of a request has used.
func (s *Server) publicURL(req *http.Request) *url.URL {
	u := *req.URL
	u.Scheme, u.Host = "http", req.Host
	if req.TLS != nil {
		u.Scheme = "https"
	}
	if s.public.Host != "" {
		u.Scheme, u.Host = s.public.Scheme, s.public.Host
		path, _ := url.JoinPath(s.public.EscapedPath(), req.URL.EscapedPath())
		u.Path, _ = url.PathUnescape(path)
		u.RawPath = path
	}
	return &u
}

func (s *Server) servePush(w http.ResponseWriter, req *http.Request, x *call) error {
	to := x.to
	data, err := readBody(w, req, s.opts.Limits.MaxMessage, s.opts.Timing.ReadTimeout)
	if err != nil {
		return err
	}
	if !server.JSONContent(req.Header.Get("Content-Type")) {
		return air.Errorf(air.ErrInvalidEnvelope, "not a content type for envelopes")
	}
	m, err := newMail(data)
	if err != nil {
		return err
	}
	isForeign := s.opts.Directory == nil && !s.isLocal(m.to)
	if to.did != "" && m.to != to.did || name.AIRIDOf(m.to) != to.airID || isForeign {
		return air.Errorf(air.ErrWrongRecipient, "to is not the agent of this mailbox")
	}
	addr, from := "", "" // a verified secret is the sender
	if !x.isAuthenticated() {
		addr, from, m.guest = x.addr, m.from, x.addr
	}
	m.payer = x.principal
	if delay := s.guests.Sender(addr, from); delay > 0 {
		return limited("too many envelopes in this minute", delay)
	}
	seq, err := s.boxes.push(req.Context(), to.airID, m)
	if err != nil {
		return err
	}
	body := strictjson.AppendString([]byte(`{"status":"queued","envelope_id":`), m.id)
	body = strconv.AppendUint(append(body, `,"seq":`...), seq, 10)
	server.WriteJSON(w, http.StatusAccepted, append(body, '}'))
	return nil
}

// overBudget returns the response to a *budget.Error.
func overBudget(err error) *air.Error {
	message, delay := server.OverBudget(err)
	return limited(message, delay)
}

func limited(message string, delay time.Duration) *air.Error {
	return &air.Error{Code: air.ErrRateLimited, Message: message, RetryAfter: delay}
}

// limit returns the page size of a request.
func (s *Server) limit(q url.Values, strict bool) (int, error) {
	text := q.Get("limit")
	if text == "" {
		return s.opts.PageSize, nil
	}
	n, err := strconv.Atoi(text)
	switch {
	case err == nil && n >= 1:
		return min(n, maxPage), nil
	case strict:
		return 0, air.Errorf(air.ErrBadRequest, "limit is not a number from 1 to 200")
	}
	return s.opts.PageSize, nil
}

// endCursor is the cursor of the last page: the next round starts at the beginning, with every
// unacknowledged envelope (AIR-D62).
const endCursor = "end"

func parseCursor(text string) (after uint64, ok bool) {
	if text == endCursor {
		return 0, true
	}
	digits, ok := strings.CutPrefix(text, "c")
	after, err := strconv.ParseUint(digits, 10, 64)
	return after, ok && err == nil && "c"+strconv.FormatUint(after, 10) == text
}

func (s *Server) servePull(w http.ResponseWriter, req *http.Request, x *call) error {
	to, q := x.to, req.URL.Query()
	limit, err := s.limit(q, true)
	if err != nil {
		return err
	}
	var after uint64
	if q.Has("since") {
		var ok bool
		if after, ok = parseCursor(q.Get("since")); ok && after > 0 {
			ok, err = s.boxes.issued(req.Context(), to.airID, after)
		}
		if err != nil {
			return err
		}
		if !ok {
			return air.Errorf(air.ErrBadRequest, "since is no cursor of this mailbox")
		}
	}
	mail, more, err := s.boxes.pull(req.Context(), to.airID, after, limit)
	if err != nil {
		return err
	}
	size, hold, err := s.reservePage(x, mail)
	if err != nil {
		return err
	}
	defer hold.Release()
	body := append(make([]byte, 0, size), `{"envelopes":[`...)
	for i, rec := range mail {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, mailOf(rec).data...)
	}
	cursor := endCursor
	if more {
		cursor = "c" + strconv.FormatUint(mail[len(mail)-1].Seq, 10)
	}
	body = append(append(append(body, `],"cursor":"`...), cursor...), `","has_more":`...)
	server.WriteJSON(w, http.StatusOK, append(strconv.AppendBool(body, more), '}'))
	return nil
}

// reservePage charges the memory of a page with these envelopes, and returns its size.
func (s *Server) reservePage(x *call, mail []store.Record) (size int64, hold budget.Hold, err error) {
	size = 64
	for _, rec := range mail {
		size += int64(len(rec.Value)) + 1
	}
	if hold, err = s.output.Scope(x.principal, "").Reserve(budget.Memory, size); err != nil {
		return size, hold, overBudget(err)
	}
	return size, hold, nil
}

func wantsStream(req *http.Request) bool {
	if req.URL.Query().Get("stream") == "1" {
		return true
	}
	for _, accepted := range strings.Split(req.Header.Get("Accept"), ",") {
		if t, _ := httpx.MediaType(accepted); t == "text/event-stream" {
			return true
		}
	}
	return false
}

func (s *Server) serveDeployedPull(w http.ResponseWriter, req *http.Request, x *call) error {
	to, q := x.to, req.URL.Query()
	after, err := strconv.ParseUint(q.Get("since"), 10, 63)
	if err != nil {
		after = 0
	}
	if after > 0 {
		// A cursor that this relay cannot have issued, for example after the loss of its mail, is
		// read as 0, so that no envelope is skipped (AIR-D62).
		ok, err := s.boxes.issued(req.Context(), to.airID, after)
		if err != nil {
			return err
		}
		if !ok {
			after = 0
		}
	}
	if wantsStream(req) {
		return s.serveStream(w, req, x, after)
	}
	limit, err := s.limit(q, false)
	if err != nil {
		return err
	}
	mail, more, err := s.boxes.pull(req.Context(), to.airID, after, limit)
	if err != nil {
		return err
	}
	_, hold, err := s.reservePage(x, mail)
	if err != nil {
		return err
	}
	defer hold.Release()
	did := cmp.Or(to.did, to.name)
	body := strictjson.AppendString([]byte(`{"recipient_did":`), did)
	body = append(body, `,"messages":[`...)
	for i, rec := range mail {
		if i > 0 {
			body = append(body, ',')
		}
		body = mailOf(rec).appendMessage(body)
		after = rec.Seq
	}
	body = strconv.AppendUint(append(body, `],"cursor":`...), after, 10)
	body = strconv.AppendBool(append(body, `,"has_more":`...), more)
	server.WriteJSON(w, http.StatusOK, append(body, '}'))
	return nil
}

func (s *Server) serveAck(w http.ResponseWriter, req *http.Request, x *call) error {
	data, err := x.body, error(nil)
	if data == nil {
		if data, err = readBody(w, req, maxAnswer, s.opts.Timing.ReadTimeout); err != nil {
			return err
		}
	}
	v, err := strictjson.Check(data, strictjson.Options{MaxDepth: maxDepth})
	if err != nil || !v.IsObject() || !v.Get("envelope_ids").IsArray() || !server.JSONContent(req.Header.Get("Content-Type")) {
		return air.Errorf(air.ErrBadRequest, "want an object with a list envelope_ids")
	}
	var ids []string
	for e := v.Get("envelope_ids").Elements(); e.Next(); {
		id, ok := e.Value.Text()
		if !ok {
			return air.Errorf(air.ErrBadRequest, "envelope_ids holds something else than strings")
		}
		ids = append(ids, id)
	}
	if len(ids) < 1 || len(ids) > maxAck {
		return air.Errorf(air.ErrBadRequest, "want 1 to 500 envelope_ids")
	}
	n, err := s.boxes.ack(req.Context(), x.to.airID, ids)
	if err != nil {
		return err
	}
	body := strconv.AppendInt([]byte(`{"status":"acked","acked_count":`), int64(n), 10)
	body = strconv.AppendInt(append(body, `,"requested":`...), int64(len(ids)), 10)
	server.WriteJSON(w, http.StatusOK, append(body, '}'))
	return nil
}

// because returns an error with a cause, which is logged and never sent.
func because(code air.Code, message string, cause error) *air.Error {
	return &air.Error{Code: code, Message: message, Cause: cause}
}

// readBody reads the body of a request.
func readBody(w http.ResponseWriter, r *http.Request, limit int, timeout time.Duration) ([]byte, error) {
	data, refusal := server.ReadBody(w, r, limit, timeout)
	if refusal != nil {
		return nil, because(air.Code(refusal.Code), refusal.Message, refusal.Cause)
	}
	return data, nil
}

// writeError writes an error body of 9.3. An error other than an [*air.Error] is internal and has
// no details (AIR-124).
func writeError(w http.ResponseWriter, err error) {
	var e *air.Error
	if !errors.As(err, &e) {
		e = &air.Error{Code: air.ErrRelay}
	}
	if e.Code == air.ErrRateLimited {
		server.SetRetryAfter(w.Header(), e.RetryAfter)
	}
	server.WriteJSON(w, e.HTTPStatus(), e.HTTPBody())
}
