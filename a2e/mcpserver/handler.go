// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcpserver

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/internal/schema"
	"github.com/fivewire/fivewire/a2e/tools"
	"github.com/fivewire/fivewire/internal/auth"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/mcpserver"
	"github.com/fivewire/fivewire/internal/netguard"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// Options adjust a handler, which copies them. The zero value is right for production. Authentication is that of
// the host.
type Options struct {
	// Name and Version are those of the MCP server. Empty means "a2e" and "1".
	Name, Version string

	// AgentID is the agent in the handshakes. Empty means "mcp-client".
	AgentID string

	// Timeout is the time limit of each call, rounded up to seconds. Zero means 30 s; a negative value means the
	// limit of the host.
	Timeout time.Duration

	// MaxMessage bounds a request, and MaxOutput each message of the host, in bytes. Zero means 4 MiB and 16 MiB;
	// a negative value removes the bound.
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

// backendKey is the key of the *backend of a request.
type backendKey struct{}

// NewHandler returns an [http.Handler] that serves the tools of host to MCP clients, for one path.
func NewHandler(host *a2e.Host, opts *Options) (http.Handler, error) {
	if host == nil {
		return nil, errors.New("mcpserver: no host")
	}
	var o Options
	if opts != nil {
		o = *opts
	}
	o.Name, o.AgentID, o.Logger = cmp.Or(o.Name, "a2e"), cmp.Or(o.AgentID, "mcp-client"), cmp.Or(o.Logger, slog.Default())
	front := mcpserver.Front{Origins: httpx.Origins{AllowedOrigins: o.AllowedOrigins, AllowedHosts: o.AllowedHosts},
		MaxMessage: o.MaxMessage, ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout, Logger: o.Logger, Ready: host.Ready,
		Authenticate: func(r *http.Request) (context.Context, string, error) {
			b := backendOf(r)
			principal, err := b.connect(r)
			return r.Context(), principal, err
		}}
	if err := netguard.CheckOrigins(o.AllowedOrigins); err != nil {
		return nil, fmt.Errorf("mcpserver: %w", err)
	}
	server := mcpserver.Server{Name: o.Name, Version: o.Version, Logger: o.Logger}
	next := front.Handler(server.Handler(func(r *http.Request) mcpserver.Backend { return backendOf(r) }))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b := &backend{host: host, opts: &o}
		defer b.close()
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), backendKey{}, b)))
	}), nil
}

func backendOf(r *http.Request) *backend {
	b, _ := r.Context().Value(backendKey{}).(*backend)
	return b
}

// A backend is the session of one request.
type backend struct {
	host   *a2e.Host
	opts   *Options
	client *a2e.Client // nil before connect
	tools  *tools.Client
	found  *tools.Definition // the tool of the request, nil before the search
	end    context.CancelFunc
	served chan struct{}
}

// A conn is a connection from the address of a request.
type conn struct {
	io.ReadWriteCloser
	addr net.Addr
}

// RemoteAddr returns the address that the limits of the host apply to.
func (c *conn) RemoteAddr() net.Addr { return c.addr }

// connect makes the handshake of the caller of a request, and returns the name of its principal.
func (b *backend) connect(r *http.Request) (string, error) {
	token, isBearer := auth.Bearer(r.Header.Get("Authorization"))
	if !isBearer {
		token = ""
	}
	agent, host := a2e.Pipe()
	client, err := a2e.NewClient(agent, &a2e.ClientOptions{AgentID: b.opts.AgentID, Token: token, Capabilities: []string{tools.Capability},
		Limits: a2e.ClientLimits{MaxMessage: b.opts.MaxOutput, QueueLimit: -1}, Logger: b.opts.Logger})
	if err != nil {
		return "", err
	}
	if b.tools, err = tools.NewClient(client); err != nil {
		return "", errors.Join(err, client.Close())
	}
	c := &conn{host, nil}
	if addr, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		c.addr = net.TCPAddrFromAddrPort(addr)
	}
	ctx, end := context.WithCancel(context.WithoutCancel(r.Context()))
	b.client, b.end, b.served = client, end, make(chan struct{})
	go func() {
		defer close(b.served)
		if err := b.host.Serve(ctx, c); err != nil && ctx.Err() == nil {
			b.opts.Logger.WarnContext(ctx, "mcpserver: session ended", "err", err)
		}
	}()
	_, err = client.Connect(r.Context())
	if err != nil {
		if e, ok := errors.AsType[*a2e.HandshakeError](err); ok && e.Reason == a2e.RejectAuthFailed {
			return "", err
		}
		return "", fmt.Errorf("%w: %w", mcpserver.ErrUnavailable, err)
	}
	id := client.SessionID()
	for _, s := range b.host.Sessions() {
		if p := s.Principal(); p != nil && s.ID() == id {
			return auth.Name(p.Tenant, p.ID), nil
		}
	}
	return "", nil
}

// close ends the session.
func (b *backend) close() {
	if b.client == nil {
		return
	}
	_ = b.client.Close() // the connection is in the process
	b.end()
	<-b.served
}

// toolName is the form of the names of tools.
var toolName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,128}$`)

// ListTools returns the tools of the host that load at once.
func (b *backend) ListTools(ctx context.Context) (out []*mcp.Tool, err error) {
	list, err := b.tools.List(ctx, nil, nil)
	if err != nil {
		return nil, err
	}
	for i := range list.Tools {
		t, err := toolOf(&list.Tools[i])
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

// toolOf returns a tool of the host as one of MCP.
func toolOf(d *tools.Definition) (*mcp.Tool, error) {
	t := &mcp.Tool{Name: nameOf(d.Name), Description: d.Description}
	t.Title, _ = d.Extra.Text("title")
	if t.Title == "" && t.Name != d.Name {
		t.Title = d.Name
	}
	if d.Idempotent {
		t.Annotations = &mcp.ToolAnnotations{IdempotentHint: true}
	}
	var err error
	if t.InputSchema, err = schemaOfTool(d, "input_schema", d.InputParameters); err != nil {
		return nil, err
	}
	if len(d.OutputParameters) > 0 {
		t.OutputSchema, err = schemaOfTool(d, "output_schema", d.OutputParameters)
	}
	return t, err
}

// find returns a tool of the host by its name in MCP, or nil. It lists all tools only for a name that has been replaced,
// or that the host does not have.
func (b *backend) find(ctx context.Context, name string) (*tools.Definition, error) {
	if b.found != nil && nameOf(b.found.Name) == name {
		return b.found, nil
	}
	queries := []string{name, ""}
	if !toolName.MatchString(name) {
		queries = queries[1:]
	}
	for _, query := range queries {
		list, err := b.tools.List(ctx, &tools.ListRequest{IncludeDeferred: true, Query: query}, nil)
		if err != nil {
			return nil, err
		}
		if i := slices.IndexFunc(list.Tools, func(d tools.Definition) bool { return nameOf(d.Name) == name }); i >= 0 {
			b.found = &list.Tools[i]
			return b.found, nil
		}
	}
	return nil, nil
}

// Tool returns a tool of the host whose schema names headers, or nil. Only a schema of the tool itself can.
func (b *backend) Tool(ctx context.Context, name string) (*mcp.Tool, error) {
	d, err := b.find(ctx, name)
	if d == nil || !bytes.Contains(d.Extra.Get("input_schema"), []byte("x-mcp-header")) {
		return nil, err
	}
	return toolOf(d)
}

// CallTool calls a tool.
func (b *backend) CallTool(ctx context.Context, c *mcpserver.Call) (mcp.Result, error) {
	d, err := b.find(ctx, c.Name)
	if err != nil {
		return refusalOf(err)
	}
	if d == nil {
		return nil, mcpserver.UnknownTool(c.Name)
	}
	req := &tools.CallRequest{ToolName: d.Name, Arguments: c.Arguments, Streaming: c.HasProgress && (d.Streaming == nil || *d.Streaming),
		Timeout: a2e.Limit(math.Ceil(b.opts.Timeout.Seconds()))}
	opts := &a2e.CallOptions{OnEvent: func(e a2e.Event) { c.Notify(textOf(e)) }}
	if b.opts.Timeout < 0 {
		req.Timeout, opts.Timeout = a2e.LimitZero, math.MaxInt64
	}
	answer, err := b.tools.Call(ctx, req, opts)
	if answer == nil {
		return refusalOf(err)
	}
	return resultOf(d, &answer.Data)
}

// textOf returns the message of an event, or else its data.
func textOf(e a2e.Event) string {
	header := e.Header()
	if text, ok := strictjson.Value(header.Data).Get("message").Text(); ok {
		return text
	}
	return cmp.Or(string(header.Data), header.Kind)
}

// resultOf returns a result of a tool.
func resultOf(d *tools.Definition, r *tools.Result) (*mcp.CallToolResult, error) {
	if err := r.Err(); err != nil {
		e, _ := errors.AsType[*a2e.Error](err)
		return (&mcpserver.Refusal{Code: string(e.Code), Message: e.Message, Details: r.Data}).Result(), nil
	}
	if len(d.OutputParameters) > 0 && !fitsOutput(d, r.Data) {
		return (&mcpserver.Refusal{Code: string(a2e.ErrTool), Message: "the result does not match the output schema", Details: r.Data}).Result(), nil
	}
	summary, _ := strictjson.Value(r.Summary).Text()
	res := &mcp.CallToolResult{Content: []mcp.Content{}}
	if r.Data != nil {
		res = mcpserver.Result(r.Data)
	}
	if summary != "" {
		res.Content = slices.Insert(res.Content, 0, mcp.Content(&mcp.TextContent{Text: summary}))
	}
	return res, nil
}

// fitsOutput reports whether the data of a result fits the announced schema.
func fitsOutput(d *tools.Definition, data json.RawMessage) bool {
	if whole := d.Extra.Get("output_schema"); whole != nil {
		if s, err := schema.Parse(whole); err == nil {
			return schema.Check(s, data) == nil
		}
	}
	return tools.ValidateArguments(d.OutputParameters, data) == nil
}

// refusalOf returns an error of the host as the result of a call.
func refusalOf(err error) (*mcp.CallToolResult, error) {
	if errors.Is(err, a2e.ErrSlowReader) {
		return (&mcpserver.Refusal{Code: string(a2e.ErrRuntime), Message: "the progress notifications are not read"}).Result(), nil
	}
	e, ok := errors.AsType[*a2e.Error](err)
	if !ok {
		return nil, err
	}
	r := &mcpserver.Refusal{Code: string(e.Code), Message: e.Message}
	if path, ok := strings.CutPrefix(e.Field, "arguments"); ok {
		path = strings.NewReplacer("~", "~0", "/", "~1", ".", "/", "[", "/", "]", "").Replace(path)
		r.Errors = []mcpserver.Fault{{Path: path, Reason: e.Reason}}
	} else {
		r.Details = e.Details
	}
	return r.Result(), nil
}
