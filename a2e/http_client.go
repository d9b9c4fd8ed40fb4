// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/a2e/internal/wire"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/netguard"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/internal/sse"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// HTTPDialOptions adjusts [DialHTTP]. The zero value is right for production.
type HTTPDialOptions struct {
	// HTTPClient sends the requests. It must have no Timeout, which would end the stream. Nil means
	// a client that follows no redirect.
	HTTPClient *http.Client

	// Header is added to every request, for authorization by a proxy of the host.
	Header http.Header

	// AllowInsecure permits http to hosts other than this machine. The token of the handshake is
	// then sent unencrypted (A2E-154).
	AllowInsecure bool

	// SendPath and StreamPath replace /send and /stream.
	SendPath, StreamPath string

	// MaxMessage bounds a message of the host, in addition to the bound of the client. Zero means 16 MiB; a
	// negative value removes the bound.
	MaxMessage int

	// ResumeTimeout is how long a message is tried again while the host of a durable session is not
	// reached. Zero means 60 s; a negative value tries three times, as without such a session.
	ResumeTimeout time.Duration

	// Logger receives failed attempts. Nil means slog.Default().
	Logger *slog.Logger
}

const postTimeout = 30 * time.Second

// DialHTTP returns a connection to a host over HTTP, for [NewClient]. The handshake opens the
// session, so that a host which cannot be reached fails [Client.Connect]. A broken stream of messages is
// reopened with growing delays of at most 30 s, and hosts that number their messages replay the lost
// ones (A2E-D42). A message that cannot be posted is tried three times; hosts do not run it twice. A
// message that the host refuses fails alone. The session ends if the host does not know it, or refuses the stream
// or a message by 401 or 403.
func DialHTTP(ctx context.Context, base string, opts *HTTPDialOptions) (io.ReadWriteCloser, error) {
	c := &httpConn{}
	if opts != nil {
		c.opts = *opts
	}
	c.opts.SendPath, c.opts.StreamPath = cmp.Or(c.opts.SendPath, "/send"), cmp.Or(c.opts.StreamPath, "/stream")
	c.opts.Logger = cmp.Or(c.opts.Logger, slog.Default())
	c.opts.ResumeTimeout = cmp.Or(c.opts.ResumeTimeout, time.Minute)
	hosts := &netguard.Guard{AllowLoopback: true, AllowPrivate: true} // the operator names the host
	var err error
	if c.base, err = hosts.URL(strings.TrimSuffix(base, "/"), c.opts.AllowInsecure); err != nil {
		return nil, fmt.Errorf("a2e: dial http: %w", err)
	}
	if c.base.Scheme != "http" && c.base.Scheme != "https" {
		return nil, fmt.Errorf("a2e: dial http: got scheme %q, want http or https", c.base.Scheme)
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("a2e: dial http: %w", context.Cause(ctx))
	}
	c.client = httpx.NewClient(&httpx.ClientOptions{HTTPClient: c.opts.HTTPClient, AllowInsecure: c.opts.AllowInsecure})
	c.opened = make(chan struct{})
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.in = newHalf()
	c.stream.Go(c.follow)
	return c, nil
}

// An httpConn is an HTTP session as a stream of lines.
type httpConn struct {
	opts   HTTPDialOptions
	base   *url.URL
	client *httpx.Client
	opened chan struct{} // closed when secret is set
	secret string
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	in     *half // messages of the host
	out    lineSplitter
	stream sync.WaitGroup
	once   sync.Once

	batch      atomic.Int64 // bytes of a body of several lines; 0 for none
	resumes    atomic.Bool  // the session survives its host
	isNumbered atomic.Bool  // the host numbers its messages, and replays lost ones
	isCounting bool         // the numbers were 1, 2 and so on; of the goroutine that reads
	refusal    func(id string, err *Error)
	end        atomic.Pointer[CloseError]
}

// request returns a request of the session.
func (c *httpConn) request(method, path string, body []byte) *httpx.Request {
	u := *c.base
	u.Path += path
	if u.RawPath != "" {
		u.RawPath += path
	}
	r := &httpx.Request{Op: "a2e: " + strings.ToLower(method) + " " + path, Method: method, URL: &u,
		Header: http.Header{}, Body: body, Limit: 64 << 10}
	maps.Copy(r.Header, c.opts.Header)
	if c.secret != "" {
		r.Header.Set(sessionHeader, c.secret)
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	return r
}

// open opens the session with its first line, which older hosts get again by /send (A2E-D61).
func (c *httpConn) open(line []byte) error {
	ctx, cancel := context.WithTimeout(c.ctx, postTimeout)
	defer cancel()
	body, _, err := c.client.Fetch(ctx, c.request(http.MethodPost, "/session", line))
	var e *httpx.Error
	if errors.As(err, &e) && e.Status >= 400 && e.Status < 500 && e.Status != http.StatusUnauthorized && e.Status != http.StatusForbidden {
		body, _, err = c.client.Fetch(ctx, c.request(http.MethodPost, "/session", nil))
	}
	if err != nil {
		if errors.As(err, &e) {
			c.endedWith(e)
		}
		return fmt.Errorf("a2e: open session: %w", err)
	}
	v, err := strictjson.Check(body, strictjson.Options{})
	if err != nil {
		return fmt.Errorf("a2e: open session: the answer of the host: %w", err)
	}
	secret, ok := v.Get("session_id").Text()
	if !ok || secret == "" || strings.ContainsFunc(secret, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("a2e: open session: the host named no session")
	}
	c.secret = secret
	close(c.opened)
	if isTaken, _ := v.Get("taken").Bool(); isTaken {
		return nil
	}
	return c.post(line)
}

func (c *httpConn) Read(b []byte) (int, error) { return c.in.read(b) }

func (c *httpConn) extensions() []string { return []string{featureBatch, featureResume} }

func (c *httpConn) agree(extensions []string, host bounds) {
	batch := 0
	if slices.Contains(extensions, featureBatch) {
		batch = maxBatch
		if host.bytes > 0 {
			batch = min(batch, host.bytes)
		}
	}
	c.batch.Store(int64(batch))
	c.resumes.Store(c.opts.ResumeTimeout > 0 && slices.Contains(extensions, featureResume))
}

func (c *httpConn) maxMessage() int { return c.opts.MaxMessage }

func (c *httpConn) onRefusal(f func(id string, err *Error)) { c.refusal = f }

// maxBatch bounds the bytes of several messages in one body.
const maxBatch = 1 << 20

// Write posts the lines one after the other, or several in one body if the host agreed to batches.
func (c *httpConn) Write(b []byte) (int, error) {
	var batch []byte // with an LF behind each line but the last
	n, err := c.out.write(b, func(line []byte) error {
		if batch != nil && int64(len(batch)+1+len(line)) <= c.batch.Load() {
			batch = append(append(batch, '\n'), line...)
			return nil
		}
		ready := batch
		batch = slices.Clip(line)
		return c.post(ready)
	})
	if err == nil {
		err = c.post(batch)
	}
	return n, err
}

// post sends a body. If the host refuses a body of several lines, each line is sent alone. A line
// that the host refuses fails its call (A2E-D36).
func (c *httpConn) post(line []byte) error {
	switch {
	case line == nil:
		return nil
	case c.secret == "":
		return c.open(line)
	}
	err := c.postRepeatedly(line)
	var e *httpx.Error
	switch {
	case err == nil:
		return nil
	case c.ctx.Err() != nil:
		return io.ErrClosedPipe
	case !errors.As(err, &e):
	case e.Status == http.StatusNotFound || e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden:
		c.endedWith(e)
		c.in.close(false)
	case isRefusal(e.Status):
		return c.postEach(line, e)
	}
	c.endedWith(e)
	return fmt.Errorf("a2e: send: %w", err)
}

// postEach posts the messages of a refused body one by one, and refuses that of a body with one.
func (c *httpConn) postEach(line []byte, e *httpx.Error) error {
	if bytes.IndexByte(line, '\n') < 0 {
		c.refused(line, e)
		return nil
	}
	for one := range bytes.SplitSeq(line, []byte{'\n'}) {
		if err := c.post(one); err != nil {
			return err
		}
	}
	return nil
}

// postRepeatedly posts a body until it arrives, at most three times or, if sessions continue in other processes, for
// ResumeTimeout.
func (c *httpConn) postRepeatedly(line []byte) error {
	policy := retry.Policy{MaxAttempts: 3, Base: time.Second, Max: 30 * time.Second, Logger: c.opts.Logger, Subject: "a2e: message"} // A2E-138
	send := func(ctx context.Context, _ int) error {                                                                                 // the host drops a repeated message (A2E-D13)
		ctx, cancel := context.WithTimeout(ctx, postTimeout)
		defer cancel()
		_, _, err := c.client.Fetch(ctx, c.request(http.MethodPost, c.opts.SendPath, line))
		return err
	}
	start := time.Now()
	err := retry.Do(c.ctx, policy, true, send)
	for c.resumes.Load() && c.ctx.Err() == nil && err != nil && retry.ClassOf(err) != retry.Permanent &&
		time.Since(start) < c.opts.ResumeTimeout { // another process continues the session (A2E-D67)
		policy.Base, policy.Max = 5*time.Second, 5*time.Second
		_ = retry.Sleep(c.ctx, min(retry.After(err), policy.Max)) // Do ends at once if the host is away for long
		err = retry.Do(c.ctx, policy, true, send)
	}
	return err
}

// endedWith records the response, or the failure of the network, that ended the session.
func (c *httpConn) endedWith(e *httpx.Error) {
	switch {
	case e == nil:
	case e.Status == 0:
		c.setEnd(0, e.Cause)
	default:
		c.setEnd(e.Status, nil)
	}
}

// setEnd records the end of the session, unless there is an earlier one.
func (c *httpConn) setEnd(status int, cause error) {
	where := *c.base
	where.RawQuery = ""
	c.end.CompareAndSwap(nil, &CloseError{Kind: "http", Code: status, Text: where.String(), network: cause})
}

func (c *httpConn) cause() *CloseError { return c.end.Load() }

// isRefusal reports whether a status refuses a message and not the session (A2E-D36).
func isRefusal(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return false
	}
	return status >= 400 && status < 500
}

// refused fails the call of a line that the host refuses.
func (c *httpConn) refused(line []byte, e *httpx.Error) {
	c.opts.Logger.WarnContext(c.ctx, "a2e: message refused", "bytes", len(line), "err", e)
	answer := reasoned(ErrInvalidMessage, "refused", "the host answered "+strconv.Itoa(e.Status))
	if e.Status == http.StatusRequestEntityTooLarge {
		answer = reasoned(ErrInvalidMessage, ReasonTooLarge, "message is too large for the host")
	}
	answer.ReqID, _, _ = headMembers(line[:min(len(line), 4096)])
	if c.refusal != nil {
		c.refusal(answer.ReqID, answer)
	}
}

// follow keeps the stream open until the session ends.
func (c *httpConn) follow() {
	defer c.in.close(false)
	select {
	case <-c.opened:
	case <-c.ctx.Done():
		return
	}
	last := ""
	policy := retry.Policy{Base: time.Second, Logger: c.opts.Logger, Subject: "a2e: stream", MaxNow: func() time.Duration {
		if c.resumes.Load() {
			return 5 * time.Second
		}
		return 30 * time.Second
	}}
	err := retry.Loop(c.ctx, policy, func(ctx context.Context, connected func()) error {
		for {
			before := last
			err := c.readStream(ctx, &last, connected)
			var e *httpx.Error
			switch {
			case errors.Is(err, sse.ErrTooLarge):
				// The host would send it again after each reconnection (A2E-D06). Numeric ids count the
				// messages (A2E-D42). Other hosts send it again, so the next connection waits for the backoff
				// unless the stream had later messages than earlier streams.
				c.opts.Logger.WarnContext(ctx, "a2e: message skipped", "reason", "too_large", "after", last)
				start, _ := messageNumber(before)
				n, bad := messageNumber(last)
				if bad != nil {
					return err
				}
				last = strconv.FormatUint(n+1, 10)
				if n <= start {
					return err
				}
			case errors.Is(err, io.EOF) && last != before: // the end of the session, or of a connection that was in use
			case errors.As(err, &e) && e.Status == http.StatusNotFound:
				return retry.Mark(err, retry.Permanent, 0) // the session has ended
			default:
				return err
			}
		}
	})
	var e *httpx.Error
	if c.ctx.Err() == nil && errors.As(err, &e) {
		c.endedWith(e)
	}
}

// messageNumber returns the number of an event id, which is 0 before the first one.
func messageNumber(id string) (uint64, error) { return strconv.ParseUint("0"+id, 10, 63) }

// streamSilence is the time without a byte after which the stream of a host that numbers its messages is opened
// again: a network can lose a connection without a sign. By default such a host sends a comment every 15 seconds.
const streamSilence = 45 * time.Second

// A watchedReader restarts a timer with each read.
type watchedReader struct {
	io.Reader
	timer *time.Timer
}

func (r watchedReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if n > 0 {
		r.timer.Reset(streamSilence)
	}
	return n, err
}

// readStream reads messages until the stream ends.
func (c *httpConn) readStream(ctx context.Context, last *string, connected func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(streamSilence, func() {
		if c.isNumbered.Load() {
			cancel()
		}
	})
	defer silence.Stop()
	r := c.request(http.MethodGet, c.opts.StreamPath, nil)
	r.Accept, r.Limit = []string{"text/event-stream"}, -1
	if *last != "" {
		r.Header.Set("Last-Event-ID", *last)
	}
	resp, err := c.client.Do(ctx, r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	connected()
	in := newEventReader(watchedReader{resp.Body, silence}, &Codec{MaxMessage: c.opts.MaxMessage})
	for isFirst := true; ; isFirst = false {
		data, err := in.next()
		if err != nil {
			return err
		}
		if err := c.count(*last, in.lastID(), isFirst); err != nil {
			return retry.Mark(err, retry.Permanent, 0)
		}
		if _, err := c.in.write(append(slices.Clip(oneLine(data)), '\n')); err != nil {
			return retry.Mark(err, retry.Permanent, 0)
		}
		if id := in.lastID(); id != "" && id != *last {
			*last = id
			connected()
		}
	}
}

// count notes the id of a message, and fails if messages are lost between two streams: then no answer to some calls
// would arrive (A2E-D42).
func (c *httpConn) count(last, id string, isFirst bool) error {
	if id == "" {
		return nil
	}
	before, _ := messageNumber(last)
	n, bad := messageNumber(id)
	c.isNumbered.Store(bad == nil)
	if n > before+1 && isFirst && c.isCounting {
		err := fmt.Errorf("stream continues at message %d after message %d", n, before)
		c.setEnd(0, err)
		return err
	}
	if n != before {
		c.isCounting = bad == nil && n == before+1 && (c.isCounting || n == 1)
	}
	return nil
}

// oneLine joins data of several lines into one line. Invalid JSON stays invalid.
func oneLine(data []byte) []byte {
	if bytes.IndexByte(data, '\n') < 0 {
		return data
	}
	if v, err := wire.CheckJSON(data); err == nil {
		return strictjson.AppendCompact(nil, v)
	}
	return bytes.ReplaceAll(data, []byte{'\n'}, []byte{'\r'})
}

// CloseWrite ends the stream of the host after the last message, which is a shutdown.
func (c *httpConn) CloseWrite() error {
	c.cancel()
	return nil
}

// Close ends the session on both sides.
func (c *httpConn) Close() error {
	c.once.Do(func() {
		c.cancel()
		c.in.close(true)
		c.stream.Wait()
		select {
		case <-c.opened:
			ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
			defer cancel()
			_, _, _ = c.client.Fetch(ctx, c.request(http.MethodDelete, "/session", nil)) // best effort: a deployed host answers 405
		default:
		}
		c.client.Close()
	})
	return nil
}
