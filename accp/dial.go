// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
)

// DialOptions adjusts a [Conn]. The zero value is right for production.
type DialOptions struct {
	// SessionID names the session. Empty means a random one.
	SessionID string

	// Session is what the session begins with.
	Session SessionOptions

	// Handlers answers messages of the peer that belong to no call. Nil answers
	// by the rules of [Server.Handle] without handlers. Its sessions are not used.
	Handlers *Server

	// HTTPClient opens the connection. Nil means one that follows no redirect.
	HTTPClient *http.Client

	// Header is sent with the opening request.
	Header http.Header

	// Heartbeat is the interval of pings. Zero means 30 s.
	Heartbeat time.Duration

	// Timeout is how long a call waits for the next message. Zero means 30 s.
	Timeout time.Duration

	// Tries is how often [Conn.Do] sends a message if the answer is an error
	// that is worth another try. Zero means 3 (ACCP-D29).
	Tries int
}

// A Conn is the client's side of a WebSocket connection. Its methods may be called
// from several goroutines, and calls run side by side. It must be closed.
type Conn struct {
	c    *wsConn
	opts DialOptions
	done chan struct{}

	unsure atomic.Bool // the peer may not have the shared state
}

// Dial opens a connection to a WebSocket URL as agent self and begins the session
// with the own registry. The context is for opening only.
func Dial(ctx context.Context, url, self string, opts *DialOptions) (*Conn, error) {
	var o DialOptions
	if opts != nil {
		o = *opts
	}
	if o.SessionID == "" {
		o.SessionID = newID()
	}
	if o.Timeout <= 0 {
		o.Timeout = 30 * time.Second
	}
	if o.Tries <= 0 {
		o.Tries = 3
	}
	if o.HTTPClient == nil {
		o.HTTPClient = &http.Client{CheckRedirect: noRedirect}
	}
	server, err := o.Handlers.forClient(self, &o)
	if err != nil {
		return nil, err
	}
	session, err := NewSession(self, o.SessionID, &o.Session)
	if err != nil {
		return nil, err
	}
	ws, _, err := websocket.Dial(ctx, url, &websocket.DialOptions{
		HTTPClient: o.HTTPClient, HTTPHeader: o.Header, Subprotocols: []string{Subprotocol},
	})
	if err != nil {
		return nil, &Error{Code: ErrTimeout, Message: "no connection", Cause: err}
	}
	c := newConn(context.Background(), ws, server)
	c.session, c.calls = session, &callTable{open: map[string]*call{}, parts: map[string]*call{}}
	conn := &Conn{c: c, opts: o, done: make(chan struct{})}
	go func() {
		defer close(conn.done)
		defer c.calls.close()
		c.run(nil)
	}()
	session.mu.Lock()
	session.helloSent = true
	hello := session.registryMessage(false)
	session.mu.Unlock()
	if err := c.send(session, hello); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// forClient returns a server with the handlers of s for one connection.
func (s *Server) forClient(self string, o *DialOptions) (*Server, error) {
	so := ServerOptions{Session: o.Session, Timing: Timing{Heartbeat: o.Heartbeat}, Logger: o.Session.Logger}
	if s != nil {
		so.Logger, so.Limits.MaxConcurrent, so.Timing.WriteTimeout = s.opts.Logger, s.opts.Limits.MaxConcurrent, s.opts.Timing.WriteTimeout
	}
	c, err := NewServer(self, &so)
	if err != nil || s == nil {
		return c, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, h := range s.handlers {
		c.handlers[k] = h
	}
	c.wrap = append(c.wrap, s.wrap...)
	return c, nil
}

// Session returns the session of the connection.
func (c *Conn) Session() *Session { return c.c.session }

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err returns why the connection ended: nil while it has not, or after [Conn.Close],
// else an error from which [websocket.CloseStatus] tells the code that the peer gave.
func (c *Conn) Err() error {
	select {
	case <-c.done:
		if err := c.c.why(); !errors.Is(err, errConnClosed) {
			return err
		}
		return nil
	default:
		return nil
	}
}

// Close ends the connection and waits until that is done and no handler runs any
// more, so a handler must not call it. Calls that wait get [ErrTimeout]. It may be
// called more than once.
func (c *Conn) Close() error {
	c.c.because(errConnClosed)
	c.c.finish(websocket.StatusNormalClosure, "")
	c.c.cancel()
	<-c.done
	return nil
}

// Send sends a message and waits for nothing.
func (c *Conn) Send(ctx context.Context, m *Message) (*SendResult, error) {
	return c.c.post(ctx, func() (*SendResult, error) { return c.c.session.Send(ctx, m) })
}

// Sync makes state the shared state of the session: it sends the difference to the
// last one (ACCP-098), nothing if there is none, and the whole state if the peer
// missed an earlier difference (ACCP-D46).
func (c *Conn) Sync(ctx context.Context, state Params) error {
	session, nothing := c.c.session, false
	_, err := lastOf(noFail(c.do(ctx, IntentSync, "", new(string), func() (*SendResult, error) {
		sent, err := session.Sync(ctx, state)
		if err == nil && len(sent.Frames) == 0 {
			if c.unsure.Load() {
				return session.Snapshot(ctx)
			}
			nothing = true
		}
		return sent, err
	})))
	if errors.Is(err, ErrSequenceGap) || errors.Is(err, ErrDuplicate) {
		_, err = lastOf(noFail(c.do(ctx, IntentSync, "", new(string), func() (*SendResult, error) { return session.Snapshot(ctx) })))
	}
	if !nothing {
		c.unsure.Store(err != nil)
	}
	return err
}

// Do sends a message and yields what the peer answers to its chain: any number of
// ack, wait, esc and stream messages and then the last one, which is done, end, a
// final chunk, or for an intent that asks for no result the ack. An error frame is
// the error that ends it, as is a lost connection or no message in time
// ([ErrTimeout]), and the end of the chain ([ErrCancelled]). What may pass is tried
// again as by [Client.Do]. It is ranged over once. Leaving the loop early, and the
// end of ctx, cancel the chain at the peer.
//
// A cancel is sent and not waited for; it ends the calls of its chain.
func (c *Conn) Do(ctx context.Context, m *Message) iter.Seq2[*Message, error] {
	if m != nil && m.Intent == IntentCancel {
		return func(yield func(*Message, error) bool) {
			if _, err := c.Send(ctx, m); err != nil {
				yield(nil, err)
			}
		}
	}
	return func(yield func(*Message, error) bool) {
		chain := ""
		policy := retryPolicy{c.opts.Tries, c.c.s.log}
		for r, err := range policy.run(ctx, m, func(m *Message, name *string) iter.Seq2[*Message, error] {
			cid := ""
			if m.Meta != nil {
				cid = m.Meta.CID
			}
			return func(yield func(*Message, error) bool) {
				for r, err := range c.do(ctx, m.Intent, cid, name, func() (*SendResult, error) { return c.c.session.Send(ctx, m) }) {
					chain = *name
					if !yield(r, err) {
						return
					}
				}
			}
		}) {
			var e *Error
			if errors.As(err, &e) && e.Code == ErrTimeout && !e.Remote && chain != "" && ctx.Err() == nil {
				c.abort(m.Op, chain) // no try is left, so late answers are not welcome any more
			}
			if !yield(r, err) {
				return
			}
		}
	}
}

// noFail turns an error frame into the error that it is.
func noFail(seq iter.Seq2[*Message, error]) iter.Seq2[*Message, error] {
	return func(yield func(*Message, error) bool) {
		for m, err := range seq {
			if err == nil {
				if e := ErrorFromMessage(m); e != nil {
					m, err = nil, e
				}
			}
			if !yield(m, err) {
				return
			}
		}
	}
}

// do sends what send returns, a message with this intent and cid, and yields the
// answers to it. It stores its chain in name before it yields.
func (c *Conn) do(ctx context.Context, intent Intent, cid string, name *string, send func() (*SendResult, error)) iter.Seq2[*Message, error] {
	return func(yield func(*Message, error) bool) {
		session, outer := c.c.session, ctx
		var k *call
		sent, err := c.c.post(ctx, func() (*SendResult, error) {
			if cid != "" && c.c.calls.has(cid) {
				return nil, errSameChain
			}
			sent, err := send()
			if err == nil && len(sent.Frames) > 0 {
				// The call waits before its message is on its way.
				k = c.c.calls.add(sent.Message.Chain(), sent.more)
			}
			return sent, err
		})
		if k != nil {
			defer c.c.calls.remove(k)
		}
		switch {
		case err == nil && sent.Dropped:
			err = ErrCancelled
		case err == nil && k == nil:
			return // nothing to send
		}
		if err != nil {
			yield(nil, err)
			return
		}
		chain, op := sent.Message.Chain(), sent.Message.Op
		*name = chain
		ctx, done := session.ChainContext(ctx, chain)
		defer done()
		// Every part but the last is answered by an ack, in a chain of its own
		// unless the message names one.
		skip := len(sent.Frames) - 1
		if sent.Message.Meta.CID == "" {
			skip = min(skip, 1)
		}
		finished := false
		defer func() {
			if !finished {
				c.abort(op, chain)
			}
		}()
		for {
			r, err := k.next(ctx, c.opts.Timeout)
			switch {
			case err == nil && r.Outcome == OutcomeCancelled, err != nil && ctx.Err() != nil && outer.Err() == nil:
				finished = true
				yield(nil, ErrCancelled)
				return
			case err != nil:
				// Another try may follow, to which late answers are welcome.
				finished = outer.Err() == nil && !errors.Is(err, errSlow)
				yield(nil, err)
				return
			case skip > 0 && r.Message.Intent == IntentAck:
				skip--
				continue
			}
			finished = last(intent, r.Message)
			if !yield(r.Message, nil) || finished {
				return
			}
		}
	}
}

// abort tells the peer that nobody waits any more, if it can still be told.
func (c *Conn) abort(op, chain string) {
	ctx, cancel := context.WithTimeout(context.Background(), c.c.s.opts.Timing.WriteTimeout)
	defer cancel()
	_, err := c.Send(ctx, &Message{Intent: IntentCancel, Op: op, Meta: &Meta{CID: chain}})
	if !errors.Is(err, errConnClosed) {
		c.c.report(err)
	}
}

// Call sends a message and returns the last one of the answers to it.
func (c *Conn) Call(ctx context.Context, m *Message) (*Message, error) { return lastOf(c.Do(ctx, m)) }

// Stream sends a message and yields the data of the chunks that answer it, in
// order. A stream that ends before its final chunk is [ErrTruncated].
func (c *Conn) Stream(ctx context.Context, m *Message) iter.Seq2[Value, error] {
	return streamOf(c.Do(ctx, m))
}

// last reports whether an answer to a message with this intent is the last one.
func last(asked Intent, m *Message) bool {
	switch m.Intent {
	case IntentDone, IntentFail, IntentEnd, IntentPong, IntentSync:
		return true
	case IntentStream:
		v, _ := m.Params.Get("is_final")
		final, _ := v.Bool()
		return final
	case IntentAck:
		return asked != IntentReq && asked != IntentQry
	}
	return false
}
