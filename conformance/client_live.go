// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// A Client is a client under test. Its calls go to a server of the conform command.
type Client interface {
	// Do carries out an action of a script and returns its outcome.
	Do(action json.RawMessage) (outcome json.RawMessage, err error)

	// Close ends the client.
	Close()
}

// An OpenClient starts a client of the server at a URL, with the settings of a script. The
// client reports by event what happens after the action that caused it. The file CLIENT.md has the
// settings, actions, outcomes and events of each protocol.
type OpenClient func(t T, url string, settings json.RawMessage, event func(json.RawMessage)) (Client, error)

// A clientProtocol is how the clients of a protocol are tested in real time.
type clientProtocol struct {
	// open makes the fixtures of the scripts, by operation.
	open map[string]func(in *Input, s *clientSession) (Step, error)

	// notLive returns why a step of a case cannot run, as in [Case.NotLiveClient].
	notLive func(in, step strictjson.Value) string

	// own opens a client of this module.
	own OpenClient

	hasLines bool // the transport "tcp" is possible

	references []string // that the fixture replaces by itself
}

func clientProtocols() map[string]clientProtocol {
	return map[string]clientProtocol{"arc": arcClientProtocol(), "a2e": a2eClientProtocol(), "altar": altarClientProtocol(), "accp": accpClientProtocol(),
		"air": airClientProtocol()}
}

// LiveClient returns the scripts of a protocol for a client that runs in another process. The
// effects of a step may take a fifth of the time limit (see [Script.Settle]). The transport is empty, or "tcp"
// for connections whose messages are lines.
func LiveClient(protocol, transport string, limit time.Duration, open OpenClient) (Protocol, error) {
	p, ok := clientProtocols()[protocol]
	if !ok {
		return Protocol{}, fmt.Errorf("conformance: the clients of %q cannot be tested", protocol)
	}
	if transport != "" && (transport != "tcp" || !p.hasLines) {
		return Protocol{}, fmt.Errorf("conformance: the clients of %s are not tested by %s", protocol, transport)
	}
	ops := make(map[string]Op)
	for op, fixture := range p.open {
		ops[op] = Script{OwnReferences: p.references, Settle: limit / 5, Live: func(t T, in *Input) (Step, error) {
			return fixture(in, &clientSession{t: t, open: open, transport: transport})
		}}.Run
	}
	return Protocol{Name: protocol, Ops: ops}, nil
}

// BuiltinClients returns the clients of this module, by protocol.
func BuiltinClients() map[string]OpenClient {
	clients := make(map[string]OpenClient)
	for name, p := range clientProtocols() {
		clients[name] = p.own
	}
	return clients
}

// NotLiveClient is [Case.NotLive] for a client in real time.
func (c *Case) NotLiveClient(limit time.Duration) string {
	p := clientProtocols()[c.Protocol]
	if p.open[c.Op] == nil {
		return "other side"
	}
	return c.notLive(limit, minGap, p.notLive)
}

// A clientSession is a client under test, with the server of the script.
type clientSession struct {
	t         T
	open      OpenClient
	transport string
	url       string // of the server
	settings  json.RawMessage
	events    tape[json.RawMessage]
	client    Client // nil before the first action
}

// serve starts the server.
func (s *clientSession) serve(h http.Handler) error {
	var err error
	s.url, err = serveLoopback(s.t, "127.0.0.1:0", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close") // an HTTP client may repeat a request that failed on an old connection
		h.ServeHTTP(w, r)
	}))
	return err
}

// byClient returns an object without its time, as the client reads it.
func (s *clientSession) byClient(in *Input) json.RawMessage {
	text := []byte("{")
	for m := in.value.Members(); m.Next(); {
		in.read[string(m.Name)] = true
		if string(m.Name) == "at" {
			continue
		}
		if len(text) > 1 {
			text = append(text, ',')
		}
		text = append(append(append(text, m.Key...), ':'), m.Value...)
	}
	return append(text, '}')
}

// do has the client carry out an action.
func (s *clientSession) do(action json.RawMessage) (json.RawMessage, error) {
	if s.client == nil {
		c, err := s.open(s.t, s.url, s.settings, s.events.add)
		if err != nil {
			return nil, err
		}
		s.client = c
		s.t.Cleanup(c.Close)
	}
	return s.client.Do(action)
}

// outcome is do for an outcome with these members only.
func (s *clientSession) outcome(action json.RawMessage, allowed ...string) (map[string]json.RawMessage, error) {
	text, err := s.do(action)
	if err != nil {
		return nil, err
	}
	return clientMembers("outcome", text, allowed...)
}

// clientMembers returns the members of an object that a client sent.
func clientMembers(what string, text json.RawMessage, allowed ...string) (map[string]json.RawMessage, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil || members == nil {
		return nil, fmt.Errorf("an %s that is not an object: %s", what, clip(string(text)))
	}
	for name := range members {
		if !slices.Contains(allowed, name) {
			return nil, fmt.Errorf("an %s with the unknown member %q", what, name)
		}
	}
	return members, nil
}

// clientOutcome returns an answer as the outcome of an action.
func clientOutcome(a Answer) (json.RawMessage, error) {
	g, err := normal("outcome", a)
	return json.RawMessage(g.text()), err
}

// mismatch makes a wrong number of requests a difference, which may have its cause in the clock.
func mismatch(requests error) error {
	if requests == nil {
		return nil
	}
	return &Mismatch{Differences: []Difference{{Path: "in.steps", Want: "(a request for each reply)", Got: requests.Error()}}}
}

// pieceSize is the size of the pieces of a message, which end within lines and characters.
func pieceSize(message []byte) int { return max(7, (len(message)+19)/20) }

// writeSlowly sends the body of an answer in pieces, which end within lines and characters.
func writeSlowly(w http.ResponseWriter, body []byte) {
	stream := http.NewResponseController(w)
	for piece := range slices.Chunk(body, pieceSize(body)) {
		if _, err := w.Write(piece); err != nil {
			return
		}
		_ = stream.Flush()
		time.Sleep(4 * time.Millisecond)
	}
}

// leaveHalfClosed ends the answer to a request without the end of its encoding, and reads until the client ends the
// other direction.
func leaveHalfClosed(w http.ResponseWriter, r *http.Request) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	halfClose(r.Context())
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	_, _ = io.Copy(io.Discard, conn)
}

// resetConnection ends the connection of a request, so that the client sees a reset.
func resetConnection(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
