// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/store"
)

// airScripts are the operations with a fixture.
func airScripts() map[string]Op {
	script := func(open func(*testing.T, *Input, *Input) (Step, error)) Op {
		return func(t *testing.T, in *Input) (Answer, error) {
			fixture := in.Object("fixture")
			s := Script{Open: func(t *testing.T, in *Input) (Step, error) { return open(t, in, fixture) }}
			if fixture.Has("now") {
				s.Start = fixture.Time("now")
			}
			return s.Run(t, in)
		}
	}
	return map[string]Op{
		"thread_script": script(airThreadScript),
		"inbox_script":  script(airInboxScript),
		"relay_script":  script(airRelayScript),
		"send_script":   script(airSendScript),
		"poll_script":   script(airPollScript),
	}
}

// middle is the randomness of scripts: every choice takes its middle.
func middle() float64 { return 0.5 }

// airTimeout is the error of a request that nobody answers.
type airTimeout struct{}

func (airTimeout) Error() string   { return "timeout" }
func (airTimeout) Timeout() bool   { return true }
func (airTimeout) Temporary() bool { return true }

// airRegistry answers for the registry of a fixture.
type airRegistry struct {
	documents map[string]airReply
	lookups   int
}

type airReply struct {
	status  int
	header  http.Header
	body    []byte
	timeout bool
}

func airReadReply(in *Input) airReply {
	r := airReply{header: http.Header{}}
	if in.Bool("timeout") {
		r.timeout = true
		return r
	}
	r.status = in.Int("status")
	in.SetHeaders("headers", r.header)
	r.body, _ = in.WireOr("body")
	return r
}

func (r airReply) response(req *http.Request) (*http.Response, error) {
	if r.timeout {
		return nil, airTimeout{}
	}
	return &http.Response{
		StatusCode: r.status, Status: fmt.Sprint(r.status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: r.header.Clone(), Body: io.NopCloser(bytes.NewReader(r.body)), ContentLength: int64(len(r.body)), Request: req,
	}, nil
}

func airReadRegistry(in *Input) *airRegistry {
	r := &airRegistry{documents: map[string]airReply{}}
	documents := in.ObjectOr("documents")
	for _, id := range documents.Names() {
		r.documents[id] = airReadReply(documents.Object(id))
	}
	return r
}

// step replaces a document.
func (r *airRegistry) step(in *Input) Answer {
	d := in.Object("document")
	r.documents[d.String("airId")] = airReadReply(d)
	return Answer{}
}

func (r *airRegistry) RoundTrip(req *http.Request) (*http.Response, error) {
	r.lookups++
	path, ok := strings.CutPrefix(req.URL.String(), air.DefaultRegistryURL+"/api/v1/agents/")
	id, ok2 := strings.CutSuffix(path, "/did-document")
	if !ok || !ok2 || req.Method != http.MethodGet || req.Header.Get("X-A2A-Version") != "v1" {
		return nil, fmt.Errorf("not a request for a document: %s %s", req.Method, req.URL)
	}
	d, ok := r.documents[id]
	if !ok {
		d = airReply{status: http.StatusNotFound}
	}
	return d.response(req)
}

func (r *airRegistry) resolver(loopback bool) (*air.Resolver, error) {
	return air.NewResolver(&air.ResolverOptions{
		HTTPClient: &http.Client{Transport: r}, Random: middle, AllowLoopback: loopback,
	})
}

// airPeer answers for a relay with the replies of a step.
type airPeer struct {
	replies  []airReply
	requests []any
	start    time.Time
	err      error
}

func (p *airPeer) begin(in *Input) {
	*p = airPeer{start: time.Now()}
	if !in.Has("replies") {
		return
	}
	for _, r := range in.Objects("replies") {
		p.replies = append(p.replies, airReadReply(r))
	}
}

func (p *airPeer) RoundTrip(req *http.Request) (*http.Response, error) {
	a := Answer{
		"at":      time.Since(p.start).Milliseconds(),
		"method":  req.Method,
		"url":     req.URL.String(),
		"headers": Headers(req.Header.Clone()),
	}
	if req.Body != nil {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		a["body"] = string(body)
		a["json"] = json.RawMessage(body)
	}
	p.requests = append(p.requests, a.OnlyNamed())
	if len(p.replies) == 0 {
		p.err = errors.New("there are more requests than replies")
		return nil, p.err
	}
	r := p.replies[0]
	p.replies = p.replies[1:]
	return r.response(req)
}

func (p *airPeer) finish() error {
	if p.err == nil && len(p.replies) > 0 {
		return fmt.Errorf("%d replies were not asked for", len(p.replies))
	}
	return p.err
}

func airCode(err error) (code string, status int, text string) {
	var e *air.Error
	if !errors.As(err, &e) {
		return "", 0, ""
	}
	var body struct{ Error string }
	_ = json.Unmarshal(e.HTTPBody(), &body) // it is the package's own
	return string(e.Code), e.HTTPStatus(), body.Error
}

func airThreadScript(_ *testing.T, _, fixture *Input) (Step, error) {
	fixture.String("self")
	fixture.String("peer")
	var th air.Thread
	return func(in *Input) (Answer, error) {
		a := Answer{}
		if in.Has("create") {
			in.Bool("create")
			th = air.Thread{State: air.ThreadPending}
		} else {
			by, id, reply := air.Party(in.String("from")), in.String("id"), airOptional(in, "inReplyTo")
			body, err := air.DecodeBody(in.Wire("body"), air.ProfileInterop)
			if err == nil {
				err = th.Apply(by, id, reply, body)
			}
			if err != nil {
				code, status, text := airCode(err)
				a["code"], a["status"], a["error"] = code, status, text
			}
		}
		a["state"] = string(th.State)
		if th.State == "" {
			a["state"] = string(air.ThreadPending)
		}
		a["outstanding"] = nil
		if o := th.Outstanding(); o != nil {
			a["outstanding"] = o.ID
		}
		return a.OnlyNamed(), nil
	}, nil
}

// airReceiver is an inbox with what was told about the last envelope.
type airReceiver struct {
	registry *airRegistry
	kv       store.KV
	id       *air.Identity
	opts     air.InboxOptions
	inbox    *air.Inbox

	delivered []string
	last      *air.Delivery
	rejected  *air.Rejection
}

func airOpenReceiver(fixture *Input) (*airReceiver, error) {
	r := &airReceiver{registry: airReadRegistry(fixture), kv: store.NewMemory()}
	self := fixture.Object("self")
	did, key := self.String("did"), airSeed(self, "seedHex")
	var retired [][]byte
	for _, s := range self.StringsOr("retiredSeedsHex") {
		seed, err := hex.DecodeString(s)
		if err != nil {
			return nil, err
		}
		retired = append(retired, seed)
	}
	r.opts = air.InboxOptions{
		Profile:     airProfile(fixture, air.ProfileInterop),
		BodyTypes:   fixture.StringsOr("bodies"),
		Limits:      air.Limits{MaxReplayEntries: fixture.IntOr("replayCapacity", 0)},
		Persistence: air.Persistence{Store: r.kv},
		OnRejected:  func(_ context.Context, j *air.Rejection) { r.rejected = j },
	}
	if err := fixture.Err(); err != nil {
		return nil, err
	}
	var err error
	if r.id, err = air.NewIdentity(did, key.Seed(), retired...); err != nil {
		return nil, err
	}
	return r, r.restart()
}

// restart is what a crash leaves: the store.
func (r *airReceiver) restart() error {
	resolver, err := r.registry.resolver(false)
	if err != nil {
		return err
	}
	r.opts.Resolver = resolver
	r.inbox, err = air.NewInbox(r.id, air.HandlerFunc(func(_ context.Context, d *air.Delivery) error {
		r.last = d
		r.delivered = append(r.delivered, d.Envelope.ID)
		return nil
	}), &r.opts)
	return err
}

func airInboxScript(_ *testing.T, _, fixture *Input) (Step, error) {
	r, err := airOpenReceiver(fixture)
	if err != nil {
		return nil, err
	}
	return func(in *Input) (Answer, error) {
		switch {
		case in.Has("document"):
			return r.registry.step(in), nil
		case in.Has("crash"):
			in.Bool("crash")
			return Answer{}, r.restart()
		}
		r.last, r.rejected = nil, nil
		data, via := in.Wire("deliver"), airWord(in, "via", "push", "pull")
		a := Answer{}
		if via == "pull" {
			a["acked"] = r.inbox.Receive(context.Background(), data, true).Final
		} else {
			req := httptest.NewRequest(http.MethodPost, "/inbox", bytes.NewReader(data))
			req.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			r.inbox.ServeHTTP(w, req)
			a["status"], a["json"] = w.Code, json.RawMessage(w.Body.Bytes())
		}
		a["lookups"], a["delivered"] = r.registry.lookups, r.last != nil
		if d := r.last; d != nil {
			a["deliveredBody"], a["encrypted"], a["form"] = string(d.BodyJSON), d.Sealed, string(d.Form)
		}
		if r.rejected != nil {
			a["code"] = string(r.rejected.Err.Code)
		}
		return a.OnlyNamed(), nil
	}, nil
}

func airRelayScript(t *testing.T, _, fixture *Input) (Step, error) {
	var dids []string
	for _, agent := range fixture.Objects("agents") {
		agent.String("airId")
		dids = append(dids, agent.String("did"))
	}
	secrets := map[string]string{}
	list := fixture.ObjectOr("inboxSecrets")
	for _, did := range list.Names() {
		secrets[did] = list.String(did)
	}
	relay := air.NewRelay(&air.RelayOptions{
		Directory:   air.StaticDirectory(dids...),
		PushSecret:  fixture.StringOr("pushSecret", ""),
		InboxSecret: func(did string) string { return secrets[did] },
		OpenInboxes: true,
		RateLimit:   fixture.IntOr("rateLimit", 0),
		PageSize:    fixture.IntOr("pageSize", 0),
		MaxBytes:    fixture.IntOr("maxBytes", 0),
	})
	t.Cleanup(func() { _ = relay.Close() })
	return func(in *Input) (Answer, error) {
		rq := in.Object("request")
		method, path := rq.String("method"), rq.String("path")
		body, _ := rq.WireOr("body")
		if err := in.Err(); err != nil {
			return nil, err
		}
		req, err := http.NewRequest(method, "http://relay.example"+path, bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		req.RemoteAddr = "192.0.2.1:1234"
		rq.SetHeaders("headers", req.Header)
		w := httptest.NewRecorder()
		relay.ServeHTTP(w, req)
		return Answer{"status": w.Code, "headers": Headers(w.Header()), "json": json.RawMessage(w.Body.Bytes())}.OnlyNamed(), nil
	}, nil
}

func airSendScript(_ *testing.T, _, fixture *Input) (Step, error) {
	registry := airReadRegistry(fixture)
	resolver, err := registry.resolver(fixture.Bool("allowLoopback"))
	if err != nil {
		return nil, err
	}
	peer := &airPeer{}
	id, err := air.NewIdentity("did:wba:agentidentityregistry.org:agents:AIR-S1EN-D3RA-GNT0", make([]byte, 32))
	if err != nil {
		return nil, err
	}
	client, err := air.NewClient(id, &air.ClientOptions{
		Resolver: resolver, HTTPClient: &http.Client{Transport: peer}, DisableSelfCheck: true,
		Profile: airProfile(fixture, ""), AgentSecret: fixture.StringOr("agentSecret", ""),
	})
	if err != nil {
		return nil, err
	}
	return func(in *Input) (Answer, error) {
		if in.Has("document") {
			return registry.step(in), nil
		}
		peer.begin(in)
		data := in.Wire("send")
		if err := in.Err(); err != nil {
			return nil, err
		}
		r, err := client.SendSigned(context.Background(), data)
		a := Answer{"lookups": registry.lookups, "requests": peer.requests}
		var e *air.Error
		switch {
		case err == nil:
			a["result"], a["status"] = "delivered", r.Status
		case errors.As(err, &e):
			a["result"], a["status"] = string(e.Code), e.RemoteStatus
		default:
			return nil, err
		}
		return a.OnlyNamed(), peer.finish()
	}, nil
}

func airPollScript(_ *testing.T, _, fixture *Input) (Step, error) {
	r, err := airOpenReceiver(fixture)
	if err != nil {
		return nil, err
	}
	peer := &airPeer{}
	poller, err := air.NewPoller(r.inbox, fixture.String("endpoint"), &air.PollerOptions{
		Dialect: airWord(fixture, "dialect", air.DialectSpec, air.DialectDeployed, air.DialectAuto), AgentSecret: fixture.StringOr("agentSecret", ""),
		HTTPClient: &http.Client{Transport: peer}, Random: middle,
	})
	if err != nil {
		return nil, err
	}
	return func(in *Input) (Answer, error) {
		if in.Has("document") {
			return r.registry.step(in), nil
		}
		in.Bool("poll")
		peer.begin(in)
		if err := in.Err(); err != nil {
			return nil, err
		}
		r.delivered = []string{}
		next, _ := poller.Drain(context.Background()) // what failed shows in what it asked
		return Answer{
			"delivered": r.delivered, "requests": peer.requests, "nextInMs": next.Milliseconds(),
		}.OnlyNamed(), peer.finish()
	}, nil
}
