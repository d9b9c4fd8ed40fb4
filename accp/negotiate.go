// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"errors"
	"strings"
	"sync"
)

const shortHash = 12 // digits of a sent registry hash (ACCP-D47)

// A negotiation is one exchange of registries (ACCP-D48).
type negotiation struct {
	registry  *Registry
	isLenient bool

	mu        sync.Mutex // guards the fields below
	announced string     // hash that was sent
	delta     string     // hash that was sent with the schemas
	isSynced  bool
}

// begin begins the exchange, also again, and returns its first message.
func (x *negotiation) begin() *Message {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.announced, x.delta, x.isSynced = x.registry.Hash(), "", false
	return x.message(false)
}

// reset lets hasGreeted return false.
func (x *negotiation) reset() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.announced, x.delta, x.isSynced = "", "", false
}

func (x *negotiation) message(hasDelta bool) *Message {
	return &Message{Intent: IntentSync, Op: opRegistry, Params: x.registry.hello(hasDelta)}
}

// hello returns the params of sync:registry.
func (r *Registry) hello(hasDelta bool) Params {
	p := Params{{"version", Int(r.version())}, {"hash", String(r.Hash()[:shortHash])}}
	if hasDelta {
		p = append(p, Param{"delta", r.delta()})
	}
	return p
}

// hasGreeted reports whether the registry was announced.
func (x *negotiation) hasGreeted() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.announced != ""
}

// synced reports whether both sides have the same schemas.
func (x *negotiation) synced() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.isSynced
}

// keepSynced takes over the result of an earlier exchange.
func (x *negotiation) keepSynced(wasSynced bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.isSynced = x.isSynced || wasSynced
}

// reply answers a sync:registry message through out and reports whether there was an answer. One
// that was not sent is not part of the exchange.
func (x *negotiation) reply(m *Message, out func(*Message) error) (bool, error) {
	x.mu.Lock()
	announced, delta, isSynced := x.announced, x.delta, x.isSynced
	x.mu.Unlock()
	answer, err := x.answer(m)
	if err != nil || answer == nil {
		return false, err
	}
	if err = out(answer); err != nil {
		x.mu.Lock()
		x.announced, x.delta, x.isSynced = announced, delta, isSynced
		x.mu.Unlock()
	}
	return true, err
}

// answer processes a sync:registry message and returns the message to send, or nil.
func (x *negotiation) answer(m *Message) (*Message, error) {
	if m.Intent != IntentSync || m.Op != opRegistry {
		return nil, fail(ErrInvalidIntent, "not a sync:registry frame")
	}
	hash, err := x.hashOf(m)
	if err != nil {
		return nil, err
	}
	delta, hasDelta := m.Params.Get("delta")
	if hasDelta {
		if err := x.registry.merge(delta, hash); err != nil {
			return nil, err
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	own := x.registry.Hash()
	isSame := sameHash(own, hash)
	if x.isSynced && !hasDelta && !isSame {
		x.announced, x.delta = "", ""
	}
	x.isSynced = isSame
	switch {
	case isSame && x.announced != own:
		x.announced = own
		return x.message(false), nil
	case !isSame && x.delta != own:
		x.announced, x.delta = own, own
		return x.message(true), nil
	}
	return nil, nil
}

// hashOf returns the hash of a sync:registry message.
func (x *negotiation) hashOf(m *Message) (string, error) {
	v, _ := m.Params.Get("version")
	if _, ok := v.Int(); !ok {
		return "", fail(ErrInvalidType, "sync:registry needs an integer v")
	}
	h, _ := m.Params.Get("hash")
	hash, ok := h.Text()
	if !ok && x.isLenient && h.kind == KindInt {
		hash, ok = h.text, true // L10: a hash of digits only
	}
	if !ok || !validHash(hash) {
		return "", fail(ErrInvalidType, "hash must be 6 to 64 hex digits")
	}
	return hash, nil
}

// AnnounceRegistry returns the frame that announces the registry. It is the first frame of a
// session, and begins another exchange later.
func (s *Session) AnnounceRegistry(ctx context.Context) (*SendResult, error) {
	return s.Send(ctx, s.greeting.begin())
}

// ReceiveRegistry receives a sync:registry frame and returns the answer, which is nil if there is nothing
// to send, and whether both sides have the same schemas. It first adds the custom
// schemas of the peer. If the hashes are equal, the answer is the own announcement unless it was
// sent in this exchange; otherwise the own custom schemas, once (ACCP-D48). Any other frame is
// [ErrInvalidIntent].
func (s *Session) ReceiveRegistry(ctx context.Context, frame []byte) (reply *SendResult, isSynced bool, err error) {
	r, err := s.Receive(ctx, frame)
	if err != nil {
		return nil, false, err
	}
	if r.Outcome == OutcomeDelivered {
		_, err = s.greeting.reply(r.Message, func(m *Message) error {
			reply, err = s.Send(ctx, m)
			return err
		})
		if err != nil {
			return nil, false, err
		}
	}
	return reply, s.greeting.synced(), nil
}

// negotiate begins the exchange of a connection or a request.
func (h *history) negotiate() *negotiation {
	return &negotiation{registry: h.registry, isLenient: h.opts.Lenient}
}

// codeOf returns the code that a peer receives for err. The code of an error from another peer is not
// passed on.
func codeOf(err error) Code {
	var e *Error
	var c Code
	switch {
	case errors.As(err, &e):
		if !e.Remote && validCode(string(e.Code)) {
			return e.Code
		}
	case errors.As(err, &c) && validCode(string(c)):
		return c
	}
	return ErrInternal
}

// errorMessage returns the error frame for err (ACCP-D52), in the chain of m unless m is nil.
func errorMessage(err error, m *Message) *Message {
	code := codeOf(err)
	info := code.Info()
	name := strings.ToLower(info.Name)
	if name == "" {
		name = strings.ToLower(string(code))
	}
	if errors.Is(err, errNoHandler) {
		name = errNoHandler.Error()
	}
	out := &Message{Intent: IntentFail, Op: opError, Params: Params{
		{"code", String(string(code))},
		{"message", String(name)},
		{"retryable", Bool(info.Retryable)},
		{keySchema, String(schemaError)},
	}}
	if e, ok := errors.AsType[*Error](err); ok && !e.Remote {
		switch {
		case e.isInvitation:
			out.Meta = &Meta{Ext: Params{{"try", Bool(true)}}}
		case e.isApplied:
			out.Meta = &Meta{Ext: Params{{"applied", Bool(true)}}}
		}
	}
	answer(out, m)
	return out
}

// newAnswer returns a message with empty metadata, in one piece of memory.
func newAnswer(i Intent, op string, params Params) *Message {
	both := &struct {
		msg  Message
		meta Meta
	}{msg: Message{Intent: i, Op: op, Params: params}}
	both.msg.Meta = &both.meta
	return &both.msg
}

// answer puts out into the chain of m.
func answer(out, m *Message) {
	if m == nil || m.Meta == nil {
		return
	}
	if out.Meta == nil {
		out.Meta = &Meta{}
	}
	out.Meta.CID = m.Chain()
	if m.Meta.CID != "" {
		out.Meta.AID = m.Meta.MID
	}
}

// ErrorFromMessage returns the error of an error frame, or nil for any other message.
func ErrorFromMessage(m *Message) *Error {
	if m == nil || m.Intent != IntentFail || m.schema() != schemaError {
		return nil
	}
	e := &Error{Code: Code(m.Params.Text("code")), Message: m.Params.Text("message"), Remote: true,
		isInvitation: hasMark(m, "try"), isApplied: hasMark(m, "applied")}
	for _, p := range m.Params {
		switch p.Key {
		case "code", "message", "retryable", keySchema:
		default:
			e.Details = append(e.Details, p)
		}
	}
	return e
}
