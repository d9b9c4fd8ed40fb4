// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package httpx

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/netguard"
	"github.com/fivewire/fivewire/internal/retry"
)

// Causes of an [*Error], for [errors.Is]. A late attempt to connect has both of the first two.
var (
	ErrConnect  = errors.New("httpx: no connection") // the peer has surely not received the request
	ErrTimeout  = errors.New("httpx: timeout")
	ErrTooLarge = errors.New("httpx: message too large")
)

// An Error is a request that failed at a [Client] or that a server refuses.
type Error struct {
	Op      string // operation of the Client
	Method  string
	URL     string      // without user information, query and fragment
	Status  int         // of the response: a Client received it, a server should send it; 0 for none
	Message string      // the received and the expected response, or a text for the peer of a server
	Header  http.Header // of a received response
	Body    []byte      // of a received response, at most 64 KiB
	Cause   error
	class   retry.Class
	isIdle  bool // ErrConnect
}

// Error returns the operation, the URL, the message and the cause.
func (e *Error) Error() string {
	parts := []string{e.Op, strings.TrimSpace(e.Method + " " + e.URL), e.Message, ""}
	if e.Cause != nil {
		parts[3] = e.Cause.Error()
	}
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ": ")
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Is reports whether target is [ErrConnect] or [ErrTimeout] and a cause of e.
func (e *Error) Is(target error) bool {
	t, ok := errors.AsType[net.Error](e.Cause)
	return target == ErrConnect && e.isIdle || target == ErrTimeout && ok && t.Timeout()
}

// RetryClass returns the class of a failed request.
func (e *Error) RetryClass() retry.Class { return e.class }

// bare returns a URL without the parts that may hold a secret.
func bare(u *url.URL) string {
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}).String()
}

// ClientOptions adjust a [Client]. Redirects are never followed.
type ClientOptions struct {
	HTTPClient    *http.Client // nil means one that takes headers of up to 64 KiB and connects within 10 s
	Prefix        string       // of Op in errors
	AllowInsecure bool         // permits http to other hosts than this host
	MaxResponse   int64        // bytes of a response body; zero means 64 MiB, a negative value removes the bound

	// Guard decides which hosts a stranger may name, at each dial as far as
	// [netguard.Guard.Client] can. Nil means that the operator names the hosts, and allows all.
	Guard *netguard.Guard

	// Transport, if set, changes the transport of a nil HTTPClient; see [netguard.Guard.ChangedTransport].
	Transport func(*http.Transport)

	// Secrets adds the headers that authenticate a request to its origin, which is in lower case
	// and without a default port: "https://example.com".
	Secrets func(ctx context.Context, origin string, h http.Header) error
}

// A Client sends requests, concurrently if need be. Their context bounds the time of an exchange,
// streams included; the Client adds no bound.
type Client struct {
	opts     ClientOptions
	http     http.Client
	isNew    bool // http has its own transport
	isTraced bool // the transport reports its connections
	isPlain  bool // the transport requests no compression

	identity []string // value of Accept-Encoding
}

// NewClient returns a Client. Nil options mean the defaults.
func NewClient(opts *ClientOptions) *Client {
	c := new(Client)
	if opts != nil {
		c.opts = *opts
	}
	o := &c.opts
	o.MaxResponse = cmp.Or(o.MaxResponse, 64<<20)
	if o.Guard == nil {
		o.Guard = &netguard.Guard{AllowLoopback: true, AllowPrivate: true}
	}
	if o.HTTPClient == nil && o.Transport != nil {
		c.http, c.isNew = http.Client{Transport: o.Guard.ChangedTransport(o.Transport), CheckRedirect: netguard.NoRedirect}, true
	} else {
		c.http, c.isNew = o.Guard.Client(o.HTTPClient)
	}
	c.identity = []string{"identity"}
	if t, ok := c.http.Transport.(*http.Transport); ok {
		c.isTraced, c.isPlain = true, t.DisableCompression
	}
	return c
}

// Close closes the idle connections, unless they belong to HTTPClient.
func (c *Client) Close() {
	if c.isNew {
		c.http.CloseIdleConnections()
	}
}

// A Request is a request of a [Client], which does not modify it.
type Request struct {
	Op      string // operation, for errors: "create task"
	Method  string
	URL     *url.URL    // from [netguard.Guard.URL]
	Header  http.Header // must not change before the body of the response is closed
	Body    []byte      // nor must this
	Accept  []string    // media types of the response; empty means any
	Limit   int64       // replaces MaxResponse unless zero
	Upgrade bool        // expects the status 101 and returns the body as it is
}

// Do sends a request and returns a response with a 2xx status and an accepted media type; anything
// else is an [*Error]. So are errors of the body, except io.EOF. The caller closes the body.
func (c *Client) Do(ctx context.Context, r *Request) (*http.Response, error) {
	x := &exchange{Request: *r, client: c, left: uint64(cmp.Or(r.Limit, c.opts.MaxResponse))}
	x.trace.GotConn = func(httptrace.GotConnInfo) { x.isConnected.Store(true) }
	req := (&http.Request{
		Method: r.Method, URL: r.URL, Host: r.URL.Host, Header: r.Header, ContentLength: int64(len(r.Body)),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}).WithContext(httptrace.WithClientTrace(ctx, &x.trace))
	if len(r.Body) > 0 {
		x.body.Reset(r.Body)
		req.Body = io.NopCloser(&x.body) // a type that the transport writes together with the header
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(x.Body)), nil }
	}
	if err := x.prepare(ctx, req); err != nil {
		return nil, x.failed(err, true)
	}
	var res *http.Response
	err := guard.Call("HTTP client", func() (err error) {
		res, err = c.roundTrip(req)
		return err
	})
	if err != nil {
		return nil, x.failed(err, c.isTraced)
	}
	x.isConnected.Store(true)
	if r.Upgrade && res.StatusCode == http.StatusSwitchingProtocols {
		return res, nil
	}
	x.ReadCloser = res.Body
	if err := x.check(res); err != nil {
		_ = x.Close()
		return nil, err
	}
	res.Body = x
	return res, nil
}

var errNoResponse = errors.New("httpx: transport returned neither a response nor an error")

// roundTrip is [http.Client.Do] without the preparation of redirects, which this does not follow.
func (c *Client) roundTrip(req *http.Request) (*http.Response, error) {
	if c.http.Jar != nil || c.http.Timeout != 0 {
		return c.http.Do(req)
	}
	res, err := c.http.Transport.RoundTrip(req)
	if err == nil && res == nil {
		err = errNoResponse
	}
	if err != nil {
		return nil, &url.Error{Op: req.Method, URL: req.URL.String(), Err: err}
	}
	if res.Body == nil {
		res.Body = http.NoBody
	}
	return res, nil
}

// Fetch is [Client.Do] for a response that fits into memory. It returns the body, even if incomplete.
func (c *Client) Fetch(ctx context.Context, r *Request) ([]byte, *http.Response, error) {
	res, err := c.Do(ctx, r)
	if err != nil {
		return nil, nil, err
	}
	defer res.Body.Close()
	data, err := readAll(res.Body, res.ContentLength, -1)
	return data, res, err
}

// An exchange is a request, and the body of its response.
type exchange struct {
	Request
	io.ReadCloser // body of the response
	client        *Client
	body          bytes.Reader // of the request
	left          uint64       // bytes that may be read; a negative limit is a large one
	trace         httptrace.ClientTrace
	isConnected   atomic.Bool
}

// failed returns the error of an exchange without a usable response.
func (x *exchange) failed(err error, isTraced bool) *Error {
	e := &Error{Op: x.client.opts.Prefix + x.Op, Method: x.Method, URL: bare(x.URL), Cause: err, class: retry.ClassOf(err)}
	if u, ok := errors.AsType[*url.Error](err); ok {
		e.Cause = u.Err // the text of err has the query
	}
	switch isConnected := x.isConnected.Load(); {
	case errors.Is(err, netguard.ErrForbidden), errors.Is(err, ErrTooLarge):
		e.class, e.isIdle = retry.Permanent, !isConnected
	case e.class == retry.Unsent, isTraced && !isConnected: // without a trace, only err can show it
		e.isIdle = true
		if e.class == retry.Unknown {
			e.class = retry.Unsent
		}
	case isConnected:
		e.class = retry.Unknown
	}
	return e
}

// prepare checks the URL and adds the headers, last the secrets of the origin.
func (x *exchange) prepare(ctx context.Context, req *http.Request) error {
	o := &x.client.opts
	if err := o.Guard.CheckURL(x.URL, o.AllowInsecure); err != nil {
		return err
	}
	accepts := len(x.Accept) > 0 && req.Header["Accept"] == nil
	refusesGzip := !x.Upgrade && !x.client.isPlain
	if accepts || refusesGzip || o.Secrets != nil || req.Header == nil {
		req.Header = make(http.Header, len(x.Header)+4)
		maps.Copy(req.Header, x.Header)
	}
	if accepts {
		req.Header.Set("Accept", strings.Join(x.Accept, ", "))
	}
	if refusesGzip {
		req.Header["Accept-Encoding"] = x.client.identity
	}
	if o.Secrets == nil {
		return nil
	}
	host := strings.ToLower(x.URL.Host)
	if x.URL.Scheme == "https" {
		return o.Secrets(ctx, "https://"+strings.TrimSuffix(host, ":443"), req.Header)
	}
	return o.Secrets(ctx, "http://"+strings.TrimSuffix(host, ":80"), req.Header)
}

// errorTimeout bounds the time in which the body of a refusal arrives.
const errorTimeout = 10 * time.Second

// check returns an error unless the response is the expected one.
func (x *exchange) check(res *http.Response) error {
	h := res.Header
	_, hasType := MediaType(h.Get("Content-Type"), x.Accept...)
	isEmpty := res.ContentLength == 0 || res.StatusCode == http.StatusNoContent
	got, want := "", "status 2xx"
	switch {
	case x.Upgrade:
		want = "status 101"
	case res.StatusCode/100 != 2:
	case hasCoding(h):
		got, want = "content coding "+h.Get("Content-Encoding"), "none"
	case !hasType && !isEmpty:
		got, want = "media type "+strconv.Quote(h.Get("Content-Type")), strings.Join(x.Accept, " or ")
	default:
		return nil
	}
	got = cmp.Or(got, "status "+strconv.Itoa(res.StatusCode)+" "+http.StatusText(res.StatusCode))
	e := &Error{Op: x.client.opts.Prefix + x.Op, Method: x.Method, URL: bare(x.URL), Status: res.StatusCode, Header: h,
		class: retry.Unknown}
	e.Message = "got " + got + ", want " + want
	t := time.AfterFunc(errorTimeout, func() { _ = x.Close() }) // a stream has no deadline
	_ = guard.Call("HTTP client", func() error {
		e.Body, _ = readAll(io.LimitReader(res.Body, maxPart), -1, -1)
		return nil
	})
	t.Stop()
	if res.StatusCode/100 == 2 {
		return e // the peer may have processed the request
	}
	err := retry.MarkStatus(e, res.StatusCode, h)
	e.class = retry.ClassOf(err)
	return err
}

// Read reads from the body of the response.
func (x *exchange) Read(p []byte) (n int, err error) {
	err = guard.Call("HTTP client", func() (err error) {
		n, err = x.ReadCloser.Read(p)
		return err
	})
	if uint64(n) > x.left {
		return int(x.left), x.failed(ErrTooLarge, true)
	}
	x.left -= uint64(n)
	if err != nil && err != io.EOF {
		err = x.failed(err, true)
	}
	return n, err
}

// Close closes the body of the response.
func (x *exchange) Close() error { return guard.Call("HTTP client", x.ReadCloser.Close) }
