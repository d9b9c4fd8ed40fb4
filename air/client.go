// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/fivewire/fivewire/air/internal/web"
	"github.com/fivewire/fivewire/store"
)

// ClientOptions adjusts a [Client]. The zero value is right for production.
type ClientOptions struct {
	// Resolver finds the recipients. Nil means one of the client's own, with its
	// default options.
	Resolver *Resolver

	// HTTPClient pushes the envelopes. Nil means one that connects to public
	// addresses only, or to those that the Resolver allows. No redirect is
	// followed in any case.
	HTTPClient *http.Client

	// Profile is how envelopes are checked and signed. Empty means ProfileSpec.
	Profile Profile

	// BodyTypes are the body types that may be sent besides those of the
	// specification; [AnyBodyType] stands for all.
	BodyTypes []string

	// AgentSecret is shown to relays that demand one. Empty means none.
	AgentSecret string

	// RequireSealed refuses to send a body in clear. Plain bodies can be read by
	// every relay on the way: see the package documentation.
	RequireSealed bool

	// DisableSelfCheck leaves out the look-up of the sender's own document before
	// the first envelope, which finds out whether the registry has its key
	// (AIR-022, AIR-024).
	DisableSelfCheck bool

	// MaxRetryAfter is the longest delay named by an answer that is waited for.
	// Zero means 5 minutes.
	MaxRetryAfter time.Duration

	// MaxMessage bounds an envelope. Zero means [DefaultMaxBytes].
	MaxMessage int

	// ThreadStore, if set, keeps the negotiations: what does not fit is refused before
	// it is signed, and what was sent counts once it is delivered (AIR-D56). Of what
	// Resend delivers, a sealed body does not count: nobody here can open it.
	ThreadStore *ThreadStore

	// Outbox, if set, keeps the envelopes whose delivery failed; see
	// [Client.Outbox].
	Outbox store.KV

	// KeyPolicy, if set, is asked before a body is sealed to a key.
	KeyPolicy KeyPolicy

	// Interceptors wraps Send, and with it SendAll and negotiations, the first
	// outermost. What Deliver and Resend push was signed before and passes by.
	Interceptors []SendMiddleware

	// Logger receives what no error reports, such as retries. Nil is silent.
	Logger *slog.Logger
}

// A Client sends envelopes in the name of one agent. All its methods may be
// called from several goroutines. It starts none, so it needs no closing.
type Client struct {
	id       *Identity
	opts     ClientOptions
	resolver *Resolver
	http     *http.Client
	log      *slog.Logger
	sender   Sender // send with the middleware around it

	mu       sync.Mutex
	verified bool // the registry has our key; guarded by mu
}

// NewClient returns a client that sends as id. It does no I/O.
func NewClient(id *Identity, opts *ClientOptions) (*Client, error) {
	c := &Client{id: id}
	if opts != nil {
		c.opts = *opts
	}
	o := &c.opts
	if id == nil {
		return nil, errors.New("air: a client needs an identity")
	}
	if err := o.Profile.check(); err != nil {
		return nil, err
	}
	o.Profile = o.Profile.or(ProfileSpec)
	if o.MaxRetryAfter == 0 {
		o.MaxRetryAfter = 5 * time.Minute
	}
	if o.MaxMessage <= 0 {
		o.MaxMessage = DefaultMaxBytes
	}
	c.log = logger(o.Logger)
	c.resolver = o.Resolver
	if c.resolver == nil {
		var err error
		if c.resolver, err = NewResolver(nil); err != nil {
			return nil, err
		}
	}
	c.http = web.Client(o.HTTPClient, c.resolver.opts.AllowLoopback, c.resolver.opts.AllowPrivate)
	c.sender = SenderFunc(c.send)
	for _, m := range slices.Backward(o.Interceptors) {
		c.sender = m(c.sender)
	}
	return c, nil
}

// Identity returns the agent that the client sends as.
func (c *Client) Identity() *Identity { return c.id }

// SendOptions adjusts one [Client.Send].
type SendOptions struct {
	// Seal encrypts the body to the recipient's key (section 14).
	Seal bool
}

// A Receipt tells how an envelope was delivered.
type Receipt struct {
	Envelope *Envelope // as it was sent in the end
	Status   int       // of the last answer; 0 if none came
	Attempts int
}

// Delivered reports whether the recipient itself took the envelope, rather than a
// relay that keeps it.
func (r *Receipt) Delivered() bool { return r.Status == http.StatusOK }

// Send signs a message and delivers it. What the draft leaves empty is filled in:
// ids, the nonce, the time, and the sender, which cannot be another.
//
// It returns after 200 or 202, with up to four repetitions after 1, 2, 4 and 8
// seconds. What the protocol or a peer refuses is an [*Error]; that of a delivery
// that failed holds the signed envelope for [Client.SendSigned]. The outcome of a
// delivery that ctx ended is unknown. If the envelope was delivered but the thread
// moved on meanwhile, because an answer crossed it, there is a receipt beside the
// error.
func (c *Client) Send(ctx context.Context, draft *Draft, opts *SendOptions) (*Receipt, error) {
	return c.sender.Send(ctx, draft, opts)
}

func (c *Client) send(ctx context.Context, draft *Draft, opts *SendOptions) (*Receipt, error) {
	d := *draft
	seal := opts != nil && opts.Seal
	if c.opts.RequireSealed && !seal {
		return nil, ErrInvalidEnvelope.err("the options of this client demand sealed bodies")
	}
	if d.Body == nil {
		return nil, ErrInvalidEnvelope.err("body is missing")
	}
	if d.From != "" && d.From != c.id.did {
		return nil, ErrInvalidEnvelope.err("from is not the agent of this client")
	}
	d.From = c.id.did
	if d.ThreadID == "" {
		d.ThreadID = NewID()
	}
	if err := c.verifySelf(ctx); err != nil {
		return nil, err
	}
	env, err := c.compose(ctx, &d, seal)
	if err != nil {
		return nil, err
	}
	if env.ambiguous {
		return nil, errAmbiguous()
	}
	body := moveOf(d.Body)
	if err := c.checkThread(ctx, env, body); err != nil {
		return nil, err
	}
	r, err := c.deliver(ctx, env, env.Bytes(), func(ctx context.Context) (*Envelope, error) {
		if !seal {
			return nil, nil
		}
		d := *draft // sealed to the new key and signed with everything fresh (AIR-D42)
		d.From, d.ThreadID, d.ID, d.Nonce, d.Time, d.Timestamp = c.id.did, env.ThreadID, "", "", time.Time{}, ""
		return c.compose(ctx, &d, true)
	})
	if err != nil {
		return nil, c.preserve(ctx, err)
	}
	return r, c.applyThread(ctx, r.Envelope, body)
}

// moveOf returns a body that was given as JSON as what it is to a thread.
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

// compose fills in, seals and signs.
func (c *Client) compose(ctx context.Context, d *Draft, seal bool) (*Envelope, error) {
	e := *d
	if e.ID == "" {
		e.ID = NewID()
	}
	if e.Nonce == "" {
		e.Nonce = NewNonce()
	}
	if e.Time.IsZero() && e.Timestamp == "" {
		e.Time = time.Now()
	}
	opts := &EnvelopeOptions{Profile: c.opts.Profile, BodyTypes: c.opts.BodyTypes, MaxMessage: c.opts.MaxMessage}
	if seal {
		body, err := c.seal(ctx, &e)
		if err != nil {
			return nil, err
		}
		e.Body = &Raw{Type: BodyTypeEncrypted, JSON: body}
	}
	return NewEnvelope(&e, c.id.signer, opts)
}

func (c *Client) seal(ctx context.Context, d *Draft) ([]byte, error) {
	if p := c.opts.Profile; p != ProfileDeployed && !knownBody(d.Body.BodyType(), c.opts.BodyTypes) {
		return nil, ErrUnsupportedBody.err("the body type is not among the client's")
	}
	body := d.Body.appendJSON(nil)
	cn := getCanon()
	_, ok := cn.append(nil, body)
	err, ambiguous := cn.refuse(ok), cn.ambiguous
	putCanon(cn)
	if err != nil {
		return nil, err
	}
	if ambiguous {
		return nil, errAmbiguous()
	}
	if isNegotiation(d.Body.BodyType()) {
		if _, err := DecodeBody(body, c.opts.Profile); err != nil {
			return nil, err
		}
	}
	doc, err := c.resolver.Resolve(ctx, d.To)
	if err != nil {
		return nil, c.resolveFailed(err)
	}
	key, err := doc.SigningKey(d.To)
	if err != nil {
		return nil, err
	}
	if c.opts.KeyPolicy != nil {
		if err := c.opts.KeyPolicy.AuthorizeKey(ctx, d.To, key); err != nil {
			return nil, ErrBadKey.because("the key policy refuses the recipient's key", err)
		}
	}
	return Seal(key, Binding{ID: d.ID, From: d.From, To: d.To, ThreadID: d.ThreadID}, body)
}

// checkThread refuses what the state machine would not take (AIR-D56).
func (c *Client) checkThread(ctx context.Context, e *Envelope, body Body) error {
	if c.opts.ThreadStore == nil || !isNegotiation(body.BodyType()) {
		return nil
	}
	th, err := c.opts.ThreadStore.Get(ctx, e.ThreadID, e.To)
	if err != nil {
		return ErrRelay.because("the thread could not be loaded", err)
	}
	if th.applied(PartySelf, sumOf(e)) {
		return nil // it is delivered once more
	}
	return th.Apply(PartySelf, e.ID, e.InReplyTo, body)
}

// applyThread counts what was delivered.
func (c *Client) applyThread(ctx context.Context, e *Envelope, body Body) error {
	if c.opts.ThreadStore == nil || !isNegotiation(body.BodyType()) {
		return nil
	}
	if _, _, err := c.opts.ThreadStore.apply(context.WithoutCancel(ctx), e, PartySelf, body); err != nil {
		return fmt.Errorf("air: delivered, but the thread has moved on: %w", err)
	}
	return nil
}

// SendSigned pushes the bytes of a signed envelope as they are to the agent it is
// addressed to. It serves to send again what an earlier delivery gave back. What it
// delivers of a negotiation counts as with [Client.Send], unless it is sealed.
func (c *Client) SendSigned(ctx context.Context, envelope []byte) (*Receipt, error) {
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
	own := env.From == c.id.did
	if own {
		if err := c.checkThread(ctx, env, env.Body()); err != nil {
			return nil, err
		}
	}
	r, err := c.deliver(ctx, env, envelope, nil)
	if err != nil {
		return nil, c.preserve(ctx, err)
	}
	if own {
		err = c.applyThread(ctx, env, env.Body())
	}
	return r, err
}

// deliver is the table of deliveries (section e). The function again makes a
// sealed envelope anew for a recipient whose key changed; it returns nil to send
// the same bytes.
func (c *Client) deliver(ctx context.Context, env *Envelope, wire []byte, again func(context.Context) (*Envelope, error)) (*Receipt, error) {
	r := &Receipt{Envelope: env}
	fail := func(code Code, detail string, cause error) (*Receipt, error) {
		return nil, &Error{Code: code, Message: detail, Cause: cause, RemoteStatus: r.Status, Attempts: r.Attempts, Envelope: wire}
	}
	refreshed := false
	for {
		endpoint, err := c.endpoint(ctx, env.To)
		if err != nil {
			e := err.(*Error)
			return fail(e.Code, e.Message, e.Cause)
		}
		r.Attempts++
		res, err := web.Exchange(ctx, c.http, http.MethodPost, endpoint.URL, wire, c.opts.AgentSecret, maxAnswer)
		var v verdict
		switch {
		case ctx.Err() != nil:
			return fail(ErrDeliveryFailed, "ended before an answer came", ctx.Err())
		case err != nil:
			c.log.DebugContext(ctx, "air: push failed", "id", env.ID, "attempt", r.Attempts, "err", err)
			v = verdict{Code: ErrBadGateway, Action: actionRetry}
			if r.Attempts >= maxAttempts {
				v.Action = actionFail
			}
		default:
			r.Status = res.Status
			v = Judge(res.Status, res.Header, res.Body, r.Attempts, time.Now())
			c.log.DebugContext(ctx, "air: push answered", "id", env.ID, "attempt", r.Attempts, "status", res.Status, "action", v.Action)
		}
		switch v.Action {
		case actionDelivered:
			return r, nil
		case actionRefresh:
			if refreshed {
				return fail(ErrStaleKey, "the recipient reports a stale key again", nil)
			}
			refreshed = true
			c.resolver.Invalidate(airIDOf(env.To)) // whatever AIR ID the answer names (AIR-D44)
			if again != nil {
				fresh, err := again(ctx)
				if err != nil {
					var e *Error
					if !errors.As(err, &e) {
						e = ErrRelay.because("", err)
					}
					return fail(e.Code, e.Message, e.Cause)
				}
				if fresh != nil {
					env, wire, r.Envelope = fresh, fresh.Bytes(), fresh
				}
			}
		case actionRetry:
			delay := time.Second << (r.Attempts - 1)
			if v.HasRetryAfter {
				delay = v.RetryAfter
			}
			if delay > c.opts.MaxRetryAfter {
				_, err := fail(v.Code, "the relay asks to come back later", nil)
				err.(*Error).RetryAfter = delay
				return nil, err
			}
			if err := sleep(ctx, delay); err != nil {
				return fail(ErrDeliveryFailed, "ended between two attempts", err)
			}
		default:
			if transient(v.Code) && r.Attempts >= maxAttempts {
				return fail(ErrDeliveryFailed, "all attempts failed", err)
			}
			_, err := fail(v.Code, v.Detail, nil)
			err.(*Error).ThreadID = v.ThreadID
			return nil, err
		}
	}
}

func transient(c Code) bool { return c == ErrRateLimited || c == ErrRelay || c == ErrBadGateway }

// endpoint finds out where to push to; every error is an [*Error].
func (c *Client) endpoint(ctx context.Context, to string) (Endpoint, error) {
	doc, err := c.resolver.Resolve(ctx, to)
	if err != nil {
		return Endpoint{}, c.resolveFailed(err)
	}
	return doc.Inbox(to, c.resolver.endpointOptions(""))
}

// resolveFailed is how a sender reports a look-up: it is not repeated (AIR-D40).
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
	doc, err := c.resolver.Resolve(ctx, c.id.did)
	if err != nil {
		return c.resolveFailed(err)
	}
	key, err := doc.SigningKey(c.id.did)
	if err != nil {
		return err
	}
	if !key.Equal(c.id.public) {
		return ErrBadKey.err("the registry has another key for this agent")
	}
	c.mu.Lock()
	c.verified = true
	c.mu.Unlock()
	return nil
}

const outboxPrefix = "air/outbox/"

// preserve keeps the envelope of a failed delivery for later (AIR-099).
func (c *Client) preserve(ctx context.Context, err error) error {
	var e *Error
	if c.opts.Outbox == nil || !errors.As(err, &e) || e.Envelope == nil {
		return err
	}
	env, bad := DecodeEnvelope(e.Envelope, &DecodeOptions{Profile: ProfileDeployed, MaxMessage: math.MaxInt})
	if bad != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	sum := hashKey('o', env.ID, "", "") // an id may be longer than a key
	if _, lost := c.opts.Outbox.Create(ctx, outboxPrefix+c.id.did+"/"+hex.EncodeToString(sum[:]), e.Envelope, 0); lost != nil && !errors.Is(lost, store.ErrExists) {
		return errors.Join(err, fmt.Errorf("air: keeping the envelope: %w", lost))
	}
	return err
}

// Outbox returns the envelopes in the outbox whose delivery failed.
func (c *Client) Outbox(ctx context.Context) ([][]byte, error) {
	if c.opts.Outbox == nil {
		return nil, nil
	}
	var list [][]byte
	for e, err := range c.opts.Outbox.List(ctx, outboxPrefix+c.id.did+"/") {
		if err != nil {
			return nil, fmt.Errorf("air: reading the outbox: %w", err)
		}
		list = append(list, e.Value)
	}
	return list, nil
}

// Resend delivers everything in the outbox again and removes what arrived or can
// never arrive. It returns how many were delivered, and the errors of the others.
func (c *Client) Resend(ctx context.Context) (delivered int, err error) {
	if c.opts.Outbox == nil {
		return 0, nil
	}
	var errs []error
	for e, err := range c.opts.Outbox.List(ctx, outboxPrefix+c.id.did+"/") {
		if err != nil {
			return delivered, errors.Join(append(errs, err)...)
		}
		_, err = c.SendSigned(ctx, e.Value)
		if err == nil {
			delivered++
		} else {
			errs = append(errs, err)
			var ae *Error
			if !errors.As(err, &ae) || ae.Code == ErrDeliveryFailed || ae.Code == ErrResolveFailed || transient(ae.Code) {
				continue
			}
		}
		if err := c.opts.Outbox.Delete(ctx, e.Key, 0); err != nil {
			errs = append(errs, err)
		}
	}
	return delivered, errors.Join(errs...)
}

// A SendResult is what became of one recipient of [Client.SendEach].
type SendResult struct {
	To      string
	Receipt *Receipt
	Err     error
}

// SendEach sends one body to many agents, each in an envelope and a thread of its
// own unless the draft names one, at most eight at a time. The results stand in
// the order of the recipients.
func (c *Client) SendEach(ctx context.Context, to []string, draft *Draft, opts *SendOptions) []SendResult {
	results := make([]SendResult, len(to))
	slots := make(chan struct{}, 8)
	var wg sync.WaitGroup
	for i, did := range to {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			d := *draft
			d.To, d.ID, d.Nonce = did, "", ""
			r, err := c.Send(ctx, &d, opts)
			results[i] = SendResult{To: did, Receipt: r, Err: err}
		})
	}
	wg.Wait()
	return results
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
