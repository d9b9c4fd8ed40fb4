// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/internal/strictjson"
)

func airClientProtocol() clientProtocol {
	return clientProtocol{
		open: map[string]func(*Input, *clientSession) (Step, error){"send_script": airOpenLiveSender, "poll_script": airOpenLivePoller},
		notLive: func(in, step strictjson.Value) string {
			for r := step.Get("replies").Elements(); r.Next(); {
				if r.Value.Get("crash") != nil {
					return "several processes"
				}
			}
			switch {
			case step.Get("crash") != nil:
				return "several processes"
			case step.Get("redeliver") != nil, step.Get("discard") != nil, step.Get("retry") != nil:
				return "private state"
			case in.Get("fixture").Get("handlerMs") != nil:
				return "clock"
			}
			return ""
		},
		own: openOwnAIRClient,
	}
}

// airLivePeer is the registry and the relay of a client under test.
type airLivePeer struct {
	*clientSession
	*airDocuments

	mu sync.Mutex
	airPeer
}

func airOpenLiveSender(in *Input, s *clientSession) (Step, error) {
	return airOpenLiveClient(in, s, "sender", []string{"result", "status", "delivered", "outbox"})
}

func airOpenLivePoller(in *Input, s *clientSession) (Step, error) {
	return airOpenLiveClient(in, s, "poller", []string{"result", "delivered", "permanent", "nextInMs", "deadLetters"})
}

func airOpenLiveClient(in *Input, s *clientSession, kind string, members []string) (Step, error) {
	fixture := in.Object("fixture")
	afresh, err := newAIRAfresh(in, fixture)
	if err != nil {
		return nil, err
	}
	p := &airLivePeer{clientSession: s, airDocuments: &airDocuments{airAfresh: afresh, t: s.t, registry: airReadRegistry(fixture)}}
	for _, name := range fixture.Names() {
		fixture.read[name] = true // by the client
	}
	s.settings = afresh.text(airFixtureText("client", kind, fixture.value))
	return func(step *Input) (Answer, error) { return p.step(step, members) }, s.serve(p)
}

func (p *airLivePeer) step(in *Input, allowed []string) (Answer, error) {
	if in.Has("document") {
		return p.registry.step(in), nil
	}
	p.mu.Lock()
	p.begin(in)
	p.mu.Unlock()
	action := map[string]json.RawMessage{}
	for _, name := range in.Names() {
		switch name {
		case "replies", "at":
		case "send":
			text, err := json.Marshal(string(p.envelope(in.Wire(name))))
			if err != nil {
				return nil, err
			}
			action[name] = text
		default:
			action[name] = p.text(in.Raw(name))
		}
	}
	if err := in.Err(); err != nil {
		return nil, err
	}
	text, err := json.Marshal(action)
	if err != nil {
		return nil, err
	}
	outcome, err := p.outcome(text, allowed...)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	a := Answer{"lookups": p.lookupCount(), "requests": p.requests}
	for _, name := range allowed {
		a[name] = unseen{}
		if value := outcome[name]; value != nil {
			a[name] = value
		}
	}
	return a.Optional(), mismatch(p.finish())
}

// ServeHTTP answers a request of the client.
func (p *airLivePeer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p.document(w, r) {
		return
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, 16<<20))
	if err != nil {
		return
	}
	p.clientSession.t.Logf("received %s %s %s", r.Method, r.URL.RequestURI(), body)
	if len(body) > 0 {
		body = p.past(body)
	} else {
		body = nil
	}
	p.mu.Lock()
	reply, err := p.next(airRequest(time.Since(p.start), r.Method, "https:/"+r.URL.RequestURI(), r.Header, body))
	p.mu.Unlock()
	if err != nil {
		resetConnection(w)
		return
	}
	reply.body = p.reply(reply.body)
	p.clientSession.t.Logf("sent     %d %s", reply.status, reply.body)
	reply.serve(w, r)
}

// An airOwnClient is a client or a poller of package air.
type airOwnClient struct {
	do    func(in *Input) (Answer, error)
	close func()
}

func openOwnAIRClient(_ T, url string, settings json.RawMessage, _ func(json.RawMessage)) (Client, error) {
	all, err := fixtureInput("fixture", string(settings))
	if err != nil {
		return nil, err
	}
	in := all.Object("fixture")
	transport := hooksTransport{url}
	resolver := func() (*air.Resolver, error) {
		return airResolver(&http.Client{Transport: transport}, in.Bool("allowLoopback"))
	}
	if airWord(in, "client", "sender", "poller") == "sender" {
		s, err := newAIRSender(in, transport, resolver)
		if err != nil {
			return nil, err
		}
		return &airOwnClient{do: func(in *Input) (Answer, error) {
			a, err := s.act(in)
			if err == nil {
				err = s.addOutbox(a)
			}
			return a, err
		}, close: func() { s.cancel(); _ = s.client.Close() }}, nil
	}
	r, err := newAIRReceiver(in, resolver)
	if err != nil {
		return nil, err
	}
	newPoller, err := airPollers(in, transport)
	if err != nil {
		return nil, err
	}
	poller, err := newPoller(r.inbox)
	return &airOwnClient{do: func(in *Input) (Answer, error) { return r.drain(in, poller) }, close: r.close}, err
}

// Do carries out an action.
func (c *airOwnClient) Do(action json.RawMessage) (json.RawMessage, error) {
	all, err := fixtureInput("step", string(action))
	if err != nil {
		return nil, err
	}
	a, err := c.do(all.Object("step"))
	if err == nil {
		err = all.Err()
	}
	if err != nil {
		return nil, err
	}
	return clientOutcome(a)
}

// Close ends the client.
func (c *airOwnClient) Close() { c.close() }

// A hooksTransport sends requests for https://HOST/PATH to /HOST/PATH of a sink.
type hooksTransport struct{ sink string }

func (h hooksTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	var body []byte
	if req.Body != nil {
		var err error
		if body, err = io.ReadAll(req.Body); err != nil {
			return nil, err
		}
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
	defer res.Body.Close()
	body, err = io.ReadAll(io.LimitReader(res.Body, 16<<20))
	res.Body = io.NopCloser(bytes.NewReader(body))
	return res, err
}
