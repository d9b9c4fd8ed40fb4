// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/store"
)

// The clock window of 6.2. Exactly so much passes.
const (
	maxAge  = 300 * time.Second
	maxSkew = 30 * time.Second
)

// refetchAge is how old a cached document must be before a signature that does not
// verify is a reason to resolve it again (AIR-D41).
const refetchAge = 5 * time.Second

// A Delivery is a verified envelope on its way to the application. What it holds
// comes from the canonical form that the sender signed.
type Delivery struct {
	Envelope *Envelope
	Body     Body // the opened one if it was sealed
	Sealed   bool
	Form     Form // of the signature

	// BodyJSON is the body as canonical JSON. In sealed bodies of application
	// types, numbers may be floats; they stand as they were written.
	BodyJSON []byte

	// Thread is the negotiation after this message; nil for other bodies.
	Thread *Thread

	// Expired tells that the expires_at of an Offer or a Counter has passed.
	Expired bool

	// FromRelay tells that the envelope came from a relay rather than directly.
	FromRelay bool

	// Redelivered tells that a process died while it was handling this envelope: whether
	// the application saw it is not known. Handlers that must act exactly
	// once make what they do depend on Envelope.ID.
	Redelivered bool
}

// A Handler is the application behind an [Inbox]. It may be called from several
// goroutines. An error that is an [*Error] or a [Code] is a final answer; any
// other is a failure: the envelope counts as not received and will be delivered
// again if its sender or the relay tries again.
type Handler interface {
	ServeAIR(ctx context.Context, d *Delivery) error
}

// HandlerFunc makes a function a [Handler].
type HandlerFunc func(ctx context.Context, d *Delivery) error

// ServeAIR calls f.
func (f HandlerFunc) ServeAIR(ctx context.Context, d *Delivery) error { return f(ctx, d) }

// Middleware wraps a [Handler], for block lists for example.
type Middleware func(Handler) Handler

// BlockSenders returns a middleware that takes envelopes of certain senders off without
// telling them: blocked is asked for each DID, after the signature has verified.
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

// A Rejection is an envelope that was not delivered, for [InboxOptions.OnRejected].
type Rejection struct {
	Data      []byte    // nil if it was too large to be read
	Envelope  *Envelope // nil if it could not be decoded
	Err       *Error
	FromRelay bool
	Final     bool // it will not be tried again
}

// InboxOptions adjusts an [Inbox]. The zero value is right for production.
type InboxOptions struct {
	Auth        Auth
	Limits      Limits
	Persistence Persistence
	Timing      Timing

	// Resolver finds the senders' keys. Nil means one with default options.
	Resolver *Resolver

	// Profile is how envelopes are checked. Empty means ProfileInterop.
	Profile Profile

	// SignatureForms narrows the forms of signatures. Empty means those of the profile.
	SignatureForms FormSet

	// BodyTypes are the body types that the handler knows besides those of the
	// specification; [AnyBodyType] stands for all. They hold for sealed bodies too.
	BodyTypes []string

	// RejectExpired refuses Offers and Counters after their expires_at (AIR-D54).
	RejectExpired bool

	// Unwrap, if set, takes an envelope out of a wrapper of another content type
	// than JSON, such as DIDComm. What it returns is checked like any other.
	Unwrap func(contentType string, body []byte) ([]byte, error)

	// OnRejected, if set, hears of every envelope that is not delivered. It may
	// be called from several goroutines.
	OnRejected func(ctx context.Context, r *Rejection)

	// Middleware wraps the handler, the first outermost.
	Middleware []Middleware

	// Logger receives what no error reports. Nil is silent.
	Logger *slog.Logger
}

// Auth is a group of [InboxOptions].
type Auth struct {
	// Secret, if set, must be shown by whoever pushes directly.
	PushSecret string

	// KeyPolicy, if set, is asked for each sender's key.
	KeyPolicy KeyPolicy
}

// Limits is a group of [InboxOptions].
type Limits struct {
	// MaxReplayEntries bounds the nonces remembered per sender and thread, as each
	// process counts them. Zero means DefaultThreadCapacity.
	MaxReplayEntries int

	// MaxMessage bounds an envelope. Zero means [DefaultMaxBytes].
	MaxMessage int
}

// Persistence is a group of [InboxOptions].
type Persistence struct {
	// Store keeps nonces, ids and threads, so that a restart forgets nothing and
	// several processes share one inbox. Nil means the memory of this process.
	Store store.KV

	// ThreadStore keeps the negotiations; share it with the [Client] of the same
	// agent. Nil means one in Store.
	ThreadStore *ThreadStore
}

// Timing is a group of [InboxOptions].
type Timing struct {
	// MaxPullAge accepts pulled envelopes that are older than the 300 s of the
	// specification. Nonces are then remembered as long. Zero means 300 s
	// (AIR-D68).
	MaxPullAge time.Duration

	// HandlerTimeout bounds one call of the handler. Zero means one minute.
	HandlerTimeout time.Duration

	// ReadTimeout is how long the body of a request may take to arrive. Zero means
	// DefaultBodyTimeout. The ReadTimeout of the [http.Server] goes before it.
	ReadTimeout time.Duration
}

// An Inbox verifies the envelopes for one agent and hands each of them to a
// [Handler] once (sections 6 and 8). It is the [http.Handler] of a synchronous
// inbox; a [Poller] feeds it from a relay. All its methods may be called from
// several goroutines. It starts none, so it needs no closing.
type Inbox struct {
	id       *Identity
	handler  Handler
	opts     InboxOptions
	resolver *Resolver
	threads  *ThreadStore
	claims   claims
	log      *slog.Logger
}

// NewInbox returns the inbox of an agent. It does no I/O.
func NewInbox(id *Identity, h Handler, opts *InboxOptions) (*Inbox, error) {
	in := &Inbox{id: id, handler: h}
	if opts != nil {
		in.opts = *opts
	}
	o := &in.opts
	if id == nil || h == nil {
		return nil, errors.New("air: an inbox needs an identity and a handler")
	}
	if err := errors.Join(o.Profile.check(), checkWord("choice of forms", o.SignatureForms, FormSetAny, FormSetSpec, FormSetDeployed)); err != nil {
		return nil, err
	}
	o.Profile = o.Profile.or(ProfileInterop)
	if o.SignatureForms == "" {
		o.SignatureForms = o.Profile.accepts()
	}
	if o.Limits.MaxMessage <= 0 {
		o.Limits.MaxMessage = DefaultMaxBytes
	}
	if o.Timing.HandlerTimeout <= 0 {
		o.Timing.HandlerTimeout = time.Minute
	}
	if o.Timing.ReadTimeout <= 0 {
		o.Timing.ReadTimeout = defaultBodyTimeout
	}
	in.resolver = o.Resolver
	if in.resolver == nil {
		var err error
		if in.resolver, err = NewResolver(nil); err != nil {
			return nil, err
		}
	}
	in.threads = o.Persistence.ThreadStore
	if in.threads == nil {
		in.threads = NewThreads(id.did, &ThreadStoreOptions{Store: o.Persistence.Store})
	}
	in.log = logger(o.Logger)
	in.claims.window.PerThread = o.Limits.MaxReplayEntries
	in.claims.kv = o.Persistence.Store
	in.claims.prefix = "air/seen/" + id.did + "/"
	in.claims.owner = randid.New("inbox-")
	in.claims.lease = o.Timing.HandlerTimeout + 5*time.Second
	for _, m := range slices.Backward(o.Middleware) {
		in.handler = m(in.handler)
	}
	return in, nil
}

// ThreadStore returns the negotiations of the inbox.
func (in *Inbox) ThreadStore() *ThreadStore { return in.threads }

// An ReceiveResult tells what became of a received envelope.
type ReceiveResult struct {
	Delivery *Delivery // nil unless the handler took it
	Err      *Error    // why it was not delivered; nil if it was

	// Final tells that trying again would change nothing: pulled mail is
	// acknowledged (AIR-D63).
	Final bool
}

// Receive runs the steps of 6.2 for one envelope that was pushed directly, or
// pulled from a relay, and waits for the handler.
func (in *Inbox) Receive(ctx context.Context, data []byte, pulled bool) *ReceiveResult {
	env, d, err := in.receive(ctx, data, pulled)
	if err == nil {
		return &ReceiveResult{Delivery: d, Final: true}
	}
	var e *Error
	if !errors.As(err, &e) {
		e = ErrRelay.because("", err)
	}
	o := &ReceiveResult{Err: e, Final: true}
	switch e.Code {
	case ErrBadGateway, ErrRelay, ErrReplayWindowExhausted, ErrStaleKey:
		o.Final = false
	case ErrReplay:
		o.Final = !errors.Is(e, errElsewhere)
		if !o.Final && !pulled {
			// A sender takes a replay for a success (AIR-D46), which nobody can promise yet.
			e = ErrRelay.because(errElsewhere.Error(), e)
			o.Err = e
		}
	}
	in.log.DebugContext(ctx, "air: envelope not delivered", "code", e.Code, "err", e, "pulled", pulled)
	if in.opts.OnRejected != nil {
		in.opts.OnRejected(ctx, &Rejection{Data: data, Envelope: env, Err: e, FromRelay: pulled, Final: o.Final})
	}
	return o
}

func (in *Inbox) receive(ctx context.Context, data []byte, pulled bool) (*Envelope, *Delivery, error) {
	o := &in.opts
	env, err := DecodeEnvelope(data, &DecodeOptions{Profile: o.Profile, BodyTypes: o.BodyTypes, MaxMessage: o.Limits.MaxMessage})
	if err != nil {
		return nil, nil, err
	}
	if env.To != in.id.did {
		return env, nil, ErrWrongRecipient.err("the envelope is addressed to another agent")
	}
	var sig [64]byte
	if err := decodeSignature(&sig, env.Signature); err != nil {
		return env, nil, err
	}
	form, err := in.verify(ctx, env)
	if err != nil {
		return env, nil, err
	}
	window := maxAge
	if pulled {
		window = max(window, o.Timing.MaxPullAge)
	}
	now := time.Now()
	if age := now.Sub(env.Time); age > window || age < -maxSkew {
		return env, nil, stale()
	}
	h, err := in.claims.take(ctx, env, env.Time.Add(max(maxAge, o.Timing.MaxPullAge)), !pulled)
	if err != nil {
		return env, nil, err
	}
	d := &Delivery{Envelope: env, Form: form, FromRelay: pulled, Redelivered: h.retake}
	if err := in.unseal(d); err != nil {
		if isCode(err, ErrStaleKey) {
			return env, nil, settle(err, h.rollback(ctx)) // nothing is recorded (AIR-D42)
		}
		return env, nil, settle(err, h.commit(ctx))
	}
	return env, d, in.hand(ctx, d, h)
}

func stale() *Error {
	return ErrStaleTimestamp.err("the timestamp is too far from the recipient's clock")
}

// verify looks the sender up and checks the signature. From is used for nothing
// else before it has returned (AIR-129).
func (in *Inbox) verify(ctx context.Context, env *Envelope) (Form, error) {
	entry, err := in.resolver.resolve(ctx, env.From, time.Time{})
	if err != nil {
		return "", err
	}
	form, err := in.verifyWith(ctx, env, entry)
	if err == nil || !isCode(err, ErrBadSignature) || time.Since(entry.fetched) < refetchAge {
		return form, err
	}
	// The sender may have a new key since (AIR-D41).
	if entry, err = in.resolver.resolve(ctx, env.From, entry.fetched); err != nil {
		return "", err
	}
	return in.verifyWith(ctx, env, entry)
}

func (in *Inbox) verifyWith(ctx context.Context, env *Envelope, entry cached) (Form, error) {
	key, err := entry.key(env.From)
	if err != nil {
		if isCode(err, ErrBadKey) { // counts as an absent entry (AIR-D31)
			err = ErrNotFound.because("the sender's key entry is unusable", err)
		}
		return "", err
	}
	form, err := env.Verify(key, in.opts.SignatureForms)
	if err == nil && in.opts.Auth.KeyPolicy != nil {
		if err := in.opts.Auth.KeyPolicy.AuthorizeKey(ctx, env.From, key); err != nil {
			return "", ErrBadSignature.because("the sender's key is not trusted", err)
		}
	}
	return form, err
}

// unseal fills in the body.
func (in *Inbox) unseal(d *Delivery) error {
	env := d.Envelope
	if env.Type != BodyTypeEncrypted {
		d.Body, d.BodyJSON = env.Body(), env.BodyJSON()
		return nil
	}
	plain, retired, err := in.id.open(env.Binding(), env.BodyJSON())
	if err != nil {
		return err
	}
	if retired && !d.FromRelay {
		return &Error{Code: ErrStaleKey, Message: "sealed to a retired key", AIRID: in.id.airID}
	}
	d.Sealed = true
	d.Body, d.BodyJSON, err = in.parseSealed(env, plain)
	return err
}

// parseSealed checks what came out of a box (AIR-D39).
func (in *Inbox) parseSealed(env *Envelope, plain []byte) (Body, []byte, error) {
	c := getCanon()
	defer putCanon(c)
	out, ok := c.append(nil, plain)
	if !ok || c.duplicate || !c.object {
		return nil, nil, errSealed()
	}
	f := fields{string(out), c.top}
	bodyType, hasType := f.str("type")
	switch {
	case hasType && isNegotiation(bodyType):
		body, err := c.parseBody(out, in.opts.Profile, true)
		if err != nil {
			return nil, nil, err
		}
		switch bodyType {
		case BodyTypeCounter, BodyTypeAccept, BodyTypeDecline:
			if env.InReplyTo == "" && in.opts.Profile != ProfileDeployed {
				return nil, nil, ErrInvalidEnvelope.err("in_reply_to is missing")
			}
		}
		return body, out, nil
	case bodyType == BodyTypeEncrypted:
	case slices.Contains(in.opts.BodyTypes, AnyBodyType),
		hasType && (in.opts.Profile == ProfileDeployed || slices.Contains(in.opts.BodyTypes, bodyType)):
		return &Raw{Type: bodyType, JSON: out}, out, nil
	}
	return nil, nil, ErrUnsupportedBody.err("the body type is not supported here")
}

// hand moves the thread on and calls the handler. If that fails, the thread and
// the claim are taken back.
func (in *Inbox) hand(ctx context.Context, d *Delivery, h *held) error {
	env := d.Envelope
	var before Thread
	if _, raw := d.Body.(*Raw); !raw && isNegotiation(d.Body.BodyType()) {
		if err := in.expired(d); err != nil {
			return settle(err, h.commit(ctx))
		}
		var after Thread
		var err error
		by := PartyPeer
		if env.From == in.id.did {
			by = PartySelf // a thread with oneself (AIR-D72)
		}
		before, after, err = in.threads.apply(context.WithoutCancel(ctx), env, by, d.Body)
		var refused *Error
		switch {
		case errors.As(err, &refused):
			return settle(err, h.commit(ctx))
		case err != nil:
			return settle(ErrRelay.because("", err), h.rollback(ctx))
		}
		d.Thread = &after
	}
	err := in.call(ctx, d)
	if err == nil {
		return settle(nil, h.commit(ctx))
	}
	var answer *Error
	if errors.As(err, &answer) && answer.HTTPStatus() < http.StatusInternalServerError {
		return settle(answer, h.commit(ctx)) // the application has decided
	}
	if d.Thread != nil {
		lost := h.renew(ctx)
		if lost == nil {
			lost = in.threads.revert(context.WithoutCancel(ctx), env, before)
		}
		err = errors.Join(err, lost)
	}
	in.log.WarnContext(ctx, "air: handler failed", "id", env.ID, "err", err)
	return settle(ErrRelay.because("", err), h.rollback(ctx))
}

// settle is the answer err, unless the store failed to take note of it: then
// nothing is final.
func settle(err, stored error) error {
	if stored != nil {
		return ErrRelay.because("", errors.Join(stored, err))
	}
	return err
}

func (in *Inbox) expired(d *Delivery) error {
	var at time.Time
	switch b := d.Body.(type) {
	case *Offer:
		at = b.Expires
	case *Counter:
		at = b.Expires
	default:
		return nil
	}
	d.Expired = time.Now().After(at)
	if d.Expired && in.opts.RejectExpired {
		return ErrInvalidEnvelope.err("expires_at has passed")
	}
	return nil
}

func (in *Inbox) call(ctx context.Context, d *Delivery) (err error) {
	ctx, cancel := context.WithTimeout(ctx, in.opts.Timing.HandlerTimeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			in.log.ErrorContext(ctx, "air: handler panicked", "id", d.Envelope.ID, "panic", p)
			err = errors.New("air: the handler panicked")
		}
	}()
	err = in.handler.ServeAIR(ctx, d)
	var answer *Error
	var code Code
	if !errors.As(err, &answer) && errors.As(err, &code) {
		return code.err("")
	}
	return err
}

// ServeHTTP takes one pushed envelope, whatever the path (7.2), and answers with
// the codes of 9.2.
func (in *Inbox) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	boundBody(w, r, in.opts.Timing.ReadTimeout)
	data, err := in.pushed(w, r)
	if err != nil {
		var e *Error
		if in.opts.OnRejected != nil && errors.As(err, &e) && e.Code != errMethodCode && e.Code != ErrUnauthorized {
			in.opts.OnRejected(r.Context(), &Rejection{Data: data, Err: e, Final: true})
		}
		writeError(w, err)
		return
	}
	o := in.Receive(r.Context(), data, false)
	if o.Err != nil {
		writeError(w, o.Err)
		return
	}
	body := appendQuoted([]byte(`{"status":"delivered","envelope_id":`), o.Delivery.Envelope.ID)
	writeJSON(w, http.StatusOK, append(body, '}'))
}

func (in *Inbox) pushed(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return nil, errMethod
	}
	if in.opts.Auth.PushSecret != "" && !secretMatches(r.Header.Get(secretHeader), in.opts.Auth.PushSecret) {
		return nil, ErrUnauthorized.err("the secret is missing or wrong")
	}
	data, err := readBody(r, in.opts.Limits.MaxMessage)
	if err != nil {
		return nil, err
	}
	contentType := r.Header.Get("Content-Type")
	if jsonContent(contentType) {
		return data, nil
	}
	if in.opts.Unwrap == nil {
		return data, ErrInvalidEnvelope.err("not a content type for envelopes")
	}
	if data, err = in.opts.Unwrap(contentType, data); err != nil {
		return nil, ErrInvalidEnvelope.because("the wrapper could not be opened", err)
	}
	return data, nil
}

// errMethod is told as AIR-D67 says: the table of codes lacks the status.
var errMethod = &Error{Code: errMethodCode, Message: "the method is not allowed here"}

const errMethodCode Code = "method_not_allowed"
