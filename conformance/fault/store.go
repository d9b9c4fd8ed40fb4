// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/fivewire/fivewire/store"
)

// Store returns a view of s with the faults of plan. It has the data of s, and other views of
// s see its changes. A nil plan has no faults.
func Store(s store.Store, plan *Plan) store.Store {
	if plan == nil {
		return s
	}
	return &view{s, plan}
}

type view struct {
	s    store.Store
	plan *Plan
}

// invoke makes one call with its faults.
func invoke[T any](
	ctx context.Context, v *view, op, name string, call func(ctx context.Context) (T, error),
) (result T, err error) {
	ctx, release, err := v.plan.enter(ctx)
	if err != nil {
		return result, err
	}
	defer release()
	d := v.plan.decide(op, name)
	err = v.prepare(ctx, d, name)
	if err == nil && d.fails {
		err = v.fail(ctx, d, func(ctx context.Context) { call(ctx) })
	} else if err == nil {
		result, err = call(ctx)
	}
	if e := v.plan.hold(ctx); e != nil {
		var zero T
		return zero, e
	}
	return result, err
}

// prepare applies the faults that do not decide the outcome.
func (v *view) prepare(ctx context.Context, d decision, name string) error {
	if d.slow > 0 {
		v.plan.addCount(Delay)
		if err := sleep(ctx, d.slow); err != nil {
			return err
		}
	}
	for _, rival := range d.rivals {
		if rival == nil {
			rival = rewrite
		}
		if rival(ctx, v.s, name) == nil {
			v.plan.addCount(Conflict)
		}
	}
	return nil
}

// rewrite gives the entry of key a new revision and nothing else.
func rewrite(ctx context.Context, s store.Store, key string) error {
	e, err := s.Get(ctx, key)
	if err != nil {
		return err
	}
	var ttl time.Duration
	if !e.Expires.IsZero() {
		ttl = max(1, time.Until(e.Expires))
	}
	_, err = s.Update(ctx, key, e.Value, e.Revision, ttl)
	return err
}

// fail applies the fault that decides the outcome of a call.
func (v *view) fail(ctx context.Context, d decision, call func(ctx context.Context)) error {
	switch d.action {
	case ErrorAfter:
		call(ctx)
	case LandLater:
		if !v.plan.land(ctx, d.delay, call) {
			d.action = ErrorBefore
		}
		d.delay = 0
	}
	v.plan.addCount(d.action)
	if err := sleep(ctx, d.delay); err != nil {
		return err
	}
	return fmt.Errorf("%w: %s", ErrInjected, errorTexts[d.action])
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Get implements [store.KV].
func (v *view) Get(ctx context.Context, key string) (store.Entry, error) {
	return invoke(ctx, v, opGet, key, func(ctx context.Context) (store.Entry, error) { return v.s.Get(ctx, key) })
}

// Create implements [store.KV].
func (v *view) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	value = bytes.Clone(value) // a late change needs it after the call
	return invoke(ctx, v, opCreate, key, func(ctx context.Context) (store.Revision, error) {
		return v.s.Create(ctx, key, value, ttl)
	})
}

// Update implements [store.KV].
func (v *view) Update(
	ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration,
) (store.Revision, error) {
	value = bytes.Clone(value)
	return invoke(ctx, v, opUpdate, key, func(ctx context.Context) (store.Revision, error) {
		return v.s.Update(ctx, key, value, rev, ttl)
	})
}

// Delete implements [store.KV].
func (v *view) Delete(ctx context.Context, key string, rev store.Revision) error {
	_, err := invoke(ctx, v, opDelete, key, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, v.s.Delete(ctx, key, rev)
	})
	return err
}

// List implements [store.KV].
func (v *view) List(ctx context.Context, prefix string) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		if err := v.list(ctx, prefix, yield); err != nil {
			yield(store.Entry{}, err)
		}
	}
}

// list yields entries and returns the error to yield last.
func (v *view) list(ctx context.Context, prefix string, yield func(store.Entry, error) bool) error {
	ctx, release, err := v.plan.enter(ctx)
	if err != nil {
		return err
	}
	defer release()
	d := v.plan.decide(opList, prefix)
	err = v.prepare(ctx, d, prefix)
	isCut := d.fails && d.action == ErrorAfter
	none := func(context.Context) {}
	if err == nil && d.fails && !isCut {
		err = v.fail(ctx, d, none)
	}
	if err != nil {
		return cmp.Or(v.plan.hold(ctx), err)
	}
	n := 0
	for e, err := range v.s.List(ctx, prefix) {
		if holdErr := v.plan.hold(ctx); holdErr != nil || err != nil {
			return cmp.Or(holdErr, err)
		}
		if isCut && n == d.entries {
			break
		}
		n++
		if !yield(e, nil) {
			return nil
		}
	}
	if isCut {
		return v.fail(ctx, d, none)
	}
	return v.plan.hold(ctx)
}

// Append implements [store.Log].
func (v *view) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	value = bytes.Clone(value)
	return invoke(ctx, v, opAppend, stream, func(ctx context.Context) (uint64, error) {
		return v.s.Append(ctx, stream, id, value, ttl)
	})
}

// Read implements [store.Log].
func (v *view) Read(ctx context.Context, stream string, after uint64, limit int) ([]store.Record, error) {
	return invoke(ctx, v, opRead, stream, func(ctx context.Context) ([]store.Record, error) {
		return v.s.Read(ctx, stream, after, limit)
	})
}

// Ack implements [store.Log].
func (v *view) Ack(ctx context.Context, stream string, seqs ...uint64) error {
	seqs = slices.Clone(seqs)
	_, err := invoke(ctx, v, opAck, stream, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, v.s.Ack(ctx, stream, seqs...)
	})
	return err
}

// Wait implements [store.Log].
func (v *view) Wait(ctx context.Context, stream string, after uint64) error {
	_, err := invoke(ctx, v, opWait, stream, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, v.s.Wait(ctx, stream, after)
	})
	return err
}

// Expire implements [store.Log].
func (v *view) Expire(ctx context.Context, stream string, ttl time.Duration) error {
	_, err := invoke(ctx, v, opExpire, stream, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, v.s.Expire(ctx, stream, ttl)
	})
	return err
}
