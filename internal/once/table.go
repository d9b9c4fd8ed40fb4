// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package once

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/retry"
)

const (
	maxWaiters = 64
	maxEnding  = 4096
	maxText    = 1024 // bytes of the text of an error
	nameCost   = 64
)

// poll waits until the next read of a claim of another instance.
func poll(ctx context.Context, attempt int) error {
	return retry.Sleep(ctx, retry.Delay(attempt, 25*time.Millisecond, time.Second))
}

// A name is one id of an entry.
type name struct{ principal, scope, id string }

// An entry is a key that is in progress in this process, or retained in memory. Its
// fields except key and claim are guarded by Table.mu.
type entry struct {
	key      Key
	single   [1]string     // the aliases of key, if there is one
	others   []name        // of calls whose key has an alias of it
	claim    *claim        // in the store
	isKnown  bool          // a claim with the digest of key exists
	granted  Claim         // to this process, if its Attempt is positive
	waiting  int           // calls
	end      *ending       // nil: no call waits, or ended
	isEnding bool          // its attempt has ended without an outcome, which the store has to take
	isPinned bool          // in memory: it has an outcome
	out      outcome       // retained
	expires  time.Duration // of out, since the start of the Table
	own      *queue        // of the principal, if out is retained
}

// An ending is the end of an entry. The other fields are set before their channel is closed.
type ending struct {
	done     chan struct{}
	out      outcome // none: the waiting calls try again
	replayed bool    // out is from another run than that of the entry

	storing chan struct{} // nil in memory; closed when only the store is awaited, for limit
	limit   time.Duration
}

// An outcome is the end of work.
type outcome struct {
	Kind byte
	Text string // of an error
	data []byte
}

// The kinds of outcome.
const (
	noOutcome byte = iota
	succeeded
	failed
	lost
	dropped // not retained
	kept    // in memory only: no outcome but the data of Retry
)

func (o *outcome) size() int { return len(o.data) + len(o.Text) }

func (o *outcome) result() ([]byte, error) {
	switch o.Kind {
	case succeeded:
		return o.data, nil
	case failed:
		return o.data, &failure{text: o.Text}
	case lost:
		return nil, ErrLost
	}
	return nil, ErrNotRetained
}

// A failure is the error of a recorded outcome.
type failure struct {
	text  string
	cause error
}

func (f *failure) Error() string        { return f.text }
func (f *failure) Unwrap() error        { return f.cause }
func (f *failure) Is(target error) bool { return target == ErrFailed }

// Do runs f for k unless that was done before, and returns its outcome, or that of the
// earlier run with replayed set. While another call runs the key, Do waits, unless k has NoWait. The data is
// shared and must not be changed. An error or a panic of f is an outcome too; without
// an outcome are a Result with Forget or Retry, and, under Repeat, an error of f after the lease of the
// instance has ended.
//
// Do runs f on its goroutine, with a context that ends with ctx and, with a store, with
// the lease. The end of ctx ends everything else that Do waits for. Under Repeat an
// outcome is returned only when it is recorded, because another attempt may have another
// one; after Retry, Do waits for the record, too, since the next call may be at another instance, which
// would find this one running. Under AtMostOnce it is returned after a second even if the store does not take it.
func (t *Table) Do(ctx context.Context, k Key, p Policy,
	f func(ctx context.Context, c Claim) (Result, error)) (data []byte, replayed bool, err error) {
	if k.ID == "" {
		return t.call(ctx, firstClaim(), k.Exit, f, func(r result) result { return r }).values()
	}
	target := k // or the claim that has an alias of k
	for attempt := 1; ; attempt++ {
		e, out, err := t.enter(ctx, &target, &k)
		if err == nil && e != nil && t.db != nil {
			out, err = t.claim(ctx, e, p, target.ID != k.ID)
		}
		switch {
		case err != nil:
			other, isAlias := errors.AsType[aliasError](err)
			if !isAlias {
				return nil, false, err
			}
			target = k
			if other.id != "" {
				target.ID, target.Aliases = other.id, nil
			} else {
				_ = poll(ctx, attempt)
			}
		case out.Kind != noOutcome:
			data, err = out.result()
			return data, true, err
		case e == nil: // the other call ended without an outcome
			target = k
		case t.db == nil:
			return t.call(ctx, e.granted, k.Exit, f, func(r result) result {
				if r.isRetried && t.opts.Retention > 0 {
					r.out = outcome{Kind: kept, data: bytes.Clone(r.data)}
				}
				t.finish(e, r.out, false)
				return r
			}).values()
		default:
			return t.run(ctx, e, p, k.Exit, f)
		}
	}
}

func firstClaim() Claim { return Claim{Token: randid.New(""), Attempt: 1} }

type work = func(ctx context.Context, c Claim) (Result, error)

// A result is how user code ended, and its outcome if that is to be recorded.
type result struct {
	data []byte
	err  error
	out  outcome

	isRetried bool // by the next call
}

func (r result) values() (data []byte, replayed bool, err error) { return r.data, false, r.err }

// call runs f and passes its result to done, also after a panic and runtime.Goexit.
func (t *Table) call(ctx context.Context, c Claim, exit *Result, f work, done func(result) result) (r result) {
	var res Result
	var text string
	guard.Run("keyed work", func() (err error) {
		res, err = f(ctx, c)
		if err != nil {
			text = err.Error()
		}
		return err
	}, func(err error) {
		if exit != nil && guard.IsGoexit(err) {
			res, err = *exit, nil
		}
		r = result{data: res.Data, err: err, isRetried: res.Retry}
		if err != nil && text == "" {
			text = err.Error() // of a panic
		}
		if !res.Forget && !res.Retry && t.opts.Retention > 0 {
			r.out.Kind = succeeded
			if err != nil {
				r.out.Kind, r.out.Text = failed, strings.ToValidUTF8(text[:min(len(text), maxText)], "")
				r.err = &failure{r.out.Text, err}
			}
			if res.Drop || len(res.Data) > t.opts.MaxOutcome {
				r.out = outcome{Kind: dropped}
			} else {
				r.out.data = bytes.Clone(res.Data)
			}
		}
		r = done(r)
	})
	return r
}

// enter returns a new entry, which the caller has to finish. If k has an entry, it waits
// for the end of that and returns the outcome. The original key is that of the call, which may have an alias of k.
func (t *Table) enter(ctx context.Context, k, original *Key) (e *entry, out outcome, err error) {
	if ctx.Err() != nil {
		return nil, out, context.Cause(ctx)
	}
	e, end, out, err := t.find(k, original)
	if end == nil {
		return e, out, err
	}
	if k.NoWait { // it ends as soon as the store answers
		bounded, cancel := t.bound(ctx)
		defer cancel()
		ctx = bounded
	}
	out, err = t.wait(ctx, e, end)
	if out.Kind != noOutcome && e.key.Digest != k.Digest {
		err = ErrReused
	}
	return nil, out, err
}

// wait waits for the end of an entry, which counts the caller.
func (t *Table) wait(ctx context.Context, e *entry, end *ending) (out outcome, err error) {
	if err = t.await(ctx, end); err == nil {
		return end.out, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	e.waiting--
	return out, err
}

// await waits for end, but no longer than its limit when only the store is awaited.
func (t *Table) await(ctx context.Context, end *ending) error {
	storing, late := end.storing, (<-chan time.Time)(nil)
	for {
		var err error
		select {
		case <-end.done:
			return nil
		case <-storing:
			storing, late = nil, time.After(end.limit)
			continue
		case <-late:
			err = context.DeadlineExceeded
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-t.ctx.Done():
			err = ErrClosed
		}
		return fmt.Errorf("once: wait: %w", err)
	}
}

// follow returns the entry of k that runs, with the ending that the caller may wait for, if there is one.
func (t *Table) follow(k *Key) (*entry, *ending, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entryLocked(k)
	switch {
	case t.isClosed:
		return nil, nil, ErrClosed
	case e == nil && t.ending >= maxEnding, e != nil && e.waiting >= maxWaiters:
		return nil, nil, ErrBusy
	case e == nil || e.own != nil:
		return nil, nil, nil
	}
	return e, e.joinLocked(), nil
}

// joinLocked counts a call that waits for the end of e. Table.mu must be held.
func (e *entry) joinLocked() *ending {
	if e.end == nil {
		e.end = &ending{done: make(chan struct{})}
	}
	e.waiting++
	return e.end
}

// find returns a new entry for k, the entry of k with the ending that the caller has to
// wait for, or a retained outcome. An entry that is in progress has the names of the original key, too.
func (t *Table) find(k, original *Key) (e *entry, end *ending, out outcome, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e = t.entryLocked(k)
	switch {
	case t.isClosed:
		return nil, nil, out, ErrClosed
	case e == nil && t.ending >= maxEnding:
		return nil, nil, out, ErrBusy
	case e == nil:
		e = &entry{isKnown: t.db == nil}
		e.setKey(k)
		if t.db != nil {
			e.end = &ending{done: make(chan struct{}), storing: make(chan struct{})}
		} else {
			e.granted = firstClaim()
		}
		e.eachName(func(n name) { t.entries[n] = e })
		t.nameLocked(e, k, original)
		return e, nil, out, nil
	case e.isKnown && e.key.Digest != k.Digest:
		return nil, nil, out, ErrReused
	case e.own != nil && e.out.Kind == kept:
		return t.resumeLocked(e, k), nil, out, nil
	case e.own != nil:
		return nil, nil, e.out, nil
	case k.NoWait && !e.isEnding, e.waiting >= maxWaiters:
		return nil, nil, out, ErrBusy
	}
	t.nameLocked(e, k, original)
	return e, e.joinLocked(), out, nil
}

// nameLocked gives e, the entry of k, the free names of the original key. The claim in the store may be absent
// before its work has ended here, so the aliases there do not suffice. t.mu must be held.
func (t *Table) nameLocked(e *entry, k, original *Key) {
	if k.ID == original.ID {
		return
	}
	other := &entry{}
	other.setKey(original)
	other.eachName(func(n name) {
		if t.entries[n] == nil {
			t.entries[n] = e
			e.others = append(e.others, n)
		}
	})
}

// resumeLocked replaces e, which Retry has kept, by an entry for the next attempt. That has the free names of
// k, too. t.mu must be held.
func (t *Table) resumeLocked(e *entry, k *Key) *entry {
	key := e.key
	next := &entry{isKnown: true, granted: Claim{
		Token: e.granted.Token, Attempt: e.granted.Attempt + 1, Redelivered: true, Kept: true, State: e.out.data}}
	t.removeLocked(e)
	for _, id := range append([]string{k.ID}, k.Aliases...) {
		if t.entries[name{k.Principal, k.Scope, id}] == nil {
			key.Aliases = append(slices.Clip(key.Aliases), id)
		}
	}
	next.setKey(&key)
	next.eachName(func(n name) { t.entries[n] = next })
	return next
}

// entryLocked returns the entry of k, or nil. t.mu must be held.
func (t *Table) entryLocked(k *Key) *entry {
	for e := t.all.oldest(); e != nil && e.expires <= time.Since(t.start); e = t.all.oldest() {
		t.removeLocked(e)
	}
	e := t.entries[name{k.Principal, k.Scope, k.ID}]
	for i := 0; e == nil && i < len(k.Aliases); i++ {
		e = t.entries[name{k.Principal, k.Scope, k.Aliases[i]}]
	}
	if e != nil && e.own != nil && e.expires <= time.Since(t.start) { // behind one with a longer life
		t.removeLocked(e)
		return nil
	}
	return e
}

// finish removes e, or retains its outcome in memory, and gives that to the waiting calls.
func (t *Table) finish(e *entry, out outcome, replayed bool) {
	t.mu.Lock()
	end := e.end
	e.end = nil
	if e.isPinned && out.Kind == noOutcome {
		out.Kind = lost
	}
	if t.db == nil && out.Kind != noOutcome {
		t.retainLocked(e, out)
	} else {
		t.removeLocked(e)
	}
	delete(t.running, e)
	t.mu.Unlock()
	if end != nil {
		if out.Kind != kept {
			end.out, end.replayed = out, replayed
		}
		close(end.done)
	}
}

// setKey gives e a copy of k that shares no memory, with its aliases in order.
func (e *entry) setKey(k *Key) {
	rest := k.Principal + k.Scope + k.ID + strings.Join(k.Aliases, "")
	cut := func(s string) (own string) {
		own, rest = rest[:len(s)], rest[len(s):]
		return own
	}
	e.key = Key{Principal: cut(k.Principal), Scope: cut(k.Scope), ID: cut(k.ID), Digest: k.Digest, NoWait: k.NoWait}
	aliases := e.single[:0]
	for _, a := range k.Aliases {
		if a = cut(a); a != "" && a != e.key.ID && !slices.Contains(aliases, a) {
			aliases = append(aliases, a)
		}
	}
	slices.Sort(aliases)
	e.key.Aliases = aliases
}

// eachName calls f with the names of e.
func (e *entry) eachName(f func(name)) {
	f(name{e.key.Principal, e.key.Scope, e.key.ID})
	for _, a := range e.key.Aliases {
		f(name{e.key.Principal, e.key.Scope, a})
	}
}

// cost is what a retained outcome counts.
func (e *entry) cost() int {
	cost := len(e.key.Principal) + len(e.key.Scope) + e.out.size()
	e.eachName(func(n name) { cost += nameCost + len(n.id) })
	return cost
}

// A queue holds retained outcomes, the oldest first.
type queue struct {
	entries      []*entry // some are removed
	full         int      // the entries before it have no data
	bytes, count int      // of those not removed
}

func (q *queue) push(e *entry) {
	if len(q.entries) > 2*q.count+16 {
		q.entries = slices.DeleteFunc(q.entries, func(e *entry) bool { return e.own == nil })
		q.full = 0
	}
	q.entries = append(q.entries, e)
	q.bytes += e.cost()
	q.count++
}

// oldest returns the oldest outcome, or nil.
func (q *queue) oldest() *entry {
	for len(q.entries) > 0 && q.entries[0].own == nil {
		q.entries[0] = nil
		q.entries, q.full = q.entries[1:], max(q.full-1, 0)
	}
	if len(q.entries) == 0 {
		return nil
	}
	return q.entries[0]
}

// oldestFull returns the oldest outcome with data, or nil.
func (q *queue) oldestFull() *entry {
	for ; q.full < len(q.entries); q.full++ {
		if e := q.entries[q.full]; e.own != nil && e.out.size() > 0 {
			return e
		}
	}
	return nil
}

// retainLocked keeps the outcome of e within the bounds. t.mu must be held.
func (t *Table) retainLocked(e *entry, out outcome) {
	own := t.principals[e.key.Principal]
	if own == nil {
		own = &queue{}
		t.principals[strings.Clone(e.key.Principal)] = own
	}
	e.out, e.own, e.expires = out, own, time.Since(t.start)+t.opts.Retention
	if out.Kind == kept {
		e.expires = time.Since(t.start) + max(t.opts.Retention+runTTL, t.opts.RetryTTL)
	}
	own.push(e)
	t.all.push(e)
	for own.bytes > t.opts.MaxBytes || own.count > t.opts.MaxCount {
		t.shrinkLocked(own, own.count > t.opts.MaxCount)
	}
	for t.all.bytes > t.opts.TotalBytes || t.all.count > t.opts.TotalCount {
		isCount, q := t.all.count > t.opts.TotalCount, own
		if first := own.oldestFull(); own.oldest() == e || !isCount && (first == nil || first == e) {
			q = &t.all
		}
		t.shrinkLocked(q, isCount)
	}
}

// shrinkLocked removes the oldest data of q, or the oldest outcome if there is no data or
// isCount is set. t.mu must be held.
func (t *Table) shrinkLocked(q *queue, isCount bool) {
	e := q.oldestFull()
	if e == nil || isCount {
		t.removeLocked(q.oldest())
		return
	}
	if e.out.Kind == kept {
		t.removeLocked(e)
		return
	}
	t.all.bytes -= e.out.size()
	e.own.bytes -= e.out.size()
	e.out = outcome{Kind: dropped}
}

// removeLocked removes e. t.mu must be held.
func (t *Table) removeLocked(e *entry) {
	e.eachName(func(n name) { delete(t.entries, n) })
	for _, n := range e.others {
		delete(t.entries, n)
	}
	own := e.own
	if own == nil {
		return
	}
	for _, q := range []*queue{own, &t.all} {
		q.bytes -= e.cost()
		q.count--
	}
	if own.count == 0 {
		delete(t.principals, e.key.Principal)
	}
	e.own, e.out = nil, outcome{}
}
