// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"errors"
	"math"
	"strings"
)

const shortHash = 12 // digits of the registry hash that are sent (ACCP-D47)

// AnnounceRegistry returns the frame that announces the registry, with which a session
// begins (ACCP-113).
func (s *Session) AnnounceRegistry(ctx context.Context) (*SendResult, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return s.hello(ctx)
}

func (s *Session) hello(ctx context.Context) (*SendResult, error) {
	sent, err := s.send(ctx, s.registryMessage(false))
	if err == nil {
		s.helloSent = true
	}
	return sent, err
}

func (s *Session) registryMessage(delta bool) *Message {
	m := &Message{Intent: IntentSync, Op: OpRegistry, Params: Params{
		{"version", Int(s.registry.Version())},
		{"hash", String(s.registry.Hash()[:shortHash])},
	}}
	if delta {
		m.Params = append(m.Params, Param{"delta", s.registry.Delta()})
	}
	return m
}

// A NegotiateResult is what a session made of a frame that belongs to the exchange of
// registries.
type NegotiateResult struct {
	Received *ReceiveResult
	Reply    *SendResult // nil if there is nothing to send
	Synced   bool        // both sides have the same schemas
	Version  int64       // of the registry on this side
}

// ReceiveRegistry receives a sync:registry frame and answers it: with the own hello if
// the hashes agree and none was sent, with the custom schemas, once, if they do
// not; the custom schemas of the peer are taken over first (ACCP-D48). A frame that is
// no sync:registry is [ErrInvalidIntent].
func (s *Session) ReceiveRegistry(ctx context.Context, frame []byte) (*NegotiateResult, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	r, err := s.receive(ctx, frame)
	if err != nil {
		return nil, err
	}
	return s.negotiate(ctx, r)
}

// NegotiateReceived is like [Session.ReceiveRegistry] for a frame that was received
// already.
func (s *Session) NegotiateReceived(ctx context.Context, r *ReceiveResult) (*NegotiateResult, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return s.negotiate(ctx, r)
}

func (s *Session) negotiate(ctx context.Context, r *ReceiveResult) (*NegotiateResult, error) {
	n := &NegotiateResult{Received: r}
	if r.Outcome == OutcomeDelivered {
		reply, undo, err := s.exchange(r.Message)
		if err != nil {
			return nil, err
		}
		if reply != nil {
			if n.Reply, err = s.send(ctx, reply); err != nil {
				undo()
				return nil, err
			}
		}
	}
	n.Synced, n.Version = s.synced, s.registry.Version()
	return n, nil
}

// exchange takes a sync:registry message and returns what to send, or nil. What is
// sent once a session counts as sent then; if that fails, undo takes it back.
func (s *Session) exchange(m *Message) (reply *Message, undo func(), err error) {
	if m.Intent != IntentSync || m.Op != OpRegistry {
		return nil, nil, fail(ErrInvalidIntent, "not a sync:registry frame")
	}
	hash, err := s.announced(m)
	if err != nil {
		return nil, nil, err
	}
	if delta, ok := m.Params.Get("delta"); ok {
		if err := s.registry.Merge(delta, hash); err != nil {
			return nil, nil, err
		}
	}
	s.synced = sameHash(s.registry.Hash(), hash)
	s.differs = !s.synced
	switch {
	case s.synced && !s.helloSent:
		s.helloSent = true
		return s.registryMessage(false), func() { s.helloSent = false }, nil
	case !s.synced && !s.deltaSent:
		s.deltaSent = true
		return s.registryMessage(true), func() { s.deltaSent = false }, nil
	}
	return nil, nil, nil
}

// announced returns the hash in a sync:registry message.
func (s *Session) announced(m *Message) (string, error) {
	v, _ := m.Params.Get("version")
	if _, ok := v.Int(); !ok {
		return "", fail(ErrInvalidType, "sync:registry needs an integer v")
	}
	h, _ := m.Params.Get("hash")
	hash, ok := h.Text()
	if !ok && s.opts.Lenient && h.kind == KindInt {
		hash, ok = h.text, true // L10: a hash of digits only
	}
	if !ok || !validHash(hash) {
		return "", fail(ErrInvalidType, "hash must be 6 to 64 hex digits")
	}
	return hash, nil
}

// Sync returns the frame that turns the shared state into state: the difference
// to the last one (ACCP-098), or no frame if there is none. Nulls in state count
// as absent.
func (s *Session) Sync(ctx context.Context, state Params) (*SendResult, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	next := Apply(nil, state)
	s.dirty = true // that nothing changed must be true of the state as it is now
	return s.sendWith(ctx, IntentSync, func() (*Message, func() error, error) {
		delta := Diff(s.state, next)
		if len(delta) == 0 {
			return nil, nil, nil
		}
		if s.version == math.MaxInt64 {
			return nil, nil, fail(ErrInternal, "the versions of the shared state are used up")
		}
		version := s.version + 1
		m := &Message{Intent: IntentSync, Op: OpState, Params: Params{
			{"version", Int(version)},
			{"delta", Value{kind: KindMap, list: delta}},
		}}
		return m, func() error { return s.setState(version, next) }, nil
	})
}

// Snapshot returns the frame that sends the whole state, for a peer that asked
// for it with qry:state (ACCP-D46).
func (s *Session) Snapshot(ctx context.Context) (*SendResult, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return s.sendWith(ctx, IntentSync, func() (*Message, func() error, error) {
		return &Message{Intent: IntentSync, Op: OpState, Params: Params{
			{"version", Int(s.version)},
			{"state", Value{kind: KindMap, list: s.state}},
		}}, nil, nil
	})
}

// errorMessage returns the error frame for err (ACCP-D52). If m is not nil, the frame
// belongs to its chain.
func errorMessage(err error, m *Message) *Message {
	code := ErrInternal
	var e *Error
	var c Code
	if errors.As(err, &e) {
		code = e.Code
	} else if errors.As(err, &c) {
		code = c
	}
	if !validCode(string(code)) {
		code = ErrInternal
	}
	info := code.Info()
	name := strings.ToLower(info.Name)
	if name == "" {
		name = strings.ToLower(string(code))
	}
	out := &Message{Intent: IntentFail, Op: OpError, Params: Params{
		{"code", String(string(code))},
		{"message", String(name)},
		{"retryable", Bool(info.Retryable)},
		{keySchema, String(SchemaError)},
	}}
	answer(out, m)
	return out
}

// answer puts a message into the chain of the one that it answers.
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

// ErrorFromMessage returns what an error frame says, or nil if m is none.
func ErrorFromMessage(m *Message) *Error {
	if m.Intent != IntentFail || m.Schema() != SchemaError {
		return nil
	}
	return &Error{Code: Code(m.Params.Text("code")), Message: m.Params.Text("message"), Remote: true}
}
