// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcpserver_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/fivewire/fivewire/internal/mcpserver"
)

// A pair returns its arguments when two calls have reached it.
type pair struct{ added, called sync.WaitGroup }

func (p *pair) ListTools(context.Context) ([]*mcp.Tool, error) { return nil, nil }

func (p *pair) CallTool(_ context.Context, c *mcpserver.Call) (mcp.Result, error) {
	p.called.Done()
	p.called.Wait()
	return mcpserver.Result(c.Arguments), nil
}

// hold makes both calls add their tool before one of them calls it.
func (p *pair) hold(_ mcpserver.Server, server *mcp.Server, _ mcpserver.Backend) error {
	server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			p.added.Done()
			p.added.Wait()
			return next(ctx, method, req)
		}
	})
	return nil
}

// The calls of a batch share no results.
func TestBatch(t *testing.T) {
	p := &pair{}
	p.added.Add(2)
	p.called.Add(2)
	h := mcpserver.Server{Name: "test", Extension: "test", Extend: p.hold}.Handler(func(*http.Request) mcpserver.Backend { return p })
	var calls []string
	for i := range 2 {
		calls = append(calls, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"echo","arguments":{"n":%d}}}`, i, i))
	}
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader("["+strings.Join(calls, ",")+"]"))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	for i := range 2 {
		want := fmt.Sprintf(`"id":%d,"result":{"content":[{"type":"text","text":"{\"n\":%d}"}],"structuredContent":{"n":%d}}}`, i, i, i)
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("got %s, want %s", w.Body, want)
		}
	}
}
