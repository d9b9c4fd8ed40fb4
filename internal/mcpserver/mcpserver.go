// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package mcpserver serves the tools of a protocol to clients of MCP over stateless streamable HTTP, with the
// official Go SDK.
package mcpserver

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// A Backend has the tools of one caller.
type Backend interface {
	ListTools(ctx context.Context) ([]*mcp.Tool, error)

	// CallTool calls a tool. The result is a *mcp.CallToolResult or one of an extension. An error that is not a
	// *jsonrpc.Error is logged and not sent.
	CallTool(ctx context.Context, c *Call) (mcp.Result, error)
}

// A HeaderBackend has tools whose schemas ask for parameters in HTTP headers too, which the SDK checks.
type HeaderBackend interface {
	Backend

	// Tool returns a tool, or nil if its schema names no headers or the caller does not have it.
	Tool(ctx context.Context, name string) (*mcp.Tool, error)
}

// A Call is a call of a tool.
type Call struct {
	Name      string
	Arguments json.RawMessage // exact; never empty

	// Client has the capabilities of a client that repeats a call with the required input; nil for others. Inputs are
	// its responses to the input requests of an earlier result, and State is the state of that.
	Client *mcp.ClientCapabilities
	Inputs mcp.InputResponseMap
	State  string

	// HasProgress reports whether the client has requested progress notifications.
	HasProgress bool

	notify func(message string, progress float64)
	count  float64
}

// Notify sends a progress notification to a client that has requested them.
func (c *Call) Notify(message string) {
	c.count++
	c.notify(message, c.count)
}

// Server describes a server of MCP.
type Server struct {
	Name, Version string
	Logger        *slog.Logger

	// Extension, if not empty, is an extension that Extend adds to the server of each request, by [AddMethod].
	Extension string
	Extend    func(s Server, server *mcp.Server, b Backend) error
}

// serverKey is the key of the *mcp.Server of a request.
type serverKey struct{}

// Handler returns a handler whose backend is that of each request. It reads the bodies without a bound.
func (s Server) Handler(backend func(r *http.Request) Backend) http.Handler {
	s.Logger = cmp.Or(s.Logger, slog.Default())
	serverOf := func(r *http.Request) *mcp.Server {
		server, _ := r.Context().Value(serverKey{}).(*mcp.Server)
		return server
	}
	h := mcp.NewStreamableHTTPHandler(serverOf, &mcp.StreamableHTTPOptions{Stateless: true, MaxRequestBodyBytes: -1,
		PropagateRequestCancellation: true})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		capabilities, b := &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}}, backend(r)
		if s.Extension != "" {
			capabilities.AddExtension(s.Extension, nil)
		}
		server := mcp.NewServer(&mcp.Implementation{Name: s.Name, Version: cmp.Or(s.Version, "1")}, &mcp.ServerOptions{Capabilities: capabilities})
		if s.Extension != "" {
			if err := s.Extend(s, server, b); err != nil {
				s.Logger.ErrorContext(r.Context(), "mcpserver: extension not added", "extension", s.Extension, "err", err)
			}
		}
		if headers, ok := b.(HeaderBackend); ok && r.Header.Get("Mcp-Method") == "tools/call" {
			announce(r.Context(), server, headers, r.Header.Get("Mcp-Name"))
		}
		server.AddReceivingMiddleware(s.middleware(r.Context(), server, b))
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), serverKey{}, server)))
	})
}

// announce adds a tool whose headers the SDK is to check.
func announce(ctx context.Context, server *mcp.Server, b HeaderBackend, name string) {
	_ = guard.Call("tools/call", func() error { // the call fails for the same reason, and a tool with a refused schema has no headers
		t, err := b.Tool(ctx, name)
		if err == nil && t != nil {
			server.AddTool(t, nil)
		}
		return err
	})
}

// A params is a pointer to the params of a method.
type params[P any] interface {
	*P
	mcp.Params
}

// AddMethod adds a method of an extension. Its errors are those of [Backend.CallTool]. The capabilities are those of the
// request, nil from a client of an older protocol.
func AddMethod[R mcp.Result, P any, PP params[P]](s Server, server *mcp.Server, method string,
	f func(ctx context.Context, client *mcp.ClientCapabilities, p PP) (R, error),
) error {
	return mcp.AddReceivingCustomMethod(server, method, func(ctx context.Context, session *mcp.ServerSession, p PP) (res R, err error) {
		err = s.guard(ctx, method, func() error {
			res, err = f(ctx, capabilitiesOf(session), p)
			return err
		})
		return res, err
	})
}

// statelessVersion is the first version whose requests have the capabilities of the client.
const statelessVersion = "2026-07-28"

func capabilitiesOf(session *mcp.ServerSession) *mcp.ClientCapabilities {
	init := session.InitializeParams()
	if init == nil || init.ProtocolVersion < statelessVersion {
		return nil
	}
	return cmp.Or(init.Capabilities, &mcp.ClientCapabilities{})
}

// middleware adds the tools that a request is about before the SDK answers it. Their context ends with the request.
func (s Server) middleware(request context.Context, server *mcp.Server, b Backend) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			switch kind, _, _ := strings.Cut(method, "/"); kind {
			case "prompts", "resources", "completion", "logging": // which the SDK answers also if they are not announced
				return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "no method " + strconv.Quote(method)}
			}
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(request, cancel)()
			var other mcp.Result
			switch params := req.GetParams().(type) {
			case *mcp.ListToolsParams:
				err := s.guard(ctx, method, func() error {
					list, err := b.ListTools(ctx)
					for _, t := range list {
						if fault := guard.Call(method, func() error { server.AddTool(t, nil); return nil }); fault != nil {
							s.Logger.WarnContext(ctx, "mcpserver: tool not listed", "tool", t.Name, "err", fault)
						}
					}
					return err
				})
				if err != nil {
					return nil, err
				}
			case *mcp.CallToolParamsRaw:
				server.AddTool(&mcp.Tool{Name: params.Name, InputSchema: anyObject}, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
					var got mcp.Result // of ctx: another call of a batch may run this function
					err := s.guard(ctx, method, func() (err error) {
						got, err = b.CallTool(ctx, newCall(ctx, req))
						return err
					})
					if res, ok := got.(*mcp.CallToolResult); ok || err != nil {
						return res, err
					}
					other = got // of a version without batches
					return &mcp.CallToolResult{}, nil
				})
			}
			res, err := next(ctx, method, req)
			if err == nil && other != nil {
				return other, nil
			}
			return res, err
		}
	}
}

// anyObject is the schema of a called tool, whose backend checks the arguments.
var anyObject = json.RawMessage(`{"type":"object"}`)

// guard returns an error for the client.
func (s Server) guard(ctx context.Context, method string, f func() error) error {
	err := guard.Call(method, f)
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*jsonrpc.Error](err); ok {
		return e
	}
	if ctx.Err() == nil {
		s.Logger.ErrorContext(ctx, "mcpserver: request failed", "method", method, "err", err)
	}
	return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "internal error"}
}

func newCall(ctx context.Context, req *mcp.CallToolRequest) *Call {
	params := req.Params
	c := &Call{Name: params.Name, Arguments: params.Arguments, Client: capabilitiesOf(req.Session), Inputs: params.InputResponses,
		State: params.RequestState, notify: func(string, float64) {}}
	if len(c.Arguments) == 0 {
		c.Arguments = json.RawMessage("{}")
	}
	if token := params.GetProgressToken(); token != nil {
		c.HasProgress = true
		c.notify = func(message string, progress float64) {
			_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Message: message,
				Progress: progress}) // the end of the reader ends ctx
		}
	}
	return c
}

// UnknownTool returns the error of a call of a tool that the caller does not have.
func UnknownTool(name string) error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "unknown tool " + strconv.Quote(name)}
}

// Result returns the result of a call with a JSON value: a string as its text, and an object as structured content
// too, with exact numbers.
func Result(value json.RawMessage) *mcp.CallToolResult {
	v := strictjson.Value(value)
	text, isText := v.Text()
	if !isText {
		text = string(value)
	}
	res := &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}
	if v.IsObject() {
		res.StructuredContent = value
	}
	return res
}

// A Refusal is an error of a tool that the model can read and repair.
type Refusal struct {
	Code    string          `json:"code"`
	Message string          `json:"message"`
	Errors  []Fault         `json:"errors,omitempty"`
	Details json.RawMessage `json:"details,omitempty"`
}

// A Fault is an invalid parameter.
type Fault struct {
	Path     string `json:"path"` // JSON Pointer
	Reason   string `json:"reason"`
	Expected string `json:"expected,omitempty"`
	Got      string `json:"got,omitempty"`
}

// Result returns the refusal as the result of a call: its text names the path of each parameter.
func (r *Refusal) Result() *mcp.CallToolResult {
	var b bytes.Buffer
	b.WriteString(r.Code + ": " + r.Message)
	for _, f := range r.Errors {
		b.WriteString("\n" + f.Path + ": " + f.Reason)
		if f.Expected != "" {
			b.WriteString(", expected " + f.Expected)
		}
		if f.Got != "" {
			b.WriteString(", got " + f.Got)
		}
	}
	return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: b.String()}}, StructuredContent: r}
}

// A Front checks and reads requests before a [Server] does.
type Front struct {
	Origins                   httpx.Origins // without Methods and Headers
	MaxMessage                int
	ReadTimeout, WriteTimeout time.Duration
	Logger                    *slog.Logger
	Ready                     func() error // while it fails, requests are refused and their connections end

	// Authenticate returns the context of a request and the name of its principal; empty means the address. An
	// error refuses the caller, and one that is ErrUnavailable has another cause.
	Authenticate func(r *http.Request) (ctx context.Context, principal string, err error)
}

// ErrUnavailable is the error of a server that can authenticate no caller now.
var ErrUnavailable = errors.New("mcpserver: over capacity")

// CORSHeaders are the headers of MCP and of its callers.
const CORSHeaders = "Authorization, Content-Type, Accept, X-Api-Key, Mcp-Protocol-Version, Mcp-Method, Mcp-Name"

// Handler returns next behind the checks. The memory of a body is reserved before it is read, or as it arrives if its length is not announced.
func (f Front) Handler(next http.Handler) http.Handler {
	f.Logger = cmp.Or(f.Logger, slog.Default())
	f.MaxMessage = cmp.Or(f.MaxMessage, 4<<20)
	f.ReadTimeout = cmp.Or(f.ReadTimeout, time.Minute)
	f.WriteTimeout = cmp.Or(f.WriteTimeout, 30*time.Second)
	f.Origins.Methods, f.Origins.Headers = http.MethodPost, CORSHeaders
	memory := budget.New(budget.Limits{Logger: f.Logger}, nil)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := f.Ready(); err != nil {
			httpx.LeaveIf(err, w)
			unavailable(w)
			return
		}
		if !f.Origins.Admits(w, r, f.ReadTimeout, "X-Api-Key") {
			return
		}
		ctx, principal, err := f.authenticate(r)
		if errors.Is(err, ErrUnavailable) {
			unavailable(w)
			return
		}
		if err != nil {
			f.Logger.WarnContext(r.Context(), "mcpserver: authentication refused", "peer", r.RemoteAddr, "err", err)
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "not authenticated", http.StatusUnauthorized)
			return
		}
		scope := memory.Scope(cmp.Or(principal, budget.Anonymous(r.RemoteAddr)), "")
		hold, err := httpx.ReserveBody(r, scope, int64(f.MaxMessage))
		var body []byte
		if err == nil {
			defer hold.Release()
			body, err = httpx.Body(w, r, int64(f.MaxMessage), f.ReadTimeout)
		}
		if _, isFull := errors.AsType[*budget.Error](err); isFull {
			unavailable(w)
			return
		}
		httpx.Forward(w, r.WithContext(ctx), body, err, f.WriteTimeout, scope, next)
	})
}

func unavailable(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "5")
	http.Error(w, "not available", http.StatusServiceUnavailable)
}

func (f Front) authenticate(r *http.Request) (ctx context.Context, principal string, err error) {
	err = guard.Call("authenticator", func() (err error) {
		ctx, principal, err = f.Authenticate(r)
		return err
	})
	return ctx, principal, err
}
