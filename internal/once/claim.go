// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package once

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/lazy"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/state"
	"github.com/fivewire/fivewire/store"
)

const (
	runTTL     = time.Hour        // of a claim that runs, besides Retention
	recordWait = time.Second      // of a call under AtMostOnce, and of one after Close
	claimWait  = 10 * time.Second // for each answer of the store before work begins
)

var errMalformed = errors.New("once: stored value: malformed record")

// An aliasError reports that the claim of id has an alias of the key. An empty id reports
// that this claim is absent since.
type aliasError struct{ id string }

func (e aliasError) Error() string { return "once: alias of another claim" }

// The kinds of record.
const (
	runningRecord byte = 1 + iota
	doneRecord
	freeRecord // of a deleted claim, so that no Create in doubt lands after the deletion
	aliasRecord
)

// A record is what an id has in the store. Kind, owner, attempt and token identify its
// writer, so that a repeated write finds itself.
type record struct {
	Kind    byte
	Owner   lease.Owner
	Attempt int
	Token   string
	Digest  []byte
	Primary []byte  // the id of the claim that has an alias
	Kept    bool    `json:",omitempty"` // by Retry
	Pinned  bool    `json:",omitempty"` // by Peek
	Out     outcome // of a claim that runs: the data of the last Retry, and no kind

	follows bool        // its last attempt had ended with Retry
	failed  lease.Owner // of its last attempt
}

func (r *record) isClaim() bool {
	return r != nil && (r.Kind == runningRecord || r.Kind == doneRecord)
}

func (r *record) claim() Claim {
	c := Claim{Token: r.Token, Attempt: r.Attempt, Redelivered: r.Attempt > 1, Kept: r.follows, Failed: r.failed}
	if r.Kind == runningRecord && len(r.Out.data) > 0 {
		c.State = r.Out.data
	}
	return c
}

func (r *record) isSame(o *record) bool {
	return r != nil && o != nil && r.Kind == o.Kind && r.Owner == o.Owner && r.Attempt == o.Attempt &&
		r.Token == o.Token && bytes.Equal(r.Primary, o.Primary)
}

func (r *record) encode() []byte { return state.EncodeWith(r, r.Out.data) }

func decode(value []byte) (*record, error) {
	r := &record{}
	data, err := state.DecodeWith(value, r)
	if err != nil {
		return nil, fmt.Errorf("once: %w", err)
	}
	r.Out.data = data
	if r.Kind < runningRecord || r.Kind > aliasRecord || (r.Kind == doneRecord) != (r.Out.Kind != noOutcome) {
		return nil, errMalformed
	}
	return r, nil
}

// A claim is what an entry has in the store.
type claim struct {
	path  string
	rec   *record         // stored or in doubt
	rev   store.Revision  // of rec, or of the record before
	epoch context.Context // of the owner
	since time.Time
}

// A slot is a key of the store. Without a record it is absent and has no revision.
type slot struct {
	rec *record
	rev store.Revision
}

func (t *Table) path(k *Key, id string) string {
	return t.opts.Prefix + state.Join("once", k.Principal, k.Scope, id)
}

// claim writes the claim of e. Otherwise it finishes e and returns the outcome found or
// an error.
func (t *Table) claim(ctx context.Context, e *entry, p Policy, isOther bool) (out outcome, err error) {
	c := &claim{path: t.path(&e.key, e.key.ID), since: time.Now()}
	e.claim = c
	guard.Run("store", func() (err error) {
		out, err = t.take(ctx, e, p, isOther)
		if err == nil && out.Kind == noOutcome {
			err = t.writeAliases(ctx, e)
			if err == nil && c.epoch.Err() != nil {
				err = fmt.Errorf("once: claim: %w", context.Cause(c.epoch))
			}
		}
		return err
	}, func(failed error) { err = t.claimed(ctx, e, out, failed) }) // also if the store ends the goroutine
	return out, err
}

// claimed finishes e, unless its claim was written.
func (t *Table) claimed(ctx context.Context, e *entry, out outcome, err error) error {
	c := e.claim
	switch {
	case err != nil && c.rec != nil:
		// No attempt with these aliases ran before another claim had one, since aliases come first.
		_, isAlias := errors.AsType[aliasError](err)
		end := e.end
		next := freed(c.rec)
		if c.rec.Attempt > 1 && (c.rec.follows || !isAlias) {
			next = paused(c.rec, c.rec.Out.data, c.rec.follows)
		}
		limit := cmp.Or(t.opts.StoreTimeout, claimWait)
		t.behind(e, limit, func(ctx context.Context) { t.release(ctx, e, next) })
		if isAlias { // the other claim may have a name of e
			err = cmp.Or(t.await(ctx, end), err)
		}
	case err != nil || out.Kind != noOutcome:
		t.finish(e, out, true)
	default:
		t.mu.Lock()
		defer t.mu.Unlock()
		e.isKnown, e.granted, t.running[e] = true, c.rec.claim(), true
	}
	return err
}

// take writes the claim, or returns the outcome found. While another instance runs the
// key, take waits.
func (t *Table) take(ctx context.Context, e *entry, p Policy, isOther bool) (out outcome, err error) {
	c := e.claim
	var s slot
	for n := 0; ; n++ {
		if n > 1 {
			_ = poll(ctx, n-1)
		}
		next, err := t.plan(ctx, e, &s, p, n > 1 || isOther)
		switch {
		case err != nil:
			return out, err
		case next == nil && s.rec.Kind == doneRecord:
			return s.rec.Out, nil
		case next == nil && e.key.NoWait:
			return out, ErrBusy
		case next == nil:
			continue
		case isOther && next.Attempt == 1:
			return out, aliasError{}
		}
		if next.Kind == runningRecord {
			c.rec, c.rev = next, s.rev
		}
		bounded, cancel := t.bound(ctx)
		s, err = t.swap(bounded, c.path, next, s.rev)
		cancel()
		if err != nil {
			return out, err
		}
		if s.rec == next {
			c.rev = s.rev
			return next.Out, nil
		}
		c.rec = nil
	}
}

// bound returns a context for an access to the store before work begins: a caller does not wait for a
// store that does not answer.
func (t *Table) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return lazy.WithTimeout(ctx, cmp.Or(t.opts.StoreTimeout, claimWait))
}

// plan returns the record that may replace that of s, which it reads first if isStale.
func (t *Table) plan(ctx context.Context, e *entry, s *slot, p Policy, isStale bool) (next *record, err error) {
	if !isStale && s.rec == nil {
		return t.next(ctx, e, nil, p)
	}
	ctx, cancel := t.bound(ctx)
	defer cancel()
	if isStale {
		*s, err = t.get(ctx, e.claim.path)
	}
	if err != nil {
		return nil, err
	}
	return t.next(ctx, e, s.rec, p)
}

// next returns the record that may replace r, or nil if r is the record of an outcome or
// of a live instance.
func (t *Table) next(ctx context.Context, e *entry, r *record, p Policy) (*record, error) {
	c := e.claim
	c.epoch = t.lease.Context() // before Owner: nothing runs after its end
	next := &record{Kind: runningRecord, Owner: t.lease.Owner(), Attempt: 1, Token: randid.New("")}
	next.Digest = e.key.Digest[:]
	switch {
	case !r.isClaim():
		if err := t.checkAlias(ctx, &e.key, r); err != nil {
			return nil, err
		}
	case !bytes.Equal(r.Digest, next.Digest):
		return nil, ErrReused
	case r.Kind == doneRecord:
		return nil, nil
	default:
		t.mu.Lock()
		e.isKnown = true
		t.mu.Unlock()
		if r.Owner != next.Owner { // an own one is left over, since the caller has the entry
			if isAlive, err := t.lease.Alive(ctx, r.Owner); isAlive || err != nil {
				return nil, nil
			}
			next.failed = r.Owner
		}
		next.Attempt, next.Token, next.Out.data, next.follows = r.Attempt+1, r.Token, r.Out.data, r.Kept
		if p == AtMostOnce && !r.Kept {
			next.Kind, next.Out = doneRecord, outcome{Kind: lost}
		}
	}
	return next, nil
}

// checkAlias returns an aliasError if r is an alias of another present claim.
func (t *Table) checkAlias(ctx context.Context, k *Key, r *record) error {
	if r == nil || r.Kind != aliasRecord || string(r.Primary) == k.ID {
		return nil
	}
	s, err := t.get(ctx, t.path(k, string(r.Primary)))
	if err == nil && s.rec.isClaim() && s.rec.Token == r.Token {
		return aliasError{string(r.Primary)}
	}
	return err
}

// writeAliases writes the aliases of e. Each has the token of the claim. So a new claim of
// the same id writes it again, and the compare-and-set of another claim fails.
func (t *Table) writeAliases(ctx context.Context, e *entry) (err error) {
	if len(e.key.Aliases) == 0 {
		return nil
	}
	ctx, cancel := t.bound(ctx)
	defer cancel()
	own := e.alias()
	for _, id := range e.key.Aliases {
		var s slot
		for n := 0; err == nil; n++ {
			if s, err = t.swap(ctx, t.path(&e.key, id), own, s.rev); s.rec == own {
				break
			}
			if err == nil && s.rec.isClaim() {
				err = aliasError{id}
			}
			err = cmp.Or(err, t.checkAlias(ctx, &e.key, s.rec))
			if n > 0 {
				_ = poll(ctx, n)
			}
		}
	}
	return err
}

func (e *entry) alias() *record {
	return &record{Kind: aliasRecord, Primary: []byte(e.key.ID), Token: e.claim.rec.Token}
}

// run runs f with the claim of e and returns its outcome.
func (t *Table) run(ctx context.Context, e *entry, p Policy, exit *Result, f work) (data []byte, replayed bool, err error) {
	c, end := e.claim, e.end
	running := lazy.New(ctx)
	defer running.End(&lazy.Canceled)
	defer context.AfterFunc(c.epoch, func() { running.Cancel(context.Cause(c.epoch)) })()
	r := t.call(running, c.rec.claim(), exit, f, func(r result) result {
		isCut := p == Repeat && r.err != nil && c.epoch.Err() != nil
		if isCut && r.out.Kind != noOutcome {
			r.out, r.err = outcome{}, errors.Unwrap(r.err)
		}
		t.mu.Lock()
		e.granted, e.isEnding = Claim{}, r.out.Kind == noOutcome // from now on the store knows
		t.mu.Unlock()
		var next *record // without an outcome
		switch {
		case isCut:
			next = paused(c.rec, c.rec.Out.data, false)
		case r.isRetried:
			next = paused(c.rec, bytes.Clone(r.data), true)
		case r.out.Kind == noOutcome:
			next = freed(c.rec)
		}
		limit := t.opts.StoreTimeout
		if next != nil {
			limit = cmp.Or(limit, claimWait)
		}
		t.behind(e, limit, func(ctx context.Context) {
			if next != nil {
				t.release(ctx, e, next)
			} else {
				t.record(ctx, e, r.out)
			}
		})
		return r
	})
	if r.out.Kind == noOutcome && !r.isRetried {
		return r.data, false, r.err
	}
	var late <-chan time.Time
	switch {
	case p == AtMostOnce:
		late = time.After(recordWait)
	case t.opts.StoreTimeout > 0:
		late = time.After(t.opts.StoreTimeout)
	}
	select {
	case <-end.done:
	case <-ctx.Done():
	case <-late:
		t.opts.Logger.WarnContext(ctx, "once: outcome not recorded yet", "scope", e.key.Scope, "id", e.key.ID)
	}
	if r.isRetried {
		return r.data, false, r.err
	}
	select {
	case <-end.done:
		if end.replayed {
			data, err = end.out.result()
			return data, true, err
		}
		if p == Repeat && end.out.Kind == noOutcome {
			return nil, false, fmt.Errorf("%w: not recorded", ErrLost)
		}
	default:
		if p == Repeat {
			return nil, false, fmt.Errorf("once: record: %w", cmp.Or(context.Cause(ctx), context.DeadlineExceeded))
		}
	}
	return r.data, false, r.err
}

// behind runs f, which finishes e, in the background. Other calls wait for it no longer than limit, if that is
// positive.
func (t *Table) behind(e *entry, limit time.Duration, f func(ctx context.Context)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if limit > 0 {
		e.end.limit = limit
		close(e.end.storing)
	}
	t.ending++
	ctx, period, isAwaited := t.ctx, max(t.opts.Retention, state.LandTime), t.ctx.Err() == nil
	if isAwaited {
		t.wg.Add(1)
	} else {
		ctx, period = context.Background(), recordWait
	}
	go func() {
		if isAwaited {
			defer t.wg.Done()
		}
		ctx, cancel := lazy.WithTimeout(ctx, period)
		defer cancel()
		guard.Run("store", func() error {
			f(ctx)
			return nil
		}, func(err error) {
			if err != nil { // the store ends the goroutine
				t.opts.Logger.ErrorContext(ctx, "once: end not stored", "err", err)
				t.finish(e, outcome{}, false)
			}
			t.mu.Lock()
			defer t.mu.Unlock()
			t.ending--
			t.leaveLocked()
		})
	}()
}

// record writes the outcome of e, and finishes e with the stored one.
func (t *Table) record(ctx context.Context, e *entry, out outcome) {
	done := *e.claim.rec
	done.Kind, done.Out, done.Kept = doneRecord, out, false
	s, err := t.replace(ctx, e.claim, &done)
	if errors.Is(err, store.ErrInvalid) { // too large for the engine
		done.Out = outcome{Kind: dropped}
		s, err = t.replace(ctx, e.claim, &done)
	}
	switch {
	case err != nil:
		t.opts.Logger.ErrorContext(ctx, "once: outcome not recorded", "err", err)
		out = outcome{}
	case s.rec == nil || s.rec.Kind != doneRecord: // another instance has taken the claim over
		out = outcome{}
	case s.rec != &done:
		t.finish(e, s.rec.Out, true)
		return
	case time.Since(e.claim.since) > runTTL/2:
		t.renew(e)
	}
	t.finish(e, out, false)
}

// freed returns the record of a claim without which the next call has a new one.
func freed(r *record) *record { return &record{Kind: freeRecord, Token: r.Token} }

// paused returns the record of a claim that the next call takes over.
func paused(r *record, state []byte, isKept bool) *record {
	next := *r
	next.Owner, next.Out.data, next.Kept = "", state, isKept // without an owner it is never alive
	return &next
}

// release gives the claim of e up and finishes e.
func (t *Table) release(ctx context.Context, e *entry, next *record) {
	if _, err := t.replace(ctx, e.claim, next); err != nil {
		t.opts.Logger.WarnContext(ctx, "once: claim not released", "err", err)
	}
	t.finish(e, outcome{}, false)
}

// replace writes next over the claim c. It returns next, or the stored record if that is
// not c. A pinned claim is not freed: its outcome is lost.
func (t *Table) replace(ctx context.Context, c *claim, next *record) (slot, error) {
	rev, isPinned := c.rev, c.rec.Pinned
	for n := 1; ; n++ {
		if isPinned && next.Kind == freeRecord {
			done := *c.rec
			done.Kind, done.Out, done.Kept = doneRecord, outcome{Kind: lost}, false
			next = &done
		}
		s, err := t.swap(ctx, c.path, next, rev)
		if err != nil || s.rec == next || !s.rec.isSame(c.rec) {
			return s, err
		}
		rev, isPinned = s.rev, s.rec.Pinned
		_ = poll(ctx, n)
	}
}

// swap writes next if path has the revision rev; zero means that it is absent. It returns
// next, or the stored record.
func (t *Table) swap(ctx context.Context, path string, next *record, rev store.Revision) (slot, error) {
	value, ttl := next.encode(), t.ttl(next)
	var written store.Revision
	err := state.Change(ctx, func(ctx context.Context) (err error) {
		if rev == 0 {
			written, err = t.db.Create(ctx, path, value, ttl)
		} else {
			written, err = t.db.Update(ctx, path, value, rev, ttl)
		}
		return err
	})
	switch {
	case err == nil:
		return slot{next, written}, nil
	case errors.Is(err, store.ErrUnknown) || errors.Is(err, store.ErrInvalid):
		return slot{}, fmt.Errorf("once: write: %w", err)
	}
	s, err := t.get(ctx, path)
	if err == nil && s.rec.isSame(next) {
		next.Pinned = s.rec.Pinned // since it was written
		s.rec = next
	}
	return s, err
}

// ttl returns the time to live of r.
func (t *Table) ttl(r *record) time.Duration {
	switch r.Kind {
	case freeRecord:
		return state.LandTime
	case doneRecord:
		return max(t.opts.Retention, state.LandTime)
	}
	return max(t.opts.Retention, state.LandTime, t.opts.RetryTTL-runTTL) + runTTL
}

// isExpired reports whether an outcome is kept only so that no Create in doubt lands after it.
func (t *Table) isExpired(r *record, e store.Entry) bool {
	extra := t.ttl(r) - t.opts.Retention
	return t.opts.Retention > 0 && extra > 0 && !e.Expires.IsZero() && time.Until(e.Expires) <= extra
}

// get reads a key.
func (t *Table) get(ctx context.Context, path string) (slot, error) {
	var e store.Entry
	err := state.Read(ctx, func(ctx context.Context) (err error) {
		e, err = t.db.Get(ctx, path)
		return err
	})
	switch {
	case errors.Is(err, store.ErrNotFound):
		return slot{}, nil
	case err != nil:
		return slot{}, fmt.Errorf("once: read: %w", err)
	}
	r, err := decode(e.Value)
	if err == nil && r.Kind == doneRecord && t.isExpired(r, e) {
		r.Kind = freeRecord
	}
	return slot{r, e.Revision}, err
}

// refresh renews the claims that run, and does so again until Close.
func (t *Table) refresh() {
	t.mu.Lock()
	running := slices.Collect(maps.Keys(t.running))
	isOver := t.ctx.Err() != nil // a Shutdown waits for the claims
	if !isOver {
		t.wg.Add(1)
	}
	t.mu.Unlock()
	if isOver {
		return
	}
	defer t.wg.Done()
	for _, e := range running {
		t.renew(e)
	}
	t.timer.Reset(t.ttl(&record{}) / 2)
}

// renew renews the time to live of the claim of e and its aliases as long as they are
// stored.
func (t *Table) renew(e *entry) {
	ctx, cancel := lazy.WithTimeout(t.ctx, runTTL/8)
	defer cancel()
	own := e.claim.rec
	for _, id := range append([]string{e.key.ID}, e.key.Aliases...) {
		path := t.path(&e.key, id)
		s, err := t.get(ctx, path)
		if err == nil && s.rec.isSame(own) {
			err = state.Change(ctx, func(ctx context.Context) error {
				_, err := t.db.Update(ctx, path, s.rec.encode(), s.rev, t.ttl(own))
				return err
			})
		}
		if err != nil {
			t.opts.Logger.WarnContext(ctx, "once: claim not renewed", "err", err)
		}
		own = e.alias()
	}
}

// Peek returns the state of k, and its claim if there is one. It does not wait for the end of work. A claim
// that Retry keeps is StateRunning with Kept.
func (t *Table) Peek(ctx context.Context, k Key) (State, Claim, error) {
	state, c, _, err := t.peek(ctx, k)
	return state, c, err
}

// pin returns the claim of k in the store, which it pins if it runs.
func (t *Table) pin(ctx context.Context, k *Key) (slot, error) {
	ctx, cancel := t.bound(ctx)
	defer cancel()
	for n := 1; ; n++ {
		s, path, err := t.lookup(ctx, k)
		if err != nil || s.rec == nil || s.rec.Kind != runningRecord || s.rec.Pinned || !bytes.Equal(s.rec.Digest, k.Digest[:]) {
			return s, err
		}
		next := *s.rec
		next.Pinned = true
		s, err = t.swap(ctx, path, &next, s.rev)
		if err != nil || s.rec == &next && next.Pinned {
			return s, err
		}
		_ = poll(ctx, n)
	}
}

// lookup returns the claim of k in the store and its key, if there is one.
func (t *Table) lookup(ctx context.Context, k *Key) (s slot, path string, err error) {
	ids := append([]string{k.ID}, k.Aliases...)
	for i := 0; i < len(ids) && !s.rec.isClaim(); i++ {
		if ids[i] == "" {
			continue
		}
		path = t.path(k, ids[i])
		if s, err = t.get(ctx, path); err == nil {
			err = t.checkAlias(ctx, k, s.rec)
		}
		var other aliasError
		switch {
		case errors.As(err, &other):
			ids = append(ids, other.id)
		case err != nil:
			return slot{}, "", err
		}
	}
	return s, path, nil
}

// Wait waits until no live instance runs k, and returns its state and claim, and the data of an outcome. It
// claims nothing.
func (t *Table) Wait(ctx context.Context, k Key) (State, Claim, []byte, error) {
	for n := 1; ; n++ {
		e, end, err := t.follow(&k)
		if err != nil {
			return StateAbsent, Claim{}, nil, err
		}
		if end != nil {
			if _, err := t.wait(ctx, e, end); err != nil {
				return StateAbsent, Claim{}, nil, err
			}
			if end.out.Kind != noOutcome && e.key.Digest == k.Digest {
				data, err := end.out.result()
				return StateDone, Claim{}, data, err
			}
		}
		state, c, data, err := t.peek(ctx, k)
		if err != nil || state != StateRunning || c.Kept || c.Lost {
			return state, c, data, err
		}
		if err := poll(ctx, n); err != nil {
			return state, c, nil, fmt.Errorf("once: wait: %w", err)
		}
	}
}

func (t *Table) peek(ctx context.Context, k Key) (State, Claim, []byte, error) {
	var r *record
	isPinned := k.Pin && t.db != nil // the claim in the store, which this instance may have lost
	t.mu.Lock()
	e := t.entryLocked(&k)
	if e != nil && !isPinned && e.granted.Attempt > 0 && (t.db == nil || e.claim.epoch.Err() == nil) {
		e.isPinned = e.isPinned || k.Pin && e.own == nil && e.key.Digest == k.Digest
		r = &record{Kind: runningRecord, Digest: e.key.Digest[:], Token: e.granted.Token, Attempt: e.granted.Attempt}
		r.Out.data = e.granted.State
		switch {
		case e.own != nil && e.out.Kind == kept:
			r.Out.data, r.follows = e.out.data, true
		case e.own != nil:
			r.Kind, r.Out = doneRecord, e.out
		}
	}
	isOwn := r != nil
	t.mu.Unlock()
	if t.db != nil && r == nil {
		var s slot
		var err error
		if isPinned {
			s, err = t.pin(ctx, &k)
		} else {
			s, _, err = t.lookup(ctx, &k)
		}
		if err != nil {
			return StateAbsent, Claim{}, nil, err
		}
		r = s.rec
	}
	switch {
	case !r.isClaim():
		return StateAbsent, Claim{}, nil, nil
	case !bytes.Equal(r.Digest, k.Digest[:]):
		return StateAbsent, Claim{}, nil, ErrReused
	case r.Kind == runningRecord && isOwn:
		return StateRunning, r.claim(), nil, nil
	case r.Kind == runningRecord:
		isAlive, err := t.lease.Alive(ctx, r.Owner)
		c := r.claim()
		c.Kept, c.Lost = r.Kept, !isAlive
		return StateRunning, c, nil, err
	case r.Out.Kind == dropped:
		c := r.claim()
		c.Dropped = true
		return StateDone, c, nil, nil
	}
	return StateDone, r.claim(), r.Out.data, nil
}
