// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/internal/hook"
	"github.com/fivewire/fivewire/a2e/internal/wire"
	"github.com/fivewire/fivewire/a2e/tools"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/option"
)

// Statuses of a [ServerInfo].
const (
	StatusConnecting   = "connecting"
	StatusReady        = "ready"
	StatusError        = "error"
	StatusDisconnected = "disconnected"
)

// A Server is one connected MCP server. An adapter of an MCP client library implements it; an
// unsupported operation returns an [*a2e.Error] of the code mcp_capability_missing. Its methods
// must be safe for concurrent use.
type Server interface {
	// Info returns the description of the server and the numbers of its tools, resources and
	// prompts.
	Info() ServerInfo

	Resources(ctx context.Context, cursor string) (list []Resource, next string, err error)
	ReadResource(ctx context.Context, uri string) ([]ResourceContent, error)
	Subscribe(ctx context.Context, uri string) error
	Prompts(ctx context.Context, cursor string) (list []Prompt, next string, err error)
	Prompt(ctx context.Context, name string, arguments json.RawMessage) (description string, messages []PromptMessage, err error)

	// Close ends the connection.
	Close() error
}

// A Connector connects to a server for a session. It passes notifications of the server to notify
// while connected; notify must not be called after Close has returned.
type Connector interface {
	Connect(ctx context.Context, s *a2e.Session, config *ServerConfig, notify func(method string, params json.RawMessage)) (Server, error)
}

// A ConnectorFunc is a function as a [Connector].
type ConnectorFunc func(ctx context.Context, s *a2e.Session, config *ServerConfig, notify func(string, json.RawMessage)) (Server, error)

// Connect calls f.
func (f ConnectorFunc) Connect(ctx context.Context, s *a2e.Session, config *ServerConfig, notify func(string, json.RawMessage)) (Server, error) {
	return f(ctx, s, config, notify)
}

// Options configures the plugin. Without Authorizer, agents can register no server: a server is a
// program that the host starts, or an address that it connects to.
type Options struct {
	// Name is the name of the plugin. Empty means "mcp".
	Name string

	// Authorizer decides about each registration.
	Authorizer func(s *a2e.Session, config *ServerConfig) bool

	// MaxServers bounds the servers of a session. Zero means 8; a negative value removes the bound.
	MaxServers int
}

// A ToolServer is a [Server] with tools. Their names are those of the server.
type ToolServer interface {
	Tools(ctx context.Context) ([]tools.Tool, error)
}

// A Bridge registers MCP servers for sessions and serves what they have. Servers
// live as long as their session.
type Bridge struct {
	connector Connector
	opts      Options

	mu    sync.Mutex
	racks map[*a2e.Session]*rack
}

// NewBridge returns a bridge. Add its Plugin to a host, and use its Tools as SessionTools of that
// host's set of tools. It fails without a connector.
func NewBridge(c Connector, opts *Options) (*Bridge, error) {
	if c == nil {
		return nil, errors.New("mcp: no connector")
	}
	b := &Bridge{connector: c, racks: map[*a2e.Session]*rack{}}
	if opts != nil {
		b.opts = *opts
	}
	b.opts.Name = cmp.Or(b.opts.Name, Capability)
	b.opts.MaxServers = option.Count(b.opts.MaxServers, 8)
	return b, nil
}

// Tools returns the tools of the servers of a session, named
// <server_id>__<tool> and marked by the member source, as far as their
// configuration allows them (A2E-123). It is made for the option SessionTools of
// package tools. A server that does not answer has none for the moment; a call of one of its tools
// fails with the error of the server.
func (b *Bridge) Tools(ctx context.Context, call *a2e.Call) []tools.Tool {
	b.mu.Lock()
	r := b.racks[call.Session]
	b.mu.Unlock()
	if r == nil {
		return nil
	}
	name := hook.Tool(ctx)   // the only one in question
	servers, _ := r.some("") // all of them: there is no error
	lists := make([][]tools.Tool, len(servers))
	var work sync.WaitGroup
	for i, s := range servers {
		if strings.HasPrefix(name, s.toolName("")) || name == "" { // another server cannot delay the call
			work.Go(func() { _ = guard.Call("mcp server", func() error { lists[i] = s.tools(ctx, name); return nil }) })
		}
	}
	work.Wait()
	return slices.Concat(lists...)
}

// listTimeout is how long a list of all tools waits for a server.
const listTimeout = 10 * time.Second

// toolName returns the name of a tool in the sessions.
func (s *server) toolName(own string) string { return s.config.ServerID + "__" + own }

// tools returns the tools of a server. If it does not answer, that of a name fails with its error.
func (s *server) tools(ctx context.Context, name string) (list []tools.Tool) {
	with, ok := s.Server.(ToolServer)
	if !ok {
		return nil
	}
	if name == "" {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, listTimeout)
		defer cancel()
	}
	own, err := with.Tools(ctx)
	if err != nil && name != "" && !errors.Is(err, a2e.ErrMCPCapabilityMissing) {
		failed := tools.Tool{Run: func(context.Context, *a2e.Call, json.RawMessage) (any, error) { return nil, transportError(err) }}
		failed.Definition.Name = strings.TrimPrefix(name, s.toolName(""))
		own = []tools.Tool{failed}
	}
	for _, t := range own {
		if len(s.config.ToolAllowList) > 0 && !slices.Contains(s.config.ToolAllowList, t.Definition.Name) {
			continue
		}
		t.Definition.Name = s.toolName(t.Definition.Name)
		if t.Definition.Extra.Set("source", "mcp") == nil {
			list = append(list, t)
		}
	}
	return list
}

// Plugin returns the plugin that serves the capability mcp.
func (b *Bridge) Plugin() *a2e.Plugin {
	return &a2e.Plugin{
		Name: b.opts.Name, Capability: Capability, Types: Types(),
		Open: func(s *a2e.Session) (any, error) {
			r := &rack{session: s}
			b.mu.Lock()
			defer b.mu.Unlock()
			b.racks[s] = r
			return r, nil
		},
		Close: func(state any) {
			r := state.(*rack)
			b.mu.Lock()
			delete(b.racks, r.session)
			b.mu.Unlock()
			r.close()
		},
		Routes: []a2e.Route{
			a2e.NewRoute("mcp/server/list/req", b.list),
			a2e.NewRoute("mcp/server/register/req", b.register),
			a2e.NewRoute("mcp/server/unregister/req", b.unregister),
			a2e.NewRoute("mcp/resource/list/req", b.resources),
			a2e.NewRoute("mcp/resource/read/req", b.read),
			a2e.NewRoute("mcp/resource/subscribe/req", b.subscribe),
			a2e.NewRoute("mcp/prompt/list/req", b.prompts),
			a2e.NewRoute("mcp/prompt/get/req", b.prompt),
		},
	}
}

// A rack holds the servers of one session.
type rack struct {
	session *a2e.Session

	mu       sync.Mutex
	servers  []*server
	opening  []*server // that are not connected yet
	isClosed bool
}

type server struct {
	config ServerConfig
	Server
	since time.Time
}

func (s *server) info() ServerInfo {
	i := s.Info()
	i.ServerID, i.Name, i.Transport = s.config.ServerID, s.config.Name, s.config.Transport
	if i.Status == "" {
		i.Status = StatusReady
	}
	i.ConnectedAt = wire.Timestamp(s.since)
	return i
}

func (r *rack) close() {
	r.mu.Lock()
	list := r.servers
	r.servers, r.isClosed = nil, true
	r.mu.Unlock()
	var work sync.WaitGroup
	for _, s := range list {
		work.Go(func() { _ = guard.Call("mcp server", s.Close) }) // apart from the others (A2E-D58)
	}
	work.Wait()
}

func notFound(id string) error {
	return a2e.Errorf(a2e.ErrMCPServerNotFound, "there is no such MCP server").With("server_id", wire.Clip(id))
}

// some returns the server of that id, or all of them if it is empty.
func (r *rack) some(id string) ([]*server, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if id == "" {
		return slices.Clone(r.servers), nil
	}
	if i := slices.IndexFunc(r.servers, func(s *server) bool { return s.config.ServerID == id }); i >= 0 {
		return r.servers[i : i+1 : i+1], nil
	}
	return nil, notFound(id)
}

func (b *Bridge) list(_ context.Context, call *a2e.Call, q *ServerListRequest) (*ServerListResponse, error) {
	list, err := call.PluginState().(*rack).some("")
	if err != nil {
		return nil, err
	}
	resp := &ServerListResponse{}
	for _, s := range list {
		info := s.info()
		if q.StatusFilter != "" && q.StatusFilter != info.Status {
			continue
		}
		if resp.Servers, err = appendObject(resp.Servers, &info); err != nil {
			return nil, err
		}
	}
	return resp, nil
}

func appendObject[T any](list []json.RawMessage, v *T) ([]json.RawMessage, error) {
	raw, err := a2e.EncodeModel(v)
	return append(list, raw), err
}

// reserve takes a place for a server until release or admit, or returns why it cannot be added.
func (r *rack) reserve(s *server, limit int) (refusal string, err error) {
	isSame := func(other *server) bool { return other.config.ServerID == s.config.ServerID }
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.isClosed:
		return "", a2e.ErrClosed
	case slices.ContainsFunc(r.servers, isSame) || slices.ContainsFunc(r.opening, isSame):
		return "there is a server of this id", nil
	case len(r.servers)+len(r.opening) >= limit:
		return "too many servers", nil
	}
	r.opening = append(r.opening, s)
	return "", nil
}

func (r *rack) release(s *server) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.releaseLocked(s)
}

// releaseLocked gives up the place of a server that is not connected. r.mu must be held.
func (r *rack) releaseLocked(s *server) {
	r.opening = slices.DeleteFunc(r.opening, func(other *server) bool { return other == s })
}

// admit adds a connected server, unless the session has ended.
func (r *rack) admit(s *server) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.releaseLocked(s)
	if !r.isClosed {
		r.servers = append(r.servers, s)
	}
	return !r.isClosed
}

// maxConfig bounds the configuration of a server in bytes.
const maxConfig = 64 << 10

func (b *Bridge) register(ctx context.Context, call *a2e.Call, q *ServerRegisterRequest) (*ServerRegisterResponse, error) {
	if len(q.Config) > maxConfig {
		return &ServerRegisterResponse{Error: "the configuration is too large"}, nil
	}
	config, err := a2e.DecodeModel[ServerConfig](bytes.Clone(q.Config), "config") // does not retain the message
	if err != nil {
		return nil, err
	}
	if config.ServerID == "" {
		config.ServerID = a2e.NewID()[:8]
	}
	r := call.PluginState().(*rack)
	if b.opts.Authorizer == nil || !b.opts.Authorizer(call.Session, config) {
		return &ServerRegisterResponse{Error: "the server is not allowed here"}, nil
	}
	s := &server{config: *config}
	if refusal, err := r.reserve(s, b.opts.MaxServers); refusal != "" || err != nil {
		return &ServerRegisterResponse{Error: refusal}, err
	}
	defer r.release(s)
	session := call.Session
	connected, err := b.connector.Connect(ctx, session, config, func(method string, params json.RawMessage) {
		_ = session.Send(session.Context(), "mcp/server/push", &ServerPush{ServerID: config.ServerID, Method: method, Params: params})
	})
	if err == nil && connected == nil {
		err = errors.New("mcp: the Connector returned no Server")
	}
	if err != nil {
		var e *a2e.Error
		if errors.As(err, &e) {
			return nil, err
		}
		e = a2e.Errorf(a2e.ErrMCPServerUnavailable, "the MCP server cannot be reached")
		e.Cause = err
		return nil, e
	}
	s.Server, s.since = connected, time.Now()
	if ctx.Err() != nil { // the call is already answered, so the agent does not know the server
		_ = s.Close()
		return nil, context.Cause(ctx)
	}
	if !r.admit(s) {
		_ = s.Close()
		return nil, a2e.ErrClosed
	}
	info := s.info()
	raw, err := a2e.EncodeModel(&info)
	return &ServerRegisterResponse{OK: true, Server: raw}, err
}

func (b *Bridge) unregister(_ context.Context, call *a2e.Call, q *ServerUnregisterRequest) (*ServerUnregisterResponse, error) {
	r := call.PluginState().(*rack)
	r.mu.Lock()
	i := slices.IndexFunc(r.servers, func(s *server) bool { return s.config.ServerID == q.ServerID })
	if i < 0 {
		r.mu.Unlock()
		return nil, notFound(q.ServerID)
	}
	s := r.servers[i]
	r.servers = slices.Delete(slices.Clone(r.servers), i, i+1)
	r.mu.Unlock()
	return &ServerUnregisterResponse{OK: s.Close() == nil, ServerID: q.ServerID}, nil
}

// allowed reports whether the configuration permits access to a resource (A2E-128).
func (s *server) allowed(uri string) bool {
	return len(s.config.ResourceAllowList) == 0 || slices.Contains(s.config.ResourceAllowList, uri)
}

// resources lists those of one server by pages, or the first pages of all.
func (b *Bridge) resources(ctx context.Context, call *a2e.Call, q *ResourceListRequest) (*ResourceListResponse, error) {
	list, next, err := pages(call, q.ServerID, func(s *server) ([]Resource, string, error) {
		found, next, err := s.Resources(ctx, q.Cursor)
		found = slices.DeleteFunc(slices.Clone(found), func(r Resource) bool { return !s.allowed(r.URI) })
		for i := range found {
			found[i].ServerID = s.config.ServerID
		}
		return found, next, err
	})
	if err != nil {
		return nil, err
	}
	return &ResourceListResponse{Resources: list, NextCursor: next}, nil
}

// pages lists what one server has by pages, or the first pages of all.
func pages[T any](call *a2e.Call, id string, page func(*server) (found []T, next string, err error)) (list []json.RawMessage, next string, err error) {
	servers, err := call.PluginState().(*rack).some(id)
	if err != nil {
		return nil, "", err
	}
	for _, s := range servers {
		found, after, err := page(s)
		if id == "" && errors.Is(err, a2e.ErrMCPCapabilityMissing) {
			continue // one of several that has none
		}
		if err != nil {
			return nil, "", transportError(err)
		}
		if len(servers) == 1 {
			next = after
		}
		if list, err = appendObjects(list, found); err != nil {
			return nil, "", err
		}
	}
	return list, next, nil
}

func appendObjects[T any](list []json.RawMessage, found []T) ([]json.RawMessage, error) {
	for i := range found {
		var err error
		if list, err = appendObject(list, &found[i]); err != nil {
			return nil, err
		}
	}
	return list, nil
}

func transportError(err error) error {
	var e *a2e.Error
	if errors.As(err, &e) {
		return err
	}
	e = a2e.Errorf(a2e.ErrMCPTransport, "the MCP server did not answer")
	e.Cause = err
	return e
}

// one tries the servers in turn and returns the first that has the object.
func one(call *a2e.Call, id string, try func(*server) error) (*server, error) {
	list, err := call.PluginState().(*rack).some(id)
	if err != nil {
		return nil, err
	}
	failure := notFound(id)
	for i, s := range list {
		err := try(s)
		if err == nil {
			return s, nil
		}
		if i == 0 || isMissing(failure) { // a server that fails may have the object
			failure = err
		}
	}
	return nil, transportError(failure)
}

// isMissing reports whether a server does not have the object of a request.
func isMissing(err error) bool {
	return errors.Is(err, a2e.ErrMCPResourceNotFound) || errors.Is(err, a2e.ErrMCPPromptNotFound) || errors.Is(err, a2e.ErrMCPCapabilityMissing)
}

func (b *Bridge) read(ctx context.Context, call *a2e.Call, q *ResourceReadRequest) (*ResourceReadResponse, error) {
	resp := &ResourceReadResponse{}
	var contents []ResourceContent
	s, err := one(call, q.ServerID, func(s *server) (err error) {
		if !s.allowed(q.URI) {
			return a2e.Errorf(a2e.ErrMCPResourceNotFound, "there is no such resource")
		}
		contents, err = s.ReadResource(ctx, q.URI)
		return err
	})
	if err != nil {
		return nil, err
	}
	resp.ServerID = s.config.ServerID
	resp.Contents, err = appendObjects(nil, contents)
	return resp, err
}

func (b *Bridge) subscribe(ctx context.Context, call *a2e.Call, q *ResourceSubscribeRequest) (*ResourceSubscribeResponse, error) {
	_, err := one(call, q.ServerID, func(s *server) error {
		if !s.allowed(q.URI) {
			return a2e.Errorf(a2e.ErrMCPResourceNotFound, "there is no such resource")
		}
		return s.Subscribe(ctx, q.URI)
	})
	if err != nil {
		return nil, err
	}
	return &ResourceSubscribeResponse{OK: true}, nil
}

func (b *Bridge) prompts(ctx context.Context, call *a2e.Call, q *PromptListRequest) (*PromptListResponse, error) {
	list, next, err := pages(call, q.ServerID, func(s *server) ([]Prompt, string, error) {
		found, next, err := s.Prompts(ctx, q.Cursor)
		found = slices.Clone(found)
		for i := range found {
			found[i].ServerID = s.config.ServerID
		}
		return found, next, err
	})
	if err != nil {
		return nil, err
	}
	return &PromptListResponse{Prompts: list, NextCursor: next}, nil
}

func (b *Bridge) prompt(ctx context.Context, call *a2e.Call, q *PromptGetRequest) (*PromptGetResponse, error) {
	resp := &PromptGetResponse{}
	var messages []PromptMessage
	s, err := one(call, q.ServerID, func(s *server) (err error) {
		resp.Description, messages, err = s.Prompt(ctx, q.Name, q.Arguments)
		return err
	})
	if err != nil {
		return nil, err
	}
	resp.ServerID = s.config.ServerID
	resp.Messages, err = appendObjects(nil, messages)
	return resp, err
}
