// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package wsconn

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/netguard"
	"github.com/fivewire/fivewire/internal/sendq"
)

// DialOptions adjust [Dial].
type DialOptions struct {
	Options
	HTTP   httpx.ClientOptions // of the handshake; the Timeout of an HTTPClient does not apply
	Header http.Header         // of the handshake
}

// Dial connects to a ws or wss URL. A refused handshake is an [*httpx.Error] with its status. The
// context bounds the handshake only.
func Dial(ctx context.Context, rawURL string, opts *DialOptions) (*Conn, error) {
	o := *cmp.Or(opts, &DialOptions{})
	o.Options = o.withDefaults()
	guard := cmp.Or(o.HTTP.Guard, &netguard.Guard{AllowLoopback: true, AllowPrivate: true})
	u, err := guard.URL(rawURL, o.HTTP.AllowInsecure)
	if err != nil {
		return nil, fmt.Errorf("wsconn: dial: %w", err)
	}
	user := *cmp.Or(o.HTTP.HTTPClient, &http.Client{})
	user.Timeout = 0 // with a timeout, net/http returns a body without Write
	o.HTTP.HTTPClient = &user
	d := &dialer{client: httpx.NewClient(&o.HTTP)}
	defer d.client.Close()
	ctx, cancel := context.WithTimeout(ctx, o.HandshakeTimeout)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, u.String(), &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: d}, HTTPHeader: o.Header, Subprotocols: o.Subprotocols,
	})
	switch {
	case d.err != nil:
		return nil, d.err
	case err != nil:
		return nil, fmt.Errorf("wsconn: dial: %w", err)
	}
	return newConn(ws, &d.wire, o.Options, time.Time{}, ""), nil
}

// A dialer is the transport of one handshake.
type dialer struct {
	client *httpx.Client
	wire   wire
	err    error
}

// RoundTrip sends the handshake and puts the wire under the connection.
func (d *dialer) RoundTrip(r *http.Request) (res *http.Response, err error) {
	res, d.err = d.client.Do(r.Context(), &httpx.Request{
		Op: "wsconn: dial", Method: r.Method, URL: r.URL, Header: r.Header, Upgrade: true,
	})
	if d.err != nil {
		return nil, d.err
	}
	var ok bool
	if d.wire.rwc, ok = res.Body.(io.ReadWriteCloser); !ok {
		_ = res.Body.Close()
		return nil, errors.New("the transport cannot upgrade a connection")
	}
	res.Body = &d.wire
	return res, nil
}

// AcceptOptions adjust [Accept].
type AcceptOptions struct {
	Options
	Origins       httpx.Origins // pages that may connect
	Expires       time.Time     // of the authentication: then 1008 follows; zero means never
	ExpiredReason string        // of that close frame
}

// Accept upgrades a request that the caller has authenticated and charged to its budget. If Accept
// refuses it, it has responded with an HTTP status.
func Accept(w http.ResponseWriter, r *http.Request, opts *AcceptOptions) (*Conn, error) {
	o := *cmp.Or(opts, &AcceptOptions{})
	o.Options = o.withDefaults()
	httpx.Bound(w, r, o.HandshakeTimeout)
	_, err := httpx.CheckRequest(r, nil)
	err = cmp.Or(err, o.Origins.Check(r))
	e, isRefused := errors.AsType[*httpx.Error](err)
	switch {
	case isRefused:
	case !o.Expires.IsZero() && !time.Now().Before(o.Expires):
		e = &httpx.Error{Status: http.StatusUnauthorized, Message: "authentication expired"}
	case !canHijack(w):
		e = &httpx.Error{Status: http.StatusNotImplemented, Message: "connection cannot be upgraded"}
	}
	if e != nil {
		_ = httpx.Respond(w, e.Status, "text/plain; charset=utf-8", []byte(e.Message), o.WriteTimeout)
		return nil, fmt.Errorf("wsconn: accept: %w", e)
	}
	u := &upgrade{ResponseWriter: w}
	ws, err := websocket.Accept(u, r, &websocket.AcceptOptions{Subprotocols: o.Subprotocols, InsecureSkipVerify: true})
	if err != nil {
		return nil, fmt.Errorf("wsconn: accept: %w", err)
	}
	return newConn(ws, &u.wire, o.Options, o.Expires, o.ExpiredReason), nil
}

func canHijack(w http.ResponseWriter) bool {
	_, ok := w.(http.Hijacker)
	u, isWrapped := w.(interface{ Unwrap() http.ResponseWriter })
	return ok || isWrapped && canHijack(u.Unwrap())
}

// An upgrade is a response that puts the wire under the connection.
type upgrade struct {
	http.ResponseWriter
	wire wire
}

// Hijack returns the wire.
func (u *upgrade) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(u.ResponseWriter).Hijack()
	if err == nil {
		u.wire.Conn, u.wire.rwc = conn, conn
		rw.Writer.Reset(&u.wire)
	}
	return &u.wire, rw, err
}

// A wire is the network connection under the WebSocket library, which writes under a lock that
// answers to pings and close frames need too. So Write only queues.
type wire struct {
	net.Conn // of Accept
	rwc      io.ReadWriteCloser
	queue    *sendq.Queue
	received atomic.Bool // bytes were received
}

// Read reads from the network.
func (w *wire) Read(p []byte) (int, error) {
	n, err := w.rwc.Read(p)
	w.received.CompareAndSwap(false, n > 0)
	return n, err
}

// Write queues p.
func (w *wire) Write(p []byte) (int, error) { return len(p), w.queue.Put(p, 0) }

// Close writes the queue, which a failed handshake does not have, and closes the network connection.
func (w *wire) Close() error {
	if w.queue != nil {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		_ = w.queue.Close(ctx)
	}
	return w.rwc.Close()
}
