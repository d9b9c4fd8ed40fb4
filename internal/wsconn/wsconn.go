// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package wsconn carries text messages over WebSocket connections.
package wsconn

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/coder/websocket"

	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/netguard"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/internal/sendq"
)

// Close codes. A Conn itself sends 1003 for a binary message, 1007 for one that is not UTF-8, 1009
// for one over the limit, and 1008 when the authentication expires.
const (
	CodeNormal     = 1000
	CodeShutdown   = 1001
	CodeNotAllowed = 1008 // the reason is the code of the protocol
	CodeInternal   = 1011
	CodeOverloaded = 1013
	CodeReplaced   = 4001 // by another instance
)

// Errors of a Conn.
var (
	ErrClosed     = errors.New("wsconn: closed") // by this side
	ErrTooLarge   = errors.New("wsconn: message too large")
	ErrSlowReader = retry.Mark(errors.New("wsconn: slow reader"), retry.Unknown, 0)
	ErrSilent     = retry.Mark(errors.New("wsconn: pings without an answer"), retry.Unknown, 0)
)

// A CloseError is a close frame of the peer.
type CloseError struct {
	Code   int
	Reason string
}

// Error returns the code and the reason.
func (e *CloseError) Error() string {
	return fmt.Sprintf("wsconn: peer closed with %d: %q", e.Code, e.Reason)
}

// RetryClass returns Permanent if another connection would end alike.
func (e *CloseError) RetryClass() retry.Class {
	switch e.Code {
	case 1003, CodeNotAllowed, 1009, CodeReplaced:
		return retry.Permanent
	case CodeOverloaded:
		return retry.Refused
	}
	return retry.Unknown
}

// Options adjust both sides of a connection. A negative value removes a bound.
type Options struct {
	MaxMessage       int           // bytes of a received message; zero means 16 MiB
	MaxOutput        int           // bytes of a sent message; zero means 16 MiB
	Heartbeat        time.Duration // interval of pings; zero means 15 s
	WriteTimeout     time.Duration // of a write without progress; zero means 30 s
	HandshakeTimeout time.Duration // zero means 10 s
	Subprotocols     []string      // by preference
	LimitHeader      string        // header of the handshake in which a server announces MaxMessage; a client lowers MaxOutput

	// Parts hands each message on in parts of about 64 KiB, which end between characters: for ReadPart.
	Parts bool
}

func (o Options) withDefaults() Options {
	o.MaxMessage, o.MaxOutput = option.Count(o.MaxMessage, 16<<20), option.Count(o.MaxOutput, 16<<20)
	o.Heartbeat = option.Duration(o.Heartbeat, 15*time.Second)
	o.WriteTimeout = option.Duration(o.WriteTimeout, 30*time.Second)
	o.HandshakeTimeout = option.Duration(o.HandshakeTimeout, 10*time.Second)
	return o
}

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
	client, w := httpx.NewClient(&o.HTTP), new(wire)
	defer client.Close()
	var refused error
	send := roundTrip(func(r *http.Request) (res *http.Response, err error) {
		req := &httpx.Request{Op: "wsconn: dial", Method: r.Method, URL: r.URL, Header: r.Header, Upgrade: true}
		if res, refused = client.Do(r.Context(), req); refused != nil {
			return nil, refused
		}
		if rwc, ok := res.Body.(io.ReadWriteCloser); ok { // else websocket.Dial fails
			w.rwc, res.Body = rwc, w
		}
		return res, nil
	})
	ctx, cancel := context.WithTimeout(ctx, o.HandshakeTimeout)
	defer cancel()
	ws, res, err := websocket.Dial(ctx, u.String(), &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: send}, HTTPHeader: o.Header, Subprotocols: o.Subprotocols,
	})
	switch {
	case refused != nil:
		return nil, refused
	case err != nil:
		return nil, fmt.Errorf("wsconn: dial: %w", err)
	}
	if n, err := strconv.Atoi(res.Header.Get(o.LimitHeader)); err == nil && n > 0 {
		o.MaxOutput = min(o.MaxOutput, n)
	}
	return newConn(ws, w, o.Options, time.Time{}, ""), nil
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// AcceptOptions adjust [Accept].
type AcceptOptions struct {
	Options
	Origins       httpx.Origins // pages that may connect
	Expires       time.Time     // of the authentication: then 1008 follows; zero means never
	ExpiredReason string        // of that close frame

	// RefuseOthers refuses a peer that offers subprotocols, but none of Subprotocols.
	RefuseOthers bool
}

// Accept upgrades a request that the caller has authenticated and charged to its budget. If Accept
// refuses it, it has responded with an HTTP status.
func Accept(w http.ResponseWriter, r *http.Request, opts *AcceptOptions) (*Conn, error) {
	o := *cmp.Or(opts, &AcceptOptions{})
	o.Options = o.withDefaults()
	httpx.Bound(w, r, o.HandshakeTimeout)
	_, err := httpx.CheckRequest(r, nil)
	err = cmp.Or(err, o.Origins.Check(r))
	switch {
	case err != nil:
	case !o.Expires.IsZero() && !time.Now().Before(o.Expires):
		err = &httpx.Error{Status: http.StatusUnauthorized, Message: "authentication expired"}
	case o.RefuseOthers && o.offersOthers(r):
		err = &httpx.Error{Status: http.StatusBadRequest, Message: "subprotocol not supported"}
	case !canHijack(w):
		err = &httpx.Error{Status: http.StatusNotImplemented, Message: "connection cannot be upgraded"}
	}
	if e, ok := errors.AsType[*httpx.Error](err); ok {
		_ = httpx.Respond(w, e.Status, "text/plain; charset=utf-8", []byte(e.Message), o.WriteTimeout)
		return nil, fmt.Errorf("wsconn: accept: %w", e)
	}
	if o.LimitHeader != "" {
		w.Header().Set(o.LimitHeader, strconv.Itoa(o.MaxMessage))
	}
	u := &upgrade{ResponseWriter: w}
	ws, err := websocket.Accept(u, r, &websocket.AcceptOptions{Subprotocols: o.Subprotocols, InsecureSkipVerify: true})
	if err != nil {
		return nil, fmt.Errorf("wsconn: accept: %w", err)
	}
	return newConn(ws, &u.wire, o.Options, o.Expires, o.ExpiredReason), nil
}

// offersOthers reports whether r offers subprotocols, but none of ours.
func (o *AcceptOptions) offersOthers(r *http.Request) bool {
	offer := strings.Join(r.Header.Values("Sec-WebSocket-Protocol"), ",")
	isOurs := func(name string) bool {
		return slices.ContainsFunc(o.Subprotocols, func(s string) bool { return strings.EqualFold(s, strings.TrimSpace(name)) })
	}
	return strings.Trim(offer, " \t,") != "" && !slices.ContainsFunc(strings.Split(offer, ","), isOurs)
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

func (u *upgrade) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(u.ResponseWriter).Hijack()
	if err == nil {
		u.wire.Conn, u.wire.rwc = conn, conn
		rw.Writer.Reset(&u.wire)
	}
	return &u.wire, rw, err
}

const (
	closeTimeout = time.Second
	maxPart      = 64 << 10 // bytes of a fragment, and of a buffer that is kept
)

// A wire is the network connection under the WebSocket library, which writes under a lock that
// answers to pings and close frames need too. So Write only queues.
type wire struct {
	net.Conn // of Accept
	rwc      io.ReadWriteCloser
	queue    *sendq.Queue
	received atomic.Bool // bytes were received
}

func (w *wire) Read(p []byte) (int, error) {
	n, err := w.rwc.Read(p)
	w.received.CompareAndSwap(false, n > 0)
	return n, err
}

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

// A part is a message, or a piece of one.
type part struct {
	data   []byte
	isLast bool
}

// A Conn is one side of a connection, which must be closed. Its methods may be called concurrently.
type Conn struct {
	o       Options
	ws      *websocket.Conn
	wire    *wire
	turn    chan struct{} // held during a Write
	in      chan part
	isBusy  atomic.Bool // a received message waits for Read, so that pings cannot be answered
	scratch []byte      // of receive
	done    chan struct{}
	cause   error // before done is closed
	end     sync.Once
	closing atomic.Bool // a call of close sends its code; others only end
	work    sync.WaitGroup

	expires time.Time // of the authentication; zero: never
	reason  string    // of the close then
	missed  int       // of beat: pings without an answer

	mu      sync.Mutex // guards all below
	timer   *time.Timer
	isEnded bool
}

func newConn(ws *websocket.Conn, w *wire, o Options, expires time.Time, reason string) *Conn {
	c := &Conn{o: o, ws: ws, wire: w, turn: make(chan struct{}, 1), in: make(chan part), done: make(chan struct{}),
		expires: expires, reason: reason}
	w.queue = sendq.New(w.rwc, sendq.Options{MaxBytes: 4 * maxPart, WriteTimeout: o.WriteTimeout, OnCut: c.cut})
	ws.SetReadLimit(-1) // receive has the limit
	c.start()
	c.work.Go(c.receiveAll)
	return c
}

// Subprotocol returns the negotiated subprotocol, or "".
func (c *Conn) Subprotocol() string { return c.ws.Subprotocol() }

// MaxOutput returns the maximum length of a message of Write: the lower one of the option and the
// announced limit of the peer.
func (c *Conn) MaxOutput() int { return c.o.MaxOutput }

// Done is closed when the connection has ended. Read and Write then return the cause: a
// [*CloseError], one of the errors of this package, or the error of the network.
func (c *Conn) Done() <-chan struct{} { return c.done }

// finish ends Read and Write with the cause if it is the first one.
func (c *Conn) finish(cause error) {
	c.end.Do(func() {
		c.cause = cause
		close(c.done)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.isEnded = true
		if c.timer.Stop() {
			c.work.Done()
		}
	})
}

// cut follows the end of the queue. After a failed write, a close frame may still arrive, which is
// the better cause.
func (c *Conn) cut(cause error) {
	if errors.Is(cause, sendq.ErrSlowReader) {
		c.finish(ErrSlowReader)
	}
	time.AfterFunc(closeTimeout, func() {
		c.finish(fmt.Errorf("wsconn: write: %w", cause))
		_ = c.wire.rwc.Close()
	})
}

// Read returns the next message, which belongs to the caller. The end of ctx ends the call only.
func (c *Conn) Read(ctx context.Context) ([]byte, error) {
	message, _, err := c.ReadPart(ctx)
	return message, err
}

// ReadPart is Read for the option Parts. It returns the next part, and whether it ends its message.
func (c *Conn) ReadPart(ctx context.Context) (data []byte, isLast bool, err error) {
	select {
	case p := <-c.in:
		return p.data, p.isLast, nil
	case <-c.done:
		return nil, false, c.cause
	case <-ctx.Done():
		return nil, false, context.Cause(ctx)
	}
}

// receiveAll hands the received messages to Read, one at a time, until the connection ends.
func (c *Conn) receiveAll() {
	for {
		if err := c.receive(); err != nil {
			c.finish(err)
			_ = c.ws.CloseNow()
			return
		}
	}
}

// hand passes a copy of data to the reader.
func (c *Conn) hand(data []byte, isLast bool) {
	c.isBusy.Store(true)
	select {
	case c.in <- part{bytes.Clone(data), isLast}:
	case <-c.done:
	}
	c.isBusy.Store(false)
}

// receive hands a message to Read, whole or in parts.
func (c *Conn) receive() error {
	kind, r, err := c.ws.Reader(context.Background())
	if err == nil && kind != websocket.MessageText {
		return c.close(1003, "", errors.New("wsconn: message is binary"))
	}
	buf, handed := c.scratch[:0], 0
	for n := 0; err == nil; buf = buf[:len(buf)+n] {
		if c.o.Parts && len(buf) >= maxPart {
			whole := buf[:len(buf)-cutRune(buf)]
			if !utf8.Valid(whole) {
				break
			}
			c.hand(whole, false)
			handed += len(whole)
			buf = append(buf[:0], buf[len(whole):]...)
		}
		if len(buf) == cap(buf) {
			buf = slices.Grow(buf, max(len(buf), 512))
		}
		n, err = r.Read(buf[len(buf):cap(buf)])
		if handed+len(buf)+n > c.o.MaxMessage {
			return c.close(1009, "", fmt.Errorf("%w: limit %d bytes", ErrTooLarge, c.o.MaxMessage))
		}
	}
	if e, ok := errors.AsType[websocket.CloseError](err); ok {
		return &CloseError{Code: int(e.Code), Reason: e.Reason}
	}
	if err != nil && err != io.EOF {
		return fmt.Errorf("wsconn: read: %w", err)
	}
	if !utf8.Valid(buf) {
		return c.close(1007, "", errors.New("wsconn: message is not UTF-8"))
	}
	if c.scratch = nil; cap(buf) <= maxPart {
		c.scratch = buf
	}
	c.hand(buf, true)
	return nil
}

// cutRune returns the number of bytes at the end of b that are the beginning of a character.
func cutRune(b []byte) int {
	for n := 1; n < min(utf8.UTFMax, len(b)+1); n++ {
		if tail := b[len(b)-n:]; utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}

// Write sends a message and keeps no reference to it. A message over the limit (ErrTooLarge) and one
// that is not UTF-8 fail alone. The end of ctx ends the wait for earlier messages; then the message
// is completed, unless the peer takes no bytes for WriteTimeout, which ends the connection.
func (c *Conn) Write(ctx context.Context, msg []byte) error {
	switch {
	case len(msg) > c.o.MaxOutput:
		return fmt.Errorf("%w: %d bytes, limit %d", ErrTooLarge, len(msg), c.o.MaxOutput)
	case !utf8.Valid(msg):
		return errors.New("wsconn: message is not UTF-8")
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-c.done: // the network connection may still be open
		return c.cause
	default:
	}
	if err := c.send(msg); err != nil {
		c.wire.queue.Cut(err)
		<-c.done
		return c.cause
	}
	return nil
}

// send writes a message in fragments, so that pings are answered between them.
func (c *Conn) send(msg []byte) error {
	ctx := context.Background()
	if len(msg) <= maxPart {
		return c.flush(c.ws.Write(ctx, websocket.MessageText, msg))
	}
	w, err := c.ws.Writer(ctx, websocket.MessageText)
	for n := 0; n < len(msg) && err == nil; n += maxPart {
		_, err = w.Write(msg[n:min(n+maxPart, len(msg))])
		err = c.flush(err)
	}
	if err == nil {
		err = c.flush(w.Close())
	}
	return err
}

// flush waits until the queue is written, unless err reports that it was not filled.
func (c *Conn) flush(err error) error {
	if err == nil {
		err = c.wire.queue.Flush(context.Background())
	}
	return err
}

// start sets the timer of beat, which counts as work until it is stopped or ends.
func (c *Conn) start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.work.Add(1)
	c.timer = time.AfterFunc(c.pause(), func() {
		if !c.beat() {
			c.work.Done()
		}
	})
}

// pause returns the time until the next beat.
func (c *Conn) pause() time.Duration {
	if c.expires.IsZero() {
		return c.o.Heartbeat
	}
	return min(c.o.Heartbeat, time.Until(c.expires))
}

// beat sends a ping and sets the timer again. Each received byte is an answer. It also ends an expired
// authentication. It reports false at the end of the connection.
func (c *Conn) beat() bool {
	if !c.expires.IsZero() && time.Until(c.expires) <= 0 {
		_ = c.close(CodeNotAllowed, c.reason, fmt.Errorf("%w: authentication expired", ErrClosed))
		return false
	}
	if c.wire.received.Swap(false) || c.isBusy.Load() {
		c.missed = 0
	}
	if c.missed++; c.missed > 2 {
		c.finish(ErrSilent)
		_ = c.wire.rwc.Close()
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isEnded {
		return false
	}
	c.work.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), c.o.Heartbeat)
		defer cancel()
		_ = c.ws.Ping(ctx)
	})
	c.timer.Reset(c.pause())
	return true
}

// Close sends a close frame, waits for that of the peer for at most 1 s, and returns when the
// goroutines of the connection have ended. A reason over 123 bytes is cut. A second call only waits.
func (c *Conn) Close(code int, reason string) {
	_ = c.close(code, reason, ErrClosed)
	c.work.Wait()
}

func (c *Conn) close(code int, reason string, cause error) error {
	isFirst := c.closing.CompareAndSwap(false, true) // before Read returns the cause, after which a caller closes
	c.finish(cause)
	if !isFirst {
		return cause
	}
	t := time.AfterFunc(closeTimeout, func() { _ = c.wire.rwc.Close() })
	defer t.Stop()
	reason = strings.ToValidUTF8(reason[:min(len(reason), 123)], "")
	_ = c.ws.Close(websocket.StatusCode(code), reason)
	return cause
}
