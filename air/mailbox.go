// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/fivewire/fivewire/air/internal/exchange"
	"github.com/fivewire/fivewire/air/internal/signature"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// maxAck is the maximum number of ids in one acknowledgement (AIR-D63).
const maxAck = 500

// A mailbox is that of an agent at a relay. It makes the requests of a poller.
type mailbox struct {
	self   *self
	client *exchange.Client
	url    string // for the log

	endpoint Endpoint
	deployed Endpoint // that of DialectDeployed, while isAuto is set
	isAuto   bool     // the dialect is not detected yet
	isPlain  bool     // DialectDeployed
}

// open prepares the requests to the mailbox at an endpoint.
func (m *mailbox) open(endpoint string, o *PollerOptions, s *self) (err error) {
	eo := &EndpointOptions{AllowLoopback: o.AllowLoopback, AllowPrivate: o.AllowPrivate, Dialect: o.Dialect}
	if m.endpoint, err = parseEndpoint(endpoint, eo); err != nil {
		return err
	}
	m.self, m.isPlain = s, o.Dialect == DialectDeployed
	m.url, _, _ = strings.Cut(m.endpoint.URL, "?") // a query may hold a secret
	if o.Dialect == DialectAuto {
		eo.Dialect = DialectDeployed
		m.deployed, err = parseEndpoint(endpoint, eo)
		m.isAuto = err == nil
	}
	co := exchange.Options{HTTPClient: o.HTTPClient, AllowLoopback: o.AllowLoopback, AllowPrivate: o.AllowPrivate, Transport: o.Transport, Secrets: o.secrets}
	if o.AgentSecret != "" {
		co.Secrets = func(string) string { return o.AgentSecret } // all requests go to the endpoint
	}
	m.client = exchange.New(co)
	return nil
}

// pull fetches a page. While the dialect is not detected, a mailbox of the specification that is missing may be one of the
// deployed relay. Only a page tells the dialect.
func (m *mailbox) pull(ctx context.Context, since string) (*page, error) {
	spec := m.endpoint
	pg, status, err := m.pullPage(ctx, since)
	if m.isAuto && status == http.StatusNotFound {
		m.endpoint, m.isPlain = m.deployed, true
		pg, _, err = m.pullPage(ctx, since)
	}
	switch {
	case err == nil:
		m.isAuto = false
	case m.isAuto:
		m.endpoint, m.isPlain = spec, false
	}
	return pg, err
}

// pullPage fetches a page in the present dialect, and returns the status of the response, zero for none.
func (m *mailbox) pullPage(ctx context.Context, since string) (pg *page, status int, err error) {
	res, err := m.exchange(ctx, "pull", http.MethodGet, m.pullURL(since), nil, maxPull)
	if err != nil {
		return nil, 0, fmt.Errorf("air: pulling: %w", err)
	}
	if res.Status != http.StatusOK {
		return nil, res.Status, refusedBy("pulling", res)
	}
	pg, err = parsePage(res.Body, m.isPlain)
	if err != nil {
		return nil, res.Status, fmt.Errorf("air: pulling: %w", err)
	}
	return pg, res.Status, nil
}

// isRefusedCursor reports whether a pull was refused with 400.
func isRefusedCursor(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.RemoteStatus == http.StatusBadRequest
}

// ack acknowledges envelopes.
func (m *mailbox) ack(ctx context.Context, ids []string) error {
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
		res, err := m.exchange(ctx, "acknowledge", http.MethodPost, m.endpoint.Ack, append(body, "]}"...), maxAnswer)
		if err != nil {
			return fmt.Errorf("air: acknowledging: %w", err)
		}
		if res.Status < 200 || res.Status > 299 {
			return refusedBy("acknowledging", res)
		}
	}
	return nil
}

// before returns a cursor that does not skip an item of the page that a cursor requests.
func (m *mailbox) before(item *pulled, requested string) string {
	if m.isPlain {
		return strconv.FormatInt(max(item.seq-1, 0), 10)
	}
	return requested
}

// pullURL returns the URL of a page.
func (m *mailbox) pullURL(since string) string {
	if m.isPlain && since == "" {
		since = "0"
	}
	u := m.endpoint.Pull
	if since == "" {
		return u
	}
	sep := "?"
	if strings.Contains(u, "?") {
		sep = "&"
	}
	return u + sep + "since=" + strings.ReplaceAll(url.QueryEscape(since), "+", "%20")
}

// exchange makes one signed request to the relay.
func (m *mailbox) exchange(ctx context.Context, op, method, u string, body []byte, limit int64) (*exchange.Reply, error) {
	r := &exchange.Request{Op: op, Method: method, URL: u, Body: body, Limit: limit}
	if err := m.sign(r); err != nil {
		return nil, err
	}
	return m.client.Do(ctx, r)
}

// sign signs a request as the agent (AIR-D90). A relay that does not verify it ignores the headers.
func (m *mailbox) sign(r *exchange.Request) error {
	u, err := url.Parse(r.URL)
	if err != nil {
		return err
	}
	s := signature.Of(r.Method, u)
	s.Body, s.DID, s.Created, s.Nonce = r.Body, m.self.did, time.Now().Unix(), newNonce()
	r.Header = make(http.Header, 3)
	if err := s.Sign(r.Header, m.self.id.Load().signer); err != nil {
		return fmt.Errorf("air: signing a request: %w", err)
	}
	return nil
}

// refusedBy returns the error of a response, with the delay of a 429.
func refusedBy(what string, res *exchange.Reply) error {
	v := classifyResponse(res.Status, res.Header, res.Body, 1, defaultAttempts, time.Now())
	e := &Error{Code: v.Code, Message: fmt.Sprintf("%s: status %d", what, res.Status), RemoteStatus: res.Status, Remote: true}
	if v.Detail != "" {
		e.Message += ": " + v.Detail
	}
	if v.Code == "" {
		e.Code = ErrHTTP // an unexpected success status
	}
	if res.Status == http.StatusTooManyRequests && v.HasRetryAfter {
		e.RetryAfter = v.RetryAfter
	}
	return e
}
