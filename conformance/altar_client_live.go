// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"encoding/json"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/internal/strictjson"
)

func altarClientProtocol() clientProtocol {
	return clientProtocol{
		open:    map[string]func(*Input, *clientSession) (Step, error){"runtime_script": altarOpenLiveRuntime},
		notLive: func(_, _ strictjson.Value) string { return "" },
		own:     openOwnRuntime, hasLines: true,
	}
}

// altarLivePeer is the Host of a Runtime under test.
type altarLivePeer struct {
	*clientSession
	*socketPeer
	output  tape[any]
	closed  atomic.Bool // by the Runtime
	closing *Input      // the first step after it closed the connection
}

func altarOpenLiveRuntime(in *Input, s *clientSession) (Step, error) {
	s.settings = s.byClient(in.ObjectOr("options"))
	p := &altarLivePeer{clientSession: s}
	p.socketPeer = newSocketPeer(s.t, "altar.v1", func(frame []byte, err error) {
		if err != nil {
			p.closed.Store(true)
			return
		}
		p.output.add(altarProjected(frame))
	})
	return p.step, s.serveMessages(p.socketPeer)
}

func (p *altarLivePeer) step(in *Input) (Answer, error) {
	isFirst := in.Repeatable()
	switch {
	case in.Has("start"):
		action := p.byClient(in)
		if !isFirst {
			break
		}
		if _, err := p.outcome(action); err != nil {
			return nil, err
		}
	case in.Has("send"):
		if wire := in.Wire("send"); isFirst {
			p.send(string(wire))
		}
	case in.Has("eof"):
		if in.Bool("eof") && isFirst {
			p.halfClose()
		}
	default:
		if !in.Bool("tick") {
			in.Fail("tick", "a step without an action")
		}
	}
	time.Sleep(quiet)
	a := Answer{"json": Default(p.output.since(in), []any{})}
	if p.closed.Load() && (p.closing == nil || p.closing == in) {
		p.closing = in
		a["closed"] = true
	}
	return a, nil
}

// An altarOwnRuntime is a Runtime of package altar.
type altarOwnRuntime struct {
	rt  *altar.Runtime
	url string
	wg  sync.WaitGroup
	ctx context.Context
	end context.CancelFunc
}

func openOwnRuntime(_ T, url string, settings json.RawMessage, _ func(json.RawMessage)) (Client, error) {
	in, err := fixtureInput("options", string(settings))
	if err != nil {
		return nil, err
	}
	rt, err := newAltarRuntime(in.Object("options"))
	if err != nil {
		return nil, err
	}
	c := &altarOwnRuntime{rt: rt, url: url}
	c.ctx, c.end = context.WithCancel(context.Background())
	return c, nil
}

// Do connects to the Host.
func (c *altarOwnRuntime) Do(json.RawMessage) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(c.ctx, 5*time.Second)
	defer cancel()
	var conn altar.Conn
	var err error
	if address, ok := strings.CutPrefix(c.url, "tcp://"); ok {
		var stream net.Conn
		if stream, err = new(net.Dialer).DialContext(ctx, "tcp", address); err == nil {
			conn = altar.NewStreamConn(stream, nil)
		}
	} else {
		conn, err = altar.DialWebSocket(ctx, "ws"+strings.TrimPrefix(c.url, "http"), nil)
	}
	if err != nil {
		return nil, err
	}
	c.wg.Go(func() { _ = c.rt.Run(c.ctx, conn) })
	return json.RawMessage("{}"), nil
}

// Close ends the Runtime.
func (c *altarOwnRuntime) Close() {
	c.end()
	c.wg.Wait()
}
