// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcpbridge

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/sync/errgroup"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/mcp"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// A server is one MCP server of one session, connected or to be reconnected.
type server struct {
	c       *Connector
	session *a2e.Session
	config  *mcp.ServerConfig
	forward func(method string, params json.RawMessage)
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	work    sync.WaitGroup

	mu       sync.Mutex // guards everything below
	closed   bool
	link     *link
	attempt  *attempt       // to connect again; nil for none
	last     mcp.ServerInfo // description of the last connection
	failures int
	notYet   time.Time // earliest time of a new connection
	calls    map[string]*a2e.Call
	next     uint64
	subs     []string // subscribed resources, for the next connection
	subsSize int      // bytes of subs
}

// An attempt is a connection in progress. All requests wait for it, each until its own context ends.
type attempt struct {
	done chan struct{} // closed with link or err set
	link *link
	err  error
}

// A link is one connection.
type link struct {
	*sdk.ClientSession
	changes atomic.Uint64 // number of changes of the tool list
	acks    *acks

	busy  chan struct{} // full while the tools are listed; guards everything below
	tools []*sdk.Tool
	at    uint64    // the value of changes for tools
	until time.Time // expiry of tools
}

func newServer(c *Connector, s *a2e.Session, config *mcp.ServerConfig, notify func(string, json.RawMessage)) *server {
	own := *config
	srv := &server{c: c, session: s, config: &own, forward: notify, calls: map[string]*a2e.Call{}}
	srv.ctx, srv.cancel = context.WithCancel(context.Background())
	return srv
}

// notify forwards a notification unless the server was closed.
func (s *server) notify(method string, params any) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.work.Add(1) // Close waits for it
	s.mu.Unlock()
	defer s.work.Done()
	raw, err := guard.Encode(params)
	if err != nil || len(raw) == 0 || raw[0] != '{' {
		raw = []byte("{}")
	}
	s.forward(method, raw)
}

// open connects. It is called by one goroutine at a time.
func (s *server) open(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.c.opts.DialTimeout)
	defer cancel()
	t, free, err := s.c.transport(s.config)
	if err != nil {
		return err
	}
	// The context in which the SDK connects is that of the whole connection.
	life, end := context.WithCancel(s.ctx)
	stop := context.AfterFunc(ctx, end)
	subs := &acks{}
	session, err := s.client(subs).Connect(life, t, &sdk.ClientSessionOptions{ProtocolVersion: s.c.opts.ProtocolVersion})
	if err == nil && !stop() {
		_ = session.Close()
		err = context.Cause(ctx)
	}
	if err != nil {
		end()
		free()
		return fmt.Errorf("mcpbridge: connect: %w", err)
	}
	l := &link{ClientSession: session, acks: subs, busy: make(chan struct{}, 1)}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		_ = session.Close()
		end()
		free()
		return a2e.ErrClosed
	}
	s.link = l
	s.work.Go(func() { s.watch(l, end, free) })
	uris := slices.Clone(s.subs)
	s.work.Go(func() { s.renew(l, uris) })
	s.mu.Unlock()
	s.loadInfo(ctx, l)
	return nil
}

// watch waits for the end of a connection and frees its resources.
func (s *server) watch(l *link, end, free func()) {
	err := l.Wait()
	s.mu.Lock()
	if s.link == l {
		s.link = nil
	}
	closed := s.closed
	s.last.Status, s.last.Error = mcp.StatusDisconnected, "the server ended the connection"
	s.mu.Unlock()
	if !closed {
		s.c.log.InfoContext(s.ctx, "mcpbridge: connection closed", "server_id", s.config.ServerID, "err", err)
	}
	_ = l.Close()
	end()
	free()
}

// loadInfo records the description of the server.
func (s *server) loadInfo(ctx context.Context, l *link) {
	info := mcp.ServerInfo{Status: mcp.StatusReady}
	if init := l.InitializeResult(); init != nil {
		info.MCPVersion = init.ProtocolVersion
		if init.ServerInfo != nil {
			info.ServerName, info.ServerVersion = init.ServerInfo.Name, init.ServerInfo.Version
		}
	}
	caps := capabilities(l)
	start := time.Now()
	if caps.Tools != nil {
		if list, err := s.listTools(ctx, l); err == nil {
			info.ToolsCount = int64(len(list))
			info.LastPingMs = float64(time.Since(start).Microseconds()) / 1000
		}
	}
	if caps.Resources != nil {
		info.ResourcesCount = count(s.c.opts.MaxItems, l.Resources(ctx, nil))
	}
	if caps.Prompts != nil {
		info.PromptsCount = count(s.c.opts.MaxItems, l.Prompts(ctx, nil))
	}
	//lint:ignore SA1019 it works for as long as servers have it
	if caps.Logging != nil { // servers log nothing before a level is set
		//lint:ignore SA1019 it works for as long as servers have it
		_ = l.SetLoggingLevel(ctx, &sdk.SetLoggingLevelParams{Level: "info"})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link == l {
		s.last = info
	}
}

func count[T any](limit int, list func(func(T, error) bool)) (n int64) {
	for _, err := range list {
		if err != nil || n >= int64(limit) {
			break
		}
		n++
	}
	return n
}

func capabilities(l *link) *sdk.ServerCapabilities {
	if init := l.InitializeResult(); init != nil && init.Capabilities != nil {
		return init.Capabilities
	}
	return &sdk.ServerCapabilities{}
}

// connected returns the connection, and reconnects after a loss if the configuration allows it.
func (s *server) connected(ctx context.Context) (*link, error) {
	s.mu.Lock()
	l, a := s.link, s.attempt
	switch {
	case l != nil:
		s.mu.Unlock()
		return l, nil
	case a != nil:
	case s.closed || s.config.AutoReconnect != nil && !*s.config.AutoReconnect || time.Until(s.notYet) > 0:
		s.mu.Unlock()
		return nil, unavailable(nil)
	default:
		a = &attempt{done: make(chan struct{})}
		s.attempt = a
		s.work.Go(func() {
			guard.Run("mcp server", func() error { return s.open(s.ctx) }, func(err error) { s.finish(a, err) })
		})
	}
	s.mu.Unlock()
	select {
	case <-a.done:
		return a.link, a.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// finish ends an attempt to connect.
func (s *server) finish(a *attempt, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer close(a.done)
	s.attempt = nil
	if err != nil {
		s.failures++
		s.notYet = time.Now().Add(retry.Delay(s.failures, time.Second, 30*time.Second))
		s.last.Status, s.last.Error = mcp.StatusError, "the server cannot be reached"
		a.err = unavailable(err)
		return
	}
	s.failures, s.notYet = 0, time.Now().Add(time.Second)
	if a.link = s.link; a.link == nil {
		a.err = unavailable(nil)
	}
}

func unavailable(cause error) error {
	e := a2e.Errorf(a2e.ErrMCPServerUnavailable, "the MCP server cannot be reached")
	e.Cause = cause
	return e
}

// ask makes one exchange with the server within the time limit of its configuration.
func ask[T any](ctx context.Context, s *server, missing a2e.Code, has func(*sdk.ServerCapabilities) bool,
	do func(context.Context, *link) (T, error)) (result T, err error) {
	l, err := s.connected(ctx)
	if err != nil {
		return result, err
	}
	if !has(capabilities(l)) {
		return result, a2e.Errorf(a2e.ErrMCPCapabilityMissing, "the MCP server has none of these")
	}
	limited, done := s.within(ctx) // Close ends waiting calls
	defer done()
	if limit := timeLimit(s.config); limit > 0 {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(limited, limit)
		defer cancel()
	}
	result, err = do(limited, l)
	switch {
	case err == nil:
		return result, nil
	case s.ctx.Err() != nil && ctx.Err() == nil:
		return result, unavailable(err)
	}
	return result, wireError(ctx, limited, missing, err)
}

// Info returns the description of the last connection.
func (s *server) Info() mcp.ServerInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// Close ends the connection and waits for its goroutines.
func (s *server) Close() error {
	s.mu.Lock()
	s.closed = true
	l := s.link
	s.mu.Unlock()
	s.cancel()
	if l != nil {
		_ = l.Close()
	}
	s.work.Wait()
	return nil
}

func (s *server) Resources(ctx context.Context, cursor string) ([]mcp.Resource, string, error) {
	found, err := ask(ctx, s, a2e.ErrMCPResourceNotFound, hasResources, func(ctx context.Context, l *link) (*sdk.ListResourcesResult, error) {
		return l.ListResources(ctx, &sdk.ListResourcesParams{Cursor: cursor})
	})
	if err != nil {
		return nil, "", err
	}
	list := make([]mcp.Resource, 0, len(found.Resources))
	for _, r := range found.Resources {
		if r == nil {
			continue
		}
		own := mcp.Resource{URI: r.URI, Name: r.Name, Description: r.Description, MimeType: r.MIMEType}
		if r.Annotations != nil {
			own.Annotations, _ = guard.Encode(r.Annotations)
		}
		if r.Title != "" {
			_ = own.Extra.Set("title", r.Title)
		}
		if r.Size != 0 {
			_ = own.Extra.Set("size", r.Size)
		}
		list = append(list, own)
	}
	return list, found.NextCursor, nil
}

func hasResources(c *sdk.ServerCapabilities) bool { return c.Resources != nil }
func hasPrompts(c *sdk.ServerCapabilities) bool   { return c.Prompts != nil }
func hasTools(c *sdk.ServerCapabilities) bool     { return c.Tools != nil }

func (s *server) ReadResource(ctx context.Context, uri string) ([]mcp.ResourceContent, error) {
	read, err := ask(ctx, s, a2e.ErrMCPResourceNotFound, hasResources, func(ctx context.Context, l *link) (*sdk.ReadResourceResult, error) {
		return l.ReadResource(ctx, &sdk.ReadResourceParams{URI: uri})
	})
	if err != nil {
		return nil, err
	}
	var list []mcp.ResourceContent
	for _, c := range read.Contents {
		if c == nil {
			continue
		}
		own := mcp.ResourceContent{URI: c.URI, MimeType: c.MIMEType, Text: c.Text, Type: "text"}
		if c.Blob != nil {
			own.Type, own.Blob = "blob", base64.StdEncoding.EncodeToString(c.Blob)
		}
		switch {
		case own.MimeType != "":
		case c.Blob != nil:
			own.MimeType = "application/octet-stream"
		default:
			own.MimeType = "text/plain"
		}
		list = append(list, own)
	}
	return list, nil
}

func (s *server) Subscribe(ctx context.Context, uri string) error {
	uri = strings.Clone(uri) // does not retain the message
	if err := s.checkSubscription(uri); err != nil {
		return err
	}
	var used *link
	_, err := ask(ctx, s, a2e.ErrMCPResourceNotFound, func(c *sdk.ServerCapabilities) bool { return c.Resources != nil && c.Resources.Subscribe },
		func(ctx context.Context, l *link) (struct{}, error) {
			used = l
			return struct{}{}, s.subscribe(ctx, l, uri)
		})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.link != used:
		return unavailable(nil)
	case !slices.Contains(s.subs, uri):
		s.subs = append(s.subs, uri)
		s.subsSize += len(uri)
	}
	return nil
}

// checkSubscription refuses a subscription over the bounds.
func (s *server) checkSubscription(uri string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	isFull := len(s.subs) >= s.c.opts.MaxItems || s.subsSize+len(uri) > s.c.opts.MaxMessage
	if !isFull || slices.Contains(s.subs, uri) {
		return nil
	}
	e := a2e.Errorf(a2e.ErrRuntime, "too many subscriptions")
	e.Reason = a2e.ReasonOverloaded
	return e
}

// subscribe subscribes a connection to a resource.
func (s *server) subscribe(ctx context.Context, l *link, uri string) error {
	if !listens(l) {
		return l.Subscribe(ctx, &sdk.SubscribeParams{URI: uri})
	}
	acked := l.acks.wait(uri)
	defer l.acks.finish(uri)
	if err := l.Subscribe(ctx, &sdk.SubscribeParams{URI: uri}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.c.opts.DialTimeout)
	defer cancel()
	select {
	case <-acked:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// maxRenewals is the number of subscriptions that are renewed at a time.
const maxRenewals = 16

// renew subscribes a new connection to the resources of the lost one within DialTimeout, and reports that each may have
// changed.
func (s *server) renew(l *link, uris []string) {
	ctx, cancel := context.WithTimeout(s.ctx, s.c.opts.DialTimeout)
	defer cancel()
	var work errgroup.Group
	work.SetLimit(maxRenewals)
	for _, uri := range uris {
		work.Go(func() error { return s.renewOne(ctx, l, uri) })
	}
	_ = work.Wait()
}

// renewOne renews a subscription, unless a later connection does.
func (s *server) renewOne(ctx context.Context, l *link, uri string) error {
	err := s.subscribe(ctx, l, uri)
	s.mu.Lock()
	isCurrent := s.link == l
	if err != nil && isCurrent {
		s.subs = slices.DeleteFunc(s.subs, func(other string) bool { return other == uri })
		s.subsSize -= len(uri)
	}
	s.mu.Unlock()
	if !isCurrent {
		return nil
	}
	if err != nil {
		s.c.log.WarnContext(s.ctx, "mcpbridge: subscription not renewed", "server_id", s.config.ServerID, "err", err)
	}
	s.notify("notifications/resources/updated", &sdk.ResourceUpdatedNotificationParams{URI: uri})
	return nil
}

// listens reports whether subscriptions of a connection are streams that the server
// acknowledges, for which the SDK does not wait.
func listens(l *link) bool {
	init := l.InitializeResult()
	return init != nil && init.ProtocolVersion >= "2026-07-28"
}

// acks are the subscriptions of one connection that the server has acknowledged or is to
// acknowledge. The server reports no changes before the acknowledgment.
type acks struct {
	mu    sync.Mutex // guards everything below
	byURI map[string]*ack
}

// An ack is the acknowledgment of a subscription. All requests for the same resource wait for it.
type ack struct {
	done    chan struct{} // closed when the server has
	isDone  bool
	waiting int // requests
}

// wait returns a channel that is closed when the server has acknowledged a subscription. The caller calls finish.
func (a *acks) wait(uri string) <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byURI == nil {
		a.byURI = map[string]*ack{}
	}
	if a.byURI[uri] == nil {
		a.byURI[uri] = &ack{done: make(chan struct{})}
	}
	a.byURI[uri].waiting++
	return a.byURI[uri].done
}

// finish ends wait. It removes a subscription that has failed for all.
func (a *acks) finish(uri string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	own := a.byURI[uri]
	if own.waiting--; own.waiting == 0 && !own.isDone {
		delete(a.byURI, uri)
	}
}

// note records an acknowledgment of the server.
func (a *acks) note(p *sdk.SubscriptionsAcknowledgedParams) {
	if p == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, uri := range p.Notifications.ResourceSubscriptions {
		if own := a.byURI[uri]; own != nil && !own.isDone { // else it was not requested
			own.isDone = true
			close(own.done)
		}
	}
}

func (s *server) Prompts(ctx context.Context, cursor string) ([]mcp.Prompt, string, error) {
	found, err := ask(ctx, s, a2e.ErrMCPPromptNotFound, hasPrompts, func(ctx context.Context, l *link) (*sdk.ListPromptsResult, error) {
		return l.ListPrompts(ctx, &sdk.ListPromptsParams{Cursor: cursor})
	})
	if err != nil {
		return nil, "", err
	}
	list := make([]mcp.Prompt, 0, len(found.Prompts))
	for _, p := range found.Prompts {
		if p == nil {
			continue
		}
		own := mcp.Prompt{Name: p.Name, Description: p.Description}
		for _, a := range p.Arguments {
			raw, err := guard.Encode(a)
			if err != nil || a == nil {
				continue
			}
			own.Arguments = append(own.Arguments, raw)
		}
		if p.Title != "" {
			_ = own.Extra.Set("title", p.Title)
		}
		list = append(list, own)
	}
	return list, found.NextCursor, nil
}

func (s *server) Prompt(ctx context.Context, name string, arguments json.RawMessage) (string, []mcp.PromptMessage, error) {
	texts, err := promptArguments(arguments)
	if err != nil {
		return "", nil, err
	}
	got, err := ask(ctx, s, a2e.ErrMCPPromptNotFound, hasPrompts, func(ctx context.Context, l *link) (*sdk.GetPromptResult, error) {
		return l.GetPrompt(ctx, &sdk.GetPromptParams{Name: name, Arguments: texts})
	})
	if err != nil {
		return "", nil, err
	}
	var list []mcp.PromptMessage
	for _, m := range got.Messages {
		if m == nil || m.Content == nil {
			continue
		}
		raw, err := m.Content.MarshalJSON()
		if err != nil {
			return "", nil, a2e.Errorf(a2e.ErrMCPProtocol, "the MCP server sent a prompt that cannot be read")
		}
		list = append(list, mcp.PromptMessage{Role: string(m.Role), Content: raw})
	}
	return got.Description, list, nil
}

// promptArguments converts the arguments of a prompt to texts, the only type that MCP permits
// there.
func promptArguments(arguments json.RawMessage) (map[string]string, error) {
	if len(arguments) == 0 {
		return nil, nil
	}
	members, err := a2e.ParseMembers(arguments)
	if err != nil {
		return nil, misfit("arguments")
	}
	texts := map[string]string{}
	for name, value := range members.All() {
		text, ok := strictjson.Value(value).Text()
		if !ok {
			text = string(value)
		}
		texts[name] = text
	}
	return texts, nil
}
