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
	"slices"
	"strings"
	"time"

	"github.com/fivewire/fivewire/store"
)

// A Scope is a tier of the state of a session.
type Scope string

// The tiers.
const (
	ScopeHot  Scope = "ctx"  // what the current work needs
	ScopeWarm Scope = "warm" // summaries of checkpoints
	ScopeCold Scope = "cold" // history and raw data, never put into a context
)

func (c Scope) valid() bool { return c == ScopeHot || c == ScopeWarm || c == ScopeCold }

// expiredFor is the time for which an expired entry is kept, so that a late reference is
// [ErrRefExpired] and not [ErrRefNotFound].
const expiredFor = 24 * time.Hour

// storedCodec is the codec for stored values: exact, with higher limits than frames. Users that change it copy it.
var storedCodec = Codec{anyPlaces: true, FrameLimits: FrameLimits{
	MaxFrame: store.MaxValue, MaxDepth: 100, MaxValues: 1 << 22, MaxNumber: 1 << 20,
}}

// Entries accesses the entries of sessions in one store. The value of a key is the expiry time in
// Unix milliseconds, or 0, and the canonical text.
type entries struct {
	kv     store.KV
	prefix string
}

func (s *Session) private() entries {
	if s.opts.Persistence.Store != nil && s.id != "" {
		return entries{s.opts.Persistence.Store, "accp/"}
	}
	s.mu.Lock()
	tiers := s.tiers
	s.mu.Unlock()
	return entries{tiers(), "accp/"} // a nameless session is not shared
}

func (s *Session) shared() entries { return entries{s.opts.Persistence.SharedStore, "accp-shared/"} }

// segment returns a session id as a part of keys.
func segment(sid string) string {
	name := url.PathEscape(sid)
	if len(name) > 256 {
		sum := sha256.Sum256([]byte(sid))
		name = "%x" + hex.EncodeToString(sum[:]) // in an escaped name two hex digits follow every %
	}
	return name
}

// root returns the prefix of all keys of a session.
func (t entries) root(sid string) string { return t.prefix + segment(sid) + "/" }

// key returns a key in a tier of a session. An empty name returns the prefix of its keys.
func (t entries) key(sid string, scope Scope, name string) string {
	return t.prefix + segment(sid) + "/" + string(scope) + "/" + name
}

func (t entries) get(ctx context.Context, sid string, scope Scope, key string) (Value, error) {
	v, _, err := t.getUntil(ctx, sid, scope, key)
	return v, err
}

// getUntil returns a value and its expiry time.
func (t entries) getUntil(ctx context.Context, sid string, scope Scope, key string) (Value, int64, error) {
	e, err := t.kv.Get(ctx, t.key(sid, scope, key))
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrInvalid):
		return Value{}, 0, fail(ErrRefNotFound, "$%s.%s", scope, key)
	case err != nil:
		return Value{}, 0, &Error{Code: ErrInternal, Message: "reading the store", Cause: err}
	}
	return t.decode(e.Value, scope, key)
}

func (t entries) decode(data []byte, scope Scope, key string) (v Value, until int64, err error) {
	if len(data) < 8 {
		return Value{}, 0, fail(ErrInternal, "malformed entry $%s.%s", scope, key)
	}
	until = int64(binary.BigEndian.Uint64(data))
	if past(until) {
		return Value{}, until, fail(ErrRefExpired, "$%s.%s", scope, key)
	}
	v, err = storedCodec.DecodeValue(data[8:])
	if err != nil {
		return Value{}, 0, &Error{Code: ErrInternal, Message: "malformed entry", Cause: err}
	}
	return v, until, nil
}

// past reports whether a time in Unix milliseconds has passed; 0 never has.
func past(until int64) bool { return until != 0 && time.Now().UnixMilli() >= until }

// expiry returns the expiry time of an entry in Unix milliseconds, or 0, and its lifetime in the
// store.
func expiry(ttl time.Duration) (until int64, kept time.Duration) {
	if ttl <= 0 {
		return 0, ttl
	}
	if ttl > math.MaxInt64-2*expiredFor {
		ttl = math.MaxInt64 - 2*expiredFor
	}
	return time.Now().Add(ttl).UnixMilli(), ttl + expiredFor
}

// entry returns the stored form of v.
func entry(v Value, until int64) ([]byte, error) {
	return storedCodec.AppendValue(binary.BigEndian.AppendUint64(make([]byte, 0, 512), uint64(until)), v)
}

// keepRecord returns the lifetime of a record after a frame. The entries that were stored before the
// frame have expired by then, so a later session with the same id finds none of them.
func keepRecord(retention time.Duration) time.Duration {
	if retention <= 0 || retention > math.MaxInt64/4 {
		return math.MaxInt64 / 8 // 36 years
	}
	return retention + 2*expiredFor
}

// overwrite stores a value under a key, replacing any other.
func overwrite(ctx context.Context, kv store.KV, key string, data []byte, ttl time.Duration) error {
	for {
		_, err := kv.Create(ctx, key, data, ttl)
		if !errors.Is(err, store.ErrExists) {
			return err
		}
		e, err := kv.Get(ctx, key)
		if err == nil {
			_, err = kv.Update(ctx, key, data, e.Revision, ttl)
		}
		if !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrConflict) {
			return err // after either error another process has succeeded, so the loop makes progress
		}
	}
}

// put writes an entry, replacing any other, and returns its bytes.
func (t entries) put(ctx context.Context, sid string, scope Scope, key string, v Value, ttl time.Duration) (int64, error) {
	return t.write(sid, scope, key, v, ttl, func(key string, data []byte, kept time.Duration) error {
		return overwrite(ctx, t.kv, key, data, kept)
	})
}

// create writes a new entry and returns its bytes. If the key exists, it returns [store.ErrExists].
func (t entries) create(ctx context.Context, sid string, scope Scope, key string, v Value, ttl time.Duration) (int64, error) {
	return t.write(sid, scope, key, v, ttl, func(key string, data []byte, kept time.Duration) error {
		_, err := t.kv.Create(ctx, key, data, kept)
		return err
	})
}

// write passes the stored form of an entry to f.
func (t entries) write(
	sid string, scope Scope, key string, v Value, ttl time.Duration, f func(string, []byte, time.Duration) error,
) (int64, error) {
	until, kept := expiry(ttl)
	data, err := entry(v, until)
	if err != nil {
		return 0, err
	}
	key = t.key(sid, scope, key)
	if err = f(key, data, kept); err != nil && !errors.Is(err, store.ErrExists) {
		err = &Error{Code: ErrInternal, Message: "writing the store", Cause: err}
	}
	return int64(len(key) + len(data) + entryBytes), err
}

// count returns the number of entries of a session that have not expired.
func (t entries) count(ctx context.Context, sid string, scope Scope) (int, error) {
	n := 0
	for e, err := range t.kv.List(ctx, t.key(sid, scope, "")) {
		if err != nil {
			return 0, &Error{Code: ErrInternal, Message: "listing the store", Cause: err}
		}
		if len(e.Value) >= 8 && !past(int64(binary.BigEndian.Uint64(e.Value))) {
			n++
		}
	}
	return n, nil
}

// Put stores a value under $scope.key for ttl, or if that is zero for [SessionOptions].Retention.
// The key is a name of letters, digits and underscores, and in $warm not of the form of a checkpoint
// id; any other is [ErrInvalidType].
func (s *Session) Put(ctx context.Context, scope Scope, key string, v Value, ttl time.Duration) error {
	if !scope.valid() || !validName(key) || scope == ScopeWarm && idForm.MatchString(key) {
		return fail(ErrInvalidType, "cannot put $%.20s.%.80s", scope, key)
	}
	if ttl == 0 {
		ttl = s.opts.Persistence.Retention
	}
	return s.entered(ctx, func() error { return s.putEntry(ctx, scope, key, v, ttl) })
}

// Resolve returns the value of a reference, given without the dollar sign. The errors are
// [ErrRefNotFound], [ErrRefExpired], [ErrUnauthorizedRef] and, if the store fails, [ErrInternal].
func (s *Session) Resolve(ctx context.Context, ref string) (v Value, err error) {
	if s.isEnded.Load() {
		return Value{}, errEnded()
	}
	err = s.guarded(ctx, func() error {
		v, err = s.resolveRef(ctx, ref)
		return err
	})
	return v, err
}

// resolveRef resolves $scope.key, $scope.session.key, or a bare key in all tiers (ACCP-D11,
// ACCP-D59). References inside the value stay unresolved.
func (s *Session) resolveRef(ctx context.Context, ref string) (Value, error) {
	first, rest, _ := strings.Cut(ref, ".")
	scope := Scope(first)
	if !scope.valid() {
		var expired error
		for _, scope := range []Scope{ScopeHot, ScopeWarm, ScopeCold} {
			v, err := s.lookupOwn(ctx, scope, ref)
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
		return s.lookupOwn(ctx, scope, a)
	case a == s.id:
		return s.lookupOwn(ctx, scope, b)
	case !s.isAllowed(a):
		return Value{}, fail(ErrUnauthorizedRef, "$%.80s", ref) // whether or not it exists
	default:
		return s.lookup(ctx, a, scope, b)
	}
}

// isAllowed reports whether references may name the session with this id.
func (s *Session) isAllowed(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.grants[id]
}

func (s *Session) lookupOwn(ctx context.Context, scope Scope, key string) (Value, error) {
	return s.lookup(ctx, s.id, scope, key)
}

func (s *Session) lookup(ctx context.Context, sid string, scope Scope, key string) (Value, error) {
	if sid == s.id && scope != ScopeHot && strings.HasPrefix(key, "cp") {
		if v, isFinal, err := s.lookupCheckpoint(scope, key); isFinal {
			return v, err
		}
	}
	v, err := s.private().get(ctx, sid, scope, key)
	if scope != ScopeCold || s.opts.Persistence.SharedStore == nil || !errors.Is(err, ErrRefNotFound) {
		return v, err
	}
	v, err = s.shared().get(ctx, sid, scope, key)
	if err == nil && !addressed(key, v) {
		// Other programs write to the shared store, so the value must match its address (ACCP-D36).
		return Value{}, fail(ErrRefNotFound, "the shared store holds another value under $cold.%.80s", key)
	}
	return v, err
}

// lookupCheckpoint returns the summary that a name means, if the session knows it. Another side with
// the same store may have other checkpoints.
func (s *Session) lookupCheckpoint(scope Scope, key string) (v Value, isFinal bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &s.core.tiers
	id := strings.TrimSuffix(key, "_facts")
	peer, isPeer := t.Peer(id)
	own, isOwn := t.Own(id)
	switch {
	case slices.Contains(t.Void, id) && scope == ScopeWarm:
		return Value{}, true, fail(ErrRefNotFound, "$%s.%s names several checkpoints", scope, key)
	case isPeer && scope == ScopeWarm:
		return String(peer), true, nil
	case isOwn && scope == ScopeWarm && !s.durable():
		return String(own.Summary), true, nil
	case !isOwn && slices.Contains(t.Dropped, id):
		return Value{}, true, fail(ErrRefExpired, "$%s.%s", scope, key)
	}
	return Value{}, false, nil
}

// digest returns the hex digits for the key of a stored value.
func digest(v Value) (string, error) {
	text, err := storedCodec.AppendValue(make([]byte, 0, 512), v)
	if err != nil {
		return "", err
	}
	var out [2 * sha256.Size]byte
	sum := sha256.Sum256(text)
	hex.Encode(out[:], sum[:])
	return string(out[:]), nil
}

// addressed reports whether key is an address of v.
func addressed(key string, v Value) bool {
	d, err := digest(v)
	return err == nil && len(key) >= 9 && strings.HasPrefix("h"+d, key)
}

// maxResolved bounds the bytes that the references of one message resolve to; a repeated reference
// counts once. Without it, a frame of a few kilobytes could expand to gigabytes.
const maxResolved = store.MaxValue + 1<<20

// A resolver replaces the references of one message.
type resolver struct {
	s     *Session
	cache map[string]Value
	bytes int
}

// resolveAll replaces the references in params at any depth. Changed is false without
// references. The param schema is never a reference (ACCP-D32).
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
		if cached, ok := r.cache[v.text]; ok {
			return cached, true, nil
		}
		found, err := r.s.resolveRef(ctx, v.text)
		if err != nil {
			return Value{}, false, err
		}
		if r.bytes += found.size(); r.bytes > maxResolved {
			return Value{}, false, fail(ErrBudgetExceeded, "the resolved references are too large")
		}
		if r.cache == nil {
			r.cache = map[string]Value{}
		}
		r.cache[v.text] = found
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
