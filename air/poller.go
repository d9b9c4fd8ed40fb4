// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fivewire/fivewire/air/internal/core"
	"github.com/fivewire/fivewire/air/internal/web"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// maxAck is the maximum number of ids in one acknowledgement (AIR-D63).
const maxAck = 500

// PollerOptions adjusts a [Poller]. The zero value is right for production.
type PollerOptions struct {
	// Dialect is the dialect of the relay. Empty means DialectSpec.
	Dialect Dialect

	// AgentSecret is the secret sent to the relay. Empty means none.
	AgentSecret string

	// HTTPClient sends the requests. Nil means a client that connects to public addresses only.
	// Redirects are never followed.
	HTTPClient *http.Client

	// PollInterval is the time between two polls, with 20 % jitter. It doubles with every further
	// failure, up to a minute. Zero means 5 s (7.5); a negative value means no delay, and 5 s after a
	// failure.
	PollInterval time.Duration

	// MaxConcurrent is the number of envelopes that are handled at a time, those of one sender and thread
	// one after the other (AIR-D78). Zero means 8; a negative value removes the bound.
	MaxConcurrent int

	// MaxPages is the number of pages after which a drain ends; the next one continues there
	// (AIR-D65). Zero means 100; a negative value removes the bound.
	MaxPages int

	// EnableStream opens the event stream of a relay with DialectDeployed, so that envelopes arrive
	// at once. If the stream fails, the poller polls.
	EnableStream bool

	// AllowLoopback and AllowPrivate are as in [ResolverOptions].
	AllowLoopback bool
	AllowPrivate  bool

	// Logger receives failures that are not returned, such as those of a relay. Nil means
	// slog.Default().
	Logger *slog.Logger

	random func() float64 // numbers from 0 up to 1 for the jitter; nil means math/rand
}

// A Poller fetches envelopes from a relay and passes them to an [Inbox]. It acknowledges those with
// a final outcome; the relay delivers the others again (AIR-D63). Run must be called once; Drain
// may be called concurrently and waits for its turn.
type Poller struct {
	inbox    *Inbox
	opts     PollerOptions
	url      string   // for the log
	endpoint Endpoint // guarded by turn
	deployed Endpoint // endpoint of DialectAuto if {endpoint}/pull is missing
	http     *http.Client
	isNew    bool // the transport of http belongs to the poller
	log      *slog.Logger
	life     *life.Life
	streams  web.LogLevels

	turn   chan struct{} // full during requests and deliveries; a caller waits within its context
	cursor string        // of the next pull; guarded by turn
	auto   bool          // the dialect is not detected yet; guarded by turn
	plain  bool          // DialectDeployed; guarded by turn

	isBehind  bool                      // the next drain continues the round; guarded by turn
	isBack    bool                      // the round has unsettled mail; guarded by turn
	back      string                    // a cursor at or before the first of that; guarded by turn
	unsettled memo[replayKey, struct{}] // ids of that; guarded by turn
	slots     chan struct{}             // of handlers

	failures int    // consecutive failed drains; guarded by turn
	failure  string // kind of the last logged failure; guarded by turn

	refusedCursor string // last cursor refused with 400; guarded by turn
	refusals      int    // consecutive refusals; guarded by turn
}

// maxRefusals is the number of refusals of a cursor after which the poller starts without one. A
// failed pull does not change the cursor (AIR-D63), so after the loss of the relay's cursors the
// poller would retry without end.
const maxRefusals = 3

// Failed polls (AIR-D87).
const (
	pollInterval  = 5 * time.Second
	maxPollDelay  = time.Minute
	maxPermanents = 3
)

// NewPoller returns a poller of the mailbox at an endpoint, the address for pushes. It does no I/O.
func NewPoller(in *Inbox, endpoint string, opts *PollerOptions) (*Poller, error) {
	p := &Poller{inbox: in, turn: make(chan struct{}, 1)}
	if opts != nil {
		p.opts = *opts
	}
	o := &p.opts
	if err := checkWord("dialect", o.Dialect, DialectSpec, DialectDeployed, DialectAuto); err != nil {
		return nil, err
	}
	eo := &EndpointOptions{AllowLoopback: o.AllowLoopback, AllowPrivate: o.AllowPrivate, Dialect: o.Dialect}
	var err error
	if p.endpoint, err = parseEndpoint(endpoint, eo); err != nil {
		return nil, err
	}
	p.url, _, _ = strings.Cut(p.endpoint.URL, "?") // a query may hold a secret
	switch o.Dialect {
	case DialectDeployed:
		p.plain = true
	case DialectAuto:
		eo.Dialect = DialectDeployed
		if p.deployed, err = parseEndpoint(endpoint, eo); err == nil {
			p.auto = true
		}
	}
	o.MaxConcurrent = option.Count(o.MaxConcurrent, 8)
	o.MaxPages = option.Count(o.MaxPages, 100)
	if o.MaxConcurrent > 1 && o.MaxConcurrent < option.None {
		p.slots = make(chan struct{}, o.MaxConcurrent)
	}
	o.PollInterval = option.Or(o.PollInterval, pollInterval, 0)
	if o.random == nil {
		o.random = randid.Rand().Float64
	}
	p.http, p.isNew = web.Client(o.HTTPClient, o.AllowLoopback, o.AllowPrivate)
	p.log = logger(o.Logger)
	p.life = life.New(life.Options{Closed: ErrClosed, Logger: p.log})
	return p, nil
}

// Run fetches envelopes until ctx ends, and returns its error, or [ErrClosed] once the poller or the
// inbox is closed. It returns the error of the third consecutive poll with a permanent failure, such
// as a wrong secret or an unknown path (AIR-D87). An envelope that is being handled when Run returns
// is finished or left to the next process.
func (p *Poller) Run(ctx context.Context) error {
	w, err := p.life.Start(ctx, life.Idle)
	if err != nil {
		return err
	}
	defer w.Finish()
	for permanents := 0; ; {
		next, err := p.Drain(w)
		if permanents++; err == nil || retry.ClassOf(err) != retry.Permanent {
			permanents = 0
		}
		switch {
		case w.Err() != nil:
			return context.Cause(w)
		case p.inbox.Ready() != nil:
			return ErrClosed
		case err == nil && p.opts.EnableStream:
			if err := p.stream(w); w.Err() == nil {
				p.log.Log(w, p.streams.Level("stream"), "air: stream ended", "endpoint", p.url, "err", err)
			}
		case permanents == maxPermanents:
			return err
		}
		if retry.Sleep(w, next) != nil {
			return context.Cause(w)
		}
	}
}

// Shutdown ends Run after the running drain. If ctx ends first, it cuts the drain and returns the error
// of ctx at once.
func (p *Poller) Shutdown(ctx context.Context) error {
	if err := p.life.Shutdown(ctx); err != nil {
		p.closeIdle()
		return err
	}
	return p.Close()
}

// Close ends Run and the drains, waits for them at most one second, and closes the idle connections.
func (p *Poller) Close() error {
	err := p.life.Close()
	p.closeIdle()
	return err
}

func (p *Poller) closeIdle() {
	if p.isNew {
		p.http.CloseIdleConnections()
	}
}

// Limits of a drain (AIR-D65).
const (
	maxDrainEnvelopes = 1000
	maxDrainBytes     = 16 << 20
)

// A drain is one call of Drain.
type drain struct {
	arrived   time.Time // the response to the first pull
	pages     int
	envelopes int
	bytes     int
	hasNew    bool // the handler took an envelope
	round     round
	stopped   map[replayKey]bool // threads with an envelope that did not reach the handler yet
}

// Drain fetches, handles and acknowledges envelopes until the relay has no more or the drain reaches a
// limit, and returns the delay before the next call, which doubles with every consecutive failure. After three consecutive refusals of a cursor the next call has none,
// as after a restart: the relay then hands out unacknowledged envelopes again, and the inbox drops
// replays.
func (p *Poller) Drain(ctx context.Context) (next time.Duration, err error) {
	w, err := p.life.Start(ctx, life.Part)
	if err != nil {
		return p.opts.PollInterval, err
	}
	defer w.Finish()
	if err := p.take(w); err != nil {
		return p.opts.PollInterval, err
	}
	defer p.release()
	next = p.opts.PollInterval + time.Duration((2*p.opts.random()-1)*0.2*float64(p.opts.PollInterval))
	var d drain
	err = guard.Call("HTTP client", func() error { return p.drainLocked(w, &d) })
	p.inbox.ledger.keep(&d.round)
	if err == nil {
		p.failures, p.failure = 0, ""
		if p.isBehind && d.hasNew {
			next = 0
		}
		return next, nil
	}
	logPanic(w, p.log, err)
	return p.failedLocked(w, next, err)
}

// take waits for the turn. The caller releases it.
func (p *Poller) take(ctx context.Context) error {
	select {
	case p.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *Poller) release() { <-p.turn }

// failedLocked counts and classifies the failure of a drain, and returns the delay before the next one
// (AIR-D87). p.turn must be held.
func (p *Poller) failedLocked(ctx context.Context, next time.Duration, err error) (time.Duration, error) {
	if ctx.Err() != nil {
		return next, context.Cause(ctx)
	}
	var e *Error
	class, kind := retry.Unknown, "unreachable"
	if errors.As(err, &e) {
		kind = fmt.Sprint(e.Code, e.RemoteStatus)
		if isPermanentStatus(e.RemoteStatus) {
			class = retry.Permanent
		}
	}
	level := slog.LevelDebug
	if kind != p.failure {
		level, p.failure = slog.LevelWarn, kind
	}
	p.log.Log(ctx, level, "air: poll failed", "endpoint", p.url, "err", err)
	next = cmp.Or(next, pollInterval)
	next = time.Duration(min(math.Ldexp(float64(next), p.failures), float64(max(next, maxPollDelay))))
	p.failures++
	if e != nil && e.Code == ErrRateLimited && e.RetryAfter > 0 {
		next = min(e.RetryAfter, time.Hour)
	}
	return next, retry.Mark(err, class, 0)
}

// isPermanentStatus reports whether a repeated pull would meet the same refusal.
func isPermanentStatus(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status >= 400 && status <= 499
}

// drainLocked is one drain. p.turn must be held.
func (p *Poller) drainLocked(ctx context.Context, d *drain) error {
	cursor := p.cursor
	if !p.isBehind {
		p.isBack, p.back, p.unsettled = false, "", memo[replayKey, struct{}]{}
	}
	for {
		isBack, back := p.isBack, p.back
		pg, err := p.pullLocked(ctx, cursor)
		if err == nil {
			var settled []string
			settled, err = p.handleLocked(ctx, pg, cursor, d)
			err = errors.Join(p.ackLocked(ctx, settled), err)
		}
		if err != nil {
			p.cursor, p.isBehind = cursor, false
			if isBack {
				p.cursor = back
			}
			if p.refusals >= maxRefusals {
				p.log.WarnContext(ctx, "air: refused cursor dropped", "endpoint", p.url, "cursor", p.refusedCursor)
				p.cursor, p.refusals = "", 0
			}
			return err
		}
		// An empty page or an unchanged cursor ends the drain, or a relay could keep it in a loop.
		stuck := len(pg.items) == 0 || pg.cursor == cursor
		cursor = pg.cursor
		p.cursor, p.isBehind = cursor, pg.more && !stuck
		if !p.isBehind {
			break
		}
		if d.pages >= p.opts.MaxPages || d.envelopes >= maxDrainEnvelopes || d.bytes >= maxDrainBytes {
			return nil
		}
	}
	if p.isBack {
		p.cursor = p.back
	}
	return nil
}

// handleLocked passes a page to the inbox and returns the ids to acknowledge. An id with an unsettled
// envelope is held back (AIR-D79). p.turn must be held.
func (p *Poller) handleLocked(ctx context.Context, pg *page, cursor string, d *drain) (settled []string, err error) {
	now := time.Now()
	if d.pages == 0 {
		d.arrived = now
	}
	d.pages++
	d.envelopes += len(pg.items)
	for i := range pg.items {
		item := &pg.items[i]
		d.bytes += len(item.data)
		item.isFinal = item.data == nil
		if item.isFinal {
			p.log.WarnContext(ctx, "air: pulled message without envelope skipped", "id", item.id)
			continue
		}
		item.env, _ = p.inbox.decode(item.data, true)
	}
	p.receivePage(ctx, pg.items, &arrival{arrived: d.arrived, pulled: now, round: &d.round}, d)
	for i := range pg.items {
		item := &pg.items[i]
		d.hasNew = d.hasNew || item.isNew
		if !item.isFinal {
			p.holdCursorLocked(item, cursor)
			p.unsettled.put(hashKey('a', item.id, "", ""), struct{}{})
		}
	}
	listed := make(map[string]bool)
	for _, item := range pg.items {
		_, isHeld := p.unsettled.get(hashKey('a', item.id, "", ""))
		if item.id != "" && !isHeld && !listed[item.id] {
			listed[item.id] = true
			settled = append(settled, item.id)
		}
	}
	return settled, ctx.Err()
}

// minWorkers is the number of envelopes that are verified at a time, so that lookups do not wait for
// handlers.
const minWorkers = maxLookups

// receivePage receives the envelopes of a page, those of one sender and thread in the order of their
// timestamps (AIR-D77, AIR-D78). Those behind one that did not reach the handler yet wait for the next drain.
func (p *Poller) receivePage(ctx context.Context, items []pulled, common *arrival, d *drain) {
	order, next, ready := sequence(items)
	ready = slices.DeleteFunc(ready, func(i int) bool { return items[i].env != nil && d.stopped[items[i].thread()] })
	workers := p.opts.MaxConcurrent
	if workers > 1 {
		workers = max(workers, minWorkers)
	}
	done, running := make(chan int), 0
	for len(ready) > 0 && ctx.Err() == nil || running > 0 {
		if len(ready) > 0 && running < workers && ctx.Err() == nil {
			i := ready[0]
			ready = ready[1:]
			running++
			go func() {
				defer func() { done <- i }()
				p.receiveItem(ctx, &items[order[i]], *common)
			}()
			continue
		}
		i := <-done
		running--
		if item := &items[order[i]]; item.isOpen {
			if d.stopped == nil {
				d.stopped = make(map[replayKey]bool)
			}
			d.stopped[item.thread()] = true
			continue
		}
		if n := next[i]; n >= 0 {
			at, _ := slices.BinarySearch(ready, n)
			ready = slices.Insert(ready, at, n)
		}
	}
}

func (p *Poller) receiveItem(ctx context.Context, item *pulled, a arrival) {
	if item.isFinal {
		return
	}
	a.data, a.env, a.via, a.slots = item.data, item.env, viaPull, p.slots
	a.record = &AuditRecord{Time: time.Now(), Operation: "pull", Bytes: int64(len(item.data))}
	o := p.inbox.receiveAs(ctx, &a)
	item.isFinal, item.isNew = o.Final, o.Delivery != nil
	item.isOpen = item.env != nil && o.Class == ClassLater && o.failures == 0 && o.Err != nil && delaysThread(o.Err)
}

// delaysThread reports whether the rest of a thread waits behind an envelope that is to be received again with an
// error. It does not wait behind one that may be forged, a move that names one behind it, and a failure of the handler.
func delaysThread(e *Error) bool {
	switch e.Code {
	case ErrBadSignature, ErrConflict, ErrUnknownMessage:
		return false
	}
	var early *core.EarlyError // the next attempt is not due
	return !errors.As(e, &early)
}

// sequence returns the order in which items are handled, and for each place in it the place of the next
// envelope of the same sender and thread, or -1. ready are the places without an earlier one. The places
// of such envelopes are filled with them by timestamp; an item that cannot be read keeps its place.
func sequence(items []pulled) (order, next, ready []int) {
	places := make(map[replayKey][]int)
	order, next = make([]int, len(items)), make([]int, len(items))
	for i := range items {
		order[i], next[i] = i, -1
		e := items[i].env
		if e == nil {
			ready = append(ready, i)
			continue
		}
		k := items[i].thread()
		if len(places[k]) == 0 {
			ready = append(ready, i)
		}
		places[k] = append(places[k], i)
	}
	for _, list := range places {
		byTime := slices.Clone(list)
		slices.SortStableFunc(byTime, func(a, b int) int { return items[a].env.Time.Compare(items[b].env.Time) })
		for k, place := range list {
			order[place] = byTime[k]
			if k+1 < len(list) {
				next[place] = list[k+1]
			}
		}
	}
	return order, next, ready
}

// holdCursorLocked records a cursor at or before the first envelope that must be fetched again.
// p.turn must be held.
func (p *Poller) holdCursorLocked(item *pulled, cursor string) {
	if p.isBack {
		return
	}
	p.isBack, p.back = true, cursor
	if p.plain {
		p.back = strconv.FormatInt(max(item.seq-1, 0), 10)
	}
}

func (p *Poller) pullLocked(ctx context.Context, since string) (*page, error) {
	res, err := p.exchange(ctx, http.MethodGet, p.pullURLLocked(since), nil, maxPull)
	if err == nil && p.auto {
		p.auto = false
		if res.Status == http.StatusNotFound {
			p.plain, p.endpoint = true, p.deployed
			res, err = p.exchange(ctx, http.MethodGet, p.pullURLLocked(since), nil, maxPull)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("air: pulling: %w", err)
	}
	if res.Status != http.StatusOK {
		if res.Status == http.StatusBadRequest && since != "" {
			if p.refusedCursor != since {
				p.refusedCursor, p.refusals = since, 0
			}
			p.refusals++
		}
		return nil, p.refused("pulling", res)
	}
	if since == p.refusedCursor {
		p.refusals = 0
	}
	pg, err := parsePage(res.Body, p.plain)
	if err != nil {
		return nil, fmt.Errorf("air: pulling: %w", err)
	}
	return pg, nil
}

// exchange makes one signed request to the relay.
func (p *Poller) exchange(ctx context.Context, method, u string, body []byte, limit int64) (*web.Reply, error) {
	req, err := web.NewRequest(ctx, method, u, body, p.opts.AgentSecret)
	if err != nil {
		return nil, err
	}
	return web.ExchangeSigned(p.http, req, limit, func(r *http.Request) error { return p.sign(r, body) })
}

// sign signs a request as the agent (AIR-D90). A relay that does not verify it ignores the headers.
func (p *Poller) sign(r *http.Request, body []byte) error {
	signed := web.RequestOf(r.Method, r.URL)
	signed.Body, signed.DID, signed.Created, signed.Nonce = body, p.inbox.did, time.Now().Unix(), newNonce()
	if _, err := signed.Sign(r.Header, p.inbox.id.Load().signer); err != nil {
		return fmt.Errorf("air: signing a request: %w", err)
	}
	return nil
}

func (p *Poller) pullURLLocked(since string) string {
	if p.plain && since == "" {
		since = "0"
	}
	u := p.endpoint.Pull
	if since == "" {
		return u
	}
	sep := "?"
	if strings.Contains(u, "?") {
		sep = "&"
	}
	return u + sep + "since=" + strings.ReplaceAll(url.QueryEscape(since), "+", "%20")
}

func (p *Poller) ackLocked(ctx context.Context, ids []string) error {
	for len(ids) > 0 {
		n := min(len(ids), maxAck)
		body := []byte(`{"envelope_ids":[`)
		for i, id := range ids[:n] {
			if i > 0 {
				body = append(body, ',')
			}
			body = strictjson.AppendString(body, id)
		}
		ids = ids[n:]
		res, err := p.exchange(ctx, http.MethodPost, p.endpoint.Ack, append(body, "]}"...), maxAnswer)
		if err != nil {
			return fmt.Errorf("air: acknowledging: %w", err)
		}
		if res.Status < 200 || res.Status > 299 {
			return p.refused("acknowledging", res)
		}
	}
	return nil
}

// refused returns the error of a response, with the delay of a 429.
func (p *Poller) refused(what string, res *web.Reply) error {
	v := classifyResponse(res.Status, res.Header, res.Body, 1, defaultAttempts, time.Now())
	e := &Error{Code: v.Code, Message: fmt.Sprintf("%s: status %d", what, res.Status), RemoteStatus: res.Status}
	if v.Code == "" {
		e.Code = ErrHTTP // an unexpected success status
	}
	if res.Status == http.StatusTooManyRequests && v.HasRetryAfter {
		e.RetryAfter = v.RetryAfter
	}
	return e
}
