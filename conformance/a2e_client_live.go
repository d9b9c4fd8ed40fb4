// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/internal/strictjson"
)

func a2eClientProtocol() clientProtocol {
	return clientProtocol{
		open:    map[string]func(*Input, *clientSession) (Step, error){"client_script": a2eOpenLiveClient},
		notLive: func(_, _ strictjson.Value) string { return "" },
		own:     openOwnA2EClient,
	}
}

// A socketPeer is a server with one WebSocket connection.
type socketPeer struct {
	t           T
	subprotocol string
	received    func([]byte, error) // each message, and then an error

	mu     sync.Mutex
	ws     *websocket.Conn // guarded by mu
	ctx    context.Context // of the request; guarded by mu
	opened chan struct{}   // closed when ws is set
	done   sync.WaitGroup
}

// newSocketPeer returns a server that ends with t.
func newSocketPeer(t T, subprotocol string, received func([]byte, error)) *socketPeer {
	p := &socketPeer{t: t, subprotocol: subprotocol, received: received, opened: make(chan struct{})}
	t.Cleanup(func() {
		p.close()
		p.done.Wait()
	})
	return p
}

// ServeHTTP accepts the first connection.
func (p *socketPeer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Del("Connection")
	p.done.Add(1)
	defer p.done.Done()
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{p.subprotocol}})
	if err != nil {
		return
	}
	ws.SetReadLimit(16 << 20)
	p.mu.Lock()
	isFirst := p.ws == nil
	if isFirst {
		p.ws, p.ctx = ws, r.Context()
		close(p.opened)
	}
	p.mu.Unlock()
	defer ws.CloseNow()
	for isFirst {
		_, data, err := ws.Read(context.Background())
		if err == nil {
			p.t.Logf("received %s", data)
		}
		p.received(data, err)
		if err != nil {
			return
		}
	}
}

// send sends a message in frames that end within characters. A connection that has ended takes nothing.
func (p *socketPeer) send(text string) {
	p.t.Logf("sent     %s", text)
	ws := p.conn()
	if ws == nil {
		return
	}
	w, err := ws.Writer(context.Background(), websocket.MessageText)
	for piece := range slices.Chunk([]byte(text), max(7, (len(text)+19)/20)) {
		if err != nil {
			return
		}
		_, err = w.Write(piece)
	}
	if err == nil {
		_ = w.Close()
	}
}

// halfClose ends the direction to the client.
func (p *socketPeer) halfClose() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx != nil {
		halfClose(p.ctx)
	}
}

func (p *socketPeer) conn() *websocket.Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ws
}

func (p *socketPeer) close() {
	if ws := p.conn(); ws != nil {
		_ = ws.CloseNow()
	}
}

// a2eLivePeer is the host of a client under test.
type a2eLivePeer struct {
	*clientSession
	*socketPeer
	out *a2eLines
}

func a2eOpenLiveClient(in *Input, s *clientSession) (Step, error) {
	s.settings = s.byClient(in.ObjectOr("client"))
	out := &a2eLines{}
	p := &a2eLivePeer{clientSession: s, out: out, socketPeer: newSocketPeer(s.t, a2e.Subprotocol, func(data []byte, err error) {
		for line := range strings.Lines(string(data)) {
			out.lines.add(strings.TrimSuffix(line, "\n"))
		}
		out.isEnded.Store(err != nil)
	})}
	return p.step, s.serve(p.socketPeer)
}

func (p *a2eLivePeer) step(in *Input) (Answer, error) {
	isFirst := in.Repeatable()
	switch {
	case in.Has("recv"):
		for _, line := range in.Strings("recv") {
			if isFirst {
				p.send(line)
				time.Sleep(quiet)
			}
		}
	case in.Has("eof"):
		if in.Bool("eof") && isFirst {
			p.halfClose()
		}
	case len(in.Names()) > 1 || !in.Has("at"):
		action := p.byClient(in)
		if !isFirst {
			break
		}
		if _, err := p.outcome(action); err != nil {
			return nil, err
		}
	}
	time.Sleep(quiet)
	return p.answer(in)
}

// answer returns the messages and events of the client since the step before.
func (p *a2eLivePeer) answer(in *Input) (Answer, error) {
	lists := map[string][]Answer{}
	for _, event := range p.events.since(in) {
		members, err := clientMembers("event", event, "done", "events", "push")
		if err != nil {
			return nil, err
		}
		for list, text := range members {
			a, err := a2eEvent(text)
			if err != nil {
				return nil, err
			}
			lists[list] = append(lists[list], a)
		}
	}
	answer := Answer{"out": Default(p.out.since(in), []any{}), "dropped": Optional(unseen{})}
	for _, list := range []string{"done", "events", "push"} {
		answer[list] = Default(lists[list], []any{})
	}
	return answer, nil
}

// a2eEvent reads an event of a client.
func a2eEvent(text json.RawMessage) (Answer, error) {
	members, err := clientMembers("event", text, "call", "order", "json", "ok", "err")
	if err != nil {
		return nil, err
	}
	a := Answer{}
	for name, value := range members {
		switch name {
		case "ok":
			ok, err := clientMembers("event", value, "json")
			if err != nil {
				return nil, err
			}
			a[name] = Answer{"json": ok["json"]}
		case "err":
			fault, err := clientMembers("event", value, "code", "cause", "reason", "wire", "remote", "retryable")
			if err != nil {
				return nil, err
			}
			b := Answer{}
			for name, value := range fault {
				b[name] = value
			}
			a[name] = b.Optional()
		default:
			a[name] = value
		}
	}
	return a, nil
}

// An a2eOwnClient is a client of package a2e.
type a2eOwnClient struct{ *a2eClient }

func openOwnA2EClient(_ T, url string, settings json.RawMessage, event func(json.RawMessage)) (Client, error) {
	in, err := fixtureInput("client", string(settings))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn, err := a2e.DialWebSocket(ctx, "ws"+strings.TrimPrefix(url, "http"), nil)
	if err != nil {
		return nil, err
	}
	x, err := newA2EClient(in.Object("client"), conn, func(list string, a Answer) {
		if text, err := clientOutcome(Answer{list: a}); err == nil { // a message of the peer may not be JSON
			event(text)
		}
	})
	return a2eOwnClient{x}, err
}

// Do begins an action.
func (c a2eOwnClient) Do(action json.RawMessage) (json.RawMessage, error) {
	in, err := fixtureInput("step", string(action))
	if err != nil {
		return nil, err
	}
	step := in.Object("step")
	c.act(step)
	return json.RawMessage("{}"), step.Err()
}
