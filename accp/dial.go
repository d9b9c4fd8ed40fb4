// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"sync"
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

	// HTTPClient opens the connection. Nil means [http.DefaultClient].
	HTTPClient *http.Client

	// Header is sent with the opening request.
	Header http.Header

	// Heartbeat is the interval of pings. Zero means 30 s.
	Heartbeat time.Duration

	// Timeout is how long a call waits for the next message when its context
	// sets no deadline. Zero means 30 s.
	Timeout time.Duration
}

// A Conn is the client's side of a WebSocket connection. Its methods may be called
// from several goroutines, and calls run side by side.
type Conn struct {
	c    *wsConn
	opts DialOptions
	done chan struct{}
}

// Dial opens a connection to a WebSocket URL as agent self and begins the session
// with the own registry.
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
	c.session, c.calls = session, &callTable{open: map[string]*call{}}
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
	so := ServerOptions{Session: o.Session, Heartbeat: o.Heartbeat}
	if s != nil {
		so.Logger, so.MaxPending, so.WriteTimeout = s.opts.Logger, s.opts.MaxPending, s.opts.WriteTimeout
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

// Close ends the connection and waits until that is done. Calls that wait get
// [ErrTimeout].
func (c *Conn) Close() error {
	c.c.finish(websocket.StatusNormalClosure, "")
	c.c.cancel()
	<-c.done
	return nil
}

// Send sends a message and waits for nothing.
func (c *Conn) Send(ctx context.Context, m *Message) (*Sent, error) {
	return c.c.post(ctx, c.c.session, m, nil)
}

// Do sends a message and yields what the peer answers to its chain: any number of
// ack, wait, esc and stream messages and then the last one, which is done, end, a
// final chunk, or for an intent that asks for no result the ack. An error frame is
// the error that ends it, as is a lost connection or no message in time
// ([ErrTimeout]). It is ranged over once. Leaving the loop early, and the end of
// ctx, cancel the chain at the peer.
func (c *Conn) Do(ctx context.Context, m *Message) iter.Seq2[*Message, error] {
	return func(yield func(*Message, error) bool) {
		var k *call
		chain := ""
		sent, err := c.c.post(ctx, c.c.session, m, func(s *Sent) {
			if !s.Dropped {
				chain = s.Message.Chain()
				k = c.c.calls.add(chain)
			}
		})
		if err != nil {
			c.c.calls.remove(chain)
			yield(nil, err)
			return
		}
		if sent.Dropped {
			yield(nil, fail(ErrTimeout, "the chain was cancelled"))
			return
		}
		defer c.c.calls.remove(chain)
		for {
			r, err := k.next(ctx, c.opts.Timeout)
			if err != nil {
				if ctx.Err() != nil {
					c.abort(m, chain)
				}
				yield(nil, err)
				return
			}
			if e := ErrorOf(r.Message); e != nil {
				yield(nil, e)
				return
			}
			if !yield(r.Message, nil) {
				if !last(m.Intent, r.Message) {
					c.abort(m, chain)
				}
				return
			}
			if last(m.Intent, r.Message) {
				return
			}
		}
	}
}

// abort tells the peer that nobody waits any more.
func (c *Conn) abort(m *Message, chain string) {
	_, err := c.Send(context.Background(), &Message{Intent: IntentCancel, Op: m.Op, Meta: &Meta{CID: chain}})
	c.c.report(err)
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

func lastOf(seq iter.Seq2[*Message, error]) (*Message, error) {
	var m *Message
	for x, err := range seq {
		if err != nil {
			return nil, err
		}
		m = x
	}
	return m, nil
}

// ErrTruncated reports a stream that ended before its final chunk.
var ErrTruncated = errors.New("accp: stream ended early")

// streamOf puts the chunks among messages in order. The end of a stream in the
// last position of the messages may have come before chunks that it overtook, so
// only a complete stream ends well.
func streamOf(seq iter.Seq2[*Message, error]) iter.Seq2[Value, error] {
	return func(yield func(Value, error) bool) {
		var streams Streams
		done := false
		for m, err := range seq {
			if err != nil {
				yield(Value{}, err)
				return
			}
			if m.Intent != IntentStream && m.Intent != IntentEnd || m.Intent == IntentEnd && done {
				continue
			}
			chunks, err := streams.Add(m)
			if err != nil {
				yield(Value{}, err)
				return
			}
			for _, v := range chunks.Data {
				if !yield(v, nil) {
					return
				}
			}
			done = done || chunks.Done
		}
		if !done {
			yield(Value{}, ErrTruncated)
		}
	}
}

// A callTable holds the calls of a connection that wait for answers, by chain. A
// nil table has none.
type callTable struct {
	mu     sync.Mutex
	open   map[string]*call
	closed bool
}

// A call waits for the messages of one chain.
type call struct {
	in   chan *Received
	over chan struct{} // closed when nothing more will come
	once sync.Once
	slow bool // set before over is closed
}

func (t *callTable) add(chain string) *call {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := &call{in: make(chan *Received, callQueue), over: make(chan struct{})}
	if t.closed {
		close(k.over)
		return k
	}
	t.open[chain] = k
	return k
}

func (t *callTable) remove(chain string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, chain)
}

func (t *callTable) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, k := range t.open {
		k.once.Do(func() { close(k.over) })
	}
}

// deliver gives a message to the call that waits for it, and reports whether there
// is one. A call whose reader does not keep up is given up.
func (t *callTable) deliver(r *Received) bool {
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	k, ok := t.open[r.Message.Chain()]
	if !ok {
		return false
	}
	select {
	case k.in <- r:
	default:
		k.once.Do(func() {
			k.slow = true
			close(k.over)
		})
	}
	return true
}

func (k *call) next(ctx context.Context, timeout time.Duration) (*Received, error) {
	select { // what came goes before the end
	case r := <-k.in:
		return r, nil
	default:
	}
	var timer <-chan time.Time
	if _, ok := ctx.Deadline(); !ok {
		t := time.NewTimer(timeout)
		defer t.Stop()
		timer = t.C
	}
	select {
	case r := <-k.in:
		return r, nil
	case <-timer:
		return nil, fail(ErrTimeout, "no answer in time")
	case <-ctx.Done():
		return nil, &Error{Code: ErrTimeout, Message: "no answer in time", Cause: ctx.Err()}
	case <-k.over:
	}
	select {
	case r := <-k.in:
		return r, nil
	default:
	}
	if k.slow {
		return nil, fail(ErrInternal, "answers came faster than they were read")
	}
	return nil, &Error{Code: ErrTimeout, Message: "connection lost", Cause: errConnClosed}
}
