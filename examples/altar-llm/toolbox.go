// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/a2e"
	a2etools "github.com/fivewire/fivewire/a2e/tools"
	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/llm"
)

// A callFunc calls a tool with parameters.
type callFunc func(ctx context.Context, tool string, params json.RawMessage) (json.RawMessage, error)

// A toolbox has tools in the form of a vendor.
type toolbox struct {
	vendor  llm.Vendor
	list    []altar.ToolInfo
	calls   map[string]callFunc // by the name of a tool
	offered []llm.Tool
	log     func(call, result string)
	closers []func()
}

// addALTAR adds the tools of a session.
func (b *toolbox) addALTAR(ctx context.Context, s *altar.Session) error {
	list, err := s.ListTools(ctx)
	for _, t := range list {
		b.list = append(b.list, t)
		b.calls[t.Name] = func(ctx context.Context, tool string, params json.RawMessage) (json.RawMessage, error) {
			r, err := s.Call(ctx, tool, params, nil)
			if err != nil {
				return nil, err
			}
			return r.Payload, nil
		}
	}
	return err
}

// types are the types of parameters in ALTAR.
var types = map[string]string{"string": "string", "integer": "integer", "number": "float", "boolean": "boolean", "object": "object"}

// addA2E adds the tools of a host.
func (b *toolbox) addA2E(ctx context.Context, c *a2etools.Client) error {
	list, err := c.List(ctx, nil, nil)
	if err != nil {
		return err
	}
	for _, d := range list.Tools {
		t := altar.ToolInfo{Name: d.Name, Description: d.Description}
		for _, p := range d.InputParameters {
			t.Parameters = append(t.Parameters, altar.Parameter{Name: p.Name, Type: types[p.Type], Description: p.Description, Required: p.Required})
		}
		b.list = append(b.list, t)
		b.calls[d.Name] = func(ctx context.Context, tool string, params json.RawMessage) (json.RawMessage, error) {
			r, err := c.Call(ctx, &a2etools.CallRequest{ToolName: tool, Arguments: params}, nil)
			if err != nil {
				return nil, err
			}
			return r.Data.Data, r.Data.Err()
		}
	}
	return nil
}

// answer makes the calls of a turn at the same time, and returns their results in the same order, all in the form of the
// vendor. The end of ctx ends the tools.
func (b *toolbox) answer(ctx context.Context, calls []json.RawMessage) ([]json.RawMessage, error) {
	results := make([]json.RawMessage, len(calls))
	failures := make([]error, len(calls))
	var wg sync.WaitGroup
	for i, call := range calls {
		wg.Go(func() { results[i], failures[i] = b.result(ctx, call) })
	}
	wg.Wait()
	for i, call := range calls {
		if failures[i] == nil && b.log != nil {
			b.log(string(call), string(results[i]))
		}
	}
	return results, errors.Join(append(failures, ctx.Err())...)
}

// result makes a call. A refusal is a result, too: the model repairs its call with it.
func (b *toolbox) result(ctx context.Context, message json.RawMessage) (json.RawMessage, error) {
	call, err := llm.DecodeCall(b.vendor, message)
	if err != nil {
		return nil, err
	}
	var payload json.RawMessage
	err = fmt.Errorf("there is no tool %q", call.Name)
	for _, t := range b.offered {
		if t.Name == call.Name {
			var params json.RawMessage
			if params, err = llm.Arguments(t.Parameters, call.Arguments); err == nil {
				payload, err = b.calls[t.Contract](ctx, t.Contract, params)
			}
		}
	}
	return llm.Result(b.vendor, call, payload, err)
}

func (b *toolbox) close() {
	for _, f := range b.closers {
		f()
	}
}

const manifest = `{"contracts":[{"name":"bank/transfer","description":"Transfers an amount in cents",
	"parameters":[{"name":"account","type":"integer","required":true,"description":"number of the account"},
	{"name":"cents","type":"integer","required":true}]}]}`

type transfer struct {
	Account int64 `json:"account"`
	Cents   int64 `json:"cents"`
}

// tools adjusts the tools of newToolbox for tests.
type tools struct {
	onTransfer func(ctx context.Context, in transfer) error
}

// newToolbox starts an ALTAR Host with a Runtime and an A2E host, and offers their tools. In production both are elsewhere:
// altar.DialWebSocket and a2e.DialWebSocket connect to them.
func newToolbox(ctx context.Context, vendor llm.Vendor, o tools) (b *toolbox, err error) {
	b = &toolbox{vendor: vendor, calls: map[string]callFunc{}}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	session, err := b.startALTAR(ctx, o)
	if err == nil {
		err = b.addALTAR(ctx, session)
	}
	var client *a2etools.Client
	if err == nil {
		client, err = b.startA2E(ctx)
	}
	if err == nil {
		err = b.addA2E(ctx, client)
	}
	if err == nil {
		b.offered, err = llm.Tools(b.list, vendor, &llm.ToolsOptions{TextIntegers: true})
	}
	return b, err
}

func (b *toolbox) startALTAR(ctx context.Context, o tools) (*altar.Session, error) {
	contracts, err := altar.DecodeManifest([]byte(manifest))
	if err != nil {
		return nil, err
	}
	host, err := altar.NewHost(contracts, &altar.HostOptions{Auth: altar.Auth{AllowAnonymous: true, Authorizer: altar.AuthorizerFunc(altar.AllowAll)}})
	if err != nil {
		return nil, err
	}
	b.closers = append(b.closers, func() { _ = host.Close() }) // always succeeds
	rt, err := altar.NewRuntime("bank-01", nil)
	if err != nil {
		return nil, err
	}
	altar.AddTool(rt, "bank/transfer", func(ctx context.Context, in transfer) (string, error) {
		if o.onTransfer != nil {
			if err := o.onTransfer(ctx, in); err != nil {
				return "", err
			}
		}
		return fmt.Sprintf("%d cents to %d", in.Cents, in.Account), nil
	})
	conn, err := host.Dial(&altar.Principal{ID: "bank"})
	if err != nil {
		return nil, err
	}
	go func() { _ = rt.Run(context.WithoutCancel(ctx), conn) }() // ends with the Host
	client, err := altar.NewClient(func(context.Context) (altar.Conn, error) { return host.Dial(&altar.Principal{ID: "agent"}) }, nil)
	if err != nil {
		return nil, err
	}
	b.closers = append([]func(){func() { _ = client.Close() }}, b.closers...)
	session, err := client.CreateSession(ctx, nil)
	if err != nil {
		return nil, err
	}
	for { // until the Runtime has connected
		list, err := session.ListTools(ctx)
		if err != nil || len(list) > 0 {
			return session, err
		}
		time.Sleep(time.Millisecond)
	}
}

func (b *toolbox) startA2E(ctx context.Context) (*a2etools.Client, error) {
	set, err := a2etools.NewSet(nil)
	if err != nil {
		return nil, err
	}
	a2etools.AddTool(set, "count_words", "Counts the words of a text", func(_ context.Context, _ *a2e.Call, in struct {
		Text string `json:"text"`
	},
	) (int, error) {
		return len(strings.Fields(in.Text)), nil
	}, nil)
	host, err := a2e.NewHost(&a2e.HostOptions{Auth: a2e.Auth{AllowAnonymous: true}})
	if err != nil {
		return nil, err
	}
	host.AddPlugin(set.Plugin())
	here, there := a2e.Pipe()
	go func() { _ = host.Serve(context.WithoutCancel(ctx), there) }() // ends with the agent
	agent, err := a2e.NewClient(here, &a2e.ClientOptions{AgentID: "agent-01", Capabilities: []string{a2etools.Capability}})
	if err != nil {
		return nil, err
	}
	b.closers = append(b.closers, func() { _ = agent.Close(); _ = host.Close() })
	client, err := a2etools.NewClient(agent)
	if err == nil {
		_, err = agent.Connect(ctx)
	}
	return client, err
}
