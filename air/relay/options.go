// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"time"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/internal/server"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/store"
)

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

	// PageSize is the number of envelopes in a pull without a limit. Zero means 50; a negative value and
	// more than 200 mean 200.
	PageSize int

	// Audit, if set, is called after every request except health checks and preflight requests of
	// browsers. It may be called concurrently.
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
	// mailbox without a secret is closed to unsigned requests unless AllowAnonymous is set (AIR-D64).
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
// earlier process counts from the first push to its mailbox or the first acknowledgement there, for
// the recipient.
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

	// MaxMessage bounds an envelope in bytes. Zero means 65,536; a negative value means 2 GiB. An
	// envelope over the limit of the Store is refused, too.
	MaxMessage int

	// MaxOutput bounds the bytes of the envelopes in a page or in one part of a stream; further ones
	// follow in the next. A page has at least one. Zero means 16 MiB; a negative value removes the
	// bound.
	MaxOutput int

	// MaxStreams bounds the concurrent streams. A principal has at most as many as stay free for others, and all
	// callers without a secret have at most half. Zero means 1,000; a negative value removes the bound.
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
	o.PageSize = min(option.Or(o.PageSize, 50, maxPage), maxPage)
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
