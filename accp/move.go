// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"errors"
	"time"
	"unicode/utf8"

	"github.com/fivewire/fivewire/store"
)

const (
	maxInline  = 50 // longest encoded text that is not moved to the shared store, in characters
	firstDigit = 8  // minimum hex digits in the key of a stored value
)

// A mover moves values to the shared store.
type mover struct {
	refs  *references
	codec *Codec
	fit   func(ctx context.Context, n int64) error // finds room
	moved func(n int64)                            // counts bytes
}

// mover returns nil without a shared store.
func (h *history) mover() *mover {
	if h.refs.shared.kv == nil {
		return nil
	}
	return &mover{refs: &h.refs, codec: h.codec, moved: h.addMoved,
		fit: func(ctx context.Context, n int64) error { return h.fit(ctx, &h.holds.storage, n) }}
}

// moveTexts replaces long strings by references (ACCP-D35).
func (k *mover) moveTexts(ctx context.Context, p *prepared) error {
	if p.schema != nil && p.schema.Code == schemaError {
		return nil
	}
	for i := range p.m.Params {
		if p.m.Params[i].Key == keySchema || p.keys[i] == "" {
			continue
		}
		v, err := k.moveText(ctx, p.m.Params[i].Value)
		if err != nil {
			return err
		}
		p.m.Params[i].Value = v
	}
	return nil
}

func (k *mover) moveText(ctx context.Context, v Value) (Value, error) {
	switch v.kind {
	case KindString:
		if len(v.text) <= maxInline/len(`\u{10FFFF}`) {
			return v, nil // short even if every byte is escaped
		}
		text, err := k.codec.AppendValue(nil, v)
		if err != nil || utf8.RuneCount(text) <= maxInline {
			return v, err
		}
		return k.moveOut(ctx, v)
	case KindArray, KindMap:
		list := append([]Param(nil), v.list...)
		for i := range list {
			x, err := k.moveText(ctx, list[i].Value)
			if err != nil {
				return Value{}, err
			}
			list[i].Value = x
		}
		v.list = list
	}
	return v, nil
}

// moveOut stores a value in the shared store under a key derived from its hash, and returns the
// reference (ACCP-D36). Equal values share one entry.
func (k *mover) moveOut(ctx context.Context, v Value) (Value, error) {
	c := Codec{Portable: k.codec.Portable}
	c.FrameLimits = storedCodec.FrameLimits
	if _, err := c.AppendValue(nil, v); err != nil {
		return Value{}, err
	}
	v = rounded(v)
	d, err := digest(v)
	if err != nil {
		return Value{}, err
	}
	for n := firstDigit; n <= len(d); n += 4 {
		key := "h" + d[:n]
		mine, err := k.share(ctx, key, v)
		if err != nil {
			return Value{}, err
		}
		if mine {
			return Ref("cold." + key), nil
		}
	}
	return Value{}, fail(ErrInternal, "no free key in the shared store")
}

// share stores a value under a key. It returns false if another value with the same first digits
// has the key. Peers may do the same concurrently, so only expired entries are overwritten.
func (k *mover) share(ctx context.Context, key string, v Value) (bool, error) {
	t, retention := k.refs.shared, k.refs.retention
	for {
		old, until, err := t.get(ctx, k.refs.sid, ScopeCold, key)
		switch {
		case err == nil && !old.Equal(v):
			return false, nil
		case err == nil && (until == 0 || retention > 0 &&
			until-time.Now().UnixMilli() > retention.Milliseconds()/2):
			return true, nil
		case err == nil, errors.Is(err, ErrRefExpired): // an entry that expires soon is renewed
			_, err = t.put(ctx, k.refs.sid, ScopeCold, key, v, retention)
			return true, err
		case !errors.Is(err, ErrRefNotFound):
			return false, err
		}
		if err := k.fit(ctx, int64(v.size()+entryBytes)); err != nil {
			return false, err
		}
		n, err := t.create(ctx, k.refs.sid, ScopeCold, key, v, retention)
		if !errors.Is(err, store.ErrExists) {
			k.moved(n)
			return err == nil, err
		}
	}
}

// rounded returns v with its decimals as sent.
func rounded(v Value) Value {
	switch v.kind {
	case KindDecimal:
		v.text, _ = roundDecimal(v.text)
	case KindArray, KindMap:
		list := append([]Param(nil), v.list...)
		for i := range list {
			list[i].Value = rounded(list[i].Value)
		}
		v.list = list
	}
	return v
}
