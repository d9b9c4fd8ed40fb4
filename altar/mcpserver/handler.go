// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcpserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/llm"
	"github.com/fivewire/fivewire/internal/auth"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/mcpserver"
	"github.com/fivewire/fivewire/internal/netguard"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// Options adjust a handler, which copies them. The zero value is right for production, except that one of
// the first two fields is required.
type Options struct {
	// Authenticator authenticates the caller of each request, usually the one of the Host. It may read the
	// header only. A caller without credentials needs AllowAnonymous.
	Authenticator altar.Authenticator

	// AllowAnonymous permits requests without a principal. All anonymous callers share one.
	AllowAnonymous bool

	// Name and Version are those of the MCP server. Empty means "altar" and "1".
	Name, Version string

	// Timeout shortens the allotted time of each call. Zero means that of the contract.
	Timeout time.Duration

	// MaxMessage bounds a request, and MaxOutput the chunks of a streaming tool, in bytes. Zero means 4 MiB; a
	// negative value removes the bound.
	MaxMessage, MaxOutput int

	// ReadTimeout is how long the body of a request may take to arrive, and WriteTimeout how long a reader may
	// take nothing. Zero means 60 s and 30 s; a negative value removes the bound.
	ReadTimeout, WriteTimeout time.Duration

	// AllowedOrigins are the web origins whose pages may call the handler. Empty means its own. AllowedHosts are
	// further host names under which pages may reach it on a loopback address.
	AllowedOrigins, AllowedHosts []string

	// Logger receives background errors and refused credentials. Nil means slog.Default().
	Logger *slog.Logger
}

// principalKey is the key of the *altar.Principal of a request.
type principalKey struct{}

// NewHandler returns an [http.Handler] that serves the tools of host to MCP clients, for one path. It fails
// without an Authenticator, unless anonymous callers are allowed. Its calls end with the host.
func NewHandler(host *altar.Host, opts *Options) (http.Handler, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if host == nil {
		return nil, errors.New("mcpserver: no host")
	}
	if o.Authenticator == nil && !o.AllowAnonymous {
		return nil, errors.New("mcpserver: no Authenticator; AllowAnonymous serves without one")
	}
	if o.Name == "" {
		o.Name = "altar"
	}
	if o.MaxOutput == 0 {
		o.MaxOutput = 4 << 20
	}
	front := mcpserver.Front{Origins: httpx.Origins{AllowedOrigins: o.AllowedOrigins, AllowedHosts: o.AllowedHosts},
		MaxMessage: o.MaxMessage, ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout, Logger: o.Logger, Ready: host.Ready,
		Authenticate: func(r *http.Request) (context.Context, string, error) {
			id, err := o.authenticate(r)
			if id == nil {
				return r.Context(), "", err
			}
			return context.WithValue(r.Context(), principalKey{}, id), auth.Name(id.Tenant, id.ID), err
		}}
	if err := netguard.CheckOrigins(o.AllowedOrigins); err != nil {
		return nil, fmt.Errorf("mcpserver: %w", err)
	}
	server := mcpserver.Server{Name: o.Name, Version: o.Version, Logger: o.Logger}
	return front.Handler(server.Handler(func(r *http.Request) mcpserver.Backend {
		id, _ := r.Context().Value(principalKey{}).(*altar.Principal)
		return &backend{host, id, &o}
	})), nil
}

func (o *Options) authenticate(r *http.Request) (id *altar.Principal, err error) {
	if o.Authenticator != nil {
		id, err = o.Authenticator.Authenticate(r)
	}
	switch {
	case err != nil:
	case id == nil && !o.AllowAnonymous:
		err = errors.New("no credentials")
	case id != nil && !id.Expires.IsZero() && !id.Expires.After(time.Now()):
		err = errors.New("credentials expired")
	}
	return id, err
}

// A backend has the tools of one principal.
type backend struct {
	host *altar.Host
	id   *altar.Principal
	opts *Options
}

// destroyTimeout bounds the end of a session.
const destroyTimeout = 5 * time.Second

// inSession calls f with a session for one request, and with the tools in it.
func (b *backend) inSession(ctx context.Context, f func(s *altar.Session, list []altar.ToolInfo, tools []llm.Tool) error) error {
	dial := func(context.Context) (altar.Conn, error) { return b.host.Dial(b.id) }
	// Another attempt would reach the same Host: one that shuts down.
	client, err := altar.NewClient(dial, &altar.ClientOptions{Logger: b.opts.Logger, ReconnectTimeout: -1})
	if err != nil {
		return err
	}
	defer client.Close()
	s, err := client.CreateSession(ctx, nil)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), destroyTimeout)
		defer cancel()
		_ = s.Destroy(ctx) // else it expires
	}()
	list, err := s.ListTools(ctx)
	if err != nil {
		return err
	}
	tools, err := llm.Tools(list, llm.Anthropic, nil)
	if err != nil {
		return err
	}
	return f(s, list, tools)
}

// ListTools returns the callable tools.
func (b *backend) ListTools(ctx context.Context) (out []*mcp.Tool, err error) {
	err = b.inSession(ctx, func(_ *altar.Session, list []altar.ToolInfo, tools []llm.Tool) error {
		for i, t := range tools {
			var vendor struct {
				InputSchema json.RawMessage `json:"input_schema"`
			}
			if err := json.Unmarshal(t.JSON, &vendor); err != nil {
				return err
			}
			out = append(out, &mcp.Tool{Name: t.Name, Title: t.Contract, Description: list[i].Description, InputSchema: vendor.InputSchema})
		}
		return nil
	})
	return out, err
}

// CallTool calls a tool in a separate session.
func (b *backend) CallTool(ctx context.Context, c *mcpserver.Call) (res mcp.Result, err error) {
	err = b.inSession(ctx, func(s *altar.Session, list []altar.ToolInfo, tools []llm.Tool) error {
		for i, t := range tools {
			if t.Name != c.Name {
				continue
			}
			params, err := llm.Arguments(t.Parameters, c.Arguments)
			if err != nil {
				return err
			}
			opts := &altar.CallOptions{Timeout: b.opts.Timeout}
			if list[i].Streaming {
				res, err = b.stream(ctx, s, t.Contract, params, opts, c)
				return err
			}
			r, err := s.Call(ctx, t.Contract, params, opts)
			if err == nil {
				res = mcpserver.Result(r.Payload)
			}
			return err
		}
		return mcpserver.UnknownTool(c.Name)
	})
	if e, ok := errors.AsType[*altar.Error](err); ok {
		return refusal(e), nil
	}
	return res, err
}

// stream returns the chunks of a call as a list, or as one text if all of them are. Each chunk is a progress
// notification.
func (b *backend) stream(ctx context.Context, s *altar.Session, tool string, params any, opts *altar.CallOptions, c *mcpserver.Call) (*mcp.CallToolResult, error) {
	chunks := []json.RawMessage{}
	var texts strings.Builder
	size, isText := 0, true
	for chunk, err := range s.Stream(ctx, tool, params, opts) {
		if err != nil {
			return nil, err
		}
		if size += len(chunk); b.opts.MaxOutput >= 0 && size > b.opts.MaxOutput {
			return nil, altar.Errorf(altar.ErrExecutionFailed, altar.Reason("message_too_large"), "the chunks are larger than %d bytes", b.opts.MaxOutput)
		}
		chunks = append(chunks, chunk)
		text, ok := strictjson.Value(chunk).Text()
		isText = isText && ok
		if isText {
			texts.WriteString(text)
		} else {
			text = string(chunk)
		}
		c.Notify(text)
	}
	value, err := json.Marshal(chunks)
	if isText && len(chunks) > 0 {
		value, err = json.Marshal(texts.String())
	}
	if err != nil {
		return nil, fmt.Errorf("mcpserver: chunks: %w", err)
	}
	return mcpserver.Result(value), nil
}

// refusal returns an error of the protocol as the result of a call.
func refusal(e *altar.Error) *mcp.CallToolResult {
	r := &mcpserver.Refusal{Code: string(e.Code), Message: e.Message}
	for _, p := range e.ParamErrors() {
		r.Errors = append(r.Errors, mcpserver.Fault{Path: p.Path, Reason: string(p.Reason), Expected: p.Expected, Got: p.Got})
	}
	if len(r.Errors) == 0 {
		r.Details = e.Details
	}
	return r.Result()
}
