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

// a2eClient is the fixture client of a script with a record of its events.
type a2eClient struct {
	client *a2e.Client
	codec  *a2e.Codec
	host   io.ReadWriteCloser
	out    *a2eLines
	work   sync.WaitGroup

	mu      sync.Mutex
	done    []Answer
	events  []Answer
	push    []Answer
	dropped uint64
	cancels map[string]context.CancelFunc
}

func a2eClientScript(t *testing.T, in *Input) (Step, error) {
	o := in.ObjectOr("client")
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
	agent, host := a2e.Pipe()
	x := &a2eClient{
		client: a2etest.Must(a2e.NewClient(agent, opts)),
		codec:  a2e.NewCodec(catalogue.Types()...), host: host,
		out: &a2eLines{}, cancels: map[string]context.CancelFunc{},
	}
	x.client.Handle("mcp/root/list/req", func(context.Context, *a2e.Message) (any, error) {
		return &mcp.RootListResponse{Roots: []json.RawMessage{json.RawMessage(`{"uri":"file:///project","name":"project"}`)}}, nil
	})
	x.client.OnMessage(func(m *a2e.Message) {
		x.note(&x.push, Answer{"json": x.text(m)})
	})
	x.work.Go(func() { x.out.read(host) })
	t.Cleanup(func() {
		_ = host.Close()
		_ = x.client.Close()
		for _, cancel := range x.cancels {
			cancel()
		}
		x.work.Wait()
	})
	return x.step, nil
}

func (x *a2eClient) note(list *[]Answer, a Answer) {
	x.mu.Lock()
	defer x.mu.Unlock()
	*list = append(*list, a)
}

func (x *a2eClient) text(m *a2e.Message) json.RawMessage {
	text, err := x.codec.Append(nil, m)
	if err != nil {
		return json.RawMessage(fmt.Sprintf("%q", err))
	}
	return text
}

func (x *a2eClient) step(step *Input) (Answer, error) {
	x.act(step)
	synctest.Wait()
	if step.Err() != nil {
		return nil, step.Err()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	dropped := x.client.Stats().Dropped
	answer := Answer{
		"out": Default(x.out.since(step), []any{}), "done": Default(x.done, []any{}),
		"events": Default(x.events, []any{}), "push": Default(x.push, []any{}),
		"dropped": Default(dropped-x.dropped, 0),
	}
	x.done, x.events, x.push, x.dropped = nil, nil, nil, dropped
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
			m, err := x.client.Call(ctx, a2e.TypePing, &a2e.Ping{}, &a2e.CallOptions{Timeout: 5 * time.Second})
			x.finish(name, m, err)
		})
	case step.Has("cancel"):
		name := step.String("cancel")
		if cancel := x.cancels[name]; cancel != nil {
			cancel()
		}
	case step.Has("recv"):
		for _, line := range step.Strings("recv") {
			_, _ = io.WriteString(x.host, line+"\n")
			synctest.Wait()
		}
	case step.Bool("shutdown"):
		x.work.Go(func() { _ = x.client.Shutdown(context.Background()) })
	case step.Bool("close"):
		x.work.Go(func() { _ = x.client.Close() })
	case step.Bool("eof"):
		_ = x.host.(interface{ CloseWrite() error }).CloseWrite()
	}
}

func (x *a2eClient) connect(c *Input) {
	r := &a2e.HandshakeRequest{
		AgentID: c.String("agent_id"), AgentCaps: c.Strings("agent_caps"), AuthToken: c.String("auth_token"),
	}
	x.work.Go(func() {
		err := a2etest.Handshake(context.Background(), x.client, r)
		x.finish("connect", x.client.HandshakeMessage(), err)
	})
}

func (x *a2eClient) context(name string) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
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
		x.note(&x.events, Answer{"call": name, "order": string(ev.Order), "json": x.text(ev.Message)})
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
		x.note(&x.done, Answer{"call": name, "err": a2eLocal(err)})
		return
	}
	x.note(&x.done, Answer{"call": name, "ok": Answer{"json": x.text(m)}})
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
