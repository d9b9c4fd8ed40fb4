// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/store"
)

func (l *Shared) fulfillments(ctx context.Context, session string) (list []Fulfillment, err error) {
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

// PutFulfillment implements [Ledger].
func (l *Shared) PutFulfillment(session string, f Fulfillment) error {
	ctx, cancel := l.bounded()
	defer cancel()
	value, err := guard.Encode(f.Contracts)
	if err != nil {
		return err
	}
	_, err = store.Modify(ctx, l.opts.Store, fulfilledPrefix(session)+f.RuntimeID, l.opts.TombstoneTTL,
		func(store.Entry, bool) ([]byte, error) { return value, nil })
	return err
}

// CreateSession implements [Ledger].
func (l *Shared) CreateSession(id string, s *Session) error {
	ctx, cancel := l.bounded()
	defer cancel()
	if err := l.begin(ctx); err != nil {
		return err
	}
	value, err := guard.Encode(s)
	if err == nil {
		_, err = l.opts.Store.Create(ctx, sessionKey(id), value, time.Duration(s.TTL)+l.opts.TombstoneTTL)
	}
	return err
}

// Session implements [Ledger].
func (l *Shared) Session(id string) (*Session, []Fulfillment, error) {
	s, _, err := l.session(id)
	if s == nil || err != nil {
		return nil, nil, err
	}
	ctx, cancel := l.bounded()
	defer cancel()
	list, err := l.fulfillments(ctx, id)
	return s, list, err
}

func (l *Shared) session(id string) (*Session, store.Revision, error) {
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

// Prolong implements [Ledger].
func (l *Shared) Prolong(id string, expires time.Time) error {
	return l.changeSession(id, func(s *Session) { s.Expires = max(s.Expires, expires.UnixNano()) })
}

// changeSession rewrites a live session. It does nothing if there is none.
func (l *Shared) changeSession(id string, change func(s *Session)) error {
	for {
		s, rev, err := l.session(id)
		if s == nil || err != nil {
			return err
		}
		change(s)
		value, err := guard.Encode(s)
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

// EndSession marks a session as ended and notifies the other Hosts, see [Ledger].
func (l *Shared) EndSession(id string) error {
	err := l.changeSession(id, func(s *Session) {
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

// Own implements [Ledger].
func (l *Shared) Own(runtimeID, name, tenant string) (isOwn bool, err error) {
	ctx, cancel := l.bounded()
	defer cancel()
	if err := l.begin(ctx); err != nil {
		return false, err
	}
	own := owner{name, tenant}
	value, err := guard.Encode(&own)
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

// HoldOwner implements [Ledger].
func (l *Shared) HoldOwner(runtimeID string, more time.Duration) {
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
