// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/fivewire/fivewire/arc/internal/endpoint"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/retry"
)

// ClientOptions adjusts a [Client]. The zero value is right for production.
type ClientOptions struct {
	// HTTPClient sends the requests and decides about proxies, certificates and
	// tracing. Its CheckRedirect is not used: redirects are followed within the origin
	// only (ARC-D14). Nil means a private client, whose connections Close releases.
	HTTPClient *http.Client

	// TokenSource supplies the access token of each request. Nil sends none.
	TokenSource TokenSource

	// AllowInsecure permits plain http to hosts other than this machine (ARC-001).
	AllowInsecure bool

	// Timeout bounds one call, its retries included. Zero means 60 s; a negative value
	// removes the bound. Streams have no such bound.
	Timeout time.Duration

	// IdleTimeout bounds the time without data of a stream. Zero means 60 s; a negative
	// value removes the bound.
	IdleTimeout time.Duration

	// Limits bound what is received.
	Limits ClientLimits

	// Retry specifies the attempts of a request that the server has surely not received
	// or that changes nothing (ARC-D49). Zero fields mean 3 attempts with delays below a
	// bound of 200 ms that doubles up to 10 s. MaxRetryAfter is the longest Retry-After
	// of a 429 or 503 response after which the request is repeated; zero and negative
	// values return such a response.
	Retry *RetryPolicy

	// Idempotent states that the server answers a repeated request id with
	// the first answer (ARC-D48). Then every method is sent again when a
	// connection is lost, and not only those that change nothing.
	Idempotent bool

	// MaxResumes is the maximum number of attempts in a row to continue a stream that was
	// cut after an event with an id. An attempt that gets 429, 502, 503 or 504 has failed. Zero
	// and negative values disable them. They are only for servers that replay: another
	// server would run the request a second time.
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

	// Logger receives retries and resumed streams. Nil means slog.Default().
	Logger *slog.Logger
}

// ClientLimits is a group of [ClientOptions]. A negative value removes a bound.
type ClientLimits struct {
	MaxMessage int // bytes of a response; zero means 64 MiB
	MaxEvent   int // bytes of the data of one event of a stream; zero means 16 MiB
}

// A Client sends requests as one agent to one endpoint. All its methods may be
// called from several goroutines.
//
// The errors of a call name the method, the target and the endpoint. A failure that the peer
// reports wraps an [*Error]. An HTTP status without an ARC answer wraps an [*HTTPError]; an
// answer that cannot be used wraps [ErrVersionMismatch], [ErrInvalidResponse], [ErrIDMismatch],
// [ErrInvalidResult], [ErrTooLarge] or [ErrRedirect]; one that does not come in time wraps
// [ErrTimeout]. A request that no server could read is refused here, with the [*Error] of a server.
type Client struct {
	opts     ClientOptions
	endpoint *url.URL
	self     string
	http     *httpx.Client
	life     *life.Life
	retry    retry.Policy
	call     CallFunc
	stream   StreamFunc
	buffers  sync.Pool // of *buffers

	// Header values of every request.
	contentType, accept, acceptStream []string
}

// NewClient returns a client that calls the endpoint target as the agent self. The
// URL is complete: its path, usually "/arc", is part of it. NewClient does no I/O. Plain
// http is accepted only for the loopback interface (ARC-001).
func NewClient(target, self string, opts *ClientOptions) (*Client, error) {
	c := &Client{self: self, contentType: []string{MediaType},
		accept:       []string{MediaType + ", application/json"},
		acceptStream: []string{mediaTypeStream + ", " + MediaType}}
	if opts != nil {
		c.opts = *opts
	}
	o := &c.opts
	var err error
	if c.endpoint, err = endpoint.Parse(target, o.AllowInsecure); err != nil {
		return nil, err
	}
	if fault := checkAgentID("requestAgent", self); fault != nil {
		return nil, fault
	}
	*o = o.withDefaults()
	c.retry = retry.Policy{MaxAttempts: o.Retry.MaxAttempts, Base: o.Retry.Base, Max: o.Retry.Max,
		MaxRetryAfter: o.Retry.MaxRetryAfter, Limiter: new(retry.Limiter), Logger: o.Logger, Subject: "arc: request"}
	c.http = httpx.NewClient(&httpx.ClientOptions{Prefix: "arc: ", HTTPClient: o.HTTPClient, AllowInsecure: o.AllowInsecure,
		MaxResponse: int64(o.Limits.MaxMessage)})
	c.life = life.New(life.Options{Logger: o.Logger, Closed: ErrClosed})
	c.buffers.New = func() any { return new(buffers) }
	if err := guard.Call("interceptor", c.intercept); err != nil {
		return nil, fmt.Errorf("arc: client: %w", err)
	}
	return c, nil
}

// intercept puts the interceptors around calls and streams.
func (c *Client) intercept() error {
	c.call = c.send
	for _, i := range slices.Backward(c.opts.Interceptors) {
		if i == nil {
			return errors.New("nil Interceptor")
		}
		if c.call = i(c.call); c.call == nil {
			return errors.New("interceptor returned no function")
		}
	}
	c.stream = c.openStream
	for _, i := range slices.Backward(c.opts.StreamInterceptors) {
		if i == nil {
			return errors.New("nil StreamInterceptor")
		}
		if c.stream = i(c.stream); c.stream == nil {
			return errors.New("stream interceptor returned no function")
		}
	}
	return nil
}

func (o ClientOptions) withDefaults() ClientOptions {
	var policy RetryPolicy
	if o.Retry != nil {
		policy = *o.Retry
	}
	policy.MaxAttempts = cmp.Or(policy.MaxAttempts, 3)
	policy.MaxRetryAfter = max(policy.MaxRetryAfter, 0)
	o.Retry = &policy
	o.Timeout = cmp.Or(o.Timeout, time.Minute)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, time.Minute)
	o.Limits.MaxMessage = option.Count(o.Limits.MaxMessage, 64<<20)
	o.Limits.MaxEvent = option.Count(o.Limits.MaxEvent, 16<<20)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	o.Interceptors, o.StreamInterceptors = slices.Clone(o.Interceptors), slices.Clone(o.StreamInterceptors)
	return o
}

// Close ends the calls and streams in progress, with [ErrClosed], and releases idle
// connections. Further calls fail.
func (c *Client) Close() error {
	err := c.life.Close()
	c.http.Close()
	return err
}

// orZero returns p, or the zero value for nil.
func orZero[T any](p *T) *T {
	if p == nil {
		return new(T)
	}
	return p
}

// CreateTask asks agent target to start a task and returns it as accepted,
// usually still SUBMITTED (ARC-072).
func (c *Client) CreateTask(ctx context.Context, target string, p *CreateTaskParams, opts *CallOptions) (*Task, error) {
	return taskOf(c.standard(ctx, target, MethodTaskCreate, orZero(p), opts))
}

// SendTaskInput gives a task in INPUT_REQUIRED the input that it waits for.
func (c *Client) SendTaskInput(ctx context.Context, target string, p *SendTaskParams, opts *CallOptions) error {
	_, err := c.standard(ctx, target, MethodTaskSend, orZero(p), opts)
	return err
}

// GetTask returns the present state of a task with its history and artifacts.
func (c *Client) GetTask(ctx context.Context, target string, p *TaskInfoParams, opts *CallOptions) (*Task, error) {
	return taskOf(c.standard(ctx, target, MethodTaskInfo, orZero(p), opts))
}

// CancelTask stops a task before it has completed.
func (c *Client) CancelTask(ctx context.Context, target string, p *CancelTaskParams, opts *CallOptions) (*Task, error) {
	return taskOf(c.standard(ctx, target, MethodTaskCancel, orZero(p), opts))
}

// SubscribeTask registers a webhook for the events of a task.
func (c *Client) SubscribeTask(ctx context.Context, target string, p *SubscribeParams, opts *CallOptions) (*Subscription, error) {
	res, err := c.standard(ctx, target, MethodTaskSubscribe, orZero(p), opts)
	if err != nil {
		return nil, err
	}
	return res.Subscription, nil
}

// Notify tells agent target of a task's event. Only the HTTP status of the answer
// counts (ARC-114), so every refusal is an [*HTTPError].
func (c *Client) Notify(ctx context.Context, target string, n *Notification, opts *CallOptions) error {
	_, err := c.standard(ctx, target, MethodTaskNotification, orZero(n), opts)
	return err
}

// StartChat begins a chat with its first message and returns the complete answer.
// If the chat's status is CLOSED, the agent keeps no history, and the chat is over
// (ARC-D33).
func (c *Client) StartChat(ctx context.Context, target string, p *StartChatParams, opts *CallOptions) (*Chat, error) {
	q := *orZero(p)
	q.Stream = false
	return chatOf(c.standard(ctx, target, MethodChatStart, &q, opts))
}

// SendChatMessage continues a chat and returns the complete answer. From a peer that
// only acknowledges, the chat has an id and nothing else (ARC-D31).
func (c *Client) SendChatMessage(ctx context.Context, target string, p *ChatMessageParams, opts *CallOptions) (*Chat, error) {
	q := *orZero(p)
	q.Stream = false
	chat, err := chatOf(c.standard(ctx, target, MethodChatMessage, &q, opts))
	if err == nil && chat == nil {
		chat = &Chat{ID: q.ChatID}
	}
	return chat, err
}

// EndChat closes a chat.
func (c *Client) EndChat(ctx context.Context, target string, p *EndChatParams, opts *CallOptions) (*Chat, error) {
	return chatOf(c.standard(ctx, target, MethodChatEnd, orZero(p), opts))
}

// StreamChat is like StartChat, but streams the answer; see [Client.Stream] for
// the guarantees of a stream.
func (c *Client) StreamChat(ctx context.Context, target string, p *StartChatParams, opts *CallOptions) iter.Seq2[*ChatEvent, error] {
	q := *orZero(p)
	q.Stream = true
	return c.Stream(ctx, target, MethodChatStart, &q, opts)
}

// StreamChatMessage is like SendChatMessage, but streams the answer; see
// [Client.Stream] for the guarantees of a stream.
func (c *Client) StreamChatMessage(ctx context.Context, target string, p *ChatMessageParams, opts *CallOptions) iter.Seq2[*ChatEvent, error] {
	q := *orZero(p)
	q.Stream = true
	return c.Stream(ctx, target, MethodChatMessage, &q, opts)
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
