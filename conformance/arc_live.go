// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/arctest"
)

// arcLive is the fixture of a serve_script in another process.
type arcLive struct {
	t      T
	base   string // scheme and host of the server
	sinks  *arcSinks
	client *http.Client
	start  time.Time
}

func arcOpenLive(t T, in *Input, limit time.Duration, start Starter) (Step, error) {
	f := &arcLive{t: t, sinks: &arcSinks{byURL: map[string]*arcSink{}}, client: &http.Client{Transport: &http.Transport{}, Timeout: limit}}
	t.Cleanup(f.client.CloseIdleConnections)
	sink, err := serveLoopback(t, f.sinks)
	if err != nil {
		return nil, err
	}
	server, err := start(t, in.String("fixture"), sink)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(server)
	if err != nil {
		return nil, err
	}
	f.base = u.Scheme + "://" + u.Host
	f.start = time.Now()
	return f.step, nil
}

// serveLoopback serves until the end of t, and returns the URL.
func serveLoopback(t T, h http.Handler) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return "http://" + l.Addr().String(), nil
}

// ServeHTTP is a delivery attempt from another process.
func (s *arcSinks) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(io.LimitReader(req.Body, 1<<20))
	if err != nil {
		return
	}
	status, err := s.receive(req, "https:/"+req.URL.RequestURI(), body)
	if err != nil {
		panic(http.ErrAbortHandler) // the network fails
	}
	w.WriteHeader(status)
}

func (f *arcLive) step(in *Input) (Answer, error) {
	if in.Has("at") {
		at := f.start.Add(time.Duration(in.Int64Or("at", 0)) * time.Millisecond)
		time.Sleep(time.Until(at))
	}
	switch {
	case in.Has("sink"):
		f.sinks.respond(in.String("sink"), in.RawList("respond"))
		return Answer{}, nil
	case in.Has("deliveries"):
		in.Repeatable()
		return Answer{"json": f.sinks.peek(in.String("deliveries"), in)}, nil
	case in.Has("together"):
		return arcTogether(in, f.request)
	}
	x, err := f.request(in)
	if err != nil {
		return nil, err
	}
	f.t.Logf("sent     %s %s %s", x.req.Method, x.req.URL, in.Raw("body"))
	a, err := x.send()
	// A refused request changed nothing. A server may need a moment for the step before.
	in.repeatable = x.isRefused || isARCRead(in)
	if g, nerr := normal("answer", a); err == nil && nerr == nil {
		f.t.Logf("received %s", g.text())
	}
	return a, err
}

func (f *arcLive) request(in *Input) (*arcExchange, error) {
	in.IntOr("server", 1)
	return arcRequest(in, f.client, f.base)
}

// isARCRead reports whether the request of a step changes nothing.
func isARCRead(in *Input) bool {
	var req struct{ Method string }
	body, _ := in.WireOr("body")
	return json.Unmarshal(body, &req) == nil && (req.Method == arc.MethodTaskInfo || strings.HasPrefix(req.Method, "debug.echo"))
}

// peek returns the attempts since the last step that another one than in has made.
func (s *arcSinks) peek(url string, in *Input) []Answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.sink(url)
	if k.reader != in {
		k.reader, k.seen = in, k.readUpTo
	}
	k.readUpTo = len(k.got)
	return slices.Clone(k.got[k.seen:])
}

// newARCFixture returns a server with a fixture of a serve_script.
func newARCFixture(fixture, sink string) (http.Handler, func() error, error) {
	o, err := arcFixtureOptions(fixture)
	if err != nil {
		return nil, nil, err
	}
	o.Webhook = &arc.WebhookOptions{Transport: hooksTransport{sink}}
	arctest.ExactWebhooks(o.Webhook, arcLookup)
	s, err := arc.NewServer(o)
	if err != nil {
		return nil, nil, err
	}
	arcFixtureAgents(s)
	if !slices.Contains([]string{"open", "auth", "limits", "rate"}, fixture) {
		(&arcFurtherAgents{gate: newGate(), counters: &arcCounters{counts: map[string]int{}}}).register(s)
	}
	return s, s.Close, nil
}

// A hooksTransport sends requests for https://HOST/PATH to /HOST/PATH of a sink.
type hooksTransport struct{ sink string }

func (h hooksTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(req.Context(), 5*time.Second)
	defer cancel()
	out, err := http.NewRequestWithContext(ctx, req.Method, h.sink+"/"+req.URL.Host+req.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	out.Header = req.Header.Clone()
	res, err := http.DefaultTransport.RoundTrip(out)
	if err != nil {
		return nil, err
	}
	_ = res.Body.Close()
	res.Body = http.NoBody
	return res, nil
}
