// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/store"
)

// A Session is what is kept of a session. It outlives it, so that its id is not used again too soon.
type Session struct {
	Name     string            `json:"name"` // of the principal
	Tenant   string            `json:"tenant"`
	TTL      int64             `json:"ttl"`     // in nanoseconds
	Expires  int64             `json:"expires"` // likewise, since 1970
	Over     bool              `json:"over"`
	Security *Security         `json:"security"`
	Metadata map[string]string `json:"metadata"`
}

// Security is the security context of a session.
type Security struct {
	PrincipalID string            `json:"principal_id,omitzero"`
	TenantID    string            `json:"tenant_id,omitzero"`
	Claims      map[string]string `json:"claims,omitzero"`
}

// A Fulfillment is the contracts that a Runtime fulfils.
type Fulfillment struct {
	RuntimeID string
	Contracts []string
}

// Fulfillments returns those of a session.
func (l *Ledger) Fulfillments(session string) ([]Fulfillment, error) {
	ctx, cancel := l.bounded()
	defer cancel()
	return l.fulfillments(ctx, session)
}

func (l *Ledger) fulfillments(ctx context.Context, session string) (list []Fulfillment, err error) {
	prefix := fulfilledPrefix(session)
	for e, err := range l.opts.Store.List(ctx, prefix) {
		if err == nil {
			e, err = store.Content(e)
		}
		if err != nil {
			return nil, err
		}
		f := Fulfillment{RuntimeID: strings.TrimPrefix(e.Key, prefix)}
		if err := readRecord(e.Value, &f.Contracts); err != nil {
			return nil, err
		}
		list = append(list, f)
	}
	return list, nil
}

// PutFulfillment stores the contracts that a Runtime fulfils in a session.
func (l *Ledger) PutFulfillment(session string, f Fulfillment) error {
	ctx, cancel := l.bounded()
	defer cancel()
	value, err := strictjson.Encode(f.Contracts)
	if err != nil {
		return err
	}
	_, err = store.Modify(ctx, l.opts.Store, fulfilledPrefix(session)+f.RuntimeID, l.opts.TombstoneTTL,
		func(store.Entry, bool) ([]byte, error) { return value, nil })
	return err
}

// CreateSession stores a new session. If the id is taken, it fails with [store.ErrExists].
func (l *Ledger) CreateSession(id string, s *Session) error {
	ctx, cancel := l.bounded()
	defer cancel()
	if err := l.begin(ctx); err != nil {
		return err
	}
	value, err := strictjson.Encode(s)
	if err == nil {
		_, err = l.opts.Store.Create(ctx, sessionKey(id), value, time.Duration(s.TTL)+l.opts.TombstoneTTL)
	}
	return err
}

// Session returns a live session, or nil.
func (l *Ledger) Session(id string) (*Session, error) {
	s, _, err := l.session(id)
	return s, err
}

func (l *Ledger) session(id string) (*Session, store.Revision, error) {
	ctx, cancel := l.bounded()
	defer cancel()
	if err := l.begin(ctx); err != nil {
		return nil, 0, err
	}
	e, err := l.opts.Store.Get(ctx, sessionKey(id))
	if errors.Is(err, store.ErrNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	s := &Session{}
	if err := readRecord(e.Value, s); err != nil {
		return nil, 0, err
	}
	if s.Over || !time.Now().Before(time.Unix(0, s.Expires)) {
		return nil, 0, nil
	}
	return s, e.Revision, nil
}

// ChangeSession rewrites a live session. It does nothing if there is none.
func (l *Ledger) ChangeSession(id string, change func(s *Session)) error {
	for {
		s, rev, err := l.session(id)
		if s == nil || err != nil {
			return err
		}
		change(s)
		value, err := strictjson.Encode(s)
		if err != nil {
			return err
		}
		ctx, cancel := l.bounded()
		left := max(time.Until(time.Unix(0, s.Expires)), 0)
		_, err = l.opts.Store.Update(ctx, sessionKey(id), value, rev, left+l.opts.TombstoneTTL)
		cancel()
		if err == nil || !changed(err) {
			return err
		}
	}
}

// EndSession marks a session as ended and notifies the other Hosts.
func (l *Ledger) EndSession(id string) error {
	err := l.ChangeSession(id, func(s *Session) {
		s.Over, s.Expires = true, time.Now().UnixNano()
	})
	if err != nil {
		return err
	}
	ctx, cancel := l.bounded()
	defer cancel()
	_, err = l.opts.Store.Append(ctx, overStream, "", []byte(l.instance+" "+id), overTTL)
	return err
}

// An owner is the principal of a runtime id.
type owner struct {
	Name   string `json:"name"`
	Tenant string `json:"tenant"`
}

// Own makes a runtime id that of a principal, and reports false if it is another's.
func (l *Ledger) Own(runtimeID, name, tenant string) (isOwn bool, err error) {
	ctx, cancel := l.bounded()
	defer cancel()
	if err := l.begin(ctx); err != nil {
		return false, err
	}
	own := owner{name, tenant}
	value, err := strictjson.Encode(&own)
	if err != nil {
		return false, err
	}
	ttl := l.opts.TombstoneTTL + l.opts.TombstoneTTL/2
	_, err = store.Modify(ctx, l.opts.Store, ownerKey(runtimeID), ttl, func(old store.Entry, found bool) ([]byte, error) {
		isOwn = true
		if found {
			var r owner
			if err := readRecord(old.Value, &r); err != nil {
				return nil, err
			}
			isOwn = r == own
		}
		if !isOwn {
			return nil, store.ErrUnchanged
		}
		return slices.Clone(value), nil
	})
	return isOwn && err == nil, err
}

// HoldOwner makes the owner of a runtime id keep it for TombstoneTTL and a while.
func (l *Ledger) HoldOwner(runtimeID string, more time.Duration) {
	ctx, cancel := l.bounded()
	defer cancel()
	e, err := l.opts.Store.Get(ctx, ownerKey(runtimeID))
	if err == nil {
		_, err = l.opts.Store.Update(ctx, ownerKey(runtimeID), e.Value, e.Revision, l.opts.TombstoneTTL+more)
	}
	if err != nil && !changed(err) && l.ctx.Err() == nil {
		l.logError("Runtime owner not recorded", err)
	}
}
