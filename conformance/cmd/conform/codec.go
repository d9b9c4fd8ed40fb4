// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fivewire/fivewire/conformance"
)

// maxOpen is the number of cases that a testee has to answer at once.
const maxOpen = 64

// protocolNames are the protocols of the embedded vectors.
var protocolNames = []string{"arc", "a2e", "altar", "accp", "air"}

// A testee is a child that answers cases.
type testee struct {
	*child
	Name      string              `json:"name"`
	Version   string              `json:"version"`
	Protocols []string            `json:"protocols"`
	Ops       map[string][]string `json:"ops"`

	operations map[string]*conformance.Operations
}

// startTestee starts a testee and exchanges the hello.
func (c *config) startTestee() (*testee, error) {
	t := &testee{operations: make(map[string]*conformance.Operations)}
	names := make(map[string][]string)
	for _, name := range protocolNames {
		ops, err := conformance.OperationsOf(name)
		if err != nil {
			return nil, err
		}
		t.operations[name] = ops
		names[name] = ops.Names()
	}
	hello, err := json.Marshal(map[string]any{"conform": 1, "hello": map[string]any{"protocols": protocolNames, "ops": names}})
	if err != nil {
		return nil, err
	}
	t.child = &child{argv: c.command, limit: c.timeout, hello: hello, groups: &c.running.groups}
	p, err := t.process()
	if err != nil {
		return nil, err
	}
	if err := t.readHello(p.hello); err != nil {
		t.close()
		return nil, err
	}
	c.running.testee.Store(t)
	return t, nil
}

func (t *testee) readHello(r reply) error {
	if string(bytes.TrimSpace(r["conform"])) != "1" {
		return fmt.Errorf("the hello of the testee has conform %s, want 1", clip(r["conform"]))
	}
	if err := json.Unmarshal(r["hello"], t); err != nil {
		return fmt.Errorf("the hello of the testee: %w", err)
	}
	if t.Name == "" || len(t.Protocols) == 0 {
		return errors.New("the hello of the testee needs name and protocols")
	}
	for _, name := range t.Protocols {
		if t.operations[name] == nil {
			return fmt.Errorf("the testee announces the protocol %q; there are: %s", name, strings.Join(protocolNames, ", "))
		}
		for _, op := range t.Ops[name] {
			if !t.operations[name].Has(op) {
				return fmt.Errorf("the testee announces the unknown operation %q of %s; there are: %s",
					op, name, strings.Join(t.operations[name].Names(), ", "))
			}
		}
	}
	return nil
}

// bind returns the protocols of the cases, answered by the testee.
func (t *testee) bind(cases []*conformance.Case) []conformance.Protocol {
	var list []conformance.Protocol
	for _, name := range protocolNames {
		p := conformance.Protocol{Name: name, Ops: make(map[string]conformance.Op)}
		for _, c := range cases {
			if c.Protocol == name && t.operations[name].Has(c.Op) && p.Ops[c.Op] == nil {
				p.Ops[c.Op] = t.op(name, c.Op)
			}
		}
		list = append(list, p)
	}
	return list
}

func (t *testee) op(protocol, name string) conformance.Op {
	if !slices.Contains(t.Protocols, protocol) || !slices.Contains(t.Ops[protocol], name) {
		return func(conformance.T, *conformance.Input) (conformance.Answer, error) {
			return nil, fmt.Errorf("%s does not have the operation %s: %w", t.Name, name, errors.ErrUnsupported)
		}
	}
	x := exchange{testee: t, protocol: protocol, op: name}
	if start, ok := t.operations[protocol].Start(name); ok {
		return conformance.Script{Live: func(ct conformance.T, in *conformance.Input) (conformance.Step, error) {
			return x.open(ct, in, start)
		}}.Run
	}
	return func(ct conformance.T, in *conformance.Input) (conformance.Answer, error) {
		return x.call(ct, message{ID: ct.Name(), Protocol: protocol, Op: name, In: members(in)})
	}
}

// A message is a line to the testee.
type message struct {
	ID       string          `json:"id"`
	Protocol string          `json:"protocol,omitempty"`
	Op       string          `json:"op,omitempty"`
	In       json.RawMessage `json:"in,omitempty"`
	Open     json.RawMessage `json:"open,omitempty"`
	Step     json.RawMessage `json:"step,omitempty"`
	Now      int64           `json:"now,omitempty"`
	End      bool            `json:"end,omitempty"`

	Session string            `json:"session,omitempty"`
	URL     string            `json:"url,omitempty"`
	Client  json.RawMessage   `json:"client,omitempty"`
	Do      []json.RawMessage `json:"do,omitempty"`
}

// line returns the message without a line feed. Texts inside are not changed.
func (m message) line() []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(m); err != nil {
		panic(err) // not reached: the raw members are checked JSON
	}
	return bytes.TrimSpace(b.Bytes())
}

// members returns an input as JSON, without some of its members.
func members(in *conformance.Input, without ...string) json.RawMessage {
	b := []byte{'{'}
	for _, name := range in.Names() {
		if slices.Contains(without, name) {
			continue
		}
		if len(b) > 1 {
			b = append(b, ',')
		}
		key, _ := json.Marshal(name)
		b = append(append(append(b, key...), ':'), in.Raw(name)...)
	}
	return append(b, '}')
}

// An exchange is what one operation says to the testee.
type exchange struct {
	*testee
	protocol, op string
}

func (x exchange) call(ct conformance.T, m message) (conformance.Answer, error) {
	r, text, err := x.send(ct, m)
	if err != nil {
		return nil, err
	}
	return x.answer(r, text)
}

// send sends a message and returns the reply, and its text.
func (x exchange) send(ct conformance.T, m message) (reply, []byte, error) {
	line := m.line()
	ct.Logf("sent     %s", line)
	r, err := x.child.call(m.ID, line)
	if err != nil {
		return nil, nil, err
	}
	return r, received(ct, r), nil
}

func received(ct conformance.T, r reply) []byte {
	text, _ := json.Marshal(r) // of raw members that were read from JSON
	ct.Logf("received %s", text)
	return text
}

func (x exchange) answer(r reply, text []byte) (conformance.Answer, error) {
	if len(r) != 2 {
		return nil, fmt.Errorf("the reply has not one of answer, refusal, unsupported and broken besides the id: %s", clip(text))
	}
	var values map[string]json.RawMessage
	var why string
	switch {
	case r["answer"] != nil:
		if err := json.Unmarshal(r["answer"], &values); err != nil || values == nil {
			return nil, fmt.Errorf("the answer is not an object: %s", clip(text))
		}
		return x.operations[x.protocol].Answer(x.op, values)
	case r["refusal"] != nil:
		if err := json.Unmarshal(r["refusal"], &values); err != nil || values == nil {
			return nil, fmt.Errorf("the refusal is not an object: %s", clip(text))
		}
		f := &conformance.Failure{Fields: conformance.Answer{}}
		for name, v := range values {
			f.Fields[name] = v
		}
		return nil, f
	case json.Unmarshal(r["unsupported"], &why) == nil:
		return nil, fmt.Errorf("%s: %w", why, errors.ErrUnsupported)
	case json.Unmarshal(r["broken"], &why) == nil:
		return nil, fmt.Errorf("the testee is broken: %s", why)
	}
	return nil, fmt.Errorf("the reply has none of answer, refusal, unsupported and broken: %s", clip(text))
}

// open starts an operation that runs step by step.
func (x exchange) open(ct conformance.T, in *conformance.Input, start int64) (conformance.Step, error) {
	m := message{ID: ct.Name(), Protocol: x.protocol, Op: x.op, Open: members(in, "steps"), Now: start}
	p, err := x.process()
	if err != nil {
		return nil, err
	}
	call := func(m message) (conformance.Answer, error) {
		line := m.line()
		ct.Logf("sent     %s", line)
		r, err := p.call(m.ID, line, x.limit)
		if err != nil {
			return nil, err
		}
		return x.answer(r, received(ct, r))
	}
	if _, err := call(m); err != nil {
		return nil, err
	}
	ct.Cleanup(func() { _ = p.write(message{ID: m.ID, End: true}.line()) })
	now := start
	return func(step *conformance.Input) (conformance.Answer, error) {
		now = start + step.Int64Or("at", now-start)
		return call(message{ID: m.ID, Step: members(step, "at"), Now: now})
	}, nil
}
