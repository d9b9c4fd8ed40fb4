// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/backoff"
	"github.com/fivewire/fivewire/internal/netguard"
	"github.com/fivewire/fivewire/internal/sse"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// HTTPDialOptions adjusts [DialHTTP]. The zero value is right for production.
type HTTPDialOptions struct {
	// HTTPClient sends the requests. It must have no Timeout, which would cut
	// the stream. Nil means one that follows no redirect.
	HTTPClient *http.Client

	// Header goes with every request, for authorization in front of the host.
	Header http.Header

	// AllowInsecure permits http to hosts that are not this one. The token
	// of the handshake can be read on the way then (A2E-154).
	AllowInsecure bool

	// SendPath and StreamPath replace /send and /stream.
	SendPath, StreamPath string

	// MaxMessage bounds a message of the host. Zero means 16 MiB, negative no
	// bound.
	MaxMessage int

	// Logger receives failed attempts. Nil is silent.
	Logger *slog.Logger
}

const (
	postAttempts = 3 // A2E-138
	postTimeout  = 30 * time.Second
)

// DialHTTP opens a session with a host over HTTP, for [NewClient]. The stream of
// the host's messages is opened again when it breaks, after 1, 2, 4 and at most
// 30 seconds, and what was lost is replayed by hosts that number their messages
// (A2E-D42). A message that cannot be posted is tried three times; hosts do not
// run it twice. The session ends when the host does not know it any more.
func DialHTTP(ctx context.Context, base string, opts *HTTPDialOptions) (io.ReadWriteCloser, error) {
	c := &httpConn{}
	if opts != nil {
		c.opts = *opts
	}
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("a2e: dial http: %q is no http or https URL", clip(base, 200))
	}
	if u.Scheme == "http" && !netguard.Loopback(u.Hostname()) && !c.opts.AllowInsecure {
		return nil, fmt.Errorf("a2e: dial http: plain http to %s would show the token to everybody on the way", u.Hostname())
	}
	c.base = strings.TrimSuffix(base, "/")
	if c.opts.HTTPClient == nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		c.opts.HTTPClient = &http.Client{Transport: transport, CheckRedirect: netguard.NoRedirect}
		c.idle = transport.CloseIdleConnections
	}
	if c.opts.SendPath == "" {
		c.opts.SendPath = "/send"
	}
	if c.opts.StreamPath == "" {
		c.opts.StreamPath = "/stream"
	}
	if c.opts.Logger == nil {
		c.opts.Logger = slog.New(slog.DiscardHandler)
	}
	if err := c.open(ctx); err != nil {
		return nil, fmt.Errorf("a2e: dial http: %w", err)
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.in = newHalf()
	c.stream.Go(c.follow)
	return c, nil
}

// An httpConn is an HTTP session as a stream of lines.
type httpConn struct {
	opts   HTTPDialOptions
	base   string
	secret string
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	in     *half // what the host sends
	stream sync.WaitGroup
	once   sync.Once
	idle   func() // closes the connections of a client of its own
}

func (c *httpConn) request(ctx context.Context, method, path string, body []byte) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for name, values := range c.opts.Header {
		r.Header[name] = values
	}
	if c.secret != "" {
		r.Header.Set(sessionHeader, c.secret)
	}
	return r, nil
}

func (c *httpConn) open(ctx context.Context) error {
	r, err := c.request(ctx, http.MethodPost, "/session", nil)
	if err != nil {
		return err
	}
	resp, err := c.opts.HTTPClient.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the host answered %s", resp.Status)
	}
	v, err := strictjson.Check(body, strictjson.Options{})
	if err != nil {
		return fmt.Errorf("the host's answer: %w", err)
	}
	secret, ok := v.Get("session_id").Text()
	if !ok || secret == "" || strings.ContainsFunc(secret, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("the host named no session")
	}
	c.secret = secret
	return nil
}

func (c *httpConn) Read(b []byte) (int, error) { return c.in.read(b) }

// Write posts each line on its own, one after the other.
func (c *httpConn) Write(b []byte) (int, error) {
	n := 0
	for line := range bytes.Lines(b) {
		if err := c.post(bytes.TrimSuffix(line, []byte{'\n'})); err != nil {
			return n, err
		}
		n += len(line)
	}
	return n, nil
}

func (c *httpConn) post(line []byte) error {
	wait := backoff.Backoff{Base: time.Second, Max: 30 * time.Second}
	for attempt := 1; ; attempt++ {
		again, err := c.postOnce(line)
		if err == nil {
			return nil
		}
		if !again || attempt == postAttempts {
			return fmt.Errorf("a2e: send: %w", err)
		}
		c.opts.Logger.Warn("a2e: message is sent again", "attempt", attempt, "err", err)
		if err := wait.Wait(c.ctx, attempt); err != nil {
			return io.ErrClosedPipe
		}
	}
}

func (c *httpConn) postOnce(line []byte) (again bool, err error) {
	ctx, cancel := context.WithTimeout(c.ctx, postTimeout)
	defer cancel()
	r, err := c.request(ctx, http.MethodPost, c.opts.SendPath, line)
	if err != nil {
		return false, err
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := c.opts.HTTPClient.Do(r)
	if err != nil {
		return c.ctx.Err() == nil, err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) // so that the connection is used again
	switch {
	case resp.StatusCode == http.StatusOK:
		return false, nil
	case resp.StatusCode == http.StatusNotFound:
		c.in.close(false)
	}
	return resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests, fmt.Errorf("the host answered %s", resp.Status)
}

// follow keeps the stream open until the session ends.
func (c *httpConn) follow() {
	defer c.in.close(false)
	wait := backoff.Backoff{Base: time.Second, Max: 30 * time.Second}
	last := ""
	for attempt := 1; ; attempt++ {
		opened, err := c.readStream(&last)
		if errors.Is(err, sse.ErrTooLarge) {
			// It would come again and again (A2E-D06). Where ids are numbers, they count
			// the messages (A2E-D42).
			c.opts.Logger.Warn("a2e: a message of the host is too large and is passed over", "after", last)
			if n, bad := strconv.ParseUint("0"+last, 10, 63); bad == nil {
				last = strconv.FormatUint(n+1, 10)
			}
		}
		switch {
		case c.ctx.Err() != nil || errors.Is(err, errSessionGone):
			return
		case opened:
			attempt = 1
		}
		c.opts.Logger.Info("a2e: the stream of the host is opened again", "err", err)
		if wait.Wait(c.ctx, attempt) != nil {
			return
		}
	}
}

var errSessionGone = errors.New("a2e: the host does not know the session any more")

func (c *httpConn) readStream(last *string) (opened bool, err error) {
	r, err := c.request(c.ctx, http.MethodGet, c.opts.StreamPath, nil)
	if err != nil {
		return false, err
	}
	r.Header.Set("Accept", "text/event-stream")
	if *last != "" {
		r.Header.Set("Last-Event-ID", *last)
	}
	resp, err := c.opts.HTTPClient.Do(r)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNotFound:
		return false, errSessionGone
	case resp.StatusCode != http.StatusOK:
		return false, fmt.Errorf("the host answered %s", resp.Status)
	}
	in := NewEventReader(resp.Body, &Codec{MaxMessage: c.opts.MaxMessage})
	for {
		data, err := in.Next()
		if err != nil {
			return true, err
		}
		if _, err := c.in.write(append(slices.Clip(oneLine(data)), '\n')); err != nil {
			return true, err
		}
		if id := in.LastID(); id != "" {
			*last = id
		}
	}
}

// oneLine makes data that came in several lines one. What is no JSON stays none.
func oneLine(data []byte) []byte {
	if bytes.IndexByte(data, '\n') < 0 {
		return data
	}
	if v, err := strictjson.Check(data, strictjson.Options{MaxDepth: 10000}); err == nil {
		return strictjson.AppendCompact(nil, v)
	}
	return bytes.ReplaceAll(data, []byte{'\n'}, []byte{'\v'})
}

// Close ends the session on both sides.
func (c *httpConn) Close() error {
	c.once.Do(func() {
		c.cancel()
		c.in.close(true)
		c.stream.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if r, err := c.request(ctx, http.MethodDelete, "/session", nil); err == nil {
			if resp, err := c.opts.HTTPClient.Do(r); err == nil {
				_ = resp.Body.Close() // it is best effort: a deployed host answers 405
			}
		}
		if c.idle != nil {
			c.idle()
		}
	})
	return nil
}
