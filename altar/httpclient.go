// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync"
)

// HTTPDialOptions adjusts [NewHTTP].
type HTTPDialOptions struct {
	// HTTPClient sends the requests. Nil means one that follows no redirect, so
	// that credentials go to this Host only.
	HTTPClient *http.Client

	// Header goes with every request, for authentication above all.
	Header http.Header

	// MaxMessage bounds a received message, in bytes. Zero means 4 MiB.
	MaxMessage int
}

// NewHTTP returns a client connection over HTTP (ALT-D05). Every message is one request, and
// streams are received as NDJSON. The url is the URL of the Host, with or without the path of
// messages. NewHTTP does no I/O. A failed request ends the connection, like a lost connection of
// another transport.
func NewHTTP(url string, opts *HTTPDialOptions) Conn {
	c := &httpConn{url: url, in: make(chan received), failed: make(chan struct{})}
	if opts != nil {
		c.opts = *opts
	}
	if !strings.HasSuffix(c.url, MessagesPath) {
		c.url = strings.TrimSuffix(c.url, "/") + MessagesPath
	}
	if c.opts.HTTPClient == nil {
		c.opts.HTTPClient = noRedirects()
	}
	if c.opts.MaxMessage <= 0 {
		c.opts.MaxMessage = DefaultMaxMessage
	}
	c.ctx, c.stop = context.WithCancel(context.Background())
	return c
}

func noRedirects() *http.Client {
	return &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

type httpConn struct {
	url  string
	opts HTTPDialOptions
	ctx  context.Context // ends with Close
	stop context.CancelFunc
	in   chan received

	mu     sync.Mutex     // so that nothing is sent behind Close
	wg     sync.WaitGroup // of requests; grows with mu held, and not once failed is closed
	err    error          // once failed is closed
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

// Close ends all requests and waits for their goroutines.
func (c *httpConn) Close() error {
	c.fail(ErrClosed)
	c.wg.Wait()
	return nil
}

func (c *httpConn) Send(m Message) error {
	body, err := AppendMessage(nil, m)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	c.wg.Go(func() {
		if err := c.exchange(m, body); err != nil {
			c.fail(fmt.Errorf("altar: %s over HTTP: %w", m.Type(), err))
		}
	})
	return nil
}

// deliver hands a message to Receive.
func (c *httpConn) deliver(m Message, err error) {
	select {
	case c.in <- received{m, err}:
	case <-c.failed:
	}
}

// exchange makes one request and takes in what it brings.
func (c *httpConn) exchange(m Message, body []byte) error {
	r, err := http.NewRequestWithContext(c.ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	for name, values := range c.opts.Header {
		r.Header[name] = values
	}
	r.Header.Set("Content-Type", typeJSON)
	call, isCall := m.(*ToolCall)
	if isCall && !call.CollectChunks {
		r.Header.Set("Accept", typeNDJSON)
	} else {
		r.Header.Set("Accept", typeJSON)
	}
	res, err := c.opts.HTTPClient.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode == http.StatusAccepted {
		return nil
	}
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if kind != typeJSON && kind != typeNDJSON {
		return fmt.Errorf("status %d without a message", res.StatusCode)
	}
	frames := NewFrameReader(res.Body, c.opts.MaxMessage)
	for {
		frame, err := frames.Next()
		var bad *DecodeError
		var got Message
		if err == nil {
			got, err = DecodeMessage(bytes.Clone(frame), &DecodeOptions{MaxMessage: c.opts.MaxMessage})
		}
		switch {
		case errors.As(err, &bad):
			c.deliver(nil, err)
			if !isCall || kind == typeJSON {
				return err // the response has no further message
			}
			continue
		case errors.Is(err, io.EOF):
			return io.ErrUnexpectedEOF
		case err != nil:
			return err
		}
		if e, ok := got.(*ErrorMessage); ok && e.RequestID == "" {
			e.RequestID = m.header().RequestID // the only request of this exchange
		}
		c.deliver(got, nil)
		if !isCall || last(got) {
			return nil
		}
	}
}
