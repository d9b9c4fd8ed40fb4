// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/catalogue"
	"github.com/fivewire/fivewire/a2e/chains"
	"github.com/fivewire/fivewire/a2e/mcp"
	"github.com/fivewire/fivewire/a2e/skills"
	"github.com/fivewire/fivewire/a2e/tools"
)

// a2eClient is the fixture client of a script.
type a2eClient struct {
	client *a2e.Client
	codec  *a2e.Codec
	note   func(list string, a Answer) // of the events of a script
	work   sync.WaitGroup

	mu      sync.Mutex
	cancels map[string]context.CancelFunc // guarded by mu
}

// newA2EClient returns a client with the settings of a script.
func newA2EClient(o *Input, conn io.ReadWriteCloser, note func(list string, a Answer)) (*a2eClient, error) {
	limits := o.ObjectOr("limits")
	opts := &a2e.ClientOptions{Types: catalogue.Types(), Timing: a2e.ClientTiming{WriteTimeout: -1}, Extensions: append([]string{}, o.StringsOr("extensions")...),
		Limits: a2e.ClientLimits{MaxMessage: limits.IntOr("maxBytes", 0), MaxDepth: limits.IntOr("maxDepth", 0), MaxOutput: limits.IntOr("maxOutput", 0)}}
	switch mode := o.StringOr("mode", "compat"); mode {
	case "compat":
	case "strict":
		opts.Strict = true
	default:
		o.Fail("mode", "unknown mode %q", mode)
	}
	if err := o.Err(); err != nil {
		return nil, err
	}
	client, err := a2e.NewClient(conn, opts)
	if err != nil {
		return nil, err
	}
	x := &a2eClient{client: client, codec: a2e.NewCodec(catalogue.Types()...), note: note, cancels: map[string]context.CancelFunc{}}
	client.Handle("mcp/root/list/req", func(context.Context, *a2e.Message) (any, error) {
		return &mcp.RootListResponse{Roots: []json.RawMessage{json.RawMessage(`{"uri":"file:///project","name":"project"}`)}}, nil
	})
	client.OnMessage(func(m *a2e.Message) { x.note("push", Answer{"json": x.text(m)}) })
	return x, nil
}

// Close ends the client.
func (x *a2eClient) Close() {
	_ = x.client.Close()
	x.mu.Lock()
	for _, cancel := range x.cancels {
		cancel()
	}
	x.mu.Unlock()
	x.work.Wait()
}

// a2eClientFixture is a client with a record of its events.
type a2eClientFixture struct {
	*a2eClient
	host    io.ReadWriteCloser
	out     *a2eLines
	reading sync.WaitGroup

	mu      sync.Mutex
	lists   map[string][]Answer // done, events and push; guarded by mu
	dropped uint64
}

func a2eClientScript(t *testing.T, in *Input) (Step, error) {
	agent, host := a2e.Pipe()
	x := &a2eClientFixture{host: host, out: &a2eLines{}, lists: map[string][]Answer{}}
	var err error
	x.a2eClient, err = newA2EClient(in.ObjectOr("client"), agent, func(list string, a Answer) {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.lists[list] = append(x.lists[list], a)
	})
	if err != nil {
		return nil, err
	}
	x.reading.Go(func() { x.out.read(host) })
	t.Cleanup(func() {
		_ = host.Close()
		x.Close()
		x.reading.Wait()
	})
	return x.step, nil
}

func (x *a2eClient) text(m *a2e.Message) json.RawMessage {
	text, err := x.codec.Append(nil, m)
	if err != nil {
		return json.RawMessage(fmt.Sprintf("%q", err))
	}
	return text
}

func (x *a2eClientFixture) step(step *Input) (Answer, error) {
	switch {
	case step.Has("recv"):
		for _, line := range step.Strings("recv") {
			_, _ = io.WriteString(x.host, line+"\n")
			synctest.Wait()
		}
	case step.Bool("eof"):
		_ = x.host.(interface{ CloseWrite() error }).CloseWrite()
	default:
		x.act(step)
	}
	synctest.Wait()
	if step.Err() != nil {
		return nil, step.Err()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	dropped := x.client.Stats().Dropped
	answer := Answer{"out": Default(x.out.since(step), []any{}), "dropped": Default(dropped-x.dropped, 0)}
	for _, list := range []string{"done", "events", "push"} {
		answer[list] = Default(x.lists[list], []any{})
	}
	clear(x.lists)
	x.dropped = dropped
	return answer, nil
}

// act carries out the action of a step.
func (x *a2eClient) act(step *Input) {
	switch {
	case step.Has("connect"):
		x.connect(step.Object("connect"))
	case step.Has("call"):
		x.call(step.Object("call"))
	case step.Has("ping"):
		name := step.Object("ping").String("name")
		ctx := x.context(name)
		x.work.Go(func() {
			m, err := x.client.Call(ctx, "ping", nil, &a2e.CallOptions{Timeout: 5 * time.Second})
			x.finish(name, m, err)
		})
	case step.Has("cancel"):
		x.mu.Lock()
		cancel := x.cancels[step.String("cancel")]
		x.mu.Unlock()
		if cancel != nil {
			cancel()
		}
	case step.Bool("shutdown"):
		x.work.Go(func() { _ = x.client.Shutdown(context.Background()) })
	case step.Bool("close"):
		x.work.Go(func() { _ = x.client.Close() })
	}
}

func (x *a2eClient) connect(c *Input) {
	r := &a2e.HandshakeRequest{
		AgentID: c.String("agent_id"), AgentCaps: c.Strings("agent_caps"), AuthToken: c.String("auth_token"),
	}
	x.work.Go(func() {
		answer, err := a2etest.Handshake(context.Background(), x.client, r)
		x.finish("connect", answer, err)
	})
}

func (x *a2eClient) context(name string) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	x.mu.Lock()
	defer x.mu.Unlock()
	x.cancels[name] = cancel
	return ctx
}

func (x *a2eClient) call(c *Input) {
	name, msgType, fields := c.String("name"), c.String("type"), c.Raw("fields")
	opts := &a2e.CallOptions{Timeout: time.Duration(c.Int64Or("timeoutMs", 0)) * time.Millisecond}
	if len(fields) == 0 {
		fields = json.RawMessage("{}")
	}
	if c.Err() != nil {
		return
	}
	m, err := a2eMessage(x.codec, msgType, "fixture", json.RawMessage("1"), fields)
	if err != nil {
		c.Fail("fields", "%v", err)
		return
	}
	var body any = m.Body
	if _, ok := fieldOf(fields, "timeout"); !ok {
		unsetTimeout(body)
	}
	if m.Body == nil {
		members, err := a2e.ParseMembers(fields)
		if err != nil {
			c.Fail("fields", "%v", err)
			return
		}
		body = members
	}
	opts.OnEvent = func(ev a2e.Event) {
		x.note("events", Answer{"call": name, "order": string(ev.Order), "json": x.text(ev.Message)})
	}
	ctx := x.context(name)
	x.work.Go(func() {
		m, err := x.client.Call(ctx, msgType, body, opts)
		x.finish(name, m, err)
	})
}

// fieldOf returns a member of an object.
func fieldOf(object json.RawMessage, name string) (json.RawMessage, bool) {
	members, err := a2e.ParseMembers(object)
	if err != nil {
		return nil, false
	}
	v := members.Get(name)
	return v, v != nil
}

// unsetTimeout removes the default that a decoded request has.
func unsetTimeout(body any) {
	switch r := body.(type) {
	case *tools.CallRequest:
		r.Timeout = 0
	case *skills.CallRequest:
		r.Timeout = 0
	case *chains.Request:
		r.Timeout = 0
	}
}

func (x *a2eClient) finish(name string, m *a2e.Message, err error) {
	if err != nil {
		x.note("done", Answer{"call": name, "err": a2eLocal(err)})
		return
	}
	x.note("done", Answer{"call": name, "ok": Answer{"json": x.text(m)}})
}

// a2eLocal names an error of the client in the words of the scripts.
func a2eLocal(err error) Answer {
	var wire *a2e.Error
	var refused *a2e.HandshakeError
	isWire := errors.As(err, &wire)
	a := Answer{}
	if closed, ok := errors.AsType[*a2e.CloseError](err); ok {
		a["cause"] = closed.Kind
	}
	switch {
	case errors.As(err, &refused):
		a["code"], a["reason"] = "handshake_rejected", refused.Reason
	case errors.Is(err, a2e.ErrInvalidResponse):
		a["code"] = "bad_response"
		if isWire {
			a["wire"] = string(wire.Code)
		}
	case errors.Is(err, a2e.ErrUnexpectedResponse):
		a["code"] = "unexpected_response"
	case isWire:
		a["code"], a["remote"], a["retryable"], a["reason"] = string(wire.Code), wire.Remote, wire.Retryable, wire.Reason
	case errors.Is(err, a2e.ErrNotConnected):
		a["code"] = "not_connected"
	case errors.Is(err, a2e.ErrClosed):
		a["code"] = "closed"
	case errors.Is(err, context.Canceled):
		a["code"] = "cancelled"
	case errors.Is(err, context.DeadlineExceeded):
		a["code"] = "deadline_exceeded"
	default:
		a["code"] = strings.ToValidUTF8(err.Error(), "?")
	}
	return a.Optional()
}
