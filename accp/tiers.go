// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/fivewire/fivewire/store"
)

// A Scope is a tier of the state of a session.
type Scope string

// The tiers (ACCP-086 to ACCP-088).
const (
	ScopeHot  Scope = "ctx"  // what the current work needs
	ScopeWarm Scope = "warm" // summaries of checkpoints
	ScopeCold Scope = "cold" // history and raw data, never put into a context
)

func (c Scope) valid() bool { return c == ScopeHot || c == ScopeWarm || c == ScopeCold }

// expiredFor is how long an entry is remembered after its time, so that a late
// reference to it is told that it expired and not that it never was.
const expiredFor = 24 * time.Hour

// storedCodec returns the codec for what lies in a store: exact, and for more
// than a frame holds.
func storedCodec() *Codec {
	return &Codec{anyPlaces: true, Limits: Limits{Frame: store.MaxValue, Depth: 100, Values: 1 << 22, Number: 1 << 20}}
}

// A tier reads and writes the entries of sessions in one store. Under each key
// lies the time when the entry expires, in Unix milliseconds or 0, and the
// canonical text of the value.
type tier struct {
	kv     store.KV
	prefix string
}

func (s *Session) private() tier {
	if s.durable() {
		return tier{s.opts.Store, "accp/"}
	}
	return tier{s.memory(), "accp/"} // nobody else may see what has no name
}

func (s *Session) shared() tier { return tier{s.opts.Shared, "accp-shared/"} }

// space returns the prefix of the keys of one session.
func (t tier) space(sid string, scope Scope) string {
	name := url.PathEscape(sid)
	if len(name) > 256 {
		sum := sha256.Sum256([]byte(sid))
		name = "%" + hex.EncodeToString(sum[:]) // no escaped name begins with % and a letter pair and goes on like this
	}
	return t.prefix + name + "/" + string(scope) + "/"
}

func (t tier) get(ctx context.Context, sid string, scope Scope, key string) (Value, error) {
	e, err := t.kv.Get(ctx, t.space(sid, scope)+key)
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrInvalid):
		return Value{}, fail(ErrRefNotFound, "$%s.%s", scope, key)
	case err != nil:
		return Value{}, &Error{Code: ErrInternal, Message: "reading the store", Cause: err}
	}
	return t.decode(e.Value, scope, key)
}

func (t tier) decode(data []byte, scope Scope, key string) (Value, error) {
	if len(data) < 8 {
		return Value{}, fail(ErrInternal, "malformed entry $%s.%s", scope, key)
	}
	if until := int64(binary.BigEndian.Uint64(data)); until != 0 && time.Now().UnixMilli() >= until {
		return Value{}, fail(ErrRefExpired, "$%s.%s", scope, key)
	}
	c := storedCodec()
	v, err := c.ParseValue(data[8:])
	if err != nil {
		return Value{}, &Error{Code: ErrInternal, Message: "malformed entry", Cause: err}
	}
	return v, nil
}

func (t tier) put(ctx context.Context, sid string, scope Scope, key string, v Value, ttl time.Duration) error {
	var until uint64
	if ttl > 0 {
		until = uint64(time.Now().Add(ttl).UnixMilli())
		ttl += expiredFor
	}
	c := storedCodec()
	data, err := c.AppendValue(binary.BigEndian.AppendUint64(nil, until), v)
	if err != nil {
		return err
	}
	full := t.space(sid, scope) + key
	for {
		_, err := t.kv.Create(ctx, full, data, ttl)
		if err == nil {
			return nil
		}
		if errors.Is(err, store.ErrExists) {
			var e store.Entry
			if e, err = t.kv.Get(ctx, full); err == nil {
				_, err = t.kv.Update(ctx, full, data, e.Revision, ttl)
			}
			if err == nil {
				return nil
			}
			if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrConflict) {
				continue // somebody else changed it; every round somebody succeeds
			}
		}
		return &Error{Code: ErrInternal, Message: "writing the store", Cause: err}
	}
}

// count returns how many entries of a session have not expired.
func (t tier) count(ctx context.Context, sid string, scope Scope) (int, error) {
	n := 0
	for e, err := range t.kv.List(ctx, t.space(sid, scope)) {
		if err != nil {
			return 0, &Error{Code: ErrInternal, Message: "listing the store", Cause: err}
		}
		if until := int64(0); len(e.Value) >= 8 {
			until = int64(binary.BigEndian.Uint64(e.Value))
			if until == 0 || time.Now().UnixMilli() < until {
				n++
			}
		}
	}
	return n, nil
}

// Put keeps a value under $scope.key, for ttl or, if that is zero, for ever. The
// key is one name of letters, digits and underscores; any other is
// [ErrInvalidType].
func (s *Session) Put(ctx context.Context, scope Scope, key string, v Value, ttl time.Duration) error {
	if !scope.valid() || !validName(key) {
		return fail(ErrInvalidType, "cannot put $%.20s.%.80s", scope, key)
	}
	return s.private().put(ctx, s.id, scope, key, v, ttl)
}

// Get returns what a reference leads to; ref is written without the dollar sign.
// The errors are [ErrRefNotFound], [ErrRefExpired], [ErrUnauthorizedRef] and, if
// the store fails, [ErrInternal].
func (s *Session) Get(ctx context.Context, ref string) (Value, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.resolveRef(ctx, ref)
}

// resolveRef finds $scope.key, $scope.session.key, or a bare key in all tiers
// (D11, D59). A value that it finds is not searched for further references.
func (s *Session) resolveRef(ctx context.Context, ref string) (Value, error) {
	first, rest, _ := strings.Cut(ref, ".")
	scope := Scope(first)
	if !scope.valid() {
		var expired error
		for _, scope := range []Scope{ScopeHot, ScopeWarm, ScopeCold} {
			v, err := s.own(ctx, scope, ref)
			if errors.Is(err, ErrRefExpired) && expired == nil {
				expired = err
			} else if err == nil || !errors.Is(err, ErrRefNotFound) && !errors.Is(err, ErrRefExpired) {
				return v, err
			}
		}
		if expired != nil {
			return Value{}, expired
		}
		return Value{}, fail(ErrRefNotFound, "$%.80s", ref)
	}
	switch a, b, three := strings.Cut(rest, "."); {
	case rest == "", strings.Contains(b, "."):
		return Value{}, fail(ErrRefNotFound, "$%.80s", ref)
	case !three:
		return s.own(ctx, scope, a)
	case a == s.id:
		return s.own(ctx, scope, b)
	case !s.grants[a]:
		return Value{}, fail(ErrUnauthorizedRef, "$%.80s", ref) // whether or not it exists
	default:
		return s.lookup(ctx, a, scope, b)
	}
}

func (s *Session) own(ctx context.Context, scope Scope, key string) (Value, error) {
	return s.lookup(ctx, s.id, scope, key)
}

func (s *Session) lookup(ctx context.Context, sid string, scope Scope, key string) (Value, error) {
	v, err := s.private().get(ctx, sid, scope, key)
	if scope != ScopeCold || s.opts.Shared == nil || !errors.Is(err, ErrRefNotFound) {
		return v, err
	}
	v, err = s.shared().get(ctx, sid, scope, key)
	if err == nil && !addressed(key, v) {
		// The shared store is written by others: a value must be what its
		// address says (D36).
		return Value{}, fail(ErrRefNotFound, "the shared store holds another value under $cold.%.80s", key)
	}
	return v, err
}

// digest returns the hex digits that the key of a stored value is made of.
func digest(v Value) (string, error) {
	c := storedCodec()
	text, err := c.AppendValue(nil, v)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

// addressed reports whether key is an address of v.
func addressed(key string, v Value) bool {
	d, err := digest(v)
	return err == nil && len(key) >= 9 && strings.HasPrefix("h"+d, key)
}

// resolveAll replaces the references in params, at any depth. Changed is false if
// there were none. The param schema never is one (D32).
func (s *Session) resolveAll(ctx context.Context, params Params) (out Params, changed bool, err error) {
	out = params
	for i := range params {
		v, diff, err := s.resolveIn(ctx, params[i].Value)
		if err != nil {
			return nil, false, err
		}
		if diff {
			if !changed {
				out = append(Params(nil), params...)
				changed = true
			}
			out[i].Value = v
		}
	}
	return out, changed, nil
}

func (s *Session) resolveIn(ctx context.Context, v Value) (Value, bool, error) {
	switch v.kind {
	case KindRef:
		v, err := s.resolveRef(ctx, v.text)
		return v, true, err
	case KindArray, KindMap:
		list, changed, err := s.resolveAll(ctx, v.list)
		if err != nil || !changed {
			return v, false, err
		}
		return Value{kind: v.kind, list: list}, true, nil
	}
	return v, false, nil
}
