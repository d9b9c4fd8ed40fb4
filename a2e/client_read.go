// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"time"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/sendq"
)

// read processes the messages of the host until the connection ends.
func (c *Client) read() {
	defer close(c.readerDone)
	in := newLineReader(c.rw, c.conn.codec)
	c.failCalls(c.endError(c.conn.readLines(in, func() bool { return false }, c.takeLine, c.refuseLine)))
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
	case errors.Is(err, errSlowPeer):
		cause = &CloseError{Kind: "slow_peer"}
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

// takeLine processes a line of the host.
func (c *Client) takeLine(line []byte) {
	if line = c.denoise(line); line == nil {
		return
	}
	c.recorder.line("in", line)
	m, err := c.conn.codec.decode(line)
	if err != nil {
		c.noteLine(line)
		c.reject(err)
		return
	}
	if c.firstLine.Load() == nil || *c.firstLine.Load() != "" {
		c.firstLine.Store(new(string))
	}
	c.take(m, len(line))
}

// refuseLine processes a line that is not a message.
func (c *Client) refuseLine(e *Error) {
	if !c.opts.SkipNonJSON || e.Reason == ReasonTooLarge {
		c.reject(e)
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
	logMethod(c.ctx, c.log, err)
	if err.msgType == typeError { // which gets no answer
		c.conn.dropped.Add(1)
	} else {
		c.answer(errorMessage(err))
	}
	if c.kind(err.msgType) != KindEvent {
		c.conn.failCall(err.refID, fmt.Errorf("%w: %w", ErrInvalidResponse, err))
	}
}

// answer sends a message of the reader.
func (c *Client) answer(m *Message) {
	c.conn.add(item{message: m, isUrgent: m.Type == typePong})
	c.conn.flush()
}

// reply sends the answer of a handler. It waits while the host does not read.
func (c *Client) reply(m *Message, space sendq.Reservation) {
	line, err := c.conn.boundedLine(m, ErrRuntime)
	if e, ok := errors.AsType[*Error](err); ok && isOverBound(e) {
		e.ReqID = m.ReqID()
		line, err = c.conn.codec.line(errorMessage(e))
	}
	c.out.release(space)
	if err == nil {
		err = c.conn.send(c.ctx, line, func(space sendq.Reservation) error { return c.conn.put(line, space, nil) })
	}
	if err != nil {
		c.log.DebugContext(c.ctx, "a2e: answer dropped", "type", m.Type, "err", err)
	}
}

func (c *Client) kind(name string) Kind {
	if t := c.conn.codec.Types.lookup(name, false); t != nil {
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
	p, isPending := c.conn.replies.Get(reqID)
	if reqID == "" && kind == KindResponse && !c.opts.Strict {
		if p, isPending = c.matchByType(m); isPending {
			reqID = p.msg.ID
		}
	}
	switch {
	case kind == KindEvent && isPending:
		c.deliverEvent(p, m, size)
	case kind == KindError && reqID == "", kind == KindEvent, kind == KindOther && !isPending:
		c.push(m, size)
	case isPending:
		c.conn.answer(reqID, p, m)
	default:
		if !c.takeLate(reqID, m) {
			c.conn.dropped.Add(1)
		}
		c.conn.replies.Complete(reqID, nil) // of a call that ended on this side
	}
}

// takeLate passes the answer of a call that has ended on this side to its caller, if that waits for it.
func (c *Client) takeLate(reqID string, m *Message) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case c.late[reqID] <- m:
		return true
	default:
		return false
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

// takeTimeout bounds the wait of the reader for a caller that is behind with its events (A2E-D56).
const takeTimeout = 100 * time.Millisecond

// deliverEvent queues an event of a call, or ends the call if its caller takes no events.
func (c *Client) deliverEvent(p *pending, m *Message, size int) {
	space := c.queueEvent(p, m, size)
	if space != nil && waitFor(space, takeTimeout) {
		space = c.queueEvent(p, m, size)
	}
	if space != nil {
		c.mu.Lock()
		p.isSlow = true
		c.mu.Unlock()
		c.conn.replies.Cancel(p.msg.ID) // later events belong to no call
		return
	}
	p.signal()
}

// queueEvent queues an event of a call. If there is no space, it returns a channel that is closed when the caller takes
// the queued events.
func (c *Client) queueEvent(p *pending, m *Message, size int) (space <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(p.events) >= c.opts.Limits.QueueLimit || p.size+size > maxEventBytes && len(p.events) > 0 {
		p.space = make(chan struct{})
		return p.space
	}
	p.events = append(p.events, Event{Message: m, Order: p.seq.next(eventInfo(m).Seq)})
	p.size += size
	return nil
}

// request answers a request of the host (A2E-D39).
func (c *Client) request(m *Message) {
	if m.Type == typePing {
		c.answer(NewMessage(typePong, &Pong{ReqID: m.ID}))
		return
	}
	c.mu.Lock()
	fn := c.handlers[canonicalType(m.Type)]
	c.mu.Unlock()
	if fn == nil {
		c.answer(c.defaultAnswer(m))
		return
	}
	space, err := c.out.queue.Reserve(minAnswer)
	select {
	case c.workers <- struct{}{}:
		if err == nil {
			c.serve(m, fn, space)
			return
		}
		<-c.workers
	default:
		if err == nil {
			c.out.release(space)
		}
	}
	e := reasoned(ErrRuntime, ReasonOverloaded, "too many requests of the host")
	e.ReqID = m.ID
	c.answer(errorMessage(e))
}

// minAnswer is the space that the answer to a request of the host needs in the queue for the request to be admitted
// (A2E-D56).
const minAnswer = 4 << 10

// serve calls the handler of a request of the host, for which a worker and space for an answer are reserved.
func (c *Client) serve(m *Message, fn func(ctx context.Context, m *Message) (any, error), space sendq.Reservation) {
	work, err := c.life.Start(c.ctx, life.Request)
	if err != nil {
		<-c.workers
		c.out.release(space)
		return
	}
	work.Keep(func() { <-c.workers })
	var body any
	go work.Run(m.Type, func(ctx context.Context) (err error) {
		body, err = fn(ctx, m)
		return err
	}, func(err error) { c.reply(c.handled(m, body, err), space) })
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
	copied.ReqID, copied.Code = m.ID, cmp.Or(e.Code, ErrRuntime)
	return errorMessage(&copied)
}

// answerTo returns the answer to a request of the host, with the members repeated from the request.
func (c *Client) answerTo(m *Message, body any) *Message {
	body = bodyOf(body)
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
