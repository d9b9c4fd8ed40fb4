// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/fivewire/fivewire/a2e/internal/session"
	"github.com/fivewire/fivewire/internal/guard"
)

// A Handler answers requests. It returns the body of the answer, a pointer to the model of the
// response type, whose ReqID is filled in; or a complete answer as a [*Message]; or an error.
//
// An [*Error] is sent unchanged; [ErrNextPlugin] passes the request to the next plugin; every other
// error is sent as the general error of the namespace with its text, and as runtime_error without
// its text. A panic is answered with runtime_error and logged.
//
// The context ends with the time limit of the request, with the session, and when the agent
// cancels. A result after that is discarded.
type Handler interface {
	ServeA2E(ctx context.Context, call *Call) (any, error)
}

// A HandlerFunc is a function as a [Handler].
type HandlerFunc func(ctx context.Context, call *Call) (any, error)

// ServeA2E calls f.
func (f HandlerFunc) ServeA2E(ctx context.Context, call *Call) (any, error) { return f(ctx, call) }

// A Middleware wraps the handlers of a host: for tracing, rate limits, policy.
type Middleware func(next Handler) Handler

// A Route ties a type to its handler.
type Route struct {
	Type    Type
	Handler Handler

	// Waiting marks requests that wait for other work. They start in their turn, take no place among
	// the running requests, and have a separate bound, MaxWaiting. Control marks requests that show or
	// stop other work. They do not queue behind others, unless an earlier request that has
	// not started is about the same process or subagent (A2E-D55).
	Waiting, Control bool

	// Inline marks a handler that never blocks, with the Open of its plugin and the middleware. The
	// goroutine that reads the connection may call it, so that no other goroutine has to be woken.
	Inline bool

	// Idempotent reports whether a request may be repeated after a failed host has started it
	// (A2E-D67). Nil means no.
	Idempotent func(m *Message) bool
}

// NewRoute returns a route for requests of a type. The models of request and
// response have json tags; use a struct without fields where there are none.
func NewRoute[Req, Resp any](msgType string, fn func(ctx context.Context, call *Call, req *Req) (*Resp, error)) Route {
	t := TypeOf[Req](msgType)
	if t.Kind != KindRequest { // a type that is answered is a request, whatever its name says (A2E-D14)
		t.Kind = KindRequest
		t.Response = msgType + "/resp"
	}
	if fn == nil {
		return Route{Type: t} // AddPlugin reports it
	}
	return Route{Type: t, Handler: HandlerFunc(func(ctx context.Context, call *Call) (any, error) {
		req, ok := call.Message.Body.(*Req)
		if !ok {
			return nil, fmt.Errorf("a2e: %s was decoded as %T", msgType, call.Message.Body)
		}
		resp, err := fn(ctx, call, req)
		if err != nil {
			return nil, err
		}
		if resp == nil {
			resp = new(Resp)
		}
		return resp, nil
	})}
}

// NewEventRoute returns a route for events of a type. The error of the handler is logged only.
func NewEventRoute[E any](msgType string, fn func(ctx context.Context, call *Call, event *E) error) Route {
	t := TypeOf[E](msgType)
	t.Kind, t.Response = KindEvent, ""
	if fn == nil {
		return Route{Type: t} // AddPlugin reports it
	}
	return Route{Type: t, Handler: HandlerFunc(func(ctx context.Context, call *Call) (any, error) {
		event, ok := call.Message.Body.(*E)
		if !ok {
			return nil, fmt.Errorf("a2e: %s was decoded as %T", msgType, call.Message.Body)
		}
		return nil, fn(ctx, call, event)
	})}
}

// A Plugin serves one capability of a host. It must not be changed after it was added to a host.
type Plugin struct {
	Name       string // unique in its host
	Capability string // what agents negotiate

	// Priority orders the plugins of one type, higher ones first, then those
	// that were added first.
	Priority int

	// Exclusive keeps requests that this plugin handles first from all other plugins.
	Exclusive bool

	// Metadata are further members of the capability's metadata in the
	// answer to a handshake.
	Metadata Members

	// Types are models in addition to those of the routes: of answers, of events, and of requests
	// without a handler.
	Types []Type

	// Routes are the types it handles.
	Routes []Route

	// Open returns the plugin's state for a session, at the first request for the plugin; see
	// [Call.PluginState]. Nil means no state. Sessions share nothing else.
	Open func(s *Session) (any, error)

	// Snapshot keeps states from one session of an agent to the next. Nil means
	// that they end with their session.
	Snapshot *PluginSnapshot

	// Close releases the state of a session after its last handler has returned.
	Close func(state any)
}

// metadata returns the description of the plugin for the handshake response (A2E-057).
func (p *Plugin) metadata() json.RawMessage {
	var m Members
	for _, kv := range []struct {
		name  string
		value any
	}{{"name", p.Name}, {"type", p.Capability}, {"priority", p.Priority}, {"exclusive", p.Exclusive}} {
		if err := m.Set(kv.name, kv.value); err != nil {
			return nil
		}
	}
	for name, value := range p.Metadata.All() {
		if m.Get(name) == nil {
			_ = m.Set(name, value)
		}
	}
	out, _ := m.MarshalJSON()
	return out
}

// A boundRoute is a route with the plugin it belongs to.
type boundRoute struct {
	plugin  *Plugin
	handler Handler
	lane    session.Lane

	isInline   bool
	idempotent func(m *Message) bool
}

func sortRoutes(routes []boundRoute) {
	slices.SortStableFunc(routes, func(a, b boundRoute) int { return cmp.Compare(b.plugin.Priority, a.plugin.Priority) })
}

// generalCode is the code of errors without a code.
func generalCode(capability string) Code {
	switch capability {
	case "tools":
		return ErrTool
	case "skill":
		return ErrSkill
	}
	return ErrRuntime
}

// Object returns v as the text of a JSON object, for members that are free-form:
// a map or a struct by the rules of encoding/json. Nil is an empty object.
func toObject(v any) (json.RawMessage, error) {
	switch v := v.(type) {
	case nil:
		return json.RawMessage("{}"), nil
	case json.RawMessage:
		return v, nil
	}
	raw, err := guard.Encode(v)
	if err != nil {
		return nil, err
	}
	if len(raw) == 0 || raw[0] != '{' {
		return nil, fmt.Errorf("a2e: data of type %T is not a JSON object", v)
	}
	return raw, nil
}
