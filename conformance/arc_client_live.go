// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/fivewire/fivewire/arc"
)

// A Do has a client under test carry out an action of a script against the server at a
// URL. The settings are those of the client. It returns the outcome.
type Do func(t T, url string, settings, action json.RawMessage) (outcome json.RawMessage, err error)

// LiveClient returns the scripts of a protocol for a client that runs in another process.
func LiveClient(protocol string, do Do) (Protocol, error) {
	if protocol != "arc" {
		return Protocol{}, fmt.Errorf("conformance: the clients of %q cannot be tested", protocol)
	}
	script := Script{OwnReferences: []string{"ID"}, Live: func(t T, in *Input) (Step, error) { return arcOpenLiveClient(t, in, do) }}
	return Protocol{Name: protocol, Ops: map[string]Op{"client_script": script.Run}}, nil
}

// NotLiveClient returns why a case cannot run against a client in another process: "own
// option" or "other side", or the empty string if it can.
func (c *Case) NotLiveClient() string {
	if c.Protocol != "arc" || c.Op != "client_script" {
		return "other side"
	}
	for e := c.in.Get("steps").Elements(); e.Next(); {
		for r := e.Value.Get("replies").Elements(); r.Next(); {
			if fail, _ := r.Value.Get("fail").Text(); fail == "dial" {
				return "own option" // a port that is closed and then open
			}
		}
	}
	return ""
}

// arcLivePeer is the server of a client under test.
type arcLivePeer struct {
	base string // the URL that stands for arcPeerURL

	mu sync.Mutex
	arcPeer
}

// arcPeerURL is the server of the client scripts.
const arcPeerURL = "https://arc.test"

func arcOpenLiveClient(t T, in *Input, do Do) (Step, error) {
	settings := in.Object("client")
	endpoint := settings.StringOr("endpoint", arcPeerURL+"/arc")
	for _, name := range settings.Names() {
		settings.read[name] = true // by the client
	}
	peer := &arcLivePeer{}
	var err error
	if peer.base, err = serveLoopback(t, peer); err != nil {
		return nil, err
	}
	return func(step *Input) (Answer, error) {
		peer.begin(step)
		call := step.Raw("call")
		if err := step.Err(); err != nil {
			return nil, err
		}
		outcome, err := do(t, strings.Replace(endpoint, arcPeerURL, peer.base, 1), json.RawMessage(settings.value), call)
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
	var members map[string]json.RawMessage
	if err := json.Unmarshal(outcome, &members); err != nil {
		return nil, fmt.Errorf("an outcome that is not an object: %w", err)
	}
	a := Answer{"attempts": p.attempts}
	for name, value := range members {
		switch name {
		case "outcome", "json", "status", "code", "text":
			a[name] = Optional(value)
		default:
			return nil, fmt.Errorf("an outcome with the unknown member %q", name)
		}
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
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			if tcp, ok := conn.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0) // the client sees a reset
			}
			_ = conn.Close()
		}
		return
	}
	for name, values := range reply.header {
		for _, v := range values {
			w.Header().Add(name, strings.Replace(v, arcPeerURL, p.base, 1))
		}
	}
	w.WriteHeader(reply.status)
	_, _ = w.Write(bytes.ReplaceAll([]byte(reply.body), []byte("${ID}"), []byte(arcIDToken(body))))
}

// DoARC carries out an action of a script with a client of package arc, and returns its
// outcome.
func DoARC(t T, url string, settings, action json.RawMessage) (json.RawMessage, error) {
	in, err := fixtureInput("client", string(settings))
	if err != nil {
		return nil, err
	}
	call, err := fixtureInput("call", string(action))
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	last := &arcLastBody{RoundTripper: client.Transport}
	client.Transport = last
	opts := &arc.ClientOptions{HTTPClient: client}
	c, err := newARCClient(in.Object("client"), url, opts)
	if err != nil {
		return nil, err
	}
	a, err := arcClientCall(c, call.Object("call"), func() []byte { return last.body.Bytes() })
	if err != nil {
		return nil, err
	}
	g, err := normal("outcome", a)
	return json.RawMessage(g.text()), err
}

// An arcLastBody keeps the body of the last response.
type arcLastBody struct {
	http.RoundTripper
	body bytes.Buffer
}

// RoundTrip sends a request.
func (l *arcLastBody) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := l.RoundTripper.RoundTrip(r)
	if err == nil {
		l.body.Reset()
		res.Body = struct {
			io.Reader
			io.Closer
		}{io.TeeReader(res.Body, &l.body), res.Body}
	}
	return res, err
}
