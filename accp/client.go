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
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// ClientOptions adjusts a [Client]. The zero value is right for production.
type ClientOptions struct {
	// SessionID names the session. Empty means a random one.
	SessionID string

	// Session is what the session begins with.
	Session SessionOptions

	// MaxConcurrent is how many exchanges may run at the same time. The frames of a
	// session have an order that HTTP does not keep, so each of them has a
	// session of its own: SessionID, SessionID_2, SessionID_3 and so on. Zero
	// means 1.
	MaxConcurrent int

	// HTTPClient sends the requests. Nil means one that follows no redirect.
	HTTPClient *http.Client

	// Header is sent with every request.
	Header http.Header

	// Timeout is how long a try waits for the next frame of its answer, and for
	// its turn. Zero means 30 s.
	Timeout time.Duration

	// Tries is how often a message is sent if the answer is an error that is
	// worth another try. Zero means 3 (ACCP-D29).
	Tries int

	// Logger gets what no error reports, such as further tries. Nil is silent.
	Logger *slog.Logger
}

// A Client sends frames to an HTTP endpoint as one agent. Its methods may be called
// from several goroutines; exchanges take turns, unless Parallel is set. It starts
// no goroutine and needs not be closed.
type Client struct {
	endpoint string
	opts     ClientOptions
	session  *Session
	http     *http.Client
	log      *slog.Logger
	all      []*Session
	free     chan *Session // those that no exchange uses
	unsure   bool          // the peer may not have the shared state; used by who has the only session
}

// NewClient returns a client of the endpoint, an http or https URL that usually
// ends in [FramesPath], which sends as agent self. It does no I/O.
func NewClient(endpoint, self string, opts *ClientOptions) (*Client, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("accp: endpoint %q is no http URL", endpoint)
	}
	c := &Client{endpoint: endpoint}
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
		c.http = &http.Client{CheckRedirect: noRedirect}
	}
	if c.log = c.opts.Logger; c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	n := max(1, c.opts.MaxConcurrent)
	c.free = make(chan *Session, n)
	for i := range n {
		id := c.opts.SessionID
		if i > 0 {
			id += "_" + strconv.Itoa(i+1)
		}
		s, err := NewSession(self, id, &c.opts.Session)
		if err != nil {
			return nil, err
		}
		c.all = append(c.all, s)
		c.free <- s
	}
	c.session = c.all[0]
	return c, nil
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Session returns the session of the client; of several, the first one.
func (c *Client) Session() *Session { return c.session }

// EndSession ends the sessions of the client (see [Session.End]), each when no exchange
// uses it any more.
func (c *Client) EndSession(ctx context.Context, opts *EndSessionOptions) error {
	var errs []error
	for range c.all {
		s, err := c.take(ctx)
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		defer func() { c.free <- s }() // when all have ended, so that each does once
		errs = append(errs, s.End(ctx, opts))
	}
	return errors.Join(errs...)
}

// SyncRegistry exchanges the registries and reports whether both sides then have the same
// schemas (ACCP-113 to ACCP-115), in every session of the client.
func (c *Client) SyncRegistry(ctx context.Context) (synced bool, err error) {
	synced = true
	for range c.all {
		s, err := c.take(ctx)
		if err != nil {
			return false, err
		}
		defer func() { c.free <- s }() // when all have been greeted, so that each is once
		ok, err := c.hello(ctx, s)
		if err != nil {
			return false, err
		}
		synced = synced && ok
	}
	return synced, nil
}

func (c *Client) hello(ctx context.Context, s *Session) (synced bool, err error) {
	s.mu.Lock()
	s.helloSent = true
	was := s.deltaSent
	owed := s.differs && !was // an earlier exchange broke off after their answer
	s.deltaSent = was || owed
	m := s.registryMessage(owed)
	s.mu.Unlock()
	defer func() {
		if err != nil { // nobody knows what came
			s.mu.Lock()
			s.deltaSent = was
			s.mu.Unlock()
		}
	}()
	theirs := owed // their schemas came
	for range 4 {  // hello, delta, hello: no exchange that can succeed takes longer
		var next *Message
		sent, err := s.Send(ctx, m)
		if err != nil {
			return false, err
		}
		for r, err := range c.exchange(ctx, s, sent) {
			if err != nil {
				return false, err
			}
			if e := ErrorFromMessage(r); e != nil {
				return false, e
			}
			if r.Intent == IntentSync && r.Op == OpRegistry {
				_, delta := r.Params.Get("delta")
				theirs = theirs || delta
				s.mu.Lock()
				next, _, err = s.exchange(r)
				s.mu.Unlock()
				if err != nil {
					return false, err
				}
			}
		}
		if _, ours := m.Params.Get("delta"); next == nil && ours && theirs {
			// Both have the schemas of both, and who has the last word is not
			// told so.
			s.mu.Lock()
			s.synced = true
			s.mu.Unlock()
		}
		if next == nil {
			break
		}
		m = next
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.synced, nil
}

// Do sends a message and yields the messages that answer it; an error frame is the
// error that ends it, and so is no answer in time ([ErrTimeout]) and the end of the
// chain ([ErrCancelled]). A frame that is refused for a reason that passes is sent
// again with a new id and number, up to three times in all and never after its
// time to live; a transaction only if it has a transaction_id (ACCP-D29). It is ranged
// over once. Leaving the loop early, and the end of ctx, end the request.
//
// The loop must not wait for another exchange of the same client, unless that has
// more than one session (see [ClientOptions]).
func (c *Client) Do(ctx context.Context, m *Message) iter.Seq2[*Message, error] {
	return retryPolicy{c.opts.Tries, c.log}.run(ctx, m, func(m *Message, chain *string) iter.Seq2[*Message, error] {
		return func(yield func(*Message, error) bool) {
			s := c.running(m)
			if s == nil {
				var err error
				if s, err = c.take(ctx); err != nil {
					yield(nil, err)
					return
				}
				defer func() { c.free <- s }()
			}
			sent, err := s.Send(ctx, m)
			if err != nil {
				yield(nil, err)
				return
			}
			if sent.Dropped {
				yield(nil, ErrCancelled)
				return
			}
			*chain = sent.Message.Chain()
			for r, err := range c.exchange(ctx, s, sent) {
				if !yield(r, err) || err != nil {
					return
				}
			}
		}
	})
}

// Call sends a message and returns the last one of the answers to it, or nil if it
// was answered by nothing, as ack and pong are.
func (c *Client) Call(ctx context.Context, m *Message) (*Message, error) { return lastOf(c.Do(ctx, m)) }

// Stream sends a message and yields the data of the chunks that answer it, in
// order. A stream that ends before its final chunk is [ErrTruncated].
func (c *Client) Stream(ctx context.Context, m *Message) iter.Seq2[Value, error] {
	return streamOf(c.Do(ctx, m))
}

// Sync makes state the shared state of the session: it sends the difference to the
// last one (ACCP-098), nothing if there is none, and the whole state if the peer
// missed an earlier difference (ACCP-D46). A client of several sessions has no shared
// state.
func (c *Client) Sync(ctx context.Context, state Params) (err error) {
	if len(c.all) > 1 {
		return errors.New("accp: a client of several sessions has no shared state")
	}
	s, err := c.take(ctx)
	if err != nil {
		return err
	}
	defer func() { c.free <- s }()
	sent, err := s.Sync(ctx, state)
	if err == nil && len(sent.Frames) == 0 && c.unsure {
		sent, err = s.Snapshot(ctx)
	}
	if err != nil || len(sent.Frames) == 0 {
		return err
	}
	defer func() { c.unsure = err != nil }()
	for again := true; err == nil && len(sent.Frames) > 0; again = false {
		err = nil
		for r, rerr := range c.exchange(ctx, s, sent) {
			if rerr == nil {
				if e := ErrorFromMessage(r); e != nil {
					rerr = e
				}
			}
			if rerr != nil {
				err = rerr
				break
			}
		}
		if !again || !errors.Is(err, ErrSequenceGap) && !errors.Is(err, ErrDuplicate) {
			return err
		}
		sent, err = s.Snapshot(ctx)
	}
	return err
}

// running returns the session in which the chain runs that m cancels, or nil. A
// cancel does not wait for its turn, since it ends the exchange that would have to
// end first.
func (c *Client) running(m *Message) *Session {
	if m.Intent != IntentCancel || m.Meta == nil {
		return nil
	}
	for _, s := range c.all {
		s.mu.Lock()
		_, ok := s.running[m.Meta.CID]
		s.mu.Unlock()
		if ok {
			return s
		}
	}
	return nil
}

// take waits for a session that no exchange uses.
func (c *Client) take(ctx context.Context) (*Session, error) {
	select {
	case s := <-c.free:
		return s, nil
	default:
	}
	timer := time.NewTimer(c.opts.Timeout)
	defer timer.Stop()
	select {
	case s := <-c.free:
		return s, nil
	case <-timer.C:
		return nil, fail(ErrTimeout, "another exchange is running")
	case <-ctx.Done():
		return nil, &Error{Code: ErrTimeout, Message: "another exchange is running", Cause: ctx.Err()}
	}
}

// exchange sends the frames of a message and yields the messages that answer it.
// Its end is that of the chain as well.
func (c *Client) exchange(ctx context.Context, s *Session, sent *SendResult) iter.Seq2[*Message, error] {
	return func(yield func(*Message, error) bool) {
		chain := sent.Message.Chain()
		outer := ctx
		if sent.Message.Intent != IntentCancel {
			var done context.CancelFunc
			ctx, done = s.ChainContext(ctx, chain)
			defer done()
		}
		for i, frame := range sent.Frames {
			for r, err := range c.post(ctx, s, frame) {
				if err != nil {
					if ctx.Err() != nil && outer.Err() == nil {
						err = ErrCancelled
					}
					yield(nil, err)
					return
				}
				m := r.Message
				switch {
				case i < len(sent.Frames)-1 && m.Intent == IntentAck:
					continue // of a part
				case m.Meta.CID != "" && m.Meta.CID != chain && m.Intent != IntentFail:
					c.log.Info("accp: message that answers nothing", "intent", string(m.Intent), "op", m.Op)
					continue
				case r.Outcome == OutcomeCancelled:
					yield(nil, ErrCancelled)
					return
				}
				if !yield(m, nil) {
					return
				}
			}
		}
	}
}

var errStatus = errors.New("accp: unexpected HTTP answer")

// post sends one frame and yields what the session makes of what comes back.
func (c *Client) post(ctx context.Context, s *Session, frame []byte) iter.Seq2[*ReceiveResult, error] {
	return func(yield func(*ReceiveResult, error) bool) {
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
		frames := NewScanner(body, c.opts.Session.FrameLimits.withDefaults().MaxFrame)
		for {
			answer, err := frames.Next()
			if err == io.EOF {
				return
			}
			timer.Stop() // what the session and the caller do is not the peer's time
			if err != nil {
				if ctx.Err() != nil || !errors.Is(err, ErrParse) || errors.Is(err, io.ErrUnexpectedEOF) {
					err = &Error{Code: ErrTimeout, Message: "the answer was cut off", Cause: errors.Join(ErrTruncated, err, context.Cause(ctx))}
				}
				yield(nil, err)
				return
			}
			r, err := s.Receive(ctx, answer)
			if errors.Is(err, ErrSequenceGap) {
				if e := withoutSession(&s.codec, answer); e != nil {
					err = e
				}
			}
			if err != nil {
				yield(nil, err)
				return
			}
			if r.Outcome == OutcomeDelivered || r.Outcome == OutcomeCancelled {
				if !yield(r, nil) {
					return
				}
			}
			timer.Reset(c.opts.Timeout)
		}
	}
}

// withoutSession returns what an error frame says that belongs to no session, or nil
// if frame is none. It comes from a server that cannot use the session, and so has no
// place in its order (ACCP-D52).
func withoutSession(c *Codec, frame []byte) *Error {
	m, err := c.Decode(frame)
	if err != nil || m.Meta == nil || m.Meta.SID != "" {
		return nil
	}
	return ErrorFromMessage(m)
}

// open sends the request and returns the body of the answer.
func (c *Client) open(ctx context.Context, frame []byte) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.endpoint, bytes.NewReader(frame))
	if err != nil {
		return nil, err
	}
	maps.Copy(req.Header, c.opts.Header)
	req.Header.Set("Content-Type", MediaType)
	req.Header.Set("Accept", MediaType)
	res, err := c.http.Do(req)
	if err != nil {
		return nil, &Error{Code: ErrTimeout, Message: "no answer", Cause: errors.Join(err, context.Cause(ctx))}
	}
	switch {
	case res.StatusCode == http.StatusNoContent:
	case isMediaType(res.Header.Get("Content-Type")): // an error frame under any status (ACCP-D53)
	case res.StatusCode == http.StatusTooManyRequests, res.StatusCode >= http.StatusBadGateway && res.StatusCode <= http.StatusGatewayTimeout:
		res.Body.Close() // of something between here and the peer, or of a peer that closes
		return nil, &Error{Code: ErrTimeout, Message: "no answer", Cause: fmt.Errorf("%w: status %d", errStatus, res.StatusCode)}
	default:
		res.Body.Close()
		return nil, fmt.Errorf("%w: status %d, type %.80q", errStatus, res.StatusCode, res.Header.Get("Content-Type"))
	}
	return res.Body, nil
}
