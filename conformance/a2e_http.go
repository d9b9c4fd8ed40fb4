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
			return a2eHTTP(handler, step.Object("http"))
		case step.Has("stream"):
			return a2eStream(handler, step.Object("stream"))
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
	synctest.Wait()
	return Answer{"status": w.Code, "headers": Optional(Headers(w.Header())), "json": Optional(json.RawMessage(w.Body.Bytes()))}, nil
}

// a2eRecorder is a response that may be read while it is written.
type a2eRecorder struct {
	mu sync.Mutex
	*httptest.ResponseRecorder
}

func (r *a2eRecorder) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ResponseRecorder.Write(b)
}

func a2eStream(h http.Handler, in *Input) (Answer, error) {
	r := a2eRequest(in, http.MethodGet, "/stream", nil)
	if in.Err() != nil {
		return nil, in.Err()
	}
	ctx, cancel := context.WithCancel(r.Context())
	w := &a2eRecorder{ResponseRecorder: httptest.NewRecorder()}
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.ServeHTTP(w, r.WithContext(ctx))
	}()
	synctest.Wait()
	cancel()
	<-done
	answer := Answer{"status": w.Code, "headers": Optional(Headers(w.Header()))}
	if w.Code != http.StatusOK {
		answer["json"] = Optional(json.RawMessage(w.Body.Bytes()))
		return answer, nil
	}
	messages, ids := []Answer{}, []int{}
	text := w.Body.String()
	for _, line := range strings.Split(text, "\n") {
		if id, ok := strings.CutPrefix(line, "id: "); ok {
			n, err := strconv.Atoi(id)
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
