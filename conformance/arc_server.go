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
	"net/http"
	"net/netip"
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
)

// arcServerOps are the operations that concern a server.
func arcServerOps() map[string]Op {
	return map[string]Op{
		"route":        arcRoute,
		"serve_script": Script{Start: time.Date(2024, 1, 15, 10, 30, 0, 0, time.UTC), Open: arcOpenServer}.Run,
	}
}

// arcRoute lets a router choose for a list of calls.
func arcRoute(t *testing.T, in *Input) (Answer, error) {
	r := arc.NewRouter(nil)
	for _, a := range in.Objects("agents") {
		if err := r.Add(a.String("id"), a.StringOr("group", ""), a.IntOr("capacity", 0)); err != nil {
			return nil, err
		}
	}
	list := []any{}
	for _, c := range in.Objects("calls") {
		switch {
		case c.Has("set"):
			r.SetHealthy(c.String("set"), c.BoolOr("healthy", true))
			list = append(list, nil)
		case c.Has("done"):
			r.Done(c.String("done"))
			list = append(list, nil)
		default:
			id, err := r.Pick(t.Context(), c.String("target"), c.StringOr("key", ""))
			var e *arc.Error
			switch {
			case err == nil:
				list = append(list, id)
			case errors.As(err, &e):
				list = append(list, Answer{"error": int64(e.Code)})
			default:
				return nil, err
			}
		}
	}
	return Answer{"json": list}, nil
}

// An arcServer is the fixture of a serve_script.
type arcServer struct {
	mem   *arctest.Server
	sinks *arcSinks
}

func arcOpenServer(t *testing.T, in *Input) (Step, error) {
	o, err := arcFixtureOptions(in.String("fixture"))
	if err != nil {
		return nil, err
	}
	f := &arcServer{sinks: &arcSinks{byURL: map[string]*arcSink{}}}
	o.Webhook = &arc.WebhookOptions{NoJitter: true, Transport: f.sinks,
		Lookup: func(_ context.Context, _, host string) ([]netip.Addr, error) {
			if host != "hooks.test" {
				return nil, errors.New("no such host")
			}
			return []netip.Addr{netip.MustParseAddr("93.184.216.34")}, nil
		}}
	s := arc.NewServer(o)
	arcFixtureAgents(s)
	f.mem = arctest.NewServer(t, s)
	return f.step, nil
}

func (f *arcServer) step(in *Input) (Answer, error) {
	switch {
	case in.Has("sink"):
		f.sinks.respond(in.String("sink"), in.RawList("respond"))
		return Answer{}, nil
	case in.Has("deliveries"):
		return Answer{"json": f.sinks.take(in.String("deliveries"))}, nil
	}
	return f.request(in)
}

// request sends one request and waits until all the work that it caused waits.
func (f *arcServer) request(in *Input) (Answer, error) {
	req, err := http.NewRequest(in.StringOr("method", http.MethodPost), "http://arc.test"+in.StringOr("path", "/arc"),
		bytes.NewReader(in.Wire("body")))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", arc.MediaType)
	in.SetHeaders("headers", req.Header)
	res, err := f.mem.HTTPClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	synctest.Wait()
	media, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	a := Answer{"status": res.StatusCode, "contentType": media, "headers": Headers(res.Header)}
	switch {
	case media == arc.MediaTypeStream:
		events, err := arcEvents(body)
		if err != nil {
			return nil, err
		}
		a["json"] = events
	case strings.HasSuffix(media, "json"):
		a["json"] = json.RawMessage(body)
		v, err := strictjson.Check(body, strictjson.Options{MaxDepth: maxDepth, LoneSurrogates: true})
		if err != nil {
			return nil, err
		}
		a["idRaw"] = string(v.Get("id"))
	}
	return a.OnlyNamed(), nil
}

// arcEvents reads a stream as it stands, without the reader of package arc.
func arcEvents(body []byte) ([]Answer, error) {
	r := sse.NewReader(bytes.NewReader(body), nil)
	list := []Answer{}
	for {
		ev, err := r.Next()
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return nil, err
		}
		list = append(list, Answer{"event": ev.Name, "data": json.RawMessage(bytes.Clone(ev.Data))})
	}
}

// arcSinks are webhooks: what they answer, and what they got.
type arcSinks struct {
	mu    sync.Mutex
	byURL map[string]*arcSink
}

type arcSink struct {
	respond  []string // JSON texts
	attempts map[string]int
	got      []Answer
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

func (s *arcSinks) take(url string) []Answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.sink(url)
	got := k.got
	k.got = nil
	return got
}

// RoundTrip is a delivery attempt.
func (s *arcSinks) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.sink(req.URL.String())
	id := req.Header.Get("X-ARC-Delivery")
	k.attempts[id]++
	k.got = append(k.got, Answer{"attempt": k.attempts[id], "event": req.Header.Get("X-ARC-Event"), "body": json.RawMessage(body)})
	answer := "200"
	if len(k.respond) > 0 {
		answer, k.respond = k.respond[0], k.respond[1:]
	}
	if answer == `"network"` {
		return nil, errors.New("the network failed")
	}
	status, err := strconv.Atoi(answer)
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{},
		Body: http.NoBody, Request: req}, nil
}
