// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"strings"
	"time"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/internal/strictjson"
)

func a2eClientProtocol() clientProtocol {
	return clientProtocol{
		open:    map[string]func(*Input, *clientSession) (Step, error){"client_script": a2eOpenLiveClient},
		notLive: func(_, _ strictjson.Value) string { return "" },
		own:     openOwnA2EClient, hasLines: true,
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
	return p.step, s.serveMessages(p.socketPeer)
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
	var conn io.ReadWriteCloser
	if address, ok := strings.CutPrefix(url, "tcp://"); ok {
		conn, err = new(net.Dialer).DialContext(ctx, "tcp", address)
	} else {
		conn, err = a2e.DialWebSocket(ctx, "ws"+strings.TrimPrefix(url, "http"), nil)
	}
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
