// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"sync"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/internal/strictjson"
)

func accpClientProtocol() clientProtocol {
	return clientProtocol{
		open: map[string]func(*Input, *clientSession) (Step, error){"client-script": accpOpenLiveClient},
		notLive: func(_, step strictjson.Value) string {
			for a := step.Get("answers").Elements(); a.Next(); {
				if a.Value.Get("unreachable") != nil {
					return "own option" // a port that is closed and then open
				}
			}
			return ""
		},
		own: openOwnACCPClient,
	}
}

// accpLivePeer is the other side of a client under test.
type accpLivePeer struct {
	*clientSession
	*accpTranslation

	mu sync.Mutex
	accpPeer
}

func accpOpenLiveClient(in *Input, s *clientSession) (Step, error) {
	text := []byte("{")
	for _, name := range []string{"schemas", "hello"} {
		if v := in.value.Get(name); v != nil {
			in.read[name] = true
			if len(text) > 1 {
				text = append(text, ',')
			}
			text = append(append(strictjson.AppendString(text, name), ':'), v...)
		}
	}
	s.settings = append(text, '}')
	p := &accpLivePeer{clientSession: s, accpTranslation: newACCPTranslation("c1", "")}
	if err := s.serve(p); err != nil {
		return nil, err
	}
	s.url += accp.FramesPath
	return p.step, nil
}

func (p *accpLivePeer) step(in *Input) (Answer, error) {
	p.mu.Lock()
	p.accpPeer = accpPeer{posts: []string{}}
	for _, a := range in.Objects("answers") {
		p.answers = append(p.answers, readACCPAnswer(a))
	}
	p.mu.Unlock()
	action := map[string]json.RawMessage{}
	for _, name := range in.Names() {
		if name != "answers" && name != "at" {
			action[name] = in.Raw(name)
		}
	}
	if err := in.Err(); err != nil {
		return nil, err
	}
	text, err := json.Marshal(action)
	if err != nil {
		return nil, err
	}
	outcome, err := p.do(text)
	if err != nil {
		return nil, err
	}
	if _, err := clientMembers("outcome", outcome, "message", "version", "error"); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return Answer{"frames": p.posts, "json": json.RawMessage(p.toScript(outcome))}, mismatch(p.end())
}

// ServeHTTP answers a post of the client.
func (p *accpLivePeer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 16<<20))
	if err != nil {
		return
	}
	p.t.Logf("received %s %s", r.Method, body)
	frames := p.accpTranslation.received(body)
	p.mu.Lock()
	a, err := p.next(frames)
	if err == nil && (r.Method != http.MethodPost || r.URL.Path != accp.FramesPath) {
		p.fault = fmt.Errorf("the request is %s %s", r.Method, r.URL.Path)
	}
	p.mu.Unlock()
	if err != nil || a.lost {
		resetConnection(w)
		return
	}
	maps.Copy(w.Header(), a.header)
	text := p.toRun([]byte(a.body))
	p.t.Logf("sent     %d %s", a.status, text)
	w.WriteHeader(a.status)
	writeSlowly(w, text)
	if a.cut {
		leaveHalfClosed(w, r)
	}
}

// An accpOwnClient is a client of package accp.
type accpOwnClient struct {
	*accp.Client
	transport *http.Transport
}

func openOwnACCPClient(_ T, url string, settings json.RawMessage, _ func(json.RawMessage)) (Client, error) {
	all, err := fixtureInput("client", string(settings))
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{}
	c, err := newACCPClient(all.Object("client"), url, &http.Client{Transport: transport}, func(*accp.SessionOptions) {})
	return &accpOwnClient{c, transport}, err
}

// Do makes a call or a sync.
func (c *accpOwnClient) Do(action json.RawMessage) (json.RawMessage, error) {
	all, err := fixtureInput("step", string(action))
	if err != nil {
		return nil, err
	}
	a, err := accpAct(all.Object("step"), c.Client)
	if err != nil {
		return nil, err
	}
	return clientOutcome(a)
}

// Close ends the client.
func (c *accpOwnClient) Close() {
	_ = c.Client.Close()
	c.transport.CloseIdleConnections()
}
