// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
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
	return &Codec{anyPlaces: true, FrameLimits: FrameLimits{MaxFrame: store.MaxValue, MaxDepth: 100, MaxValues: 1 << 22, MaxNumber: 1 << 20}}
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

func (s *Session) shared() tier { return tier{s.opts.SharedStore, "accp-shared/"} }

// root returns the prefix of the keys of one session.
func (t tier) root(sid string) string {
	name := url.PathEscape(sid)
	if len(name) > 256 {
		sum := sha256.Sum256([]byte(sid))
		name = "%x" + hex.EncodeToString(sum[:]) // in an escaped name two hex digits follow every %
	}
	return t.prefix + name + "/"
}

// space returns the prefix of the keys of one tier of a session.
func (t tier) space(sid string, scope Scope) string { return t.root(sid) + string(scope) + "/" }

func (t tier) get(ctx context.Context, sid string, scope Scope, key string) (Value, error) {
	v, _, err := t.getUntil(ctx, sid, scope, key)
	return v, err
}

// getUntil is get that tells when the entry expires as well.
func (t tier) getUntil(ctx context.Context, sid string, scope Scope, key string) (Value, int64, error) {
	e, err := t.kv.Get(ctx, t.space(sid, scope)+key)
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrInvalid):
		return Value{}, 0, fail(ErrRefNotFound, "$%s.%s", scope, key)
	case err != nil:
		return Value{}, 0, &Error{Code: ErrInternal, Message: "reading the store", Cause: err}
	}
	return t.decode(e.Value, scope, key)
}

func (t tier) decode(data []byte, scope Scope, key string) (v Value, until int64, err error) {
	if len(data) < 8 {
		return Value{}, 0, fail(ErrInternal, "malformed entry $%s.%s", scope, key)
	}
	until = int64(binary.BigEndian.Uint64(data))
	if past(until) {
		return Value{}, until, fail(ErrRefExpired, "$%s.%s", scope, key)
	}
	v, err = storedCodec().DecodeValue(data[8:])
	if err != nil {
		return Value{}, 0, &Error{Code: ErrInternal, Message: "malformed entry", Cause: err}
	}
	return v, until, nil
}

// past reports whether a time in Unix milliseconds is over; 0 never is.
func past(until int64) bool { return until != 0 && time.Now().UnixMilli() >= until }

// expiry returns when an entry expires that is written now, in Unix milliseconds, or
// 0, and how long the store has to keep it.
func expiry(ttl time.Duration) (until int64, kept time.Duration) {
	if ttl <= 0 {
		return 0, ttl
	}
	if ttl > math.MaxInt64-2*expiredFor {
		ttl = math.MaxInt64 - 2*expiredFor
	}
	return time.Now().Add(ttl).UnixMilli(), ttl + expiredFor
}

// entry returns what lies in the store for v.
func entry(v Value, until int64) ([]byte, error) {
	return storedCodec().AppendValue(binary.BigEndian.AppendUint64(nil, uint64(until)), v)
}

// put writes an entry, whatever is there.
func (t tier) put(ctx context.Context, sid string, scope Scope, key string, v Value, ttl time.Duration) error {
	until, kept := expiry(ttl)
	data, err := entry(v, until)
	if err != nil {
		return err
	}
	if err := overwrite(ctx, t.kv, t.space(sid, scope)+key, data, kept); err != nil {
		return &Error{Code: ErrInternal, Message: "writing the store", Cause: err}
	}
	return nil
}

// create writes an entry unless there is one; then it returns [store.ErrExists].
func (t tier) create(ctx context.Context, sid string, scope Scope, key string, v Value, ttl time.Duration) error {
	until, kept := expiry(ttl)
	data, err := entry(v, until)
	if err != nil {
		return err
	}
	_, err = t.kv.Create(ctx, t.space(sid, scope)+key, data, kept)
	if err != nil && !errors.Is(err, store.ErrExists) {
		err = &Error{Code: ErrInternal, Message: "writing the store", Cause: err}
	}
	return err
}

// count returns how many entries of a session have not expired.
func (t tier) count(ctx context.Context, sid string, scope Scope) (int, error) {
	n := 0
	for e, err := range t.kv.List(ctx, t.space(sid, scope)) {
		if err != nil {
			return 0, &Error{Code: ErrInternal, Message: "listing the store", Cause: err}
		}
		if len(e.Value) >= 8 && !past(int64(binary.BigEndian.Uint64(e.Value))) {
			n++
		}
	}
	return n, nil
}

// Put keeps a value under $scope.key, for ttl or, if that is zero, as long as
// [SessionOptions].Keep says. The key is one name of letters, digits and
// underscores; any other is [ErrInvalidType].
func (s *Session) Put(ctx context.Context, scope Scope, key string, v Value, ttl time.Duration) error {
	if !scope.valid() || !validName(key) {
		return fail(ErrInvalidType, "cannot put $%.20s.%.80s", scope, key)
	}
	if ttl == 0 {
		ttl = s.opts.Retention
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended.Load() {
		return errEnded()
	}
	return s.private().put(ctx, s.id, scope, key, v, ttl)
}

// Resolve returns what a reference leads to; ref is written without the dollar sign.
// The errors are [ErrRefNotFound], [ErrRefExpired], [ErrUnauthorizedRef] and, if
// the store fails, [ErrInternal].
func (s *Session) Resolve(ctx context.Context, ref string) (Value, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended.Load() {
		return Value{}, errEnded()
	}
	return s.resolveRef(ctx, ref)
}

// resolveRef finds $scope.key, $scope.session.key, or a bare key in all tiers
// (ACCP-D11, ACCP-D59). A value that it finds is not searched for further references.
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
	if scope != ScopeCold || s.opts.SharedStore == nil || !errors.Is(err, ErrRefNotFound) {
		return v, err
	}
	v, err = s.shared().get(ctx, sid, scope, key)
	if err == nil && !addressed(key, v) {
		// The shared store is written by others: a value must be what its
		// address says (ACCP-D36).
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

// maxResolved is how many bytes the references of one message may lead to, a value
// that is named several times counted once. Else a frame of a few kilobytes could
// make gigabytes of what the peer sent before (ACCP-137).
const maxResolved = store.MaxValue + 1<<20

// A resolver replaces the references of one message.
type resolver struct {
	s     *Session
	known map[string]Value
	bytes int
}

// resolveAll replaces the references in params, at any depth. Changed is false if
// there were none. The param schema never is one (ACCP-D32).
func (s *Session) resolveAll(ctx context.Context, params Params) (out Params, changed bool, err error) {
	return (&resolver{s: s}).all(ctx, params)
}

func (r *resolver) all(ctx context.Context, params Params) (out Params, changed bool, err error) {
	out = params
	for i := range params {
		v, diff, err := r.in(ctx, params[i].Value)
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

func (r *resolver) in(ctx context.Context, v Value) (Value, bool, error) {
	switch v.kind {
	case KindRef:
		if known, ok := r.known[v.text]; ok {
			return known, true, nil
		}
		found, err := r.s.resolveRef(ctx, v.text)
		if err != nil {
			return Value{}, false, err
		}
		if r.bytes += found.size(); r.bytes > maxResolved {
			return Value{}, false, fail(ErrBudgetExceeded, "the references lead to more than a message may hold")
		}
		if r.known == nil {
			r.known = map[string]Value{}
		}
		r.known[v.text] = found
		return found, true, nil
	case KindArray, KindMap:
		list, changed, err := r.all(ctx, v.list)
		if err != nil || !changed {
			return v, false, err
		}
		return Value{kind: v.kind, list: list}, true, nil
	}
	return v, false, nil
}
