// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/sendq"
)

// read processes the messages of the host until the connection ends.
func (c *Client) read() {
	defer close(c.readerDone)
	c.failCalls(c.endError(c.readLines()))
	c.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	c.out.finish(ctx)
}

// endError returns the error of all calls after the end of the connection, in good order if err is nil
// (A2E-D60).
func (c *Client) endError(err error) error {
	var cause *CloseError
	if x, ok := c.rw.(interface{ cause() *CloseError }); ok {
		cause = x.cause()
	}
	switch {
	case cause != nil:
	case errors.Is(err, sendq.ErrSlowReader):
		cause = &CloseError{Kind: "stall"}
	default:
		cause = &CloseError{Kind: "eof"}
		if err != nil {
			cause.Text = clip(err.Error(), 400)
		}
	}
	if p := c.firstLine.Load(); p != nil && *p != "" {
		cause.Text = strings.TrimPrefix(cause.Text+": "+*p, ": ")
	}
	return &sessionError{cause, err}
}

func (c *Client) readLines() error {
	in := newLineReader(c.rw, c.codec)
	for {
		line, err := in.next()
		if err == nil {
			if line = c.denoise(line); line == nil {
				continue
			}
			c.recorder.line("in", line)
			m, err := c.codec.decode(line)
			if err != nil {
				c.noteLine(line)
				c.reject(err)
				continue
			}
			c.firstLine.Store(new(string))
			c.take(m, len(line))
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

// denoise removes the prefix of a line, and returns nil for a line that is not a message (A2E-D43).
func (c *Client) denoise(line []byte) []byte {
	if !c.opts.SkipNonJSON {
		return line
	}
	line = bytes.TrimLeft(line, " \t")
	line = bytes.TrimPrefix(line, []byte(c.opts.StripPrefix))
	if line = bytes.TrimLeft(line, " \t"); len(line) > 0 && line[0] == '{' {
		return line
	}
	c.noteLine(line)
	c.log.InfoContext(c.ctx, "a2e: line skipped", "line", clip(string(line), 200))
	return nil
}

// noteLine records the first line of a host if no message precedes it.
func (c *Client) noteLine(line []byte) {
	if c.firstLine.Load() == nil {
		c.firstLine.Store(new(clip(string(line), 200)))
	}
}

// reject answers a message that cannot be decoded, and fails its call (A2E-D37).
func (c *Client) reject(err *Error) {
	if err.msgType == TypeError { // which gets no answer
		c.dropped.Add(1)
	} else {
		c.answer(errorMessage(err))
	}
	if c.kind(err.msgType) != KindEvent {
		c.fail(err.refID, fmt.Errorf("%w: %w", ErrInvalidResponse, err))
	}
}

// fail ends the call of an answer with an error, if it is pending.
func (c *Client) fail(id string, err error) {
	if p, ok := c.calls.Get(id); ok {
		p.isAnswered.Store(true)
		c.calls.Fail(id, err)
	}
}

// answer sends a message of the reader, which waits only if the reserve of the queue is full.
func (c *Client) answer(m *Message) {
	c.respond(m, func(line []byte) error {
		err := c.out.putControl(line, m.Type == TypePong)
		if errors.Is(err, sendq.ErrFull) {
			err = c.out.send(c.ctx, line)
		}
		return err
	})
}

// reply sends a message of a handler. It waits while the host does not read.
func (c *Client) reply(m *Message) {
	c.respond(m, func(line []byte) error { return c.out.send(c.ctx, line) })
}

func (c *Client) respond(m *Message, send func(line []byte) error) {
	line, err := c.boundedLine(m, ErrRuntime)
	if e, ok := errors.AsType[*Error](err); ok && isOverBound(e) {
		e.ReqID = m.ReqID()
		line, err = c.codec.line(errorMessage(e))
	}
	if err != nil {
		c.log.ErrorContext(c.ctx, "a2e: message not encoded", "type", m.Type, "err", err)
		return
	}
	defer freeLine(line)
	if err := send(*line); err != nil {
		c.log.DebugContext(c.ctx, "a2e: answer dropped", "type", m.Type, "err", err)
	}
}

func (c *Client) kind(name string) Kind {
	if t := c.codec.Types.lookup(name, false); t != nil {
		return t.Kind
	}
	return kindOf(canonicalType(name))
}

// take routes a message of size bytes (A2E-072).
func (c *Client) take(m *Message, size int) {
	kind := c.kind(m.Type)
	if kind == KindRequest {
		c.request(m)
		return
	}
	reqID := m.ReqID()
	p, isPending := c.calls.Get(reqID)
	if reqID == "" && kind == KindResponse && !c.opts.Strict {
		p, isPending = c.matchByType(m)
	}
	var push []*pusher
	switch {
	case kind == KindError && isPending:
		if b, ok := m.Body.(*ErrorBody); ok {
			c.fail(reqID, b.received())
		}
	case kind == KindEvent && isPending:
		c.deliverEvent(p, m, size)
	case kind == KindError && reqID == "", kind == KindEvent, kind == KindOther && !isPending:
		push = c.pushersOf(m)
	case isPending && p.want != "" && canonicalType(m.Type) != p.want:
		c.fail(p.msg.ID, fmt.Errorf("%w: %s in answer to %s", ErrUnexpectedResponse, clip(m.Type, 100), p.msg.Type))
	case isPending:
		p.answer = m
		p.isAnswered.Store(true)
		if !c.calls.Complete(p.msg.ID, p) {
			c.dropped.Add(1)
		}
	default:
		c.dropped.Add(1)
		c.calls.Complete(reqID, nil) // of a call that ended on this side
	}
	for _, h := range push {
		c.push(h, m)
	}
}

// matchByType finds the oldest call of an answer without req_id, which deployed hosts omit in six
// types (A2E-D36).
func (c *Client) matchByType(m *Message) (p *pending, isPending bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.unnamed {
		if p.want == canonicalType(m.Type) && !p.isAnswered.Load() {
			return p, true
		}
	}
	return nil, false
}

// mayLackID reports whether deployed hosts omit the req_id of responses of a type.
func mayLackID(responseType string) bool {
	switch responseType {
	case "env/close/resp", "env/space/resp", "env/spaces/resp", "env/render/resp", "env/plan/resp", "env/batch_step/resp":
		return true
	}
	return false
}

// maxEventBytes bounds the events that a call holds for its caller.
const maxEventBytes = 8 << 20

// deliverEvent queues an event of a call, or ends the call if its caller takes no events.
func (c *Client) deliverEvent(p *pending, m *Message, size int) {
	c.mu.Lock()
	p.isSlow = len(p.events) >= c.opts.Limits.QueueLimit || p.size+size > maxEventBytes && len(p.events) > 0
	if !p.isSlow {
		p.events = append(p.events, Event{Message: m, Order: p.seq.next(eventInfo(m).Seq)})
		p.size += size
	}
	isSlow := p.isSlow
	c.mu.Unlock()
	if isSlow {
		c.calls.Cancel(p.msg.ID) // later events belong to no call
		return
	}
	p.signal()
}

// pushersOf returns the functions for a message outside calls.
func (c *Client) pushersOf(m *Message) []*pusher {
	c.mu.Lock()
	defer c.mu.Unlock()
	if list := c.pushers[m.Type]; len(list) > 0 {
		return list
	}
	if list := c.pushers[canonicalType(m.Type)]; len(list) > 0 {
		return list
	}
	if len(c.anyPush) == 0 {
		c.log.DebugContext(c.ctx, "a2e: message dropped", "reason", "no_handler", "type", clip(m.Type, 100))
		c.dropped.Add(1)
	}
	return c.anyPush
}

func (c *Client) push(p *pusher, m *Message) {
	err := guard.Call("push function", func() error { p.fn(m); return nil })
	if err != nil {
		logFailure(c.ctx, c.log, slog.LevelWarn, "a2e: push not handled", err, "type", m.Type)
	}
}

// request answers a request of the host (A2E-D39).
func (c *Client) request(m *Message) {
	if m.Type == TypePing {
		c.answer(NewMessage(TypePong, &Pong{ReqID: m.ID}))
		return
	}
	c.mu.Lock()
	fn := c.handlers[canonicalType(m.Type)]
	c.mu.Unlock()
	if fn == nil {
		c.answer(c.defaultAnswer(m))
		return
	}
	select {
	case c.workers <- struct{}{}:
	case <-c.ctx.Done():
		return
	default:
		e := reasoned(ErrRuntime, ReasonOverloaded, "too many requests of the host")
		e.ReqID = m.ID
		c.answer(errorMessage(e))
		return
	}
	work, err := c.life.Start(c.ctx, life.Request)
	if err != nil {
		<-c.workers
		return
	}
	work.Keep(func() { <-c.workers })
	var body any
	go work.Run(m.Type, func(ctx context.Context) (err error) {
		body, err = fn(ctx, m)
		return err
	}, func(err error) { c.reply(c.handled(m, body, err)) })
}

// handled returns the answer to a request with the result of its handler.
func (c *Client) handled(m *Message, body any, err error) *Message {
	if err == nil {
		return c.answerTo(m, body)
	}
	var e *Error
	var panicked *guard.PanicError
	if errors.As(err, &panicked) || !errors.As(err, &e) || e.Remote {
		logFailure(c.ctx, c.log, slog.LevelInfo, "a2e: handler failed", err, "type", m.Type)
		e = Errorf(ErrRuntime, "the handler failed")
		if panicked != nil {
			e = reasoned(ErrRuntime, ReasonInternal, "internal error")
		}
	}
	copied := *e
	copied.ReqID = m.ID
	return errorMessage(&copied)
}

// answerTo returns the answer to a request of the host, with the members repeated from the request.
func (c *Client) answerTo(m *Message, body any) *Message {
	answer := NewMessage(responseType(m.Type), body)
	if t := m.typ; t != nil && t.Name == m.Type && t.Response != "" {
		answer.Type = t.Response
	}
	for _, name := range [...]string{"server_id", "mcp_request_id"} {
		if v := memberOf(body, name); v.Kind() == reflect.String && v.Len() == 0 {
			v.SetString(textMember(m, name))
		}
	}
	setReqID(answer, m.ID)
	return answer
}

// defaultAnswer is the answer to a request without a handler.
func (c *Client) defaultAnswer(m *Message) *Message {
	var rest [][2]string
	switch canonicalType(m.Type) {
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
