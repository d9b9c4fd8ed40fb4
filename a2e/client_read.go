// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
)

// read takes what the host sends until the connection ends.
func (c *Client) read() {
	defer close(c.ended)
	err := c.readLines()
	c.mu.Lock()
	c.state = clientClosed
	for _, p := range append(slices.Collect(c.calls.all()), c.waiting...) {
		c.finish(p, nil, closedBy(err))
	}
	c.mu.Unlock()
	c.cancel()
	c.out.finish()
}

func closedBy(err error) error {
	if err == nil {
		return ErrClosed
	}
	return fmt.Errorf("%w: %w", ErrClosed, err)
}

func (c *Client) readLines() error {
	in := NewLineReader(c.rw, c.codec)
	for {
		line, err := in.next()
		if err == nil {
			if line = c.denoise(line); line == nil {
				continue
			}
			m, err := c.codec.decode(line)
			if err != nil {
				c.reject(err)
				continue
			}
			c.take(m)
			continue
		}
		var e *Error
		switch {
		case errors.As(err, &e):
			if c.opts.SkipNonJSON && e.Reason != ReasonTooLarge {
				continue
			}
			c.reject(e)
		case isEnd(err):
			return nil
		default:
			return err
		}
	}
}

// denoise takes the prefix off a line, and returns nil for what is no message
// (A2E-D43).
func (c *Client) denoise(line []byte) []byte {
	if !c.opts.SkipNonJSON {
		return line
	}
	line = bytes.TrimLeft(line, " \t")
	line = bytes.TrimPrefix(line, []byte(c.opts.StripPrefix))
	if line = bytes.TrimLeft(line, " \t"); len(line) > 0 && line[0] == '{' {
		return line
	}
	c.log.Info("a2e: the host printed a line", "line", clip(string(line), 200))
	return nil
}

// reject answers a message that cannot be decoded, and fails the call that it
// belongs to (A2E-D37).
func (c *Client) reject(err *Error) {
	if err.msgType == TypeError { // which gets no answer
		c.dropped.Add(1)
	} else {
		c.reply(errorMessage(err))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.calls.get(err.refID); p != nil && err.refID != "" && c.kind(err.msgType) != KindEvent {
		c.finish(p, nil, fmt.Errorf("%w: %w", ErrInvalidResponse, err))
	}
}

// reply sends a message. A host that does not read is not written to for ever:
// then there is no reading from it either.
func (c *Client) reply(m *Message) {
	line, err := c.codec.Append(nil, m)
	if err != nil {
		c.log.Error("a2e: message cannot be encoded", "type", m.Type, "err", err)
		return
	}
	if c.out.wait(c.ctx) == nil {
		c.out.put(line)
	}
}

func (c *Client) kind(name string) Kind {
	if t := c.codec.Types.lookup(name, false); t != nil {
		return t.Kind
	}
	return KindOf(CanonicalType(name))
}

// take routes a message (A2E-072).
func (c *Client) take(m *Message) {
	kind := c.kind(m.Type)
	if kind == KindRequest {
		c.request(m)
		return
	}
	reqID := m.ReqID()
	c.mu.Lock()
	p := c.calls.get(reqID)
	if reqID == "" {
		p = nil
	}
	if p == nil && reqID == "" && kind == KindResponse && !c.opts.Strict {
		p = c.guess(m)
	}
	var push []*pusher
	switch {
	case kind == KindError && p != nil:
		if b, ok := m.Body.(*ErrorBody); ok {
			c.finish(p, nil, b.received())
		}
	case kind == KindError && reqID == "":
		push = c.pushersOf(m)
	case kind == KindEvent && p != nil:
		c.event(p, m)
	case kind == KindEvent:
		push = c.pushersOf(m)
	case p != nil:
		if p.want != "" && CanonicalType(m.Type) != p.want {
			c.finish(p, nil, fmt.Errorf("%w: %s in answer to %s", ErrUnexpectedResponse, clip(m.Type, 100), p.msg.Type))
		} else {
			c.finish(p, m, nil)
		}
	case kind == KindOther:
		push = c.pushersOf(m)
	default:
		c.dropped.Add(1)
	}
	c.mu.Unlock()
	for _, h := range push {
		c.push(h, m)
	}
}

// guess finds the call of an answer without req_id: deployed hosts leave it out
// of five types (A2E-D36).
func (c *Client) guess(m *Message) *pending {
	switch m.Type {
	case "env/close/resp", "env/space/resp", "env/spaces/resp", "env/render/resp", "env/plan/resp", "env/batch_step/resp":
	default:
		return nil
	}
	for p := range c.calls.all() {
		if p.want == CanonicalType(m.Type) {
			return p
		}
	}
	return nil
}

// event hands an event to its call. It is called with mu held.
func (c *Client) event(p *pending, m *Message) {
	if len(p.events) >= c.opts.QueueLimit {
		c.finish(p, nil, ErrSlowReader)
		return
	}
	p.events = append(p.events, Event{Message: m, Order: p.seq.Next(eventInfo(m).Seq)})
	p.signal()
}

func (c *Client) pushersOf(m *Message) []*pusher {
	if list := c.pushers[m.Type]; len(list) > 0 {
		return list
	}
	if list := c.pushers[CanonicalType(m.Type)]; len(list) > 0 {
		return list
	}
	if len(c.anyPush) == 0 {
		c.log.Debug("a2e: nobody takes this message", "type", clip(m.Type, 100))
		c.dropped.Add(1)
	}
	return c.anyPush
}

func (c *Client) push(p *pusher, m *Message) {
	defer c.survive(m.Type)
	p.fn(m)
}

func (c *Client) survive(msgType string) {
	if e := recover(); e != nil {
		c.log.Error("a2e: handler panicked", "type", msgType, "panic", e, "stack", string(debug.Stack()))
	}
}

// request answers what the host asks (A2E-D39).
func (c *Client) request(m *Message) {
	if m.Type == TypePing {
		c.reply(NewMessage(TypePong, &Pong{ReqID: m.ID}))
		return
	}
	c.mu.Lock()
	fn := c.handlers[CanonicalType(m.Type)]
	c.mu.Unlock()
	if fn == nil {
		c.reply(c.defaultAnswer(m))
		return
	}
	select {
	case c.workers <- struct{}{}:
	case <-c.ctx.Done():
		return
	default:
		e := reasoned(ErrRuntime, ReasonOverloaded, "too many requests of the host")
		e.ReqID = m.ID
		c.reply(errorMessage(e))
		return
	}
	c.work.Go(func() {
		defer func() { <-c.workers }()
		c.reply(c.handled(fn, m))
	})
}

func (c *Client) handled(fn func(context.Context, *Message) (any, error), m *Message) (answer *Message) {
	defer func() {
		if p := recover(); p != nil {
			c.log.Error("a2e: handler panicked", "type", m.Type, "panic", p, "stack", string(debug.Stack()))
			e := reasoned(ErrRuntime, ReasonInternal, "internal error")
			e.ReqID = m.ID
			answer = errorMessage(e)
		}
	}()
	body, err := fn(c.ctx, m)
	if err != nil {
		var e *Error
		if !errors.As(err, &e) {
			c.log.Info("a2e: handler failed", "type", m.Type, "err", err)
			e = NewError(ErrRuntime, "the handler failed")
		}
		copied := *e
		copied.ReqID = m.ID
		return errorMessage(&copied)
	}
	answer = c.answerTo(m, body)
	return answer
}

// answerTo makes the answer to a request of the host, with what it repeats.
func (c *Client) answerTo(m *Message, body any) *Message {
	answer := NewMessage(responseType(m.Type), body)
	if t := m.typ; t != nil && t.Name == m.Type && t.Response != "" {
		answer.Type = t.Response
	}
	for _, name := range [...]string{"server_id", "mcp_request_id"} {
		setMember(body, name, textMember(m, name))
	}
	setReqID(answer, m.ID)
	return answer
}

// defaultAnswer is what a client says that has no handler for a request.
func (c *Client) defaultAnswer(m *Message) *Message {
	var rest [][2]string
	switch CanonicalType(m.Type) {
	case "mcp/root/list/req":
		rest = [][2]string{{"roots", "[]"}}
	case "mcp/sample/req":
		rest = [][2]string{{"role", `"assistant"`}, {"content", "{}"}, {"model", `""`}, {"stop_reason", `""`},
			{"error", `"` + string(ErrMCPSamplingRefused) + `"`}}
	}
	if rest != nil {
		answer := c.answerTo(m, nil)
		_ = answer.Extra.Set("server_id", textMember(m, "server_id"))
		_ = answer.Extra.Set("mcp_request_id", textMember(m, "mcp_request_id"))
		for _, kv := range rest {
			_ = answer.Extra.Set(kv[0], json.RawMessage(kv[1]))
		}
		return answer
	}
	e := unsupported(m.Type)
	e.ReqID = m.ID
	return errorMessage(e)
}
