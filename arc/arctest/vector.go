// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arctest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/internal/engine"
	"github.com/fivewire/fivewire/arc/internal/hook"
	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/sse"
	"github.com/fivewire/fivewire/internal/vector"
	"github.com/fivewire/fivewire/store"
)

// Vector runs an operation of the conformance vectors that concerns no exported
// function of package arc. An unknown operation is an error.
func Vector(op string, in json.RawMessage) (json.RawMessage, error) {
	if vectors[op] != nil {
		return vectors.Run(op, in)
	}
	return hook.Vector(op, in)
}

var vectors = vector.Ops{
	"validate_params": vector.New(func(in struct {
		Method string
		Params []byte
	}) (any, error) {
		text, err := wire.Normalize(in.Method, in.Params)
		return json.RawMessage(text), asError(err)
	}),
	"task_machine":  vector.New(taskMachine),
	"chat_machine":  vector.New(chatMachine),
	"trace_context": vector.New(func(in struct{ TraceID string }) (any, error) { return wire.W3CTraceID(in.TraceID), nil }),
	"scope_check": vector.New(func(in struct {
		Method   string
		Provided []string
	}) (any, error) {
		missing := arc.RequiredScopes(in.Method)
		return slices.DeleteFunc(missing, func(s string) bool { return slices.Contains(in.Provided, s) }), nil
	}),
	"callback_url": vector.New(callbackURL),
	"route":        vector.New(route),
	"sse_encode":   vector.New(sseEncode),
}

// asError returns a fault as the error that its caller reads.
func asError(err error) error {
	f, ok := errors.AsType[*wire.Fault](err)
	if !ok {
		return err
	}
	return &arc.Error{Code: arc.Code(f.Code), Message: f.Message, Details: f.Details}
}

func codeOf(err error) int64 {
	f, _ := errors.AsType[*wire.Fault](err)
	return f.Code
}

func taskMachine(in struct{ Events []engine.Action }) (any, error) {
	task, list := engine.Task{Status: string(arc.TaskSubmitted)}, []any{}
	for _, action := range in.Events {
		next, events, err := task.Step(&engine.Change{Action: action}, engine.Bounds{Items: len(in.Events)})
		if err != nil {
			list = append(list, map[string]any{"error": codeOf(engine.TaskRefusal("", task.Status, action)), "status": next.Status})
		} else {
			list = append(list, map[string]any{"status": next.Status, "emit": events})
		}
		task = next
	}
	return list, nil
}

func chatMachine(in struct {
	Stateless bool
	Events    []engine.ChatAction
}) (any, error) {
	state, list := "", []any{}
	for _, action := range in.Events {
		next, ok := engine.NextChat(state, action)
		switch {
		case ok && in.Stateless && state == "":
			list = append(list, map[string]any{"status": arc.ChatClosed}) // nothing is kept
			continue
		case ok:
			list = append(list, map[string]any{"status": next})
		default:
			list = append(list, map[string]any{"error": codeOf(engine.ChatRefusal("", state)), "status": next})
		}
		state = next
	}
	return list, nil
}

// callbackURL returns the reason of a refusal, or "".
func callbackURL(in struct {
	URL                         string
	AllowInsecure, AllowPrivate bool
	Resolved                    []netip.Addr
}) (any, error) {
	err := wire.CallbackPolicy{AllowInsecure: in.AllowInsecure, AllowPrivate: in.AllowPrivate}.Validate(in.URL, in.Resolved...)
	if fault, ok := errors.AsType[wire.CallbackFault](err); ok {
		return string(fault), nil
	}
	return "", err
}

func route(in struct {
	Agents []struct {
		ID, Group string
		Capacity  int
	}
	Calls []struct {
		Set, Done, Target, Key string
		Healthy                *bool
	}
}) (any, error) {
	r := engine.NewRouter(store.NewMemory())
	for _, a := range in.Agents {
		if err := r.Add(a.ID, a.Group, a.Capacity); err != nil {
			return nil, &arc.Error{Code: arc.ErrDuplicateAgentID, Cause: err}
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
			id, err := routeCall(r, c.Target, c.Key)
			if err != nil {
				list = append(list, map[string]any{"error": codeOf(err)})
			} else {
				list = append(list, id)
			}
		}
	}
	return list, nil
}

// routeCall takes a place at an instance for a call about the work with a key, if that is not empty.
func routeCall(r *engine.Router, target, key string) (id string, err error) {
	ctx, q, bound := context.Background(), &engine.Request{Target: target}, ""
	if key != "" {
		bound, err = r.OwnerOf(ctx, q, "taskId", key)
	}
	if err == nil {
		id, err = r.Take(target, bound, true)
	}
	if err == nil {
		q.Agent = id
		err = r.BindWork(ctx, q, "taskId", key)
	}
	return id, err
}

// sseEncode returns the bytes of each event, as a server sends them.
func sseEncode(in struct {
	Events []struct {
		Kind, ChatID, Status string
		Message, Details     string // of a chunk and of an error; JSON, but for the message of an error
		Code                 int64
	}
}) (any, error) {
	list, isEnded := [][]byte{}, false
	for _, ev := range in.Events {
		if isEnded {
			return nil, arc.ErrStreamClosed
		}
		name, data := "", []byte(nil)
		switch ev.Kind {
		case "chunk":
			var m arc.Message
			if err := m.UnmarshalJSON([]byte(ev.Message)); err != nil {
				return nil, err
			}
			parts, err := json.Marshal(m.Parts)
			if err != nil {
				return nil, err
			}
			name, data = wire.EventChunk, wire.AppendChunk(nil, ev.ChatID, string(m.Role), parts)
		case "done":
			name, data = wire.EventDone, wire.AppendDone(nil, ev.ChatID, ev.Status)
		case "error":
			fault := wire.Fault{Code: ev.Code, Message: ev.Message}
			if ev.Details != "" {
				fault.Details = []byte(ev.Details)
			}
			name, data = wire.EventError, wire.AppendError(nil, ev.ChatID, fault.JSON())
		case "keepalive":
			b, err := sse.AppendComment(nil, wire.KeepAlive)
			if err != nil {
				return nil, err
			}
			list = append(list, b)
			continue
		default:
			return nil, fmt.Errorf("arctest: unknown event %q", ev.Kind)
		}
		isEnded = name != wire.EventChunk
		b, err := sse.AppendEvent(nil, name, "", data)
		if err != nil {
			return nil, err
		}
		list = append(list, b)
	}
	return list, nil
}
