// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"log/slog"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/accp/internal/record"
	"github.com/fivewire/fivewire/accp/internal/tier"
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

// scopeCheckpoint has the contents of checkpoints: the list of summary, frames and facts.
const scopeCheckpoint Scope = "checkpoint"

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
	return t.root(sid) + string(scope) + "/" + name
}

// get returns a value and its expiry time.
func (t entries) get(ctx context.Context, sid string, scope Scope, key string) (v Value, until int64, err error) {
	e, err := t.kv.Get(ctx, t.key(sid, scope, key))
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrInvalid):
		return Value{}, 0, fail(ErrRefNotFound, "$%s.%s", scope, key)
	case err != nil:
		return Value{}, 0, &Error{Code: ErrInternal, Message: "reading the store", Cause: err}
	case len(e.Value) < 8:
		return Value{}, 0, fail(ErrInternal, "malformed entry $%s.%s", scope, key)
	}
	until = int64(binary.BigEndian.Uint64(e.Value))
	if past(until) {
		return Value{}, until, errExpired(scope, key)
	}
	v, err = storedCodec.DecodeValue(e.Value[8:])
	if err != nil {
		return Value{}, 0, &Error{Code: ErrInternal, Message: "malformed entry", Cause: err}
	}
	return v, until, nil
}

func errExpired(scope Scope, key string) error { return fail(ErrRefExpired, "$%s.%s", scope, key) }

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

// keepRecord returns the lifetime of a record after a frame. The entries that were stored before the
// frame have expired by then, so a later session with the same id finds none of them.
func keepRecord(retention time.Duration) time.Duration {
	if retention <= 0 || retention > math.MaxInt64/4 {
		return math.MaxInt64 / 8 // 36 years
	}
	return retention + 2*expiredFor
}

// put writes an entry, replacing any other, and returns its bytes.
func (t entries) put(ctx context.Context, sid string, scope Scope, key string, v Value, ttl time.Duration) (int64, error) {
	return t.write(sid, scope, key, v, ttl, func(key string, data []byte, kept time.Duration) error {
		return record.Overwrite(ctx, t.kv, key, data, kept)
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
	data, err := storedCodec.AppendValue(binary.BigEndian.AppendUint64(make([]byte, 0, 512), uint64(until)), v)
	if err != nil {
		return 0, err
	}
	key = t.key(sid, scope, key)
	return int64(len(key) + len(data) + entryBytes), inEntries(f(key, data, kept))
}

// putCheckpoint writes the contents of a checkpoint, as far as they are present, and returns their bytes.
func (t entries) putCheckpoint(ctx context.Context, sid string, c *tier.Checkpoint, contents *tier.Cold, ttl time.Duration) (int64, error) {
	until, kept := expiry(ttl)
	data := binary.BigEndian.AppendUint64(make([]byte, 0, len(contents.Facts)*4), uint64(until))
	data = append(appendText(append(data, '['), c.Summary.Text), ',')
	if contents.Frames == nil {
		data = append(data, '~', ',')
	} else {
		data = append(appendTexts(data, contents.Frames), ',')
	}
	data = append(data, cmp.Or(contents.Facts, "~")...)
	key := t.key(sid, scopeCheckpoint, c.Summary.ID)
	return int64(len(key) + len(data) + entryBytes), inEntries(record.Overwrite(ctx, t.kv, key, append(data, ']'), kept))
}

// inEntries returns the error of a store, except that a key exists, as [ErrInternal].
func inEntries(err error) error {
	if err != nil && !errors.Is(err, store.ErrExists) {
		err = &Error{Code: ErrInternal, Message: "writing the store", Cause: err}
	}
	return err
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

// References are what a session can refer to: the contents of its tiers and of stores.
type references struct {
	sid       string
	memory    func() entries // of a session without store
	private   entries        // of one with a store, else without kv
	shared    entries        // that the peers can read too, else without kv
	retention time.Duration
	log       *slog.Logger

	mu     *sync.Mutex     // of the session
	tiers  *tier.State     // guarded by mu
	grants map[string]bool // sessions that references may name (ACCP-D59); guarded by mu
}

// hasStore reports whether the tiers survive the process.
func (r *references) hasStore() bool { return r.private.kv != nil }

// own returns the entries of this side.
func (r *references) own() entries {
	if r.hasStore() {
		return r.private
	}
	return r.memory()
}

// newMemory begins with empty entries in memory.
func (r *references) newMemory() {
	r.memory = sync.OnceValue(func() entries { return entries{store.NewMemory(), "accp/"} })
}

// resolve resolves $scope.key, $scope.session.key, or a bare key in all tiers (ACCP-D11,
// ACCP-D59). References inside the value stay unresolved.
func (r *references) resolve(ctx context.Context, ref string) (Value, error) {
	first, rest, _ := strings.Cut(ref, ".")
	scope := Scope(first)
	if !scope.valid() {
		var expired error
		for _, scope := range []Scope{ScopeHot, ScopeWarm, ScopeCold} {
			v, err := r.lookup(ctx, r.sid, scope, ref)
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
		return r.lookup(ctx, r.sid, scope, a)
	case a == r.sid, r.isAllowed(a):
		return r.lookup(ctx, a, scope, b)
	}
	return Value{}, fail(ErrUnauthorizedRef, "$%.80s", ref) // whether or not it exists
}

// isAllowed reports whether references may name the session with this id.
func (r *references) isAllowed(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.grants[id]
}

func (r *references) lookup(ctx context.Context, sid string, scope Scope, key string) (Value, error) {
	id := strings.TrimSuffix(key, "_facts")
	if scope != ScopeHot && idForm.MatchString(id) && (scope == ScopeCold || id == key) {
		v, isFinal, err := r.checkpoint(ctx, sid, scope, id, id != key)
		if isFinal {
			return v, err
		}
	}
	v, _, err := r.own().get(ctx, sid, scope, key)
	if scope != ScopeCold || r.shared.kv == nil || !errors.Is(err, ErrRefNotFound) {
		return v, err
	}
	v, _, err = r.shared.get(ctx, sid, scope, key)
	if err == nil && !addressed(key, v) {
		// Other programs write to the shared store, so the value must match its address (ACCP-D36).
		return Value{}, fail(ErrRefNotFound, "the shared store holds another value under $cold.%.80s", key)
	}
	return v, err
}

var (
	hashForm = regexp.MustCompile(`^[0-9a-f]{16}$`)
	idForm   = regexp.MustCompile(`^cp[0-9a-f]{8,64}$`)
)

// checkpoint returns the summary, the frames or the facts of a checkpoint. Another side with the same store may have
// others.
func (r *references) checkpoint(ctx context.Context, sid string, scope Scope, id string, isFacts bool) (v Value, isFinal bool, err error) {
	if sid == r.sid {
		if v, isFinal, err := r.inMemory(scope, id, isFacts); isFinal {
			return v, true, err
		}
	}
	if !r.hasStore() {
		return Value{}, false, nil
	}
	list, _, err := r.private.get(ctx, sid, scopeCheckpoint, id)
	switch {
	case errors.Is(err, ErrRefNotFound):
		return Value{}, false, nil
	case err != nil:
		return Value{}, true, err
	case len(list.list) != 3:
		return Value{}, true, fail(ErrInternal, "malformed checkpoint %s", id)
	case scope == ScopeWarm:
		return list.list[0].Value, true, nil
	}
	v = list.list[1].Value
	if isFacts {
		v = list.list[2].Value
	}
	if v.kind == KindNull { // see keep
		return Value{}, true, errExpired(scope, id)
	}
	return v, true, nil
}

// inMemory is checkpoint for those that are in memory.
func (r *references) inMemory(scope Scope, id string, isFacts bool) (v Value, isFinal bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.tiers
	peer, isPeer := t.Peer(id)
	own, c := t.Own(id)
	switch {
	case slices.Contains(t.Void, id) && scope == ScopeWarm:
		return Value{}, true, fail(ErrRefNotFound, "$%s.%s names several checkpoints", scope, id)
	case isPeer && scope == ScopeWarm:
		return String(peer.Summary), true, nil
	case c == nil && slices.Contains(t.Dropped, id), c != nil && past(c.Until):
		return Value{}, true, errExpired(scope, id)
	case c == nil || c.Cold.Frames == nil:
		return Value{}, false, nil
	case scope == ScopeWarm:
		return String(own.Summary), true, nil
	case isFacts:
		v, err = storedCodec.DecodeValue([]byte(c.Cold.Facts))
		return v, true, err
	}
	return frameList(c.Cold.Frames), true, nil
}

func frameList(frames []string) Value {
	v := Value{kind: KindArray, list: make([]Param, len(frames))}
	for i, f := range frames {
		v.list[i].Value = String(f)
	}
	return v
}

// keep stores the contents of a checkpoint: in the store, or in the checkpoint. If they are too long for an entry of the
// store, the facts are omitted, and then the frames: otherwise the session could make no other checkpoint.
func (r *references) keep(ctx context.Context, c *tier.Checkpoint, contents *tier.Cold) error {
	c.Until, _ = expiry(r.retention)
	if !r.hasStore() {
		c.Cold, c.Bytes = *contents, int64(entryBytes+len(contents.Facts))
		for _, f := range contents.Frames {
			c.Bytes += int64(len(f) + itemBytes)
		}
		return nil
	}
	var err error
	for _, part := range []tier.Cold{*contents, {Frames: contents.Frames}, {}} {
		c.Bytes, err = r.private.putCheckpoint(ctx, r.sid, c, &part, r.retention)
		if !errors.Is(err, store.ErrInvalid) {
			break
		}
		r.log.WarnContext(ctx, "accp: contents of a checkpoint not stored", "session", r.sid, "checkpoint", c.Summary.ID, "err", err)
	}
	return err
}

// remove removes the contents of a checkpoint from the store.
func (r *references) remove(ctx context.Context, c *tier.Checkpoint) {
	if !r.hasStore() {
		return
	}
	err := r.private.kv.Delete(ctx, r.private.key(r.sid, scopeCheckpoint, c.Summary.ID), 0)
	if err == nil && c.Refined.ID != "" {
		err = r.private.kv.Delete(ctx, r.private.key(r.sid, ScopeWarm, c.Refined.ID), 0)
	}
	if err != nil {
		r.log.WarnContext(ctx, "accp: checkpoint not removed", "session", r.sid, "checkpoint", c.Summary.ID, "err", err)
	}
}

// count returns the number of cold entries. The tiers have a number of checkpoints.
func (r *references) count(ctx context.Context, checkpoints int) (n int, err error) {
	n, err = r.own().count(ctx, r.sid, ScopeCold)
	if err == nil && r.shared.kv != nil {
		var k int
		k, err = r.shared.count(ctx, r.sid, ScopeCold)
		n += k
	}
	return n + 2*checkpoints, err // frames and facts
}

// digest returns the hex digits for the key of a stored value.
func digest(v Value) (string, error) {
	d, err := digits(v)
	if err != nil {
		return "", err
	}
	return string(d[:]), nil
}

// digits is digest without a string.
func digits(v Value) (d [2 * sha256.Size]byte, err error) {
	w := factWriters.Get().(*factWriter)
	defer w.giveBack()
	if w.text, err = storedCodec.AppendValue(w.text[:0], v); err != nil {
		return d, err
	}
	sum := sha256.Sum256(w.text)
	hex.Encode(d[:], sum[:])
	return d, nil
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
	*references
	cache map[string]Value
	bytes int
}

// all replaces the references in params at any depth. Changed is false without
// references. The param schema is never a reference (ACCP-D32).
func (r *references) all(ctx context.Context, params Params) (out Params, changed bool, err error) {
	if !hasReference(params) {
		return params, false, nil
	}
	return (&resolver{references: r}).list(ctx, params)
}

func hasReference(list []Param) bool {
	for i := range list {
		if v := &list[i].Value; v.kind == KindRef || hasReference(v.list) {
			return true
		}
	}
	return false
}

func (r *resolver) list(ctx context.Context, params Params) (out Params, changed bool, err error) {
	out = params
	for i := range params {
		v, diff, err := r.value(ctx, params[i].Value)
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

func (r *resolver) value(ctx context.Context, v Value) (Value, bool, error) {
	switch v.kind {
	case KindRef:
		if cached, ok := r.cache[v.text]; ok {
			return cached, true, nil
		}
		found, err := r.resolve(ctx, v.text)
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
		list, changed, err := r.list(ctx, v.list)
		if err != nil || !changed {
			return v, false, err
		}
		return Value{kind: v.kind, list: list}, true, nil
	}
	return v, false, nil
}
