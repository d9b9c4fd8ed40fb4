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
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/air/internal/exchange"
	"github.com/fivewire/fivewire/air/internal/server"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/store"
)

// ClientOptions adjusts a [Client]. The zero value is right for production.
type ClientOptions struct {
	// Resolver resolves recipients. Nil means a new resolver with default options.
	Resolver *Resolver

	// HTTPClient pushes the envelopes. Nil means a client that connects to public addresses, or to
	// those that the Resolver allows. Redirects are never followed.
	HTTPClient *http.Client

	// Profile selects validation and signature form. Empty means ProfileSpec.
	Profile Profile

	// BodyTypes are the permitted body types besides those of the specification; [AnyBodyType]
	// permits all.
	BodyTypes []string

	// Secrets returns the secret for an origin, such as https://relay.example, in lower case and
	// without a default port, "" for none. The recipient's document names the URL of a push, so a
	// secret must not go to every origin (AIR-D85). Nil means none.
	Secrets func(origin string) string

	// RequireSealed refuses to send plain bodies, which every relay can read. Those in the Outbox are sealed.
	RequireSealed bool

	// DisableSelfCheck disables the check before the first envelope that the registry has the
	// sender's key (AIR-022, AIR-024).
	DisableSelfCheck bool

	// Retry adjusts the attempts of a delivery. Nil means 5 attempts of up to 60 s, with delays of 1, 2,
	// 4 and 8 seconds, or as long as the peer requests, up to 5 minutes.
	Retry *RetryPolicy

	// MaxMessage bounds an envelope. Zero means 65,536; a negative value removes the
	// bound.
	MaxMessage int

	// ThreadStore, if set, keeps the negotiations: an illegal move is refused before it is signed,
	// and a sent move counts once it is delivered (AIR-D56).
	ThreadStore *ThreadStore

	// Outbox, if set, keeps each message from before its first attempt until it is delivered, at most
	// 10,000 messages and 64 MiB (AIR-D84); see [Client.Outbox]. Messages to one agent in one thread keep
	// their order: behind a queued one Send makes no attempt.
	Outbox store.KV

	// ResendEvery is the interval of a background [Client.Resend], which ends with Close. One that takes
	// longer continues with its recipients, and the next one serves the others. Zero and
	// negative values mean none, as specified.
	ResendEvery time.Duration

	// KeyPolicy, if set, authorizes each key before a body is sealed to it.
	KeyPolicy KeyPolicy

	// Interceptors wraps Send, and with it SendEach and negotiations, the first outermost.
	// Envelopes of SendSigned and Resend are already signed and are not intercepted.
	Interceptors []Interceptor

	// Logger receives events that no error reports, such as retries. Nil means slog.Default().
	Logger *slog.Logger

	instance *instance // of the inbox of an Agent; nil: none
	isAlone  bool      // no other process shares the Outbox
}

// A Client sends envelopes of one agent. All methods are safe for concurrent use. It starts no
// goroutines, except for ResendEvery.
type Client struct {
	id       atomic.Pointer[Identity]
	rotated  atomic.Int64 // the last step of a rotation, as UnixNano
	did      string
	opts     ClientOptions
	resolver *Resolver
	http     *exchange.Client
	retry    RetryPolicy
	log      *slog.Logger
	sender   SendFunc // send, wrapped by the interceptors
	life     *life.Life
	outbox   *outboxStore // nil: none
	resends  server.LogLevels

	mu       sync.Mutex
	verified bool // the registry has the sender's key; guarded by mu
}

// NewClient returns a client that sends as id. It does no I/O.
func NewClient(id *Identity, opts *ClientOptions) (*Client, error) {
	c := &Client{}
	if opts != nil {
		c.opts = *opts
	}
	o := &c.opts
	if id.isZero() {
		return nil, errors.New("air: client: identity missing")
	}
	c.id.Store(id)
	c.did = id.did
	if len(id.retired) > 0 { // perhaps since just before the start
		c.rotated.Store(time.Now().UnixNano())
	}
	if err := o.Profile.check(); err != nil {
		return nil, err
	}
	if err := o.ThreadStore.check(id.did); err != nil {
		return nil, err
	}
	o.Profile = o.Profile.or(ProfileSpec)
	c.retry = o.Retry.withDefaults()
	c.log = logger(o.Logger)
	c.life = life.New(life.Options{Closed: ErrClosed, Logger: c.log})
	c.resolver = o.Resolver
	if c.resolver == nil {
		var err error
		if c.resolver, err = NewResolver(nil); err != nil {
			return nil, err
		}
	}
	co := c.resolver.clientOptions(o.HTTPClient)
	co.Secrets, co.Timeout = o.Secrets, c.retry.Timeout
	c.http = exchange.New(co)
	c.sender = c.send
	err := guard.Call("interceptor", func() error {
		for _, m := range slices.Backward(o.Interceptors) {
			if m == nil {
				return errors.New("air: client: nil Interceptor")
			}
			if c.sender = m(c.sender); c.sender == nil {
				return errors.New("air: client: interceptor returned no function")
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if o.Outbox != nil {
		c.outbox = &outboxStore{kv: o.Outbox, prefix: outboxPrefix + c.did + "/", instance: o.instance, index: index[outboxEntry]{isAlone: o.isAlone}}
		if o.ThreadStore != nil {
			o.ThreadStore.outbox.Store(c.outbox)
		}
	}
	if o.ResendEvery > 0 && c.outbox != nil {
		err = c.life.Go("resend", c.resendLoop)
	}
	return c, err
}

// Shutdown refuses further calls with [ErrClosed], waits for the running deliveries, except those of
// ResendEvery, and then does the same as Close. If ctx ends first, it cuts them and returns the error of ctx
// at once.
func (c *Client) Shutdown(ctx context.Context) error {
	if err := c.life.Shutdown(ctx); err != nil {
		return errors.Join(err, c.closeIdle())
	}
	return c.Close()
}

// Close ends the running deliveries, waits for them at most one second, and closes the idle
// connections, those of the resolver included unless it was given. Further calls return [ErrClosed].
func (c *Client) Close() error { return errors.Join(c.life.Close(), c.closeIdle()) }

// closeIdle closes the idle connections of the client.
func (c *Client) closeIdle() error {
	c.http.Close()
	if c.opts.Resolver == nil {
		return c.resolver.Close()
	}
	return nil
}

// SendOptions adjusts one [Client.Send].
type SendOptions struct {
	// Seal encrypts the body to the recipient's key (section 14).
	Seal bool
}

// A Receipt describes a delivered envelope.
type Receipt struct {
	Envelope *Envelope // the envelope as delivered; nil if an earlier call of a handler has delivered it, see [Negotiation]
	Status   int       // of the last response: 200 of the recipient, 202 of a relay; 0 for none
	Attempts int
}

// Send signs a message and delivers it. Empty fields of the draft get defaults: ids, the nonce, the
// time, and the sender, which must be this agent.
//
// Send returns after 200 or 202, with up to four repetitions after 1, 2, 4 and 8 seconds. Before an
// attempt, a form that is over 60 seconds old is signed again, with a new nonce and the same id
// (AIR-D83). A refusal by the protocol or the peer is an [*Error]; that of a failed delivery has the
// signed envelope for [Client.SendSigned]. If ctx ends during a delivery, the outcome is unknown. If the envelope was
// delivered but a crossing message has advanced the thread, Send returns both a receipt and an
// error. A draft with the id and the content of a message in the outbox continues its delivery.
func (c *Client) Send(ctx context.Context, draft *Draft, opts *SendOptions) (*Receipt, error) {
	if draft == nil {
		draft = &Draft{}
	}
	return c.guarded(ctx, life.Request, func(ctx context.Context) (*Receipt, error) { return c.sender(ctx, draft, opts) })
}

// A callKey is the key of the client in the context of its calls.
type callKey struct{}

// guarded runs f, which calls options of the user, until the client is closed. A call of an
// interceptor is a part of the call that it wraps.
func (c *Client) guarded(ctx context.Context, kind life.Kind, f func(context.Context) (*Receipt, error)) (r *Receipt, err error) {
	if ctx.Value(callKey{}) == c {
		kind = life.Part
	}
	w, err := c.life.Start(ctx, kind)
	if err != nil {
		return nil, err
	}
	defer w.Finish()
	err = guard.Call("send", func() (err error) {
		r, err = f(context.WithValue(w, callKey{}, c))
		return err
	})
	logPanic(ctx, c.log, err)
	if err != nil && ctx.Err() == nil && w.Err() != nil {
		err = errors.Join(context.Cause(w), err)
	}
	return r, err
}

func (c *Client) send(ctx context.Context, draft *Draft, opts *SendOptions) (*Receipt, error) {
	d := *draft
	seal := opts != nil && opts.Seal
	if c.opts.RequireSealed && !seal {
		return nil, errPlain()
	}
	if isMissing(d.Body) {
		return nil, ErrInvalidEnvelope.err("body is missing")
	}
	if d.From != "" && d.From != c.did {
		return nil, ErrInvalidEnvelope.err("from is not the agent of this client")
	}
	d.From = c.did
	if d.ThreadID == "" {
		d.ThreadID = NewID()
	}
	if d.ID == "" {
		d.ID = NewID()
	}
	first, err := c.validate(&d, seal)
	if err != nil {
		return nil, err
	}
	if c.outbox == nil {
		return c.deliverDraft(ctx, &d, seal, first, false)
	}
	m := &OutboxMessage{ID: d.ID, To: d.To, ThreadID: d.ThreadID, InReplyTo: d.InReplyTo, Body: d.Body.appendJSON(nil), IsSealed: seal}
	end, err := c.outbox.turn(ctx, m)
	if err != nil { // a failed delivery is in the outbox
		ctx, cancel := storeContext(ctx)
		defer cancel()
		_, _, failed := c.outbox.add(ctx, m, "", draft)
		return nil, cmp.Or(failed, err)
	}
	defer end()
	isRepeat, isBehind, err := c.outbox.add(ctx, m, c.outbox.owner(), draft)
	if err != nil {
		return nil, err
	}
	if isBehind {
		return nil, ErrDeliveryFailed.err("an earlier message of the thread is queued")
	}
	r, err := c.deliverDraft(ctx, &d, seal, first, isRepeat)
	var unrecorded *unrecordedError
	if errors.As(err, &unrecorded) {
		c.log.WarnContext(ctx, "air: sent move not stored", "id", d.ID, "thread", d.ThreadID, "err", err)
		return r, nil // recorded by Resend
	}
	return r, errors.Join(err, c.outbox.end(ctx, m, isRepeat, r, err))
}

// validate checks a message before it is stored, and returns its first form unless it is sealed.
func (c *Client) validate(d *Draft, seal bool) (*Envelope, error) {
	e := *d
	if seal {
		bodyType, err := c.checkSealable(d.Body)
		if err != nil {
			return nil, err
		}
		if !isNegotiation(bodyType) { // a move has the rules of a plain one
			e.Body = &Raw{Type: bodyTypeEncrypted, JSON: []byte(emptyBox)}
		}
	}
	first, err := c.compose(&e)
	if err != nil {
		return nil, err
	}
	if first.ambiguous {
		return nil, errAmbiguous()
	}
	if seal {
		first = nil
	}
	return first, nil
}

// emptyBox has the form of a sealed body.
const emptyBox = `{"type":"encrypted","alg":"x25519-hkdf-sha256-chacha20poly1305","v":1,"epk":"","nonce":"","ct":""}`

func errPlain() *Error {
	return ErrInvalidEnvelope.err("the options of this client demand sealed bodies")
}

func errExpired() *Error { return ErrExpired.err("expires_at has passed") }

// deliverDraft makes one delivery of a message, unless it has expired (AIR-D84). first is its first form, if not nil; isRepeat is set if
// an earlier delivery may have arrived.
func (c *Client) deliverDraft(ctx context.Context, d *Draft, seal bool, first *Envelope, isRepeat bool) (*Receipt, error) {
	body := moveOf(d.Body)
	if isExpired(body, time.Now()) {
		return nil, errExpired()
	}
	isMade, err := c.checkThread(ctx, d, body)
	if err != nil {
		return nil, err
	}
	if err := c.verifySelf(ctx); err != nil {
		return nil, err
	}
	makeForm := func(ctx context.Context) (*Envelope, error) {
		e := *d
		if first != nil {
			e.Nonce, e.Time, e.Timestamp = "", time.Time{}, ""
		}
		if seal {
			if err := c.seal(ctx, &e); err != nil {
				return nil, err
			}
		}
		form, err := c.compose(&e)
		if isCode(err, ErrBadKey) {
			err = ErrDeliveryFailed.because("", err)
		}
		return form, err
	}
	if first == nil {
		if first, err = makeForm(ctx); err != nil {
			return nil, err
		}
	}
	if c.opts.ThreadStore != nil && isMove(body) {
		defer c.opts.ThreadStore.send(d, body)()
	}
	r, err := c.deliver(ctx, &push{wire: first.Bytes(), receipt: Receipt{Envelope: first}, body: body, makeForm: makeForm, isSealed: seal, isRepeat: isRepeat || isMade})
	if err != nil {
		return nil, err
	}
	return r, c.applyThread(ctx, r.Envelope, body)
}

// moveOf returns the parsed body of a move that was given as JSON.
func moveOf(b Body) Body {
	if raw, ok := b.(*Raw); ok {
		if parsed, err := DecodeBody(raw.JSON, ProfileDeployed); err == nil {
			return parsed
		}
	}
	return b
}

func errAmbiguous() error {
	return ErrAmbiguousKeyOrder.err("implementations sort the member names of this body differently")
}

// hasRotated reports whether peers may have another key of the agent: documents are cached for 70 s.
func (c *Client) hasRotated() bool {
	return time.Now().UnixNano()-c.rotated.Load() < int64(maxDocumentTTL+maxDocumentTTL/6)
}

// compose fills in the time and signs.
func (c *Client) compose(d *Draft) (*Envelope, error) {
	e := *d
	if e.Time.IsZero() && e.Timestamp == "" {
		e.Time = time.Now()
	}
	opts := &EnvelopeOptions{Profile: c.opts.Profile, BodyTypes: c.opts.BodyTypes, MaxMessage: c.opts.MaxMessage}
	return NewEnvelope(&e, c.id.Load().signer, opts)
}

// checkSealable validates a body to be sealed (AIR-D37) and returns its type.
func (c *Client) checkSealable(b Body) (string, error) {
	cn := getScratch()
	defer putScratch(cn)
	out, ok := cn.Append(nil, b.appendJSON(nil))
	if err := cn.refuse(ok); err != nil {
		return "", err
	}
	if cn.IsAmbiguous {
		return "", errAmbiguous()
	}
	bodyType, _ := fields{string(out), cn.Top}.str("type")
	if bodyType == bodyTypeEncrypted || c.opts.Profile != ProfileDeployed && !knownBody(bodyType, c.opts.BodyTypes) {
		return "", unsupported(bodyType)
	}
	return bodyType, nil
}

// seal replaces the body by one that is sealed to the recipient's present key.
func (c *Client) seal(ctx context.Context, d *Draft) error {
	doc, err := c.resolver.Resolve(ctx, d.To)
	if err != nil {
		return c.resolveFailed(err)
	}
	key, err := doc.SigningKey(d.To)
	if err != nil {
		return err
	}
	if c.opts.KeyPolicy != nil {
		err = c.opts.KeyPolicy.AuthorizeKey(ctx, d.To, key)
	}
	switch {
	case errors.Is(err, ErrKeyRefused):
		return ErrBadKey.because("the key policy refuses the recipient's key", err)
	case err != nil:
		return ErrDeliveryFailed.because("the key policy failed", err)
	}
	body, err := Seal(key, Binding{ID: d.ID, From: d.From, To: d.To, ThreadID: d.ThreadID}, d.Body.appendJSON(nil))
	d.Body = &Raw{Type: bodyTypeEncrypted, JSON: body}
	return err
}

// checkThread refuses a message that is not a legal move (AIR-D56), and reports whether the move was delivered before.
func (c *Client) checkThread(ctx context.Context, e *Draft, body Body) (isMade bool, err error) {
	if c.opts.ThreadStore == nil || !isMove(body) {
		return false, nil
	}
	th, err := c.opts.ThreadStore.Get(ctx, e.ThreadID, e.To)
	if err != nil {
		return false, ErrDeliveryFailed.because("the thread could not be loaded", err)
	}
	m := messageOf(true, e.ID, e.InReplyTo, body)
	if _, err := th.state.Apply(m); err != nil {
		return false, refused(err)
	}
	if th.state.Has(&m) {
		return true, nil
	}
	if err := c.opts.ThreadStore.hasRoom(e.ThreadID, e.To); err != nil {
		return false, overBudget(err)
	}
	return false, nil
}

// applyThread applies a delivered message to its thread.
func (c *Client) applyThread(ctx context.Context, e *Envelope, body Body) error {
	if c.opts.ThreadStore == nil || !isMove(body) {
		return nil
	}
	ctx, cancel := storeContext(ctx)
	defer cancel()
	var moved *Error
	err := store.Persist(ctx, func(ctx context.Context) error {
		_, _, err := c.opts.ThreadStore.apply(ctx, e, true, body)
		if errors.As(err, &moved) {
			return nil
		}
		return err
	})
	switch {
	case err != nil:
		return &unrecordedError{err}
	case moved != nil:
		return fmt.Errorf("air: delivered, but the thread has moved on: %w", moved)
	}
	return nil
}

// An unrecordedError reports a delivered move that the thread does not have. The message stays in the
// outbox, so that Resend records it; the recipient drops the second copy.
type unrecordedError struct{ err error }

func (e *unrecordedError) Error() string {
	return "air: delivered, but the thread was not stored: " + e.err.Error()
}
func (e *unrecordedError) Unwrap() error { return e.err }

// SendSigned pushes the bytes of a signed envelope unchanged to its recipient, for example those of
// a failed delivery. A negotiation message counts as with [Client.Send], unless it is sealed.
func (c *Client) SendSigned(ctx context.Context, envelope []byte) (*Receipt, error) {
	return c.guarded(ctx, life.Request, func(ctx context.Context) (*Receipt, error) { return c.sendSigned(ctx, envelope) })
}

func (c *Client) sendSigned(ctx context.Context, envelope []byte) (*Receipt, error) {
	env, err := DecodeEnvelope(envelope, &DecodeOptions{Profile: c.opts.Profile, BodyTypes: []string{AnyBodyType}, MaxMessage: c.opts.MaxMessage})
	if err != nil {
		return nil, err
	}
	if env.Signature == "" {
		return nil, ErrBadSignature.err(detailNoSignature)
	}
	if env.ambiguous {
		return nil, errAmbiguous()
	}
	if c.opts.RequireSealed && env.Type != bodyTypeEncrypted {
		return nil, errPlain()
	}
	own, isMade := env.From == c.did, false
	if own {
		d := &Draft{ID: env.ID, To: env.To, ThreadID: env.ThreadID, InReplyTo: env.InReplyTo}
		if isMade, err = c.checkThread(ctx, d, env.Body()); err != nil {
			return nil, err
		}
	}
	r, err := c.deliver(ctx, &push{wire: envelope, receipt: Receipt{Envelope: env}, isRepeat: isMade})
	if err != nil {
		return nil, err
	}
	if own {
		err = c.applyThread(ctx, env, env.Body())
	}
	return r, err
}

func transient(c Code) bool { return c == ErrRateLimited || c == ErrRelay || c == ErrBadGateway }

// endpoint returns the URL of the inbox of an agent.
func (c *Client) endpoint(ctx context.Context, to string) (string, error) {
	found, err := c.resolver.resolve(ctx, to, lookup{})
	if err != nil {
		return "", c.resolveFailed(err)
	}
	return found.endpoint(to)
}

// resolveFailed returns the error of a failed lookup, which is not repeated (AIR-D40).
func (c *Client) resolveFailed(err error) error {
	if errors.Is(err, ErrNotFound) {
		return err
	}
	return ErrResolveFailed.because("the recipient could not be looked up", err)
}

// verifySelf resolves the sender's own document once and compares the key.
func (c *Client) verifySelf(ctx context.Context) error {
	if c.opts.DisableSelfCheck {
		return nil
	}
	c.mu.Lock()
	verified := c.verified
	c.mu.Unlock()
	if verified {
		return nil
	}
	doc, err := c.resolver.Resolve(ctx, c.did)
	switch {
	case errors.Is(err, ErrNotFound):
		return ErrNotFound.because("the sender is not registered", err)
	case err != nil:
		return ErrResolveFailed.because("the sender could not be looked up", err)
	}
	key, err := doc.SigningKey(c.did)
	if err == nil && !key.Equal(c.id.Load().public) {
		err = ErrBadKey.err("the registry has another key for this agent")
	}
	if err != nil { // the message stays in the outbox
		return ErrDeliveryFailed.because("the key of the agent is not that of the registry", err)
	}
	c.mu.Lock()
	c.verified = true
	c.mu.Unlock()
	return nil
}

const outboxPrefix = "air/outbox/"

// A SendResult is the result for one recipient of [Client.SendEach].
type SendResult struct {
	To      string
	Receipt *Receipt
	Err     error
}

// SendEach sends one body to many agents, at most eight at a time. Each recipient gets its own
// envelope, and its own thread unless the draft names one. The results have the order of the
// recipients.
func (c *Client) SendEach(ctx context.Context, to []string, draft *Draft, opts *SendOptions) []SendResult {
	results := make([]SendResult, len(to))
	slots := make(chan struct{}, maxRecipients)
	var wg sync.WaitGroup
	for i, did := range to {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			var d Draft
			if draft != nil {
				d = *draft
			}
			d.To, d.ID, d.Nonce = did, "", ""
			var r *Receipt
			guard.Run("send", func() (err error) {
				r, err = c.Send(ctx, &d, opts)
				return err
			}, func(err error) { results[i] = SendResult{To: did, Receipt: r, Err: err} })
		})
	}
	wg.Wait()
	return results
}
