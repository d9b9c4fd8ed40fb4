// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/backoff"
)

// ClientOptions adjusts a [Client]. The zero value is right for production.
type ClientOptions struct {
	// HTTPClient sends the requests and decides about proxies, certificates and
	// tracing. Redirects are never followed (ARC-D14). Nil means a private
	// client, whose connections Close releases.
	HTTPClient *http.Client

	// TokenSource supplies the access token of each request. Nil sends none.
	TokenSource TokenSource

	// AllowInsecure permits plain http to hosts other than this machine (ARC-001).
	AllowInsecure bool

	// Timeout bounds one call, its retries included. Zero means 60 s, less than
	// zero no bound. Streams have no such bound.
	Timeout time.Duration

	// IdleTimeout bounds the silence of a stream. Zero means 60 s, less than
	// zero no bound.
	IdleTimeout time.Duration

	// MaxMessage bounds one answer in bytes. Zero means 64 MiB.
	MaxMessage int64

	// MaxEvent bounds the data of one event of a stream in bytes. Zero means
	// 16 MiB.
	MaxEvent int

	// MaxRetries bounds how often a request is sent again after a network error
	// (ARC-D49). Zero means 2, less than zero never.
	MaxRetries int

	// Idempotent states that the server answers a repeated request id with
	// the first answer (ARC-D48). Then every method is sent again when a
	// connection is lost, and not only those that change nothing.
	Idempotent bool

	// MaxRetryAfter is the longest Retry-After of a 429 or 503 response that the
	// client waits for before it sends again. These attempts count towards
	// MaxRetries. Zero disables them.
	MaxRetryAfter time.Duration

	// MaxResumes, if set, is how often in a row a stream that was cut is taken up
	// again after the last event that carried an id. Only for servers that are
	// known to replay: another one would run the request a second time.
	MaxResumes int

	// SendAgentPath sends the agents that a workflow has passed through, so that
	// servers can refuse cycles (ARC-D65).
	SendAgentPath bool

	// TraceParent, if set, returns the W3C traceparent of the current span or "". It
	// connects requests with the caller's tracing (ARC-D64).
	TraceParent func(ctx context.Context) string

	// Interceptors and StreamInterceptors wrap every call and every stream, the
	// first one outermost.
	Interceptors       []Interceptor
	StreamInterceptors []StreamInterceptor

	// OnUnknownEvent, if set, is called with each stream event of an unknown
	// type. The data are valid only during the call.
	OnUnknownEvent func(name string, data []byte)

	// Logger receives what no error reports, such as retries. Nil is silent.
	Logger *slog.Logger
}

// A Client sends requests as one agent to one endpoint. All its methods may be
// called from several goroutines.
//
// A failure that the peer reports is an [*Error]. An HTTP status without an ARC
// answer is an [*HTTPError]; an answer that cannot be used wraps [ErrNotJSON],
// [ErrVersionMismatch], [ErrInvalidResponse], [ErrIDMismatch], [ErrInvalidResult],
// [ErrTooLarge] or [ErrRedirect]; one that does not come in time wraps
// [ErrTimeout]. A request that no server could read is refused here, with the same
// [*Error].
type Client struct {
	opts     ClientOptions
	endpoint *url.URL
	self     string
	http     http.Client
	own      *http.Transport // nil if the user gave the HTTP client
	wait     backoff.Backoff
	call     CallFunc
	stream   StreamFunc
	buffers  sync.Pool // of *buffers

	// Header values that never change, so that a request need not make them.
	contentType, accept, acceptStream []string
}

// NewClient returns a client that calls the endpoint as the agent self. The
// endpoint is complete: its path, usually "/arc", is part of it. NewClient does no
// I/O. Plain http is accepted only for the loopback interface (ARC-001).
func NewClient(endpoint, self string, opts *ClientOptions) (*Client, error) {
	c := &Client{self: self, contentType: []string{MediaType},
		accept:       []string{MediaType + ", application/json"},
		acceptStream: []string{MediaTypeStream + ", " + MediaType}}
	if opts != nil {
		c.opts = *opts
	}
	o := &c.opts
	var err error
	if c.endpoint, err = parseEndpoint(endpoint, o.AllowInsecure); err != nil {
		return nil, err
	}
	if fault := checkAgentID("requestAgent", self); fault != nil {
		return nil, fault
	}
	c.http, c.own = httpClient(o.HTTPClient)
	o.Timeout = orDefault(o.Timeout, 60*time.Second)
	o.IdleTimeout = orDefault(o.IdleTimeout, 60*time.Second)
	if o.MaxMessage <= 0 {
		o.MaxMessage = 64 << 20
	}
	if o.MaxRetries == 0 {
		o.MaxRetries = 2
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	c.wait = backoff.Backoff{Base: 200 * time.Millisecond, Jitter: 0.2}
	c.buffers.New = func() any { return new(buffers) }
	c.call = c.send
	for i := len(o.Interceptors) - 1; i >= 0; i-- {
		c.call = o.Interceptors[i](c.call)
	}
	c.stream = c.openStream
	for i := len(o.StreamInterceptors) - 1; i >= 0; i-- {
		c.stream = o.StreamInterceptors[i](c.stream)
	}
	return c, nil
}

// Close releases idle connections. Calls in progress continue.
func (c *Client) Close() error {
	if c.own != nil {
		c.own.CloseIdleConnections()
	}
	return nil
}

// httpClient returns a copy of the user's client that does not follow redirects,
// or a new one.
func httpClient(user *http.Client) (http.Client, *http.Transport) {
	h, own := http.Client{}, (*http.Transport)(nil)
	if user != nil {
		h = *user
	} else if t, ok := http.DefaultTransport.(*http.Transport); ok {
		own = t.Clone()
		own.MaxIdleConnsPerHost = own.MaxIdleConns // one host is all there is
		h.Transport = own
	}
	h.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return h, own
}

func orDefault(d, otherwise time.Duration) time.Duration {
	if d == 0 {
		return otherwise
	}
	return d
}

// parseEndpoint reads the URL of an endpoint and holds it to ARC-001.
func parseEndpoint(endpoint string, allowHTTP bool) (*url.URL, error) {
	u, err := url.Parse(endpoint)
	switch {
	case err != nil:
		return nil, fmt.Errorf("arc: endpoint: %w", err)
	case u.Hostname() == "":
		return nil, errors.New("arc: endpoint: not an absolute URL")
	case u.User != nil || u.Fragment != "":
		return nil, errors.New("arc: endpoint: must not hold credentials or a fragment")
	case u.Scheme == "https":
	case u.Scheme != "http":
		return nil, fmt.Errorf("arc: endpoint: scheme %q is not supported", u.Scheme)
	case !allowHTTP && !loopback(u.Hostname()):
		return nil, errors.New("arc: endpoint: must be https, unless AllowHTTP permits http")
	}
	return u, nil
}

func loopback(host string) bool {
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// CreateTask asks agent target to start a task and returns it as accepted,
// usually still SUBMITTED (ARC-072).
func (c *Client) CreateTask(ctx context.Context, target string, p *CreateTaskParams, opts ...CallOptions) (*Task, error) {
	return taskOf(c.standard(ctx, target, MethodTaskCreate, p.write, opts))
}

// SendTaskInput gives a task in INPUT_REQUIRED the input that it waits for.
func (c *Client) SendTaskInput(ctx context.Context, target string, p *SendTaskParams, opts ...CallOptions) error {
	_, err := c.standard(ctx, target, MethodTaskSend, p.write, opts)
	return err
}

// GetTask returns the present state of a task with its history and artifacts.
func (c *Client) GetTask(ctx context.Context, target string, p *TaskInfoParams, opts ...CallOptions) (*Task, error) {
	return taskOf(c.standard(ctx, target, MethodTaskInfo, p.write, opts))
}

// CancelTask stops a task before it has completed.
func (c *Client) CancelTask(ctx context.Context, target string, p *CancelTaskParams, opts ...CallOptions) (*Task, error) {
	return taskOf(c.standard(ctx, target, MethodTaskCancel, p.write, opts))
}

// SubscribeTask registers a webhook for the events of a task.
func (c *Client) SubscribeTask(ctx context.Context, target string, p *SubscribeParams, opts ...CallOptions) (*Subscription, error) {
	res, err := c.standard(ctx, target, MethodTaskSubscribe, p.write, opts)
	if err != nil {
		return nil, err
	}
	return res.Subscription, nil
}

// Notify tells agent target of a task's event. Only the HTTP status of the answer
// counts (ARC-114), so every refusal is an [*HTTPError].
func (c *Client) Notify(ctx context.Context, target string, n *Notification, opts ...CallOptions) error {
	_, err := c.standard(ctx, target, MethodTaskNotification, n.write, opts)
	return err
}

// StartChat begins a chat with its first message and returns the complete answer.
// If the chat's status is CLOSED, the agent keeps no history, and the chat is over
// (ARC-D33).
func (c *Client) StartChat(ctx context.Context, target string, p *StartChatParams, opts ...CallOptions) (*Chat, error) {
	q := *p
	q.Stream = false
	return chatOf(c.standard(ctx, target, MethodChatStart, q.write, opts))
}

// SendChatMessage continues a chat and returns the complete answer. From a peer that
// only acknowledges, the chat has an id and nothing else (ARC-D31).
func (c *Client) SendChatMessage(ctx context.Context, target string, p *ChatMessageParams, opts ...CallOptions) (*Chat, error) {
	q := *p
	q.Stream = false
	chat, err := chatOf(c.standard(ctx, target, MethodChatMessage, q.write, opts))
	if err == nil && chat == nil {
		chat = &Chat{ID: p.ChatID}
	}
	return chat, err
}

// EndChat closes a chat.
func (c *Client) EndChat(ctx context.Context, target string, p *EndChatParams, opts ...CallOptions) (*Chat, error) {
	return chatOf(c.standard(ctx, target, MethodChatEnd, p.write, opts))
}

// StreamChat is like StartChat, but streams the answer; see [Client.Stream] for
// the guarantees of a stream.
func (c *Client) StreamChat(ctx context.Context, target string, p *StartChatParams, opts ...CallOptions) iter.Seq2[*ChatEvent, error] {
	q := *p
	q.Stream = true
	return c.Stream(ctx, target, MethodChatStart, &q, opts...)
}

// StreamChatMessage is like SendChatMessage, but streams the answer; see
// [Client.Stream] for the guarantees of a stream.
func (c *Client) StreamChatMessage(ctx context.Context, target string, p *ChatMessageParams, opts ...CallOptions) iter.Seq2[*ChatEvent, error] {
	q := *p
	q.Stream = true
	return c.Stream(ctx, target, MethodChatMessage, &q, opts...)
}

func taskOf(res Result, err error) (*Task, error) {
	if err != nil {
		return nil, err
	}
	return res.Task, nil
}

func chatOf(res Result, err error) (*Chat, error) {
	if err != nil {
		return nil, err
	}
	return res.Chat, nil
}
