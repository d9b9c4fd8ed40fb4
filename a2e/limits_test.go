// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
)

type sized struct {
	Text string `json:"text,omitzero" jsonmap:"always"`
}

// sizes returns a plugin that answers with a text, sends it as an event or as a push.
func sizes(errs chan<- error) *a2e.Plugin {
	return &a2e.Plugin{Name: "demo", Capability: "demo", Routes: []a2e.Route{
		a2e.NewRoute("demo/answer/req", func(_ context.Context, _ *a2e.Call, r *sized) (*sized, error) { return r, nil }),
		a2e.NewRoute("demo/push/req", func(ctx context.Context, call *a2e.Call, r *sized) (*sized, error) {
			big := &sized{Text: strings.Repeat("x", 4000)}
			errs <- call.Session.Send(ctx, "demo/push", big)
			_, err := call.Session.Call(ctx, "demo/ask/req", big)
			errs <- err
			return r, nil
		}),
	}}
}

// A message over the bound that the agent announces is an error of the handler, and the session continues
// (A2E-D57).
func TestSessionSendOverAnnouncedLimitFails(t *testing.T) {
	errs := make(chan error, 2)
	h := a2etest.NewHost(t, nil, sizes(errs))
	c := a2etest.Connect(t, h, &a2e.ClientOptions{Limits: a2e.ClientLimits{MaxMessage: 2000}})
	_, err := c.Call(t.Context(), "demo/push/req", &sized{}, nil)
	require.NoError(t, err)
	for range 2 {
		err := <-errs
		require.ErrorIs(t, err, a2e.ErrTooLarge)
		require.ErrorIs(t, err, a2e.ErrRuntime)
	}
	_, err = c.Call(t.Context(), "demo/answer/req", &sized{Text: strings.Repeat("x", 1990)}, nil)
	var e *a2e.Error
	require.ErrorAs(t, err, &e)
	require.True(t, e.Remote)
	require.False(t, e.Retryable)
	require.JSONEq(t, `{"reason":"too_large","limit":2000}`, string(e.Details))
}

// A request over the limit of the host fails before it is sent, also one that is nested too deep.
func TestCallOverAnnouncedLimitFailsUnsent(t *testing.T) {
	h := a2etest.NewHost(t, &a2e.HostOptions{Limits: a2e.Limits{MaxMessage: 1000, MaxDepth: 4}}, sizes(nil))
	c := a2etest.Connect(t, h, nil)
	deep := a2e.Members{}
	require.NoError(t, deep.Set("a", json.RawMessage(`[[["{"]]]`)))
	require.NoError(t, deep.Set("text", "x"))
	_, err := c.Call(t.Context(), "demo/answer/req", deep, nil)
	require.NoError(t, err, "the depth of the limit")
	require.NoError(t, deep.Set("a", json.RawMessage(`[[[[0]]]]`)))
	for reason, body := range map[string]any{"too_large": &sized{Text: strings.Repeat("x", 2000)}, "too_deep": deep} {
		_, err := c.Call(t.Context(), "demo/answer/req", body, nil)
		var e *a2e.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, reason, e.Reason)
		require.False(t, e.Remote || e.Retryable)
		require.ErrorIs(t, err, a2e.ErrInvalidMessage)
	}
	require.Zero(t, h.Stats().Dropped)
}

// A host announces the limit of its WebSocket handler, if that is lower than its own limit.
func TestWebSocketLimitIsAnnounced(t *testing.T) {
	h := a2etest.NewHost(t, nil, sizes(nil))
	web := httptest.NewServer(a2etest.Must(a2e.NewWebSocketHandler(h, &a2e.WebSocketOptions{MaxMessage: 1000})))
	defer web.Close()
	c := a2etest.Must(a2e.NewClient(a2etest.Must(a2e.DialWebSocket(t.Context(), web.URL, nil)), &a2e.ClientOptions{Capabilities: []string{"demo"}}))
	defer c.Close()
	_, err := c.Connect(t.Context())
	require.NoError(t, err)
	_, err = c.Call(t.Context(), "demo/answer/req", &sized{Text: strings.Repeat("x", 100_000)}, nil)
	var e *a2e.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, a2e.ReasonTooLarge, e.Reason)
	require.False(t, e.Remote)
	_, err = c.Call(t.Context(), "demo/answer/req", &sized{}, nil)
	require.NoError(t, err)
}

// An answer of the client over the limit of the host is answered by an error.
func TestClientAnswerOverAnnouncedLimitIsError(t *testing.T) {
	failure := make(chan error, 1)
	h := a2etest.NewHost(t, &a2e.HostOptions{Limits: a2e.Limits{MaxMessage: 1000}})
	h.AddPlugin(&a2e.Plugin{Name: "demo", Capability: "demo", Routes: []a2e.Route{
		a2e.NewRoute("demo/ask/req", func(ctx context.Context, call *a2e.Call, _ *struct{}) (*struct{}, error) {
			_, err := call.Session.Call(ctx, "demo/big/req", nil)
			failure <- err
			return nil, nil
		})}})
	c := a2etest.Connect(t, h, nil)
	c.Handle("demo/big/req", func(context.Context, *a2e.Message) (any, error) {
		return &sized{Text: strings.Repeat("x", 2000)}, nil
	})
	_, err := c.Call(t.Context(), "demo/ask/req", nil, nil)
	require.NoError(t, err)
	err = <-failure
	require.ErrorIs(t, err, a2e.ErrTooLarge)
	require.ErrorIs(t, err, a2e.ErrRuntime)
}

// The beginning of a long line names its request, whatever follows (A2E-D06).
func TestLongLineNamesItsRequest(t *testing.T) {
	long := strings.Repeat("x", 5000)
	for line, want := range map[string]string{
		`{"id":"i1","t":"` + long:                                           "i1",
		` {"a":[1,{"id":"no"}],"id":"i2","id":"i3","t":"` + long:            "i2",
		`{"id":7,"id":"i4","t":"` + long:                                    "",
		`{"id":"` + long:                                                    "",
		`{"id":"` + strings.Repeat("i", 257) + `","t":"` + long:             "",
		`{"a":}"id":"i5","t":"` + long:                                      "",
		"{\"a\":\"\xff\",\"id\":\"i6\",\"t\":\"" + long:                     "",
		`["id","i7","` + long:                                               "",
		`{"t":"` + long[:4070] + `","id":"i8"}` + long:                      "i8",
		`{"t":"` + long[:4090] + `","id":"i9"}`:                             "",
		`{"id":"i10","t":"` + long[:3000] + `","u":"` + long + `"` + "\xff": "i10",
	} {
		codec := &a2e.Codec{MaxMessage: 100}
		r := a2e.NewLineReader(strings.NewReader(line+"\n{}\n"), codec)
		_, err := r.Next()
		var e *a2e.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, want, e.ReqID, "%.40s", line)
		require.JSONEq(t, `{"limit":100}`, string(e.Details))
		next, err := r.Next()
		require.NoError(t, err)
		require.Equal(t, "{}", string(next))
	}
}

// counting counts the POST requests that it delays, and refuses bodies of several lines if so set.
type counting struct {
	next    http.RoundTripper
	posts   atomic.Int64
	refuses atomic.Bool
}

func (c *counting) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/send") {
		c.posts.Add(1)
		time.Sleep(20 * time.Millisecond)
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		if c.refuses.Load() && bytes.Contains(bytes.TrimSpace(body), []byte("\n")) {
			return &http.Response{StatusCode: 413, Status: "413", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
				Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(`{}`))}, nil
		}
		r = r.Clone(r.Context())
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	return c.next.RoundTrip(r)
}

// Calls that wait for a POST share the next one, in their order. A refused batch is sent one by one
// (A2E-D54).
func TestHTTPCallsShareABody(t *testing.T) {
	for _, isRefused := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			var order []string
			h := a2etest.NewHost(t, &a2e.HostOptions{Limits: a2e.Limits{MaxConcurrentPerSession: 32}})
			h.AddPlugin(&a2e.Plugin{Name: "demo", Capability: "demo", Routes: []a2e.Route{
				a2e.NewRoute("demo/answer/req", func(_ context.Context, _ *a2e.Call, r *sized) (*sized, error) {
					mu.Lock()
					defer mu.Unlock()
					order = append(order, r.Text)
					return r, nil
				})}})
			to, stop := newPipeNet(a2etest.Must(a2e.NewHTTPHandler(h, &a2e.HTTPHandlerOptions{AllowedHosts: []string{"a.example"}})))
			count := &counting{next: to.Transport}
			rw := a2etest.Must(a2e.DialHTTP(t.Context(), "http://a.example",
				&a2e.HTTPDialOptions{HTTPClient: &http.Client{Transport: count}, AllowInsecure: true}))
			c := a2etest.Must(a2e.NewClient(rw, &a2e.ClientOptions{Capabilities: []string{"demo"}}))
			_, err := c.Connect(t.Context())
			require.NoError(t, err)
			require.Equal(t, []string{"cancel", "limits", "batch"}, c.PeerInfo().Features)
			count.refuses.Store(isRefused)
			count.posts.Store(0)
			start := time.Now()
			var all sync.WaitGroup
			for i := range 32 {
				all.Go(func() {
					_, err := c.Call(t.Context(), "demo/answer/req", &sized{Text: string(rune('A' + i))}, nil)
					require.NoError(t, err)
				})
				synctest.Wait()
			}
			all.Wait()
			require.Len(t, order, 32)
			if isRefused {
				require.Greater(t, count.posts.Load(), int64(32))
			} else {
				require.LessOrEqual(t, count.posts.Load(), int64(8))
				require.LessOrEqual(t, time.Since(start), 120*time.Millisecond)
			}
			require.NoError(t, c.Close())
			stop()
			require.NoError(t, h.Close())
		})
	}
}
