// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/fivewire/fivewire/internal/backoff"
)

// ClientOptions adjusts a [Client]. The zero value is right for production.
type ClientOptions struct {
	// SessionID names the session. Empty means a random one.
	SessionID string

	// Session is what the session begins with.
	Session SessionOptions

	// HTTPClient sends the requests. Nil means one that follows no redirect.
	HTTPClient *http.Client

	// Header is sent with every request.
	Header http.Header

	// Timeout is how long a try waits for the first answer. Zero means 30 s.
	Timeout time.Duration

	// Tries is how often a message is sent if the answer is an error that is
	// worth another try. Zero means 3 (D29).
	Tries int

	// Logger gets what no error reports, such as further tries. Nil is silent.
	Logger *slog.Logger
}

// A Client sends frames to an HTTP endpoint as one agent, in one session. Its
// methods may be called from several goroutines; as the frames of a session have
// an order, exchanges take turns. Use several clients for work side by side.
type Client struct {
	endpoint string
	opts     ClientOptions
	session  *Session
	http     *http.Client
	log      *slog.Logger
	turn     chan struct{} // holds a token while no exchange runs
}

// NewClient returns a client of the endpoint, an http or https URL that usually
// ends in [FramesPath], which sends as agent self. It does no I/O.
func NewClient(endpoint, self string, opts *ClientOptions) (*Client, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("accp: endpoint %q is no http URL", endpoint)
	}
	c := &Client{endpoint: endpoint, turn: make(chan struct{}, 1)}
	c.turn <- struct{}{}
	if opts != nil {
		c.opts = *opts
	}
	if c.opts.SessionID == "" {
		c.opts.SessionID = newID()
	}
	if c.opts.Timeout <= 0 {
		c.opts.Timeout = 30 * time.Second
	}
	if c.opts.Tries <= 0 {
		c.opts.Tries = 3
	}
	if c.http = c.opts.HTTPClient; c.http == nil {
		c.http = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	if c.log = c.opts.Logger; c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.session, err = NewSession(self, c.opts.SessionID, &c.opts.Session)
	return c, err
}

// Session returns the session of the client.
func (c *Client) Session() *Session { return c.session }

// Hello exchanges the registries and reports whether both sides then have the same
// schemas (ACCP-113 to ACCP-115).
func (c *Client) Hello(ctx context.Context) (synced bool, err error) {
	c.session.mu.Lock()
	c.session.helloSent = true
	m := c.session.registryMessage(false)
	c.session.mu.Unlock()
	for range 4 { // hello, delta, hello: no exchange that can succeed takes longer
		var next *Message
		for r, err := range c.exchange(ctx, m) {
			if err != nil {
				return false, err
			}
			if r.Message.Intent == IntentSync && r.Message.Op == OpRegistry {
				c.session.mu.Lock()
				next, err = c.session.exchange(r.Message)
				synced = c.session.synced
				c.session.mu.Unlock()
				if err != nil {
					return false, err
				}
			}
		}
		if next == nil {
			break
		}
		m = next
	}
	return synced, nil
}

// Do sends a message and yields the messages that answer it; an error frame is the
// error that ends it, and so is no answer in time ([ErrTimeout]). A frame that is
// refused for a reason that passes is sent again with a new id and number, up to
// three times in all and never after its time to live; a transaction only if it
// has a transaction_id (D29). It is ranged over once. Leaving the loop early, and
// the end of ctx, end the request.
func (c *Client) Do(ctx context.Context, m *Message) iter.Seq2[*Message, error] {
	return func(yield func(*Message, error) bool) {
		started := time.Now()
		delays := backoff.Backoff{Base: 500 * time.Millisecond, Max: 8 * time.Second, Jitter: 0.2}
		for try := 1; ; try++ {
			var failed error
			for r, err := range c.exchange(ctx, m) {
				if err == nil {
					if e := ErrorOf(r.Message); e != nil {
						err = e
					}
				}
				if err != nil {
					failed = err
					break
				}
				try = c.opts.Tries // what was yielded cannot be taken back
				if !yield(r.Message, nil) {
					return
				}
			}
			if failed == nil {
				return
			}
			delay := delays.Delay(try)
			ttl := time.Duration(0)
			if m.Meta != nil {
				ttl = time.Duration(m.Meta.TTL.N) * time.Second
			}
			if !c.again(ctx, m, failed, try) || ttl > 0 && time.Since(started)+delay > ttl {
				yield(nil, failed)
				return
			}
			c.log.Info("accp: trying again", "intent", string(m.Intent), "op", m.Op, "try", try, "err", failed)
			select {
			case <-time.After(delay):
			case <-ctx.Done():
				yield(nil, &Error{Code: ErrTimeout, Message: "no time for another try", Cause: errors.Join(ctx.Err(), failed)})
				return
			}
			m = c.sameChain(m)
		}
	}
}

// again reports whether a failure is worth another try.
func (c *Client) again(ctx context.Context, m *Message, err error, try int) bool {
	var e *Error
	if try >= c.opts.Tries || ctx.Err() != nil || !errors.As(err, &e) || !e.Code.Info().Retryable {
		return false
	}
	if m.Schema() == SchemaTx || m.Schema() == "transaction" {
		tx := builtin().byCode[SchemaTx]
		for _, p := range m.Params {
			if tx.full(p.Key) == "transaction_id" {
				return true
			}
		}
		return false
	}
	return true
}

// sameChain returns m for another try: in the chain of the first one (D29).
func (c *Client) sameChain(m *Message) *Message {
	if m.Meta != nil && m.Meta.CID != "" {
		return m
	}
	c.session.mu.Lock()
	first := c.session.lastChain
	c.session.mu.Unlock()
	out := m.clone()
	if out.Meta == nil {
		out.Meta = &Meta{}
	}
	out.Meta.CID = first
	return out
}

// Call sends a message and returns the last one of the answers to it, or nil if it
// was answered by nothing, as ack and pong are.
func (c *Client) Call(ctx context.Context, m *Message) (*Message, error) { return lastOf(c.Do(ctx, m)) }

// Stream sends a message and yields the data of the chunks that answer it, in
// order. A stream that ends before its final chunk is [ErrTruncated].
func (c *Client) Stream(ctx context.Context, m *Message) iter.Seq2[Value, error] {
	return streamOf(c.Do(ctx, m))
}

// exchange sends a message once and yields what the session makes of the answers.
func (c *Client) exchange(ctx context.Context, m *Message) iter.Seq2[*Received, error] {
	return func(yield func(*Received, error) bool) {
		select {
		case <-c.turn:
		case <-ctx.Done():
			yield(nil, &Error{Code: ErrTimeout, Message: "another exchange is running", Cause: ctx.Err()})
			return
		}
		defer func() { c.turn <- struct{}{} }()
		sent, err := c.session.Send(ctx, m)
		if err != nil {
			yield(nil, err)
			return
		}
		if sent.Dropped {
			yield(nil, fail(ErrTimeout, "the chain was cancelled"))
			return
		}
		c.session.mu.Lock()
		c.session.lastChain = sent.Message.Chain()
		c.session.mu.Unlock()
		for i, frame := range sent.Frames {
			for r, err := range c.post(ctx, frame) {
				if i < len(sent.Frames)-1 && err == nil && r.Message.Intent == IntentAck {
					continue // of a part
				}
				if !yield(r, err) || err != nil {
					return
				}
			}
		}
	}
}

var errStatus = errors.New("accp: unexpected HTTP answer")

// post sends one frame and yields what comes back.
func (c *Client) post(ctx context.Context, frame []byte) iter.Seq2[*Received, error] {
	return func(yield func(*Received, error) bool) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		timer := time.AfterFunc(c.opts.Timeout, func() { cancel(context.DeadlineExceeded) })
		defer timer.Stop()
		body, err := c.open(ctx, frame)
		if err != nil {
			yield(nil, err)
			return
		}
		defer body.Close()
		frames := NewScanner(body, c.opts.Session.Limits.withDefaults().Frame)
		for {
			answer, err := frames.Next()
			if err == io.EOF {
				return
			}
			timer.Stop() // the first frame came in time
			if err != nil {
				if ctx.Err() != nil || !errors.Is(err, ErrParse) || errors.Is(err, io.ErrUnexpectedEOF) {
					err = &Error{Code: ErrTimeout, Message: "the answer was cut off", Cause: errors.Join(ErrTruncated, err, context.Cause(ctx))}
				}
				yield(nil, err)
				return
			}
			r, err := c.session.Receive(ctx, answer)
			if err != nil {
				yield(nil, err)
				return
			}
			if r.Outcome == Dropped || r.Outcome == Pending {
				continue
			}
			if !yield(r, nil) {
				return
			}
		}
	}
}

// open sends the request and returns the body of the answer.
func (c *Client) open(ctx context.Context, frame []byte) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.endpoint, bytes.NewReader(frame))
	if err != nil {
		return nil, err
	}
	for k, v := range c.opts.Header {
		req.Header[k] = v
	}
	req.Header.Set("Content-Type", MediaType)
	req.Header.Set("Accept", MediaType)
	res, err := c.http.Do(req)
	if err != nil {
		return nil, &Error{Code: ErrTimeout, Message: "no answer", Cause: errors.Join(err, context.Cause(ctx))}
	}
	switch {
	case res.StatusCode == http.StatusNoContent:
	case isMediaType(res.Header.Get("Content-Type")): // an error frame under any status (D53)
	default:
		res.Body.Close()
		return nil, fmt.Errorf("%w: status %d, type %.80q", errStatus, res.StatusCode, res.Header.Get("Content-Type"))
	}
	return res.Body, nil
}
