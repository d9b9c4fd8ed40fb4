// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/vector"
	"github.com/fivewire/fivewire/store"
)

func a2eHTTPScript(t *testing.T, in *Input) (Step, error) {
	p, err := newA2EProcess(t, in, store.NewMemory())
	if err != nil {
		return nil, err
	}
	return func(step *Input) (Answer, error) {
		handler := p.handler
		switch {
		case step.Bool("restart"):
			p.plan.Crash()
			p, err = newA2EProcess(t, in, p.db)
			return Answer{}, err
		case step.Has("http"):
			a, err := a2eHTTP(handler, step.Object("http"))
			synctest.Wait()
			return a, err
		case step.Has("stream"):
			r, err := a2eOpenStream(handler, step.Object("stream"))
			if err != nil {
				return nil, err
			}
			synctest.Wait()
			r.end()
			return r.answer()
		}
		synctest.Wait()
		return Answer{}, nil
	}, nil
}

// An a2eProcess is a host with the handler that serves it.
type a2eProcess struct {
	handler *a2e.HTTPHandler
	db      store.Store
	plan    *fault.Plan // of the process on the store
}

func newA2EProcess(t *testing.T, in *Input, db store.Store) (*a2eProcess, error) {
	p := &a2eProcess{db: db, plan: &fault.Plan{}}
	h, _ := a2eHostOn(in, fault.Store(db, p.plan))
	if err := in.Err(); err != nil {
		return nil, err
	}
	p.handler = a2etest.Must(a2e.NewHTTPHandler(h, &a2e.HTTPHandlerOptions{AllowedHosts: []string{"a2e.test"}, Heartbeat: -1}))
	t.Cleanup(func() { a2eEnd(h) })
	synctest.Wait()
	return p, nil
}

// a2eRequest makes a request like one from a loopback connection.
func a2eRequest(in *Input, method, path string, body []byte) *http.Request {
	r := httptest.NewRequest(method, path, bytes.NewReader(body))
	r.Host = "a2e.test"
	in.SetHeaders("headers", r.Header)
	if host := r.Header.Get("Host"); host != "" {
		r.Host = host
		r.Header.Del("Host")
	}
	local := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8765}
	return r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, local))
}

func a2eHTTP(h http.Handler, in *Input) (Answer, error) {
	body, _ := in.WireOr("body")
	r := a2eRequest(in, in.String("method"), in.String("path"), body)
	if in.Err() != nil {
		return nil, in.Err()
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return Answer{"status": w.Code, "headers": Optional(Headers(w.Header())), "json": Optional(json.RawMessage(w.Body.Bytes()))}, nil
}

// An a2eReader is a response that is read while it is written.
type a2eReader struct {
	header http.Header // of the handler

	mu     sync.Mutex // guards all below
	status int
	sent   http.Header
	body   bytes.Buffer

	cancel context.CancelFunc
	done   chan struct{}
}

// Header returns the header fields of the response, before it begins.
func (r *a2eReader) Header() http.Header { return r.header }

// WriteHeader begins the response.
func (r *a2eReader) WriteHeader(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sent == nil {
		r.status, r.sent = status, r.header.Clone()
	}
}

// Write adds to the response.
func (r *a2eReader) Write(b []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.body.Write(b)
}

// Flush does nothing: the body is not buffered.
func (r *a2eReader) Flush() {}

// end ends the stream.
func (r *a2eReader) end() {
	r.cancel()
	<-r.done
}

func a2eOpenStream(h http.Handler, in *Input) (*a2eReader, error) {
	req := a2eRequest(in, http.MethodGet, "/stream", nil)
	if in.Err() != nil {
		return nil, in.Err()
	}
	ctx, cancel := context.WithCancel(req.Context())
	r := &a2eReader{header: http.Header{}, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		h.ServeHTTP(r, req.WithContext(ctx))
		r.WriteHeader(http.StatusOK)
	}()
	return r, nil
}

// answer describes what the stream has had so far.
func (r *a2eReader) answer() (Answer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	answer := Answer{"status": r.status, "headers": Optional(Headers(r.sent))}
	if r.status != http.StatusOK {
		if r.body.Len() > 0 {
			answer["json"] = Optional(json.RawMessage(r.body.Bytes()))
		}
		return answer, nil
	}
	messages, ids := []Answer{}, []int{}
	text := r.body.String()
	for _, line := range strings.Split(text, "\n") {
		if id, ok := strings.CutPrefix(line, "id: "); ok {
			n, err := strconv.Atoi(strings.TrimSuffix(id, "\r"))
			if err != nil {
				return nil, err
			}
			ids = append(ids, n)
		}
	}
	out, err := vector.Call[a2eSSE](a2etest.Vector, "sse_parse", map[string]any{"chunks": [][]byte{[]byte(text)}})
	if err != nil {
		return nil, err
	}
	for _, data := range out.Messages {
		messages = append(messages, Answer{"json": json.RawMessage(data)})
	}
	answer["messages"], answer["ids"] = Default(messages, []any{}), Optional(ids)
	return answer, nil
}
