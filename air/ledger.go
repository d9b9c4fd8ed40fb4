// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/fivewire/fivewire/air/internal/core"
	"github.com/fivewire/fivewire/internal/lazy"
	"github.com/fivewire/fivewire/internal/once"
	"github.com/fivewire/fivewire/internal/seen"
	"github.com/fivewire/fivewire/internal/state"
)

// Lifetimes of the claims of messages (AIR-D74).
const (
	doneTTL   = 8 * 24 * time.Hour // the lifetime of mail at a relay, and a day
	failedTTL = 30 * 24 * time.Hour

	// memoryTTL is how long the outcome of a message without a Store is kept for the copies that wait for it. The
	// window has its names for longer.
	memoryTTL = time.Second

	storeTimeout = 10 * time.Second // of a change that must not be left half done
)

// storeContext returns the context of a change that must not be left half done.
func storeContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return lazy.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
}

type replayKey [16]byte

// names are the hashed names of a message: of its form (sender, thread and nonce), and of sender and
// id.
type names struct{ triple, id replayKey }

// hashKey is half of SHA-256: 128 bits are collision resistant enough.
func hashKey(kind byte, a, b, c string) replayKey {
	var array [384]byte // sufficient for usual names
	t := append(array[:0], kind)
	t = append(append(t, a...), 0)
	t = append(append(t, b...), 0)
	t = append(t, c...)
	sum := sha256.Sum256(t)
	return replayKey(sum[:16])
}

// namesOf returns the names of an envelope. A DID and a thread id have no NUL, so the parts are
// unambiguous.
func namesOf(e *Envelope) names {
	return names{triple: hashKey('n', e.From, e.ThreadID, e.Nonce), id: idKey(e.From, e.ID)}
}

func idKey(from, id string) replayKey { return hashKey('i', from, id, "") }

// A replayWindow stores nonces and ids until the clock check rejects their envelopes (8.4, AIR-D43).
type replayWindow struct {
	nonces *seen.Window // triples, bounded for each sender and thread
	ids    *seen.Window
}

func newReplayWindow(l *Limits) replayWindow {
	total, perSender := int(min(l.MaxItems, math.MaxInt32)), int(min(l.MaxItemsPerPrincipal, math.MaxInt32))
	return replayWindow{
		nonces: seen.New(seen.Options{Total: total, PerPrincipal: perSender, PerScope: l.MaxReplayEntries}),
		ids:    seen.New(seen.Options{Total: total, PerPrincipal: perSender, PerScope: -1}),
	}
}

// record stores both names until the given time, inclusive. It returns seen.ErrSeen if either is stored
// already, which changes nothing, and seen.ErrExhausted if the window is full.
func (w *replayWindow) record(from, threadID string, k *names, until time.Time) error {
	err := w.nonces.Add(from, threadID, k.triple, until)
	if err == nil {
		if err = w.ids.Add(from, "", k.id, until); err != nil {
			w.nonces.Forget(from, k.triple)
		}
	}
	return err
}

func (w *replayWindow) forget(from string, k *names) {
	w.nonces.Forget(from, k.triple)
	w.ids.Forget(from, k.id)
}

// hold stores both names until another time.
func (w *replayWindow) hold(from, threadID string, k *names, until time.Time) {
	if !w.nonces.Renew(from, k.triple, until) {
		_ = w.nonces.Add(from, threadID, k.triple, until)
	}
	if !w.ids.Renew(from, k.id, until) {
		_ = w.ids.Add(from, "", k.id, until)
	}
}

var errReplayed = &Error{Code: ErrReplay, Message: "the nonce or the id was seen before"}

// replayed returns a new error, because callers may modify it.
func replayed() error { return &Error{Code: ErrReplay, Message: errReplayed.Message} }

// elsewhere returns the error of a copy of an envelope that is being handled.
func elsewhere() error { return ErrReplay.because(errReplayed.Message, core.ErrElsewhere) }

// A round are the messages that were done in a drain. A copy of one is not handled, however long the drain lasts.
type round struct {
	mu    sync.Mutex
	first roundEntry                // without an envelope before there is one; guarded by mu
	more  map[replayKey]*roundEntry // by triple and by id; guarded by mu
}

type roundEntry struct {
	env   *Envelope
	names names
}

func (r *round) add(env *Envelope, k names) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.first.env == nil {
		r.first = roundEntry{env, k}
		return
	}
	if r.more == nil {
		r.more = make(map[replayKey]*roundEntry)
	}
	e := &roundEntry{env, k}
	r.more[k.triple], r.more[k.id] = e, e
}

func (r *round) has(k *names) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	isFirst := r.first.env != nil && (r.first.names.triple == k.triple || r.first.names.id == k.id)
	return isFirst || r.more[k.triple] != nil || r.more[k.id] != nil
}

// each calls f with each message.
func (r *round) each(f func(*roundEntry)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.first.env != nil {
		f(&r.first)
	}
	for name, e := range r.more {
		if name == e.names.id {
			f(e)
		}
	}
}

// A ledger handles each message once. The claim of a message has its names as ids: of two copies one is handled, in this
// process or in those that share the store. The window remembers for this process what is done.
type ledger struct {
	window replayWindow
	memory *once.Table // nil with a store
	stored *instance   // nil without
}

// table returns the claims.
func (l *ledger) table(ctx context.Context) (*once.Table, error) {
	if l.memory != nil {
		return l.memory, nil
	}
	if err := l.stored.wait(ctx); err != nil {
		return nil, err
	}
	return l.stored.claims, nil
}

// keyOf returns the key of the claim of an envelope.
func keyOf(from string, k *names) once.Key {
	text := hex.AppendEncode(make([]byte, 0, 2*(len(k.id)+len(k.triple))), k.id[:])
	all := string(hex.AppendEncode(text, k.triple[:]))
	return once.Key{Principal: from, ID: all[:len(text)], Aliases: []string{all[len(text):]}}
}

// keep ends a drain: the window holds the names of its messages as long as a copy could pass the clock
// that was handed out in the drain, or after an acknowledgement that failed (AIR-D74).
func (l *ledger) keep(r *round) {
	until := time.Now().Add(core.MaxAge)
	r.each(func(e *roundEntry) {
		l.window.hold(e.env.From, e.env.ThreadID, &e.names, later(until, e.env.Time.Add(core.MaxAge)))
	})
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// stateOf returns the state of a claim: what earlier attempts left of a message with an id.
func stateOf(id replayKey, r core.Received) []byte {
	b := append([]byte{state.Format, 0}, id[:]...)
	if r.Redelivered {
		b[1] = 1
	}
	b = binary.BigEndian.AppendUint32(b, uint32(r.Attempts))
	next := int64(0)
	if !r.Next.IsZero() {
		next = r.Next.UnixMilli()
	}
	return binary.BigEndian.AppendUint64(b, uint64(next))
}

// received returns the state of a message by its claim. isOther reports that the claim is that of
// another message with the same nonce, which is not done.
func received(c *once.Claim, id replayKey) (r core.Received, isOther bool, err error) {
	if c.State != nil {
		b, err := state.Data(c.State)
		if err != nil || len(b) != 1+len(id)+12 {
			return r, false, errors.Join(errors.New("air: invalid state of a message"), err)
		}
		isOther = replayKey(b[1:17]) != id
		r.IsKnown, r.Redelivered = true, b[0] == 1
		r.Attempts = int(binary.BigEndian.Uint32(b[17:]))
		if next := int64(binary.BigEndian.Uint64(b[21:])); next != 0 {
			r.Next = time.UnixMilli(next)
		}
	}
	if c.Attempt > 1 && !c.Kept {
		r = r.Cut()
	}
	return r, isOther, nil
}

// kept returns the end of an attempt that leaves a message as it was. A message without attempts leaves nothing.
func kept(id replayKey, r core.Received) once.Result {
	if !r.IsKnown {
		return once.Result{Forget: true}
	}
	return once.Result{Retry: true, Data: stateOf(id, r)}
}

// peek returns the attempts of a message that is not handled now. The error is that of one that is done or
// being handled.
func (l *ledger) peek(ctx context.Context, env *Envelope) (core.Received, error) {
	k := namesOf(env)
	if l.memory != nil {
		return l.peekHere(ctx, env, &k)
	}
	t, err := l.table(ctx)
	if err != nil {
		return core.Received{}, err
	}
	state, c, err := t.Peek(ctx, keyOf(env.From, &k))
	switch {
	case err != nil || state == once.StateAbsent:
		return core.Received{}, err
	case state != once.StateRunning:
		return core.Received{}, replayed()
	case !c.Kept && !c.Lost:
		return core.Received{}, elsewhere()
	}
	c.Attempt++ // that of the next attempt
	r, isOther, err := received(&c, k.id)
	if isOther {
		err = elsewhere()
	}
	return r, err
}

// peekHere is peek without a store: the window has what is done.
func (l *ledger) peekHere(ctx context.Context, env *Envelope, k *names) (r core.Received, err error) {
	key := keyOf(env.From, k)
	key.NoWait = true
	_, isDone, failed := l.memory.Do(ctx, key, once.Repeat, func(_ context.Context, c once.Claim) (once.Result, error) {
		var isOther bool
		r, isOther, err = received(&c, k.id)
		switch {
		case err != nil:
		case isOther:
			err = elsewhere()
		case errors.Is(l.window.record(env.From, env.ThreadID, k, time.Now()), seen.ErrSeen):
			err = replayed()
		default:
			l.window.forget(env.From, k)
		}
		return once.Result{Retry: c.State != nil, Forget: c.State == nil, Data: c.State}, nil
	})
	switch {
	case isDone:
		return r, replayed()
	case errors.Is(failed, once.ErrBusy):
		return r, elsewhere()
	}
	return r, errors.Join(failed, err)
}

// find returns the attempts and the claim of the message of a sender with an id.
func (l *ledger) find(ctx context.Context, from, id string) (r core.Received, claim core.Claim, err error) {
	t, err := l.table(ctx)
	if err != nil {
		return r, core.Free, err
	}
	k := idKey(from, id)
	state, c, err := t.Peek(ctx, once.Key{Principal: from, ID: hex.EncodeToString(k[:])})
	if err != nil || state != once.StateRunning {
		return r, core.Free, err
	}
	r, _, err = received(&c, k)
	switch {
	case c.Kept:
		return r, core.Free, err
	case c.Lost:
		return r, core.Lost, err
	}
	return r, core.Running, err
}

// discard makes a message done.
func (l *ledger) discard(ctx context.Context, env *Envelope, until time.Time) error {
	k := namesOf(env)
	t, err := l.table(ctx)
	if err != nil {
		return err
	}
	key := keyOf(env.From, &k)
	key.NoWait = true
	_, _, err = t.Do(ctx, key, once.Repeat, func(context.Context, once.Claim) (once.Result, error) {
		_ = l.window.record(env.From, env.ThreadID, &k, until)
		return once.Result{}, nil
	})
	if errors.Is(err, once.ErrBusy) {
		return elsewhere()
	}
	return err
}
