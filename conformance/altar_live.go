// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/internal/strictjson"
)

func altarLiveProtocol() liveProtocol {
	return liveProtocol{
		open: map[string]func(T, *Input, *liveServer) (Step, error){"host_script": altarOpenLive},
		fixture: func(_ string, in strictjson.Value) string {
			if options := in.Get("options"); options != nil {
				return string(options)
			}
			return "{}"
		},
		notLive: func(in, step strictjson.Value) string {
			switch {
			case step.Get("restart") != nil:
				return "several processes"
			case step.Get("drain") != nil, step.Get("reload") != nil, in.Get("options").Get("audit") != nil:
				return "private state"
			case step.Get("wireB64") != nil:
				return "own option" // a connection of lines
			}
			return ""
		},
		serve: newAltarFixture,
	}
}

// newAltarFixture returns a Host with a fixture.
func newAltarFixture(fixture, _ string) (http.Handler, func() error, error) {
	in, err := fixtureInput("options", fixture)
	if err != nil {
		return nil, nil, err
	}
	f := &altarHost{}
	if err := f.configure(in.ObjectOr("options")); err != nil {
		return nil, nil, err
	}
	if err := in.Err(); err != nil {
		return nil, nil, err
	}
	if err := f.start(); err != nil {
		return nil, nil, err
	}
	return f.host, f.host.Close, nil
}

// altarLive is the fixture of a host_script in another process.
type altarLive struct {
	*liveServer
	conns map[string]*altarLiveConn
	wg    sync.WaitGroup // of exchanges
	altarEvents
}

type altarLiveConn struct {
	ws     *websocket.Conn
	closed atomic.Bool // by a step
}

func altarOpenLive(t T, in *Input, s *liveServer) (Step, error) {
	if in.Has("options") {
		in.Raw("options")
	}
	f := &altarLive{liveServer: s, conns: map[string]*altarLiveConn{}}
	t.Cleanup(func() {
		s.client.CloseIdleConnections()
		f.wg.Wait()
	})
	return f.step, s.start(nil)
}

func (f *altarLive) step(in *Input) (Answer, error) {
	if in.Repeatable() {
		if err := f.act(in); err != nil {
			return nil, err
		}
	}
	time.Sleep(quiet)
	return f.answer(in), in.Err()
}

// act carries out the action of a step.
func (f *altarLive) act(in *Input) error {
	switch {
	case in.Has("open"):
		header := http.Header{}
		if in.Has("identity") {
			token := in.String("identity")
			if in.Has("expires") {
				token = fmt.Sprintf("%s@%d", token, in.Int64("expires"))
			}
			header.Set("Authorization", "Bearer tok-"+token)
		}
		return f.open(in.String("open"), header)
	case in.Has("send"):
		c := f.conns[in.String("send")]
		wire := in.Wire("wire")
		if c == nil {
			in.Fail("send", "no such connection")
			break
		}
		f.t.Logf("sent     %s", wire)
		_ = c.ws.Write(context.Background(), websocket.MessageText, wire) // until the Host closes the connection
	case in.Has("close"):
		c := f.conns[in.String("close")]
		if c == nil {
			in.Fail("close", "no such connection")
			break
		}
		c.closed.Store(true)
		_ = c.ws.CloseNow()
	case in.Has("http"):
		f.wg.Go(f.exchange(in, f.liveServer))
	default:
		if !in.Bool("tick") {
			in.Fail("tick", "a step without an action")
		}
	}
	return nil
}

func (f *altarLive) open(name string, header http.Header) error {
	c := &altarLiveConn{}
	f.conns[name] = c
	var err error
	c.ws, err = f.dial(altar.WebSocketPath, "altar.v1", header, func(frame []byte, err error) {
		switch {
		case err == nil:
			f.add(altarEvent{name: name, message: altarProjected(frame)})
		case !c.closed.Load():
			f.add(altarEvent{name: name, closed: true})
		}
	})
	return err
}
