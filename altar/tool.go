// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// A Handler answers calls with one result. It must be safe for concurrent use and must not change
// the call.
//
// The result is encoded by the rules of encoding/json; bytes become base64. A [json.RawMessage] is sent as it is, and must
// not change afterwards. An [*Error] with one of
// the eight codes is sent unchanged. The text of any other error is sent as EXECUTION_FAILED, so it
// must not contain secrets. A panic is recovered, and its value is not sent (ALT-D34). The context
// ends when the call is cancelled, times out or has no caller.
type Handler interface {
	ServeALTAR(ctx context.Context, call *ToolCall) (any, error)
}

// HandlerFunc makes a [Handler] of a function.
type HandlerFunc func(ctx context.Context, call *ToolCall) (any, error)

// ServeALTAR calls f.
func (f HandlerFunc) ServeALTAR(ctx context.Context, call *ToolCall) (any, error) {
	return f(ctx, call)
}

// A StreamHandler answers calls in chunks. The rules of [Handler] apply. If it returns nil without
// a final chunk, a final chunk without payload is sent.
type StreamHandler interface {
	ServeALTARStream(ctx context.Context, call *ToolCall, out *ChunkWriter) error
}

// StreamHandlerFunc makes a [StreamHandler] of a function.
type StreamHandlerFunc func(ctx context.Context, call *ToolCall, out *ChunkWriter) error

// ServeALTARStream calls f.
func (f StreamHandlerFunc) ServeALTARStream(ctx context.Context, call *ToolCall, out *ChunkWriter) error {
	return f(ctx, call, out)
}

// Decode stores the parameters of a call in what dst points to, a struct with
// json tags as a rule. Integers stay exact, and binary fits []byte. The error
// is an [*Error] that a tool can return as it is.
func (m *ToolCall) Decode(dst any) error {
	params := []byte(m.Parameters)
	if len(params) == 0 {
		params = []byte("{}")
	}
	v, reason := check(params, 0)
	if reason != "" {
		return formFault(reason, "", "the parameters are not a JSON object")
	}
	if err := strictjson.Decode(v, dst); err != nil {
		return &Error{Code: ErrInvalidParameters, Message: "the parameters do not fit the tool",
			Details: appendDetails(nil, reasonWrongType, ""), Cause: err}
	}
	return nil
}

// A ChunkWriter sends the parts of a streamed answer. It is for one goroutine,
// and for as long as the tool runs.
type ChunkWriter struct {
	ctx    context.Context
	call   *runtimeCall
	next   int64
	closed bool
	sent   shortChunk // on the wire
}

// A shortChunk is a chunk with its payload, if that is as short as most are.
type shortChunk struct {
	StreamChunk
	text [32]byte
}

// Send sends the next payload, which may change afterwards. It blocks while the readers of the stream are behind (ALT-D37),
// and fails if the call has ended or the value cannot be encoded as JSON.
func (w *ChunkWriter) Send(v any) error { return w.send(v, false) }

// SendLast sends the last part. Nothing can follow.
func (w *ChunkWriter) SendLast(v any) error { return w.send(v, true) }

func (w *ChunkWriter) send(v any, final bool) error {
	if w.closed {
		return fmt.Errorf("altar: chunk: %w", ErrClosed)
	}
	if w.ctx.Err() != nil {
		return context.Cause(w.ctx)
	}
	if !final {
		if err := w.call.gate.wait(w.ctx, w.next); err != nil {
			return err
		}
	}
	one := &w.sent
	if w.call.s.direct != nil { // in one process the receiver keeps it
		one = new(shortChunk)
		if raw, ok := v.(json.RawMessage); ok {
			v = json.RawMessage(bytes.Clone(raw))
		}
	}
	payload, err := w.call.encode(one.text[:0], v)
	if err != nil {
		return err
	}
	one.StreamChunk = StreamChunk{InvocationID: w.call.m.InvocationID, ChunkID: w.next, Payload: payload, IsFinal: final}
	return w.write(&one.StreamChunk)
}

func (w *ChunkWriter) write(c *StreamChunk) error {
	c.header = header{CorrelationID: w.call.m.CorrelationID}
	w.next++
	w.closed = c.IsFinal
	if c.IsFinal {
		w.call.answer(c)
		return nil
	}
	return w.call.s.send(w.ctx, c)
}

// A runtimeCall is one call that a Runtime runs, and the context of its tool.
type runtimeCall struct {
	life.Work
	s     *runtimeSession
	m     *ToolCall
	tool  *runtimeTool
	start time.Time
	gate  creditGate // of a stream
	out   ChunkWriter

	payload json.RawMessage // the result of the tool, if it is not a stream

	answered bool // guarded by the lock of the session
}

// answer sends the final message of a call. From then on its id may come again,
// from another session, even before the tool is done here.
func (c *runtimeCall) answer(m Message) {
	c.s.mu.Lock()
	c.answered = true
	c.s.mu.Unlock()
	err := c.s.send(context.Background(), m) // ends with the connection
	unsendable := asError(err)
	if unsendable == nil {
		return
	}
	c.s.r.opts.Logger.ErrorContext(c.s.ctx, "altar: message not sent", "type", typeOf(m), "err", err)
	failed := Errorf(ErrInternal, unsendable.Reason(), "the result cannot be sent")
	if chunk, ok := m.(*StreamChunk); ok {
		_ = c.s.send(context.Background(), &StreamChunk{InvocationID: c.m.InvocationID, ChunkID: chunk.ChunkID, Error: failed, IsFinal: true, header: chunk.header})
		return
	}
	_ = c.s.send(context.Background(), &ToolResult{InvocationID: c.m.InvocationID, Error: failed, header: *m.head()})
}

var errCancelled = errors.New("altar: call cancelled")

// encodeJSON is [strictjson.Encode], but copies raw JSON. The text is appended to short, or is a
// separate slice if it is long.
func encodeJSON(short []byte, v any) ([]byte, error) {
	if text, ok := v.(json.RawMessage); ok && len(text) > 0 {
		return bytes.Clone(text), nil
	}
	if text, ok := appendScalar(short, v); ok {
		return text, nil
	}
	return guard.Encode(v)
}

// appendScalar appends the JSON of a string or an integer, as most chunks are. It reports false for other values.
func appendScalar(short []byte, v any) ([]byte, bool) {
	switch v := v.(type) {
	case string:
		if utf8.ValidString(v) {
			return appendString(slices.Grow(short, len(v)+2), v), true
		}
	case int64:
		return appendInt(short, v), true
	case int:
		return appendInt(short, int64(v)), true
	}
	return nil, false
}

// encode writes a value of a tool as JSON that may be sent. See encodeJSON.
func (c *runtimeCall) encode(short []byte, v any) (json.RawMessage, error) {
	var err error
	out, isSound := appendScalar(short, v)
	if !isSound {
		raw, isRaw := v.(json.RawMessage) // the tool has parted with it
		if out = raw; !isRaw || len(raw) == 0 {
			out, err = encodeJSON(short, v)
		}
		if err == nil {
			_, err = strictjson.Check(out, rawBounds(1))
		}
	}
	switch {
	case err != nil:
		return nil, &Error{Code: ErrInternal, Message: "the result cannot be written as JSON", Cause: err}
	case len(out)+1024 > c.s.r.opts.MaxMessage:
		return nil, Errorf(ErrInternal, reasonMessageTooLarge, "the result is too large for one message")
	}
	return out, nil
}

// run runs the tool and sends how it ended, also after [runtime.Goexit].
func (c *runtimeCall) run() {
	c.out.ctx, c.out.call = c, c
	guard.Run("tool", c.invoke, c.conclude)
}

// conclude sends the result of the tool. A panic is an error (ALT-D34).
func (c *runtimeCall) conclude(err error) {
	var ctx context.Context = c
	out := &c.out
	if p, ok := errors.AsType[*guard.PanicError](err); ok {
		c.s.r.opts.Logger.ErrorContext(ctx, "altar: tool panicked", "tool", c.tool.name, "err", p, "stack", string(p.Stack))
		err = Errorf(ErrExecutionFailed, reasonPanic, "the tool failed unexpectedly")
	}
	switch {
	case out.closed:
		if err != nil {
			c.s.r.opts.Logger.WarnContext(ctx, "altar: tool failed after its final chunk", "tool", c.tool.name, "err", err)
		}
	case err == nil && c.tool.stream != nil:
		_ = out.write(&StreamChunk{InvocationID: c.m.InvocationID, ChunkID: out.next, IsFinal: true})
	case err != nil && out.next > 0:
		_ = out.write(&StreamChunk{InvocationID: c.m.InvocationID, ChunkID: out.next, Error: c.failure(ctx, err), IsFinal: true})
	default:
		var one struct { // allocated together
			ToolResult
			meta [48]byte
		}
		m := &one.ToolResult
		*m = ToolResult{InvocationID: c.m.InvocationID, Payload: c.payload, header: header{CorrelationID: c.m.CorrelationID}}
		if err != nil {
			m.Error = c.failure(ctx, err)
		}
		m.RuntimeMetadata = appendInt(append(one.meta[:0], `{"execution_time_ms":`...), time.Since(c.start).Milliseconds())
		m.RuntimeMetadata = append(m.RuntimeMetadata, '}')
		c.answer(m)
	}
	out.closed = true
}

// invoke runs the tool.
func (c *runtimeCall) invoke() error {
	if c.tool.stream != nil {
		return c.tool.stream.ServeALTARStream(c, c.m, &c.out)
	}
	result, err := c.tool.tool.ServeALTAR(c, c.m)
	if err == nil {
		c.payload, err = c.encode(nil, result)
	}
	return err
}

// failure returns an error of a tool as it is sent.
func (c *runtimeCall) failure(ctx context.Context, err error) *Error {
	var e *Error
	switch {
	case errors.As(err, &e) && e.Remote:
		c.s.r.opts.Logger.WarnContext(ctx, "altar: tool returned the error of another server", "tool", c.tool.name, "err", err)
		return Errorf(ErrInternal, "", "the tool failed at another server")
	case e != nil && e.Code.isKnown():
		out := &Error{Code: e.Code, Message: e.Message, Details: e.Details}
		if out.Message == "" {
			out.Message = string(e.Code)
		}
		if _, bad := appendMessage(nil, &ErrorMessage{Err: out}, false); bad != nil {
			out.Message, out.Details = "the tool failed", nil // its text or details cannot be sent
		}
		return out
	case ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errCancelled)):
		if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
			return Errorf(ErrExecutionTimeout, ReasonDeadline, "the tool did not finish in time")
		}
		return Errorf(ErrExecutionFailed, ReasonCancelled, "the call was cancelled")
	}
	c.s.r.opts.Logger.InfoContext(ctx, "altar: tool failed", "tool", c.tool.name, "err", err)
	return &Error{Code: ErrExecutionFailed, Message: sendable(err.Error())}
}
