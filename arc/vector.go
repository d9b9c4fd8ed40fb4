// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"github.com/fivewire/fivewire/arc/internal/engine"
	"github.com/fivewire/fivewire/arc/internal/hook"
	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/jsonmap"
	"github.com/fivewire/fivewire/internal/sse"
	"github.com/fivewire/fivewire/internal/vector"
)

func init() {
	hook.Vector = vectors.Run
	hook.Webhooks = func(opts any, lookup func(context.Context, string, string) ([]netip.Addr, error)) {
		if o, ok := opts.(*WebhookOptions); ok {
			o.exact, o.lookup = true, lookup
		}
	}
}

// vectors are the operations of the test vectors on parts that are not exported.
var vectors = vector.Ops{
	"validate_params": vector.New(func(in struct {
		Method string
		Params []byte
	}) (any, error) {
		text, err := wire.Normalize(in.Method, in.Params)
		if err != nil {
			return nil, asError(err)
		}
		return json.RawMessage(text), nil
	}),
	"error_family":  vector.New(func(in struct{ Code Code }) (any, error) { return in.Code.family(), nil }),
	"task_machine":  vector.New(vectorTaskMachine),
	"chat_machine":  vector.New(vectorChatMachine),
	"trace_context": vector.New(func(in struct{ TraceID string }) (any, error) { return wire.W3CTraceID(in.TraceID), nil }),
	"scope_check": vector.New(func(in struct {
		Method   string
		Provided []string
	}) (any, error) {
		missing := RequiredScopes(in.Method)
		return slices.DeleteFunc(missing, func(s string) bool { return slices.Contains(in.Provided, s) }), nil
	}),
	"callback_url": vector.New(vectorCallbackURL),
	"route":        vector.New(vectorRoute),
	"sse_decode":   vector.New(vectorSSEDecode),
	"sse_encode":   vector.New(vectorSSEEncode),
}

func vectorTaskMachine(in struct{ Events []engine.Action }) (any, error) {
	task, list := engine.Task[TaskStatus]{Status: TaskSubmitted}, []any{}
	for _, action := range in.Events {
		next, events, err := task.Step(&engine.Change{Action: action}, engine.Bounds{Items: len(in.Events)})
		if err != nil {
			list = append(list, map[string]any{"error": task.Status.refused(), "status": next.Status})
		} else {
			list = append(list, map[string]any{"status": next.Status, "emit": events})
		}
		task = next
	}
	return list, nil
}

func vectorChatMachine(in struct {
	Stateless bool
	Events    []engine.ChatAction
}) (any, error) {
	state, list := ChatStatus(""), []any{}
	for _, action := range in.Events {
		next, ok := engine.NextChat(state, action)
		switch {
		case ok && in.Stateless && state == "":
			list = append(list, map[string]any{"status": ChatClosed}) // nothing is kept
			continue
		case ok:
			list = append(list, map[string]any{"status": next})
		default:
			list = append(list, map[string]any{"error": state.refused(), "status": next})
		}
		state = next
	}
	return list, nil
}

// vectorCallbackURL returns the reason of a refusal, or "".
func vectorCallbackURL(in struct {
	URL                         string
	AllowInsecure, AllowPrivate bool
	Resolved                    []netip.Addr
}) (any, error) {
	err := wire.CallbackPolicy{AllowInsecure: in.AllowInsecure, AllowPrivate: in.AllowPrivate}.Validate(in.URL, in.Resolved...)
	var fault wire.CallbackFault
	if errors.As(err, &fault) {
		return string(fault), nil
	}
	return "", err
}

func vectorRoute(in struct {
	Agents []struct {
		ID, Group string
		Capacity  int
	}
	Calls []struct {
		Set, Done, Target, Key string
		Healthy                *bool
	}
}) (any, error) {
	r := newRouter(nil)
	for _, a := range in.Agents {
		if err := r.Add(a.ID, a.Group, a.Capacity); err != nil {
			return nil, &Error{Code: ErrDuplicateAgentID, Cause: err}
		}
	}
	list := []any{}
	for _, c := range in.Calls {
		switch {
		case c.Set != "":
			r.SetHealthy(c.Set, c.Healthy == nil || *c.Healthy)
			list = append(list, nil)
		case c.Done != "":
			r.Done(c.Done)
			list = append(list, nil)
		default:
			id, err := r.Pick(context.Background(), c.Target, c.Key)
			if err != nil {
				list = append(list, map[string]any{"error": asError(err).Code})
			} else {
				list = append(list, id)
			}
		}
	}
	return list, nil
}

// A cutReader returns its data in pieces that end at the given offsets.
type cutReader struct {
	data []byte
	cuts []int
	at   int
}

func (r *cutReader) Read(p []byte) (int, error) {
	if r.at >= len(r.data) {
		return 0, io.EOF
	}
	for len(r.cuts) > 0 && r.cuts[0] <= r.at {
		r.cuts = r.cuts[1:]
	}
	end := len(r.data)
	if len(r.cuts) > 0 && r.cuts[0] < end {
		end = r.cuts[0]
	}
	n := copy(p, r.data[r.at:end])
	r.at += n
	return n, nil
}

func vectorSSEDecode(in struct {
	Wire     []byte
	Cuts     []int
	MaxEvent int
}) (any, error) {
	r := newStreamReader(&cutReader{data: in.Wire, cuts: in.Cuts}, &streamReaderOptions{MaxEvent: in.MaxEvent})
	events := []any{}
	text, status, end := "", "", ""
	for end == "" || end == "error" {
		ev, err := r.Next()
		var e *Error
		switch {
		case errors.As(err, &e):
			events = append(events, map[string]any{"kind": "error", "code": e.Code, "message": e.Message})
			end = "error"
			continue
		case end == "error" && err != nil:
			return vectorStream(events, text, r.ChatID(), status, end), nil
		case errors.Is(err, ErrTruncated):
			end = "truncated"
		case errors.Is(err, ErrMalformedEvent):
			end = "malformed"
		case errors.Is(err, ErrTooLarge):
			end = "too_large"
		case err != nil:
			return nil, err
		case ev.Done:
			events = append(events, map[string]any{"kind": "done", "chatId": ev.ChatID, "status": ev.Status})
			status = string(ev.Status)
			if end == "" {
				end = "done"
			}
		default:
			events = append(events, map[string]any{"kind": "chunk", "chatId": ev.ChatID, "message": ev.Message})
			text += ev.Text
		}
	}
	return vectorStream(events, text, r.ChatID(), status, end), nil
}

func vectorStream(events []any, text, chatID, status, end string) any {
	return map[string]any{"events": events, "text": text, "chatId": chatID, "status": status, "end": end}
}

// vectorSSEEncode returns the bytes of each event.
func vectorSSEEncode(in struct {
	Events []struct {
		Kind, ChatID     string
		Message, Details string // of a chunk and of an error; JSON, but for the message of an error
		Status           ChatStatus
		Code             Code
	}
}) (any, error) {
	var e streamEncoder
	list := [][]byte{}
	for _, ev := range in.Events {
		var out []byte
		var err error
		switch ev.Kind {
		case "chunk":
			var m Message
			if err := m.UnmarshalJSON([]byte(ev.Message)); err != nil {
				return nil, err
			}
			out, err = e.chunk(nil, ev.ChatID, "", &m)
		case "done":
			out, err = e.done(nil, ev.ChatID, ev.Status)
		case "error":
			fault := &Error{Code: ev.Code, Message: ev.Message}
			if ev.Details != "" {
				fault.Details = json.RawMessage(ev.Details)
			}
			out, err = e.failure(nil, ev.ChatID, fault)
		case "keepalive":
			out, err = e.keepAlive(nil)
		default:
			err = fmt.Errorf("arc: unknown event %q", ev.Kind)
		}
		if err != nil {
			return nil, err
		}
		list = append(list, out)
	}
	return list, nil
}

// A streamEncoder appends the events of a streamed chat, as a [ChatWriter] and its
// transport send them.
type streamEncoder struct{ isEnded bool }

func (e *streamEncoder) chunk(dst []byte, chatID, id string, m *Message) ([]byte, error) {
	parts, err := jsonmap.Append(nil, m.Parts)
	if err != nil {
		return dst, err
	}
	return e.append(dst, wire.EventChunk, id, wire.AppendChunk(nil, chatID, string(m.Role), parts))
}

func (e *streamEncoder) done(dst []byte, chatID string, status ChatStatus) ([]byte, error) {
	return e.append(dst, wire.EventDone, "", wire.AppendDone(nil, chatID, string(status)))
}

func (e *streamEncoder) failure(dst []byte, chatID string, fault *Error) ([]byte, error) {
	text, err := fault.MarshalJSON()
	if err != nil {
		return dst, err
	}
	return e.append(dst, wire.EventError, "", wire.AppendError(nil, chatID, text))
}

func (e *streamEncoder) keepAlive(dst []byte) ([]byte, error) {
	if e.isEnded {
		return dst, ErrStreamClosed
	}
	return sse.AppendComment(dst, wire.KeepAlive)
}

func (e *streamEncoder) append(dst []byte, name, id string, data []byte) ([]byte, error) {
	if e.isEnded {
		return dst, ErrStreamClosed
	}
	e.isEnded = name != wire.EventChunk
	return sse.AppendEvent(dst, name, id, data)
}
