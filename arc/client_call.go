// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/jsonmap"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// A ClientRequest is an outgoing request as an [Interceptor] sees it. An
// interceptor may change the envelope and the header, but must not retain the
// request after the call.
type ClientRequest struct {
	Request

	// Header holds further HTTP header fields; nil until there are some. A
	// field Authorization here replaces the token of the token source.
	Header http.Header

	// Timeout replaces the timeout of the client: of the call, or for a stream
	// of its silence. Zero does not, less than zero means none.
	Timeout time.Duration

	// Idempotent is [CallOptions.Idempotent].
	Idempotent bool

	buffers *buffers // for a response without other users
}

// A CallFunc sends a request and returns the response. If the response carries an
// error, CallFunc returns both.
type CallFunc func(ctx context.Context, out *ClientRequest) (*Response, error)

// An Interceptor wraps the calls of a [Client], to log, to measure, to change
// what is sent or to answer by itself.
type Interceptor func(next CallFunc) CallFunc

// A StreamFunc sends a request and returns the events of its answer.
type StreamFunc func(ctx context.Context, out *ClientRequest) iter.Seq2[*ChatEvent, error]

// A StreamInterceptor wraps the streams of a [Client].
type StreamInterceptor func(next StreamFunc) StreamFunc

// CallOptions adjust one call. Nil and the zero value mean the options of the client.
type CallOptions struct {
	// Header has further fields for the HTTP header of the request. The fields that
	// the protocol needs cannot be replaced; Authorization can.
	Header http.Header

	// TraceID is the id of the workflow. Empty means the workflow of the context.
	TraceID string

	// RequestID is the id of the request, of 1 to 256 bytes. With the id of an earlier call, a server
	// that keeps results repeats its response. Empty means a random id.
	RequestID string

	// Extra has members for the envelope that the specification does not define.
	Extra Extra

	// Timeout bounds the call or, for a stream, the time without data. Zero means
	// the timeout of the client; a negative value disables it.
	Timeout time.Duration

	// Idempotent permits further attempts of this call; see
	// [ClientOptions.Idempotent].
	Idempotent bool
}

// Call sends a request of any method. The params are a struct or map that becomes
// a JSON object, JSON text as [json.RawMessage], params of this package, or nil
// for none.
//
// The result of a standard method is checked by [DecodeResult]. If the response
// carries an error, Call returns both.
func (c *Client) Call(ctx context.Context, target, method string, params any, opts *CallOptions) (*Response, error) {
	text, err := encodeParams(params)
	if err != nil {
		return nil, c.named(&Request{Method: method, TargetAgent: target}, err)
	}
	out := c.outgoing(ctx, target, method, text, opts)
	res, err := c.guardedCall(ctx, out)
	if err != nil {
		return res, err
	}
	_, err = DecodeResult(method, res.Result)
	return res, c.named(&out.Request, err)
}

// CallAs is [Client.Call] with a result that is decoded by [Response.Decode].
func CallAs[T any](ctx context.Context, c *Client, target, method string, params any, opts *CallOptions) (T, error) {
	var out T
	res, err := c.Call(ctx, target, method, params, opts)
	if err == nil {
		err = c.named(&Request{Method: method, TargetAgent: target}, res.Decode(&out))
	}
	return out, err
}

// Decode stores the result in what dst points to. Member names must match
// exactly, and numbers that meet an empty interface stay exact. The error of a
// result of another form wraps [ErrInvalidResult].
func (r *Response) Decode(dst any) error {
	v, err := wire.Check(r.Result)
	if err == nil {
		err = strictjson.Decode(v, dst)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidResult, err)
	}
	return nil
}

func encodeParams(params any) (json.RawMessage, error) {
	switch p := params.(type) {
	case nil:
		return json.RawMessage("{}"), nil
	case json.RawMessage:
		if p == nil {
			return json.RawMessage("{}"), nil
		}
		return p, nil
	case json.Marshaler:
		// Unlike the encoder, the types of this package write their content as it is, bad
		// UTF-8 replaced.
		var text json.RawMessage
		err := guard.Call("encoding", func() (err error) {
			text, err = p.MarshalJSON()
			return err
		})
		if err != nil {
			err = fmt.Errorf("arc: params: %w", err)
		}
		return text, err
	}
	text, err := guard.Encode(params)
	if err != nil {
		return nil, fmt.Errorf("arc: params: %w", err)
	}
	return text, nil
}

// outgoing makes a request.
func (c *Client) outgoing(ctx context.Context, target, method string, params json.RawMessage, opts *CallOptions) *ClientRequest {
	out := &ClientRequest{}
	c.address(ctx, out, target, method, params, opts)
	return out
}

func (c *Client) address(ctx context.Context, out *ClientRequest, target, method string, params json.RawMessage, opts *CallOptions) {
	out.Request = Request{Method: method, RequestAgent: c.self, TargetAgent: target, Params: params, TraceID: TraceIDFromContext(ctx)}
	if opts != nil {
		out.Header, out.Timeout, out.Idempotent, out.ID = opts.Header.Clone(), opts.Timeout, opts.Idempotent, textID(opts.RequestID)
		out.Extra, out.TraceID = maps.Clone(opts.Extra), cmp.Or(opts.TraceID, out.TraceID)
	}
	if out.ID == "" {
		out.ID = NewID()
	}
}

// textID returns the id of a text, and none for an empty one. One that is not UTF-8 is invalid.
func textID(text string) ID {
	switch {
	case text == "":
		return ""
	case !utf8.ValidString(text):
		return `""`
	}
	return ID(strictjson.AppendString(nil, text))
}

// buffers is the memory of a call that can be used again.
type buffers struct {
	params []byte
	reply  []byte
	res    Response
	out    ClientRequest
}

// keepBuffer is the largest memory that is kept.
const keepBuffer = 64 << 10

func (b *buffers) release(c *Client) {
	if cap(b.params) <= keepBuffer && cap(b.reply) <= keepBuffer {
		b.out, b.res = ClientRequest{}, Response{}
		c.buffers.Put(b)
	}
}

// guardedCall calls the interceptors. Their panic is the error of the call.
func (c *Client) guardedCall(ctx context.Context, out *ClientRequest) (res *Response, err error) {
	err = guard.Call("interceptor", func() (err error) {
		res, err = c.call(ctx, out)
		return err
	})
	return res, err
}

// standard makes a call of a standard method.
func (c *Client) standard(ctx context.Context, target, method string, params any, opts *CallOptions) (Result, error) {
	if len(c.opts.Interceptors) > 0 {
		text, err := jsonmap.Append(nil, params)
		if err != nil {
			return Result{}, c.named(&Request{Method: method, TargetAgent: target}, fmt.Errorf("arc: params: %w", err))
		}
		out := c.outgoing(ctx, target, method, text, opts)
		res, err := c.guardedCall(ctx, out)
		if err != nil {
			return Result{}, err
		}
		result, err := decodeResult(method, res.Result)
		return result, c.named(&out.Request, err)
	}
	// The request copies the params and is used only by send, and a result copies
	// the response, so the buffers can be reused.
	b := c.buffers.Get().(*buffers)
	defer b.release(c)
	text, err := jsonmap.Append(b.params[:0], params)
	if err != nil {
		return Result{}, c.named(&Request{Method: method, TargetAgent: target}, fmt.Errorf("arc: params: %w", err))
	}
	b.params, b.out.buffers = text, b
	c.address(ctx, &b.out, target, method, text, opts)
	res, err := c.call(ctx, &b.out)
	if err != nil {
		return Result{}, err
	}
	result, err := decodeResult(method, res.Result)
	return result, c.named(&b.out.Request, err)
}

// header makes the header of a request (ARC-D11).
func (c *Client) header(ctx context.Context, x *transfer, accept []string) (http.Header, error) {
	out := x.out
	h := make(http.Header, 4+len(out.Header))
	for name, values := range out.Header {
		h[http.CanonicalHeaderKey(name)] = slices.Clone(values)
	}
	h["Content-Type"], h["Accept"] = c.contentType, accept
	if _, given := h["Authorization"]; !given {
		x.tokens = c.opts.TokenSource
		if err := x.authorize(ctx, h); err != nil {
			return nil, err
		}
	}
	if out.TraceID != "" || c.opts.TraceParent != nil {
		if _, given := h["Traceparent"]; !given {
			if tp := c.traceparent(ctx, out); tp != "" {
				x.trace[0] = tp
				h["Traceparent"] = x.trace[:]
			}
		}
	}
	if c.opts.SendAgentPath {
		h["X-Arc-Path"] = []string{c.path(ctx)}
	}
	return h, nil
}

// authorize adds the present token of the source, if there is one, to a header without a token.
func (x *transfer) authorize(ctx context.Context, h http.Header) error {
	if x.tokens == nil {
		return nil
	}
	var token string
	err := guard.Call("token source", func() (err error) {
		token, err = x.tokens.Token(ctx, x.out.TargetAgent)
		return err
	})
	if err != nil {
		return fmt.Errorf("arc: access token: %w", err)
	}
	return setToken(h, token)
}

// traceparent joins the workflow with the caller's span (ARC-D64).
func (c *Client) traceparent(ctx context.Context, out *ClientRequest) string {
	span, spanTrace := "", ""
	if c.opts.TraceParent != nil {
		_ = guard.Call("TraceParent", func() error { // a failed trace is no failed call
			span = c.opts.TraceParent(ctx)
			return nil
		})
		spanTrace = wire.TraceOf(span)
	}
	switch {
	case out.TraceID == "" && spanTrace != "":
		out.TraceID = spanTrace
		return span
	case out.TraceID == "":
		return ""
	case spanTrace != "" && spanTrace == wire.W3CTraceID(out.TraceID):
		return span
	}
	return wire.Traceparent(out.TraceID)
}

// path lists the agents that the workflow went through, this one included.
func (c *Client) path(ctx context.Context) string {
	var path []string
	if call := CallFromContext(ctx); call != nil {
		path = call.AgentPath
	}
	var b strings.Builder
	self := false
	for _, id := range path {
		self = self || id == c.self
		b.WriteString(url.PathEscape(id))
		b.WriteByte(',')
	}
	if self {
		return strings.TrimSuffix(b.String(), ",")
	}
	b.WriteString(url.PathEscape(c.self))
	return b.String()
}
