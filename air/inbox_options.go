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
	"time"

	"github.com/fivewire/fivewire/air/internal/core"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/store"
)

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

	ignoresThreads bool // of the command air: its process has not seen the earlier moves
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
	// has expired. Zero and negative values mean 15 s, less than 1 s means 1 s.
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

	// RequestTimeout bounds each attempt of a delivery by an [Agent]. Zero means 60 s; a negative value
	// removes the bound.
	RequestTimeout time.Duration

	// ResendEvery is the interval of a background [Client.Resend] of an [Agent]. Zero and negative values mean none, as
	// specified.
	ResendEvery time.Duration
}

// maxPullAge is the longest clock window for pulled mail.
const maxPullAge = 30 * 24 * time.Hour

func (o *InboxOptions) withDefaults() error {
	err := errors.Join(o.Profile.check(), checkWord("form", o.SignatureForms, FormSpec, FormDeployed))
	if err != nil {
		return err
	}
	o.Profile = o.Profile.or(ProfileInterop)
	if o.SignatureForms == "" {
		o.SignatureForms = o.Profile.accepts()
	}
	o.Limits.MaxMessage = option.Or(o.Limits.MaxMessage, defaultMaxMessage, math.MaxInt32)
	o.Limits.RateLimit = option.Count(o.Limits.RateLimit, 100)
	o.Limits.AddressRateLimit = option.Count(o.Limits.AddressRateLimit, 600)
	o.Limits.MaxConcurrent = cmp.Or(o.Limits.MaxConcurrent, 64)
	o.Limits.MaxConcurrentPerPrincipal = cmp.Or(o.Limits.MaxConcurrentPerPrincipal, 64)
	o.Timing.HandlerTimeout = option.Or(o.Timing.HandlerTimeout, time.Minute, 24*time.Hour)
	o.Timing.ReadTimeout = option.Or(o.Timing.ReadTimeout, time.Minute, 0)
	o.Timing.MaxPullAge = option.Or(o.Timing.MaxPullAge, core.MaxAge, core.MaxAge)
	o.Timing.PushWait = option.Or(o.Timing.PushWait, 10*time.Second, 10*time.Second)
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
