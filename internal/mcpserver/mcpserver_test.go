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
	"testing/synctest"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/fivewire/fivewire/internal/kit"
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

// Large responses that a caller does not read count for it: a further one has little time. Other callers and small
// responses are not affected.
func TestUnreadResponsesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := mcpserver.Front{Ready: func() error { return nil }, Authenticate: func(r *http.Request) (context.Context, string, error) {
			return r.Context(), r.Header.Get("X-Api-Key"), nil
		}}
		large := strings.Repeat("x", 20<<20)
		h := f.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			text := large
			if r.URL.Path == "/small" {
				text = large[:64<<10]
			}
			if _, err := w.Write([]byte(text)); err != nil {
				t.Error(err)
			}
			w.(http.Flusher).Flush()
		}))
		wait := make(chan struct{})
		var calls sync.WaitGroup
		send := func(principal, path string) *kit.SlowReader {
			w := &kit.SlowReader{ResponseRecorder: httptest.NewRecorder(), Wait: wait}
			req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, nil)
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("X-Api-Key", principal)
			calls.Go(func() { h.ServeHTTP(w, req) })
			synctest.Wait()
			return w
		}
		var counted []*kit.SlowReader
		for range 3 {
			counted = append(counted, send("one", "/"))
		}
		hasty, small, other := send("one", "/"), send("one", "/small"), send("two", "/")
		close(wait)
		calls.Wait()
		after := send("one", "/")
		for i, w := range append(counted, other, after) {
			if len(w.Deadlines) < 300 {
				t.Errorf("response %d has %d deadlines, want one for each part", i, len(w.Deadlines))
			}
		}
		for _, w := range []*kit.SlowReader{hasty, small} {
			if w.Code != http.StatusOK || len(w.Deadlines) != 2 {
				t.Errorf("status %d with %d deadlines, want 200 with two: of the part and of the flush", w.Code, len(w.Deadlines))
			}
		}
		if hasty.Body.Len() != len(large) {
			t.Errorf("got %d bytes, want all", hasty.Body.Len())
		}
	})
}
