// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"fmt"
	"maps"
	"time"
)

// CreateSessionParams are the requested properties of a session. The zero value and nil request
// none.
type CreateSessionParams struct {
	ID              string        // used if it is free and well formed (ALT-D18)
	TTL             time.Duration // whole seconds; the Host has limits (ALT-D19)
	SecurityContext *SecurityContext
	Metadata        map[string]string
	CorrelationID   string
}

// A Session is a session of a client at its Host. All its methods may be called
// from several goroutines.
type Session struct {
	c   *Client
	id  string
	ttl time.Duration
}

// CreateSession makes a session (ALT-090).
func (c *Client) CreateSession(ctx context.Context, p *CreateSessionParams) (*Session, error) {
	m := &CreateSession{}
	if p != nil {
		m = &CreateSession{SessionID: p.ID, TTLSeconds: int64(p.TTL / time.Second),
			Metadata: maps.Clone(p.Metadata), header: header{CorrelationID: p.CorrelationID}}
		if p.TTL%time.Second > 0 {
			m.TTLSeconds++
		}
		if requested := p.SecurityContext; requested != nil {
			m.SecurityContext = &SecurityContext{PrincipalID: requested.PrincipalID, TenantID: requested.TenantID, Claims: maps.Clone(requested.Claims)}
		}
	}
	got, err := c.request(ctx, m)
	if err != nil {
		return nil, err
	}
	created, ok := got.(*SessionCreated)
	if !ok {
		return nil, errUnexpected(got)
	}
	return &Session{c: c, id: created.SessionID, ttl: time.Duration(min(created.TTLSeconds, 1<<33)) * time.Second}, nil
}

func errUnexpected(m Message) error {
	return fmt.Errorf("altar: unexpected response %s", typeOf(m))
}

// Session returns a session that was created before, over another connection
// or by another process of the same principal. It does not ask the Host.
func (c *Client) Session(id string) *Session { return &Session{c: c, id: id} }

// ID returns the id that the Host gave the session.
func (s *Session) ID() string { return s.id }

// TTL returns how long the session lives from its creation, zero if that is not
// known here.
func (s *Session) TTL() time.Duration { return s.ttl }

// Destroy ends the session with everything that is in flight in it (ALT-096).
func (s *Session) Destroy(ctx context.Context) error {
	_, err := s.c.request(ctx, &DestroySession{SessionID: s.id})
	return err
}

// ListTools returns the tools that can be called now (ALT-D31).
func (s *Session) ListTools(ctx context.Context) ([]ToolInfo, error) {
	got, err := s.c.request(ctx, &ListTools{SessionID: s.id})
	if err != nil {
		return nil, err
	}
	list, ok := got.(*ToolList)
	if !ok {
		return nil, errUnexpected(got)
	}
	return list.Tools, nil
}
