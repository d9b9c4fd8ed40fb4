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
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/air/internal/web"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// maxAck is how many ids one acknowledgement holds (AIR-D63).
const maxAck = 500

// PollerOptions adjusts a [Poller]. The zero value is right for production.
type PollerOptions struct {
	// Dialect is what the relay speaks. Empty means DialectSpec.
	Dialect Dialect

	// AgentSecret is shown to the relay. Empty means none.
	AgentSecret string

	// HTTPClient asks the relay. Nil means one that connects to public addresses
	// only. No redirect is followed in any case.
	HTTPClient *http.Client

	// PollInterval is the time between two polls, give or take a fifth at random. Zero
	// means 5 s (7.5).
	PollInterval time.Duration

	// EnableStream asks a relay of DialectDeployed for its stream of events, so that
	// envelopes arrive at once. Where that fails the poller polls.
	EnableStream bool

	// AllowLoopback and AllowPrivate are as in [ResolverOptions].
	AllowLoopback bool
	AllowPrivate  bool

	// Random returns numbers from 0 up to 1 for the jitter. Nil means math/rand.
	Random func() float64

	// Logger receives what no error reports, such as a relay that fails. Nil is
	// silent.
	Logger *slog.Logger
}

// A Poller fetches envelopes from a relay and hands them to an [Inbox]. What has a
// final outcome is acknowledged, everything else comes again (AIR-D63). Run is
// for one goroutine; Drain may be called beside it and waits for its turn.
type Poller struct {
	inbox    *Inbox
	opts     PollerOptions
	endpoint Endpoint
	deployed Endpoint // where DialectAuto goes if there is no {endpoint}/pull
	http     *http.Client
	log      *slog.Logger

	turn   sync.Mutex // held while the relay is being asked
	cursor string     // of the next pull; guarded by turn
	auto   bool       // not yet known which dialect; guarded by turn
	plain  bool       // DialectDeployed; guarded by turn

	refusedCursor string // the relay answered 400 to it; guarded by turn
	refusals      int    // how often in a row; guarded by turn
}

// maxRefusals is how often a relay may refuse a cursor before the poller starts over
// without one. A relay that lost its cursors, or the mailbox moved to another one,
// would otherwise be asked in vain for ever: a pull that fails leaves the cursor as
// it is (AIR-D63).
const maxRefusals = 3

// NewPoller returns a poller of the mailbox at an endpoint, which is the address
// that others push to. It does no I/O.
func NewPoller(in *Inbox, endpoint string, opts *PollerOptions) (*Poller, error) {
	p := &Poller{inbox: in}
	if opts != nil {
		p.opts = *opts
	}
	o := &p.opts
	if err := checkWord("dialect", o.Dialect, DialectSpec, DialectDeployed, DialectAuto); err != nil {
		return nil, err
	}
	eo := &EndpointOptions{AllowLoopback: o.AllowLoopback, AllowPrivate: o.AllowPrivate, Dialect: o.Dialect}
	var err error
	if p.endpoint, err = ParseEndpoint(endpoint, eo); err != nil {
		return nil, err
	}
	switch o.Dialect {
	case DialectDeployed:
		p.plain = true
	case DialectAuto:
		eo.Dialect = DialectDeployed
		if p.deployed, err = ParseEndpoint(endpoint, eo); err == nil {
			p.auto = true
		}
	}
	if o.PollInterval <= 0 {
		o.PollInterval = 5 * time.Second
	}
	if o.Random == nil {
		o.Random = rand.Float64
	}
	p.http = web.Client(o.HTTPClient, o.AllowLoopback, o.AllowPrivate)
	p.log = logger(o.Logger)
	return p, nil
}

// Run fetches envelopes until ctx ends, and returns its error then. What is being
// handled when ctx ends is finished or left to the next process.
func (p *Poller) Run(ctx context.Context) error {
	for {
		next, err := p.Drain(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			p.log.WarnContext(ctx, "air: poll failed", "endpoint", p.endpoint.URL, "err", err)
		} else if p.opts.EnableStream {
			if err := p.stream(ctx); ctx.Err() == nil {
				p.log.DebugContext(ctx, "air: stream ended", "endpoint", p.endpoint.URL, "err", err)
			}
		}
		if err := sleep(ctx, next); err != nil {
			return err
		}
	}
}

// A drain is one round of pulling.
type drain struct {
	unsettled bool   // an envelope is to be fetched again
	back      string // the cursor that cannot skip the first of those
}

// Drain fetches, handles and acknowledges until the relay has no more, and returns
// how long to wait before the next time. A relay that refuses a cursor three times
// in a row is asked without one the next time, as after a restart: it then hands
// out again what was not acknowledged, and the inbox knows what it has seen.
func (p *Poller) Drain(ctx context.Context) (next time.Duration, err error) {
	p.turn.Lock()
	defer p.turn.Unlock()
	next = p.opts.PollInterval + time.Duration((2*p.opts.Random()-1)*0.2*float64(p.opts.PollInterval))
	var d drain
	asked := p.cursor
	for {
		before := d
		pg, err := p.pull(ctx, asked)
		if err == nil {
			var settled []string
			settled, err = p.handle(ctx, pg, asked, &d)
			err = errors.Join(p.ack(ctx, settled), err)
		}
		if err != nil {
			p.cursor = asked
			if before.unsettled {
				p.cursor = before.back
			}
			if p.refusals >= maxRefusals {
				p.log.WarnContext(ctx, "air: the relay refuses the cursor; starting over", "endpoint", p.endpoint.URL, "cursor", p.refusedCursor)
				p.cursor, p.refusals = "", 0
			}
			var limited *Error
			if errors.As(err, &limited) && limited.Code == ErrRateLimited && limited.RetryAfter > 0 {
				next = min(limited.RetryAfter, time.Hour)
			}
			return next, err
		}
		// A page that is empty or leads nowhere ends the drain whatever it says, or a
		// relay could keep it spinning (AIR-D65).
		stuck := len(pg.items) == 0 || pg.cursor == asked
		asked = pg.cursor
		if !pg.more || stuck {
			break
		}
	}
	p.cursor = asked
	if d.unsettled {
		p.cursor = d.back
	}
	return next, nil
}

// handle gives a page to the inbox and returns the ids to acknowledge.
func (p *Poller) handle(ctx context.Context, pg *page, asked string, d *drain) (settled []string, err error) {
	for _, item := range pg.items {
		if err := ctx.Err(); err != nil {
			p.unsettled(d, &item, asked)
			return settled, err
		}
		final := true
		if item.data != nil {
			final = p.inbox.Receive(ctx, item.data, true).Final
		} else {
			p.log.WarnContext(ctx, "air: a pulled message holds no envelope", "id", item.id)
		}
		switch {
		case !final:
			p.unsettled(d, &item, asked)
		case item.id != "":
			settled = append(settled, item.id)
		}
	}
	return settled, nil
}

// unsettled keeps a cursor that cannot skip the first envelope that has to come
// again.
func (p *Poller) unsettled(d *drain, item *pulled, asked string) {
	if d.unsettled {
		return
	}
	d.unsettled, d.back = true, asked
	if p.plain {
		d.back = strconv.FormatInt(max(item.seq-1, 0), 10)
	}
}

func (p *Poller) pull(ctx context.Context, since string) (*page, error) {
	res, err := web.Exchange(ctx, p.http, http.MethodGet, p.pullURL(since), nil, p.opts.AgentSecret, maxPull)
	if err == nil && p.auto {
		p.auto = false
		if res.Status == http.StatusNotFound {
			p.plain, p.endpoint = true, p.deployed
			res, err = web.Exchange(ctx, p.http, http.MethodGet, p.pullURL(since), nil, p.opts.AgentSecret, maxPull)
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

func (p *Poller) pullURL(since string) string {
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

func (p *Poller) ack(ctx context.Context, ids []string) error {
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
		res, err := web.Exchange(ctx, p.http, http.MethodPost, p.endpoint.Ack, append(body, "]}"...), p.opts.AgentSecret, maxAnswer)
		if err != nil {
			return fmt.Errorf("air: acknowledging: %w", err)
		}
		if res.Status < 200 || res.Status > 299 {
			return p.refused("acknowledging", res)
		}
	}
	return nil
}

// refused makes an error of an answer, with the delay of a 429.
func (p *Poller) refused(what string, res *web.Reply) error {
	v := Judge(res.Status, res.Header, res.Body, 1, time.Now())
	e := &Error{Code: v.Code, Message: fmt.Sprintf("%s: status %d", what, res.Status), RemoteStatus: res.Status}
	if v.Code == "" {
		e.Code = ErrHTTP // a success other than the one there is
	}
	if res.Status == http.StatusTooManyRequests && v.HasRetryAfter {
		e.RetryAfter = v.RetryAfter
	}
	return e
}
