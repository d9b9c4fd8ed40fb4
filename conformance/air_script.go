// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/airtest"
	"github.com/fivewire/fivewire/internal/vector"
)

// airScripts are the operations with a fixture.
func airScripts() map[string]Op {
	script := func(open func(*testing.T, *Input, *Input) (Step, error)) Op {
		return func(t T, in *Input) (Answer, error) {
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

// airTimeout is the error of a request without a reply.
type airTimeout struct{}

func (airTimeout) Error() string   { return "timeout" }
func (airTimeout) Timeout() bool   { return true }
func (airTimeout) Temporary() bool { return true }

// airRegistry answers for the registry of a fixture.
type airRegistry struct {
	mu        sync.Mutex
	documents map[string]airReply
	lookups   int
}

type airReply struct {
	status  int
	header  http.Header
	body    []byte
	timeout bool
	cut     bool // the connection ends before the end of the body
	crash   bool // the client's process is killed
}

func airReadReply(in *Input) airReply {
	r := airReply{header: http.Header{}, timeout: in.Bool("timeout"), crash: in.Bool("crash")}
	if r.timeout || r.crash {
		return r
	}
	r.status, r.cut = in.Int("status"), in.Bool("cut")
	in.SetHeaders("headers", r.header)
	r.body, _ = in.WireOr("body")
	return r
}

func (r airReply) response(req *http.Request) (*http.Response, error) {
	if r.timeout {
		return nil, airTimeout{}
	}
	res := &http.Response{
		StatusCode: r.status, Status: fmt.Sprint(r.status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: r.header.Clone(), Body: io.NopCloser(bytes.NewReader(r.body)), ContentLength: int64(len(r.body)), Request: req,
	}
	if r.cut {
		res.Body, res.ContentLength = cutBody(r.body), -1
	}
	return res, nil
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
	r.mu.Lock()
	defer r.mu.Unlock()
	r.documents[d.String("airId")] = airReadReply(d)
	return Answer{}
}

func (r *airRegistry) RoundTrip(req *http.Request) (*http.Response, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lookups++
	path, ok := strings.CutPrefix(req.URL.String(), air.DefaultRegistryURL+"/api/v1/agents/")
	id, ok2 := strings.CutSuffix(path, "/did-document")
	if !ok || !ok2 || req.Method != http.MethodGet || req.Header.Get("X-A2A-Version") != "v1" {
		return nil, fmt.Errorf("not a request for a document: %s %s", req.Method, req.URL)
	}
	return r.document(id).response(req)
}

// document returns the reply to a request for the document of an AIR ID.
func (r *airRegistry) document(id string) airReply {
	if d, ok := r.documents[id]; ok {
		return d
	}
	return airReply{status: http.StatusNotFound}
}

func (r *airRegistry) resolver(loopback bool) (*air.Resolver, error) {
	return airResolver(&http.Client{Transport: r}, loopback)
}

func airResolver(client *http.Client, loopback bool) (*air.Resolver, error) {
	opts := &air.ResolverOptions{HTTPClient: client, AllowLoopback: loopback}
	airtest.SetResolverJitter(opts, middle)
	return air.NewResolver(opts)
}

// airPeer answers for a relay with the replies of a step. A client sends to several
// recipients at a time.
type airPeer struct {
	mu       sync.Mutex
	replies  []airReply
	requests []any
	start    time.Time
	err      error
	kill     func() // kills the client's process
	crashed  bool   // in this step
}

func (p *airPeer) begin(in *Input) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.replies, p.requests, p.start, p.err, p.crashed = nil, []any{}, time.Now(), nil, false
	if !in.Has("replies") {
		return
	}
	for _, r := range in.Objects("replies") {
		p.replies = append(p.replies, airReadReply(r))
	}
}

func (p *airPeer) RoundTrip(req *http.Request) (*http.Response, error) {
	at := time.Since(p.start)
	var body []byte
	if req.Body != nil {
		var err error
		if body, err = io.ReadAll(req.Body); err != nil {
			return nil, err
		}
	}
	r, err := p.next(airRequest(at, req.Method, req.URL.String(), req.Header, body))
	switch {
	case err != nil:
		return nil, err
	case r.crash:
		p.kill()
		return nil, errKilled
	}
	return r.response(req)
}

// airRequest describes a request.
func airRequest(at time.Duration, method, url string, header http.Header, body []byte) Answer {
	a := Answer{"at": at.Milliseconds(), "method": method, "url": url, "headers": Headers(header.Clone())}
	if body != nil {
		a["body"] = string(body)
		a["json"] = json.RawMessage(body)
	}
	return a
}

// next records a request and takes its reply.
func (p *airPeer) next(request Answer) (airReply, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests = append(p.requests, request.Optional())
	if len(p.replies) == 0 {
		p.err = errors.New("there are more requests than replies")
		return airReply{}, p.err
	}
	r := p.replies[0]
	p.replies = p.replies[1:]
	p.crashed = p.crashed || r.crash
	return r, nil
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
	type result struct {
		Thread      map[string]any
		Outstanding *string
	}
	th := result{Thread: map[string]any{}}
	return func(in *Input) (Answer, error) {
		a := Answer{}
		if in.Has("create") {
			in.Bool("create")
			th = result{Thread: map[string]any{}}
		} else {
			next, err := vector.Call[result](airtest.Vector, "thread_apply", map[string]any{"thread": th.Thread,
				"isOwn": in.String("from") == "self", "id": in.String("id"), "inReplyTo": airOptional(in, "inReplyTo"), "body": []byte(in.Wire("body"))})
			if err != nil {
				code, status, text := airCode(err)
				a["code"], a["status"], a["error"] = code, status, text
			} else {
				th = next
			}
		}
		a["state"] = string(air.ThreadPending)
		if state, _ := th.Thread["state"].(string); state != "" {
			a["state"] = state
		}
		a["outstanding"] = nil
		if th.Outstanding != nil {
			a["outstanding"] = *th.Outstanding
		}
		return a.Optional(), nil
	}, nil
}
