// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcpbridge

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/mcp"
	"github.com/fivewire/fivewire/a2e/tools"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/strictjson"
)

var _ mcp.ToolServer = (*server)(nil)

// staleTools is the lifetime of a cached tool list of a server that does not report changes.
const staleTools = time.Minute

// Tools returns the tools of the server (A2E-123).
func (s *server) Tools(ctx context.Context) ([]tools.Tool, error) {
	found, err := ask(ctx, s, a2e.ErrMCPToolNotFound, hasTools, s.listTools)
	if err != nil {
		return nil, err
	}
	list := make([]tools.Tool, 0, len(found))
	for _, t := range found {
		list = append(list, tools.Tool{Definition: definition(t), Run: s.runner(t.Name)})
	}
	return list, nil
}

// listTools returns the tools from the cache or the server.
func (s *server) listTools(ctx context.Context, l *link) ([]*sdk.Tool, error) {
	select {
	case l.busy <- struct{}{}:
		defer func() { <-l.busy }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	changes := l.changes.Load()
	if l.tools != nil && l.at == changes && time.Now().Before(l.until) {
		return l.tools, nil
	}
	list, size := []*sdk.Tool{}, 0
	for t, err := range l.ClientSession.Tools(ctx, nil) {
		if err != nil {
			return nil, err
		}
		text, err := guard.Encode(t)
		if err != nil {
			return nil, err
		}
		if size += len(text); t != nil && size <= s.c.opts.MaxMessage {
			list = append(list, t)
		}
		if len(list) >= s.c.opts.MaxItems || size > s.c.opts.MaxMessage {
			s.c.log.InfoContext(ctx, "mcpbridge: tool list truncated", "server_id", s.config.ServerID, "tools", len(list))
			break
		}
	}
	l.tools, l.at, l.until = list, changes, time.Now().Add(staleTools)
	if caps := capabilities(l); caps.Tools != nil && caps.Tools.ListChanged {
		l.until = l.until.Add(time.Hour) // the server reports changes
	}
	return list, nil
}

// forgetTools drops the cached tool list. A list in progress is not cached either.
func (s *server) forgetTools() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link != nil {
		s.link.changes.Add(1)
	}
}

// definition returns the A2E definition of a tool. It includes the whole schema in addition to the
// parameters, which are a subset of it.
func definition(t *sdk.Tool) tools.Definition {
	d := tools.Definition{Name: t.Name, Description: t.Description, InputParameters: parameters(t.InputSchema),
		OutputParameters: parameters(t.OutputSchema)}
	if a := t.Annotations; a != nil {
		d.Idempotent = a.IdempotentHint || a.ReadOnlyHint
	}
	title := t.Title
	if title == "" && t.Annotations != nil {
		title = t.Annotations.Title
	}
	if title != "" {
		_ = d.Extra.Set("title", title)
	}
	if schema, err := guard.Encode(t.InputSchema); err == nil && t.InputSchema != nil {
		_ = d.Extra.Set("input_schema", json.RawMessage(schema))
	}
	return d
}

// parameters reads the properties of a schema. Their order is lost in the SDK, so
// it is that of the names, required ones first.
func parameters(schema any) []tools.Parameter {
	o, _ := schema.(map[string]any)
	properties, _ := o["properties"].(map[string]any)
	required, _ := o["required"].([]any)
	var list []tools.Parameter
	for name, property := range properties {
		list = append(list, parameter(name, property, slices.Contains(required, any(name))))
	}
	slices.SortFunc(list, func(a, b tools.Parameter) int {
		if a.Required != b.Required {
			if a.Required {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Name, b.Name)
	})
	return list
}

func parameter(name string, schema any, required bool) tools.Parameter {
	p := tools.Parameter{Name: name, Type: "any", Required: required}
	o, ok := schema.(map[string]any)
	if !ok { // the schemas true and false
		return p
	}
	p.Description, _ = o["description"].(string)
	switch t := o["type"].(type) {
	case string:
		p.Type = t
	case []any: // such as string or null
		types := slices.DeleteFunc(slices.Clone(t), func(x any) bool { return x == "null" })
		if len(types) == 1 {
			if text, ok := types[0].(string); ok {
				p.Type = text
			}
		}
	}
	if values, ok := o["enum"].([]any); ok {
		for _, v := range values {
			if text, ok := v.(string); ok {
				p.Enum = append(p.Enum, text)
			} else if raw, err := guard.Encode(v); err == nil {
				p.Enum = append(p.Enum, string(raw))
			}
		}
	}
	if p.Type == "object" {
		for _, inner := range parameters(schema) {
			p.Properties = append(p.Properties, a2e.Member[tools.Parameter]{Name: inner.Name, Value: inner})
		}
	}
	return p
}

// runner returns a function that calls a tool with the exact arguments and forwards events and the
// result. The end of ctx ends the call at the server too.
func (s *server) runner(name string) func(context.Context, *a2e.Call, json.RawMessage) (any, error) {
	return func(ctx context.Context, call *a2e.Call, arguments json.RawMessage) (any, error) {
		p := &sdk.CallToolParams{Name: name}
		if len(arguments) > 0 {
			p.Arguments = arguments
		}
		if call != nil && call.Streaming() {
			token := s.track(call)
			defer s.untrack(token)
			p.SetProgressToken(token)
		}
		start := time.Now()
		got, err := ask(ctx, s, a2e.ErrMCPToolNotFound, hasTools, func(ctx context.Context, l *link) (*sdk.CallToolResult, error) {
			got, err := l.CallTool(ctx, p)
			if err != nil && s.has(ctx, l, name) { // then it was not the name that the server refused
				err = wireError(ctx, ctx, a2e.ErrTool, err)
			}
			return got, err
		})
		if err != nil {
			return nil, err
		}
		return result(got, time.Since(start))
	}
}

// has reports whether the server has a tool, asking again.
func (s *server) has(ctx context.Context, l *link, name string) bool {
	if ctx.Err() != nil {
		return false
	}
	l.changes.Add(1)
	list, err := s.listTools(ctx, l)
	return err == nil && slices.ContainsFunc(list, func(t *sdk.Tool) bool { return t.Name == name })
}

// track returns the token under which the server reports the progress of a call.
func (s *server) track(call *a2e.Call) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	token := "a2e-" + strconv.FormatUint(s.next, 10)
	s.calls[token] = call
	return token
}

func (s *server) untrack(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.calls, token)
}

// progress emits an event of the call of a notification. Other notifications are forwarded.
func (s *server) progress(p *sdk.ProgressNotificationParams) {
	token, _ := p.ProgressToken.(string)
	s.mu.Lock()
	call := s.calls[token]
	s.mu.Unlock()
	if call == nil {
		s.notify("notifications/progress", p)
		return
	}
	data := map[string]any{"progress": p.Progress}
	if p.Total > 0 {
		data["pct"], data["total"] = min(100, 100*p.Progress/p.Total), p.Total
	}
	if p.Message != "" {
		data["message"] = p.Message
	}
	if err := call.Emit(a2e.EventProgress, data); err != nil {
		s.c.log.DebugContext(s.ctx, "mcpbridge: late progress dropped", "err", err)
	}
}

// result converts the answer of a server. Its data are the structured content or else the content
// blocks, its summary their text.
func result(got *sdk.CallToolResult, took time.Duration) (*tools.Result, error) {
	r := &tools.Result{Success: !got.IsError, DurationMs: took.Milliseconds()}
	var texts []string
	blocks := []json.RawMessage{}
	for _, c := range got.Content {
		if c == nil {
			continue
		}
		if t, ok := c.(*sdk.TextContent); ok {
			texts = append(texts, t.Text)
		}
		raw, err := c.MarshalJSON()
		if err != nil {
			return nil, a2e.Errorf(a2e.ErrMCPProtocol, "the MCP server sent content that cannot be read")
		}
		blocks = append(blocks, raw)
	}
	text := strings.Join(texts, "\n")
	var err error
	if r.Data = exact(got.StructuredContent, texts); r.Data == nil {
		if r.Data, err = guard.Encode(blocks); err != nil {
			return nil, a2e.Errorf(a2e.ErrMCPProtocol, "the MCP server sent content that cannot be read")
		}
	}
	if text != "" {
		if r.Summary, err = guard.Encode(text); err != nil {
			return nil, a2e.Errorf(a2e.ErrMCPProtocol, "the MCP server sent text that is not UTF-8")
		}
	}
	if got.IsError {
		failed, code := clip(text, 1000), string(a2e.ErrTool)
		if failed == "" {
			failed = "the tool failed"
		}
		r.Error, r.ErrorCode = &failed, &code
	}
	return r, nil
}

// exact returns structured content as text, or nil if there is none or numbers
// of it may have been rounded.
func exact(content any, texts []string) json.RawMessage {
	if content == nil {
		return nil
	}
	for _, text := range texts {
		v, err := strictjson.Check([]byte(text), strictjson.Options{MaxDepth: maxDepth})
		if err == nil && same(v, content) {
			return json.RawMessage(v)
		}
	}
	if strictjson.Rounded(content) {
		return nil
	}
	raw, err := guard.Encode(content)
	if err != nil {
		return nil
	}
	return raw
}

// same reports whether x is the SDK's representation of v.
func same(v strictjson.Value, x any) bool {
	switch x := x.(type) {
	case nil:
		return v.Kind() == 'n'
	case bool:
		b, ok := v.Bool()
		return ok && b == x
	case string:
		s, ok := v.Text()
		return ok && s == x
	case float64:
		f, err := strconv.ParseFloat(string(v), 64)
		return v.Kind() == '0' && err == nil && f == x
	case []any:
		return v.IsArray() && sameElements(v, x)
	case map[string]any:
		return v.IsObject() && sameMembers(v, x)
	}
	return false
}

func sameElements(v strictjson.Value, x []any) bool {
	i := 0
	for e := v.Elements(); e.Next(); i++ {
		if i >= len(x) || !same(e.Value, x[i]) {
			return false
		}
	}
	return i == len(x)
}

func sameMembers(v strictjson.Value, x map[string]any) bool {
	n := 0
	for m := v.Members(); m.Next(); n++ {
		inner, ok := x[string(m.Name)]
		if !ok || !same(m.Value, inner) {
			return false
		}
	}
	return n == len(x)
}
