// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/internal/strictjson"
)

func arcClientProtocol() clientProtocol {
	return clientProtocol{
		open: map[string]func(*Input, *clientSession) (Step, error){"client_script": arcOpenLiveClient},
		notLive: func(_, step strictjson.Value) string {
			for r := step.Get("replies").Elements(); r.Next(); {
				if fail, _ := r.Value.Get("fail").Text(); fail == "dial" {
					return "own option" // a port that is closed and then open
				}
			}
			return ""
		},
		own: openOwnARCClient, references: []string{"ID"},
	}
}

// arcLivePeer is the server of a client under test.
type arcLivePeer struct {
	base string // the URL that stands for arcPeerURL

	mu sync.Mutex
	arcPeer
}

// arcPeerURL is the server of the client scripts.
const arcPeerURL = "https://arc.test"

func arcOpenLiveClient(in *Input, s *clientSession) (Step, error) {
	settings := in.Object("client")
	endpoint := settings.StringOr("endpoint", arcPeerURL+"/arc")
	peer := &arcLivePeer{}
	if err := s.serve(peer); err != nil {
		return nil, err
	}
	peer.base = s.url
	s.url = strings.Replace(endpoint, arcPeerURL, peer.base, 1)
	s.settings = s.byClient(settings)
	return func(step *Input) (Answer, error) {
		peer.begin(step)
		call := step.Raw("call")
		if err := step.Err(); err != nil {
			return nil, err
		}
		outcome, err := s.do(call)
		if err != nil {
			return nil, err
		}
		return peer.answer(outcome)
	}, nil
}

func (p *arcLivePeer) begin(step *Input) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.arcPeer = arcPeer{}
	for _, r := range step.Objects("replies") {
		p.replies = append(p.replies, readARCReply(r))
	}
}

// answer describes a step by the outcome that the client reports and the requests of it.
func (p *arcLivePeer) answer(outcome json.RawMessage) (Answer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fault != nil {
		return nil, p.fault
	}
	members, err := clientMembers("outcome", outcome, "outcome", "json", "status", "code", "text")
	if err != nil {
		return nil, err
	}
	a := Answer{"attempts": p.attempts}
	for name, value := range members {
		a[name] = Optional(value)
	}
	if p.url != "" {
		a["sent"] = p.sent(strings.Replace(p.url, p.base, arcPeerURL, 1))
	}
	return a, nil
}

// ServeHTTP answers a request of the client.
func (p *arcLivePeer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 16<<20))
	if err != nil {
		return
	}
	p.mu.Lock()
	reply, err := p.next()
	if err == nil {
		p.received(r.Method, p.base+r.URL.RequestURI(), r.Header, body)
	}
	p.mu.Unlock()
	if err != nil || reply.fail != "" {
		resetConnection(w)
		return
	}
	for name, values := range reply.header {
		for _, v := range values {
			w.Header().Add(name, strings.Replace(v, arcPeerURL, p.base, 1))
		}
	}
	w.WriteHeader(reply.status)
	writeSlowly(w, bytes.ReplaceAll([]byte(reply.body), []byte("${ID}"), []byte(arcIDToken(body))))
	if reply.cut || reply.header.Get("Content-Type") == "text/event-stream" && !strings.Contains(reply.body, "event: done") && !strings.Contains(reply.body, "event: error") {
		leaveHalfClosed(w, r)
	}
}

// An arcOwnClient is a client of package arc.
type arcOwnClient struct {
	*arc.Client
	transport *arcLastBody
}

func openOwnARCClient(_ T, url string, settings json.RawMessage, _ func(json.RawMessage)) (Client, error) {
	in, err := fixtureInput("client", string(settings))
	if err != nil {
		return nil, err
	}
	last := &arcLastBody{Transport: &http.Transport{}}
	c, err := newARCClient(in.Object("client"), url, &arc.ClientOptions{HTTPClient: &http.Client{Transport: last}})
	return &arcOwnClient{c, last}, err
}

// Do makes a call.
func (c *arcOwnClient) Do(action json.RawMessage) (json.RawMessage, error) {
	call, err := fixtureInput("call", string(action))
	if err != nil {
		return nil, err
	}
	a, err := arcClientCall(c.Client, call.Object("call"), func() []byte { return c.transport.body.Bytes() })
	if err != nil {
		return nil, err
	}
	return clientOutcome(a)
}

// Close ends the client.
func (c *arcOwnClient) Close() {
	_ = c.Client.Close()
	c.transport.CloseIdleConnections()
}

// An arcLastBody keeps the body of the last response.
type arcLastBody struct {
	*http.Transport
	body bytes.Buffer
}

// RoundTrip sends a request.
func (l *arcLastBody) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := l.Transport.RoundTrip(r)
	if err == nil {
		l.body.Reset()
		res.Body = struct {
			io.Reader
			io.Closer
		}{io.TeeReader(res.Body, &l.body), res.Body}
	}
	return res, err
}
