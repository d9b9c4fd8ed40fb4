// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/arctest"
	"github.com/fivewire/fivewire/internal/sse"
	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/internal/vector"
	"github.com/fivewire/fivewire/store"
)

// arcServerOps are the operations that concern a server.
func arcServerOps() map[string]Op {
	return map[string]Op{
		"route":        arcRoute,
		"serve_script": Script{Start: time.Date(2024, 1, 15, 10, 30, 0, 0, time.UTC), Open: arcOpenServer}.Run,
	}
}

// arcRoute lets a router choose for a list of calls.
func arcRoute(_ T, in *Input) (Answer, error) {
	list, err := vector.Call[json.RawMessage](arctest.Vector, "route",
		Answer{"agents": passed(in, "agents", true), "calls": passed(in, "calls", true)})
	if errors.Is(err, arc.ErrDuplicateAgentID) {
		return nil, NewFailure("duplicate_agent", err)
	}
	return Answer{"json": list}, err
}

// An arcServers is the fixture of a serve_script: one server, or two that share
// a store.
type arcServers struct {
	t        *testing.T
	fixture  string
	state    store.Store // nil: each server has its own
	sinks    *arcSinks
	counters *arcCounters
	running  map[int]*arcProcess // by the number of the server
	starts   int
}

// An arcProcess is a server from its start to its end.
type arcProcess struct {
	gate   *gate
	server *arc.Server
	mem    *arctest.Server
}

func arcOpenServer(t *testing.T, in *Input) (Step, error) {
	f := &arcServers{
		t: t, fixture: in.String("fixture"),
		sinks:    &arcSinks{byURL: map[string]*arcSink{}},
		counters: &arcCounters{counts: map[string]int{}},
		running:  map[int]*arcProcess{},
	}
	servers := 1
	switch f.fixture {
	case "pair":
		servers = 2
		f.state = store.NewMemory()
	case "durable":
		f.state = store.NewMemory()
	}
	for n := range servers {
		if err := f.start(n + 1); err != nil {
			return nil, err
		}
	}
	return f.step, nil
}

// start starts server n. Every start has another instance name.
func (f *arcServers) start(n int) error {
	o, err := arcFixtureOptions(f.fixture)
	if err != nil {
		return err
	}
	p := &arcProcess{gate: newGate()}
	f.starts++
	if f.state != nil {
		o.Persistence.Store = &gatedStore{Store: f.state, gate: p.gate}
		o.Persistence.InstanceID = "instance-" + strconv.Itoa(f.starts)
	}
	o.Webhook.Transport = &arcSinkTransport{sinks: f.sinks, gate: p.gate}
	arctest.ExactWebhooks(o.Webhook, arcLookup)
	if p.server, err = arc.NewServer(o); err != nil {
		return err
	}
	arcFixtureAgents(p.server)
	if !slices.Contains([]string{"open", "auth", "limits", "rate"}, f.fixture) {
		(&arcFurtherAgents{gate: p.gate, counters: f.counters}).register(p.server)
	}
	f.t.Cleanup(func() { _ = p.server.Close() })
	// The handler hides Close, whose error after a kill is expected.
	p.mem = arctest.NewServer(f.t, http.HandlerFunc(p.server.ServeHTTP))
	f.running[n] = p
	return nil
}

// arcLookup is the resolver of the fixture.
func arcLookup(_ context.Context, _, host string) ([]netip.Addr, error) {
	switch host {
	case "hooks.test":
		return []netip.Addr{netip.MustParseAddr("93.184.216.34")}, nil
	case "flaky.test":
		return nil, &net.DNSError{Err: "server misbehaving", Name: host, IsTemporary: true}
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

func (f *arcServers) step(in *Input) (Answer, error) {
	switch {
	case in.Has("sink"):
		f.sinks.respond(in.String("sink"), in.RawList("respond"))
		return Answer{}, nil
	case in.Has("deliveries"):
		return f.sinks.deliveries(in), nil
	case in.Has("stop"):
		return f.stop(in)
	case in.Has("start"):
		return Answer{}, f.start(in.Int("start"))
	case in.Has("together"):
		a, err := arcTogether(in, f.request)
		synctest.Wait()
		return a, err
	}
	call, err := f.request(in)
	if err != nil {
		return nil, err
	}
	a, err := call.send()
	synctest.Wait()
	return a, err
}

// stop ends a server, in order or as by kill -9.
func (f *arcServers) stop(in *Input) (Answer, error) {
	how, n := in.String("stop"), in.IntOr("server", 1)
	p := f.running[n]
	if p == nil {
		in.Fail("server", "is not running: %d", n)
		return nil, in.Err()
	}
	delete(f.running, n)
	if how == "kill" {
		p.gate.kill()
		_ = p.mem.HTTPServer.Close()
		_ = p.server.Close()
		return Answer{}, nil
	}
	if how != "shutdown" {
		in.Fail("stop", "is unknown: %q", how)
		return nil, in.Err()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	start := time.Now()
	err := p.server.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = p.server.Close() // the limit is part of an orderly end
	}
	if err != nil {
		return nil, err
	}
	return Answer{"ms": time.Since(start).Milliseconds()}.Optional(), p.mem.HTTPServer.Close()
}

// An arcExchange is a request of a step that is ready to be sent.
type arcExchange struct {
	client    *http.Client
	req       *http.Request
	cut       int // events after which the client closes the connection; 0: never
	end       context.CancelFunc
	isRefused bool // the answer is an error
}

func (f *arcServers) request(in *Input) (*arcExchange, error) {
	n := in.IntOr("server", 1)
	p := f.running[n]
	if p == nil {
		in.Fail("server", "is not running: %d", n)
		return nil, in.Err()
	}
	return arcRequest(in, p.mem.HTTPClient, "http://arc.test")
}

// arcRequest returns the request of a step to a server.
func arcRequest(in *Input, client *http.Client, base string) (*arcExchange, error) {
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, in.StringOr("method", http.MethodPost),
		base+in.StringOr("path", "/arc"), bytes.NewReader(in.Wire("body")))
	if err != nil {
		cancel()
		return nil, err
	}
	req.Header.Set("Content-Type", arc.MediaType)
	in.SetHeaders("headers", req.Header)
	return &arcExchange{client: client, req: req, cut: in.IntOr("cut", 0), end: cancel}, nil
}

// arcTogether sends requests at the same moment.
func arcTogether(in *Input, request func(*Input) (*arcExchange, error)) (Answer, error) {
	list := in.Objects("together")
	calls, answers, errs := make([]*arcExchange, len(list)), make([]Answer, len(list)), make([]error, len(list))
	for i, r := range list {
		call, err := request(r)
		if err != nil {
			return nil, err
		}
		calls[i] = call
	}
	var wg sync.WaitGroup
	for i, call := range calls {
		wg.Go(func() { answers[i], errs[i] = call.send() })
	}
	wg.Wait()
	return Answer{"answers": answers}, errors.Join(errs...)
}

// send sends the request and reads its answer, or as many events of it as the
// step wants.
func (x *arcExchange) send() (Answer, error) {
	defer x.end()
	res, err := x.client.Do(x.req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	media, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	a := Answer{"status": res.StatusCode, "contentType": media, "headers": Headers(res.Header)}
	if media == "text/event-stream" {
		events, err := arcEvents(res.Body, x.cut)
		if err != nil {
			return nil, err
		}
		a["json"] = events
		return a.Optional(), nil
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	if strings.HasSuffix(media, "json") {
		a["json"] = json.RawMessage(body)
		v, err := strictjson.Check(body, strictjson.Options{MaxDepth: maxDepth, LoneSurrogates: true})
		if err != nil {
			return nil, err
		}
		a["idRaw"] = string(v.Get("id"))
		x.isRefused = v.Get("error").IsObject()
	}
	return a.Optional(), nil
}

// arcEvents reads a stream without the reader of package arc, to its end or up
// to a number of events.
func arcEvents(body io.Reader, limit int) ([]Answer, error) {
	r := sse.NewReader(body, nil)
	list := []Answer{}
	id := ""
	for limit == 0 || len(list) < limit {
		ev, err := r.Next()
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return nil, err
		}
		a := Answer{"event": ev.Name, "data": json.RawMessage(bytes.Clone(ev.Data))}
		if ev.ID != id {
			id = ev.ID
			a["id"] = id
		}
		list = append(list, a)
	}
	return list, nil
}

// arcSinks are webhooks with their answers and the requests they received.
type arcSinks struct {
	mu    sync.Mutex
	byURL map[string]*arcSink
}

type arcSink struct {
	respond  []string // JSON texts
	attempts map[string]int
	got      tape[Answer]
}

func (s *arcSinks) sink(url string) *arcSink {
	if s.byURL[url] == nil {
		s.byURL[url] = &arcSink{attempts: map[string]int{}}
	}
	return s.byURL[url]
}

func (s *arcSinks) respond(url string, answers []json.RawMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.sink(url)
	k.respond = nil
	for _, a := range answers {
		k.respond = append(k.respond, string(a))
	}
}

// deliveries is the answer of a step: the attempts since the step before that read them.
func (s *arcSinks) deliveries(in *Input) Answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Answer{"json": s.sink(in.String("deliveries")).got.since(in)}
}

// An arcSinkTransport is the way from one process to the sinks.
type arcSinkTransport struct {
	sinks *arcSinks
	gate  *gate
}

// RoundTrip is a delivery attempt.
func (t *arcSinkTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	if err := t.gate.check(); err != nil {
		return nil, err
	}
	status, err := t.sinks.receive(req, req.URL.String(), body)
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{},
		Body: http.NoBody, Request: req}, nil
}

// receive keeps a delivery attempt and returns its status. An error means that the
// network fails.
func (s *arcSinks) receive(req *http.Request, url string, body []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.sink(url)
	id := req.Header.Get("X-ARC-Delivery")
	k.attempts[id]++
	k.got.add(Answer{"attempt": k.attempts[id], "event": req.Header.Get("X-ARC-Event"), "body": json.RawMessage(body)})
	answer := "200"
	if len(k.respond) > 0 {
		answer, k.respond = k.respond[0], k.respond[1:]
	}
	if answer == `"network"` {
		return 0, errors.New("the network failed")
	}
	return strconv.Atoi(answer)
}
