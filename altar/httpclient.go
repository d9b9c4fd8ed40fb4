// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/fivewire/fivewire/altar/internal/transport"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/option"
)

// HTTPDialOptions adjusts [DialHTTP].
type HTTPDialOptions struct {
	// HTTPClient sends the requests, and follows no redirect. Nil means a client that connects
	// within 10 seconds.
	HTTPClient *http.Client

	// Header goes with every request.
	Header http.Header

	// TokenSource, if set, supplies the bearer token of each request.
	TokenSource TokenSource

	// AllowInsecure permits http and ws to other hosts than this host.
	AllowInsecure bool

	// MaxMessage bounds a received message, in bytes, and MaxOutput a sent one. Zero means 4 MiB;
	// a negative value removes the bound.
	MaxMessage, MaxOutput int
}

// A TokenSource supplies the bearer token of a request or of a WebSocket handshake. It must be safe
// for concurrent use.
type TokenSource interface {
	Token(ctx context.Context) (string, error)
}

// A TokenSourceFunc is a function that serves as a [TokenSource].
type TokenSourceFunc func(ctx context.Context) (string, error)

// Token calls f.
func (f TokenSourceFunc) Token(ctx context.Context) (string, error) { return f(ctx) }

func (o HTTPDialOptions) withDefaults() HTTPDialOptions {
	o.MaxMessage = option.Count(o.MaxMessage, defaultMaxMessage)
	o.MaxOutput = option.Count(o.MaxOutput, defaultMaxMessage)
	o.Header = o.Header.Clone()
	if o.Header == nil {
		o.Header = http.Header{}
	}
	return o
}

// http returns the options of requests and handshakes.
func (o *HTTPDialOptions) http() *httpx.ClientOptions {
	c := &httpx.ClientOptions{HTTPClient: o.HTTPClient, AllowInsecure: o.AllowInsecure, MaxResponse: -1}
	source := o.TokenSource
	if source == nil {
		return c
	}
	c.Secrets = func(ctx context.Context, _ string, h http.Header) error {
		return guard.Call("token source", func() error {
			token, err := source.Token(ctx)
			if err == nil {
				h.Set("Authorization", "Bearer "+token)
			}
			return err
		})
	}
	return c
}

// dialError returns the error of a failed request or handshake, with the Error that the Host sent.
func dialError(err error) error {
	if e, ok := errors.AsType[*httpx.Error](err); ok && len(e.Body) > 0 {
		m, _ := DecodeMessage(e.Body, 0)
		if refused, ok := m.(*ErrorMessage); ok {
			return fmt.Errorf("altar: dial: %w: %w", remote(refused.Err), err)
		}
	}
	return fmt.Errorf("altar: dial: %w", err)
}

// DialHTTP returns a client connection over HTTP (ALT-D05). Every message is one request, and
// streams are received as NDJSON. The rawURL is the URL of the Host, with or without the path of
// messages. DialHTTP does no I/O; it fails if the URL or an option is invalid. A failed request
// ends the connection, like a lost connection of another transport.
func DialHTTP(_ context.Context, rawURL string, opts *HTTPDialOptions) (Conn, error) {
	c := &httpConn{in: make(chan received), failed: make(chan struct{}), gates: make(map[string]*creditGate)}
	if opts != nil {
		c.opts = *opts
	}
	c.opts = c.opts.withDefaults()
	var err error
	if c.http, err = transport.NewHTTPClient(rawURL, c.opts.Header, c.opts.MaxMessage, c.opts.http()); err != nil {
		return nil, fmt.Errorf("altar: dial: %w", err)
	}
	c.ctx, c.stop = context.WithCancel(context.Background())
	return c, nil
}

type httpConn struct {
	http *transport.HTTPClient
	opts HTTPDialOptions
	ctx  context.Context // ends with Close
	stop context.CancelFunc
	in   chan received

	mu     sync.Mutex             // so that nothing is sent behind Close
	gates  map[string]*creditGate // of streams, by invocation id; guarded by mu
	wg     sync.WaitGroup         // of requests; grows with mu held, and not once failed is closed
	err    error                  // once failed is closed
	failed chan struct{}
}

type received struct {
	m   Message
	err error
}

func (c *httpConn) Receive() (Message, error) {
	select {
	case r := <-c.in:
		return r.m, r.err
	case <-c.failed:
		return nil, c.err
	}
}

func (c *httpConn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
		c.stop()
		close(c.failed)
	}
}

// drain waits a moment for the requests: cancelled calls are answered at once.
func (c *httpConn) drain() {
	idle := make(chan struct{})
	go func() {
		c.wg.Wait()
		close(idle)
	}()
	select {
	case <-idle:
	case <-time.After(flushTimeout):
	}
}

// Close ends all requests and waits for their goroutines.
func (c *httpConn) Close() error {
	c.fail(ErrClosed)
	c.wg.Wait()
	c.http.Close()
	return nil
}

func (c *httpConn) Send(m Message) error {
	body, err := AppendMessage(nil, m)
	if err == nil && len(body) > c.opts.MaxOutput {
		err = errTooLarge(len(body), c.opts.MaxOutput)
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	var gate *creditGate
	switch m := m.(type) {
	case *StreamCredit: // stays on this side: it makes the stream be read
		c.gateLocked(m.InvocationID, m.Credit)
		return nil
	case *CancelCall:
		c.gateLocked(m.InvocationID, math.MaxInt64)
	case *ToolCall:
		if m.Credit != nil && !m.CollectChunks {
			gate = new(creditGate)
			gate.limit(*m.Credit)
			c.gates[m.InvocationID] = gate
		}
	}
	c.wg.Go(func() {
		err := guard.Call("HTTPClient", func() error { return c.exchange(m, body, gate) })
		if err != nil {
			c.fail(fmt.Errorf("altar: %s over HTTP: %w", typeOf(m), err))
		}
	})
	return nil
}

// gateLocked raises the credit of a stream. c.mu must be held.
func (c *httpConn) gateLocked(id string, credit int64) {
	if gate := c.gates[id]; gate != nil {
		gate.raise(credit)
	}
}

// ungate ends the credit of a stream.
func (c *httpConn) ungate(id string, gate *creditGate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gates[id] == gate {
		delete(c.gates, id)
	}
}

// deliver hands a message to Receive.
func (c *httpConn) deliver(m Message, err error) {
	select {
	case c.in <- received{m, err}:
	case <-c.failed:
	}
}

// exchange makes one request and takes in what it brings: of a stream only the chunks for which
// gate has credit. If the response is cut off after some chunks, it requests the rest, because an error would end
// the other requests, too.
func (c *httpConn) exchange(m Message, body []byte, gate *creditGate) error {
	if gate != nil {
		defer c.ungate(m.(*ToolCall).InvocationID, gate)
	}
	call, isCall := m.(*ToolCall)
	if !isCall || call.CollectChunks {
		return c.request(m, body, nil, nil)
	}
	rest := *call
	for {
		from := rest.ResumeFrom
		err := c.request(&rest, body, gate, &rest.ResumeFrom)
		if err == nil || rest.ResumeFrom == from || c.ctx.Err() != nil {
			return err
		}
		if body, err = AppendMessage(nil, &rest); err != nil {
			return err
		}
	}
}

// request makes one request. It sets next, if not nil, to the id after the last chunk of a stream.
func (c *httpConn) request(m Message, body []byte, gate *creditGate, next *int64) error {
	isCall := next != nil
	res, err := c.http.Exchange(c.ctx, "altar: "+typeOf(m), body, isCall)
	if e, ok := errors.AsType[*httpx.Error](err); ok && e.Status != 0 {
		if answer, _ := DecodeMessage(e.Body, 0); answer != nil {
			return c.answered(m, answer)
		}
	}
	if err != nil {
		return err
	}
	defer res.Close()
	if res.Reader == nil {
		return nil
	}
	return c.receive(m, res, gate, next)
}

// receive takes in the messages of a response.
func (c *httpConn) receive(m Message, res *transport.Response, gate *creditGate, next *int64) error {
	isCall := next != nil
	for {
		frame, err := res.Read()
		var got Message
		if err == nil {
			got, err = DecodeMessage(bytes.Clone(frame), c.opts.MaxMessage)
		} else {
			err = notRead(err)
		}
		switch _, isBad := errors.AsType[*badFrame](err); {
		case isBad:
			c.deliver(nil, err)
			if !isCall || res.Kind == transport.TypeJSON {
				return err // the response has no further message
			}
			continue
		case errors.Is(err, io.EOF):
			return io.ErrUnexpectedEOF
		case err != nil:
			return err
		}
		if !isCall || last(got) {
			return c.answered(m, got)
		}
		chunk, isChunk := got.(*StreamChunk)
		if isChunk && gate != nil {
			if err := gate.wait(c.ctx, chunk.ChunkID); err != nil {
				return err
			}
		}
		c.deliver(got, nil)
		if isChunk {
			*next = max(*next, chunk.ChunkID+1)
		}
	}
}

// answered delivers the last message of an exchange.
func (c *httpConn) answered(m, got Message) error {
	if e, ok := got.(*ErrorMessage); ok && e.RequestID == "" {
		e.RequestID = m.head().RequestID // the only request of this exchange
	}
	c.deliver(got, nil)
	return nil
}
