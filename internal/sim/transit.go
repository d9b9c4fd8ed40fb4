// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"iter"
	"strconv"
	"time"

	"github.com/fivewire/fivewire/store"
)

// A transit value is the way of a node to the store: each call reaches the store at a nanosecond without
// another event.
type transit struct {
	w    *World
	node string
}

// send makes a call after its way to the store. If ctx ends first, the change may be made anyway. The length of
// the value tells two calls of one nanosecond apart; ids in it are random, and two goroutines that draw them at one
// nanosecond get them in any order.
func send[T any](ctx context.Context, t *transit, op, name string, value []byte, call func(ctx context.Context, s direct) (T, error)) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	err := t.w.Sleep(ctx, t.w.between(100*time.Microsecond, 3*time.Millisecond, t.node, op, name, strconv.Itoa(len(value))))
	if err != nil && t.w.draw("lost", t.node, op, name, strconv.Itoa(len(value)))%2 == 0 {
		t.w.Event(t.node, op, name, "lost")
		return none, err
	}
	result, callErr := call(context.WithoutCancel(ctx), direct{t.w.disk})
	t.w.Event(t.node, op, name, classOf(callErr))
	if err != nil {
		return none, err
	}
	return result, callErr
}

func classOf(err error) string {
	for _, answer := range []error{
		store.ErrNotFound, store.ErrExists, store.ErrConflict, store.ErrDuplicate, store.ErrInvalid,
		context.Canceled, context.DeadlineExceeded,
	} {
		if errors.Is(err, answer) {
			return answer.Error()
		}
	}
	if err != nil {
		return "error"
	}
	return "ok"
}

func (t *transit) Get(ctx context.Context, key string) (store.Entry, error) {
	return send(ctx, t, "get", key, nil, func(ctx context.Context, s direct) (store.Entry, error) { return s.Get(ctx, key) })
}

func (t *transit) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	return send(ctx, t, "create", key, value, func(ctx context.Context, s direct) (store.Revision, error) {
		return s.create(ctx, t.node, key, value, ttl)
	})
}

func (t *transit) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	return send(ctx, t, "update", key, value, func(ctx context.Context, s direct) (store.Revision, error) {
		return s.update(ctx, t.node, store.Entry{Key: key, Value: value, Revision: rev}, ttl)
	})
}

func (t *transit) Delete(ctx context.Context, key string, rev store.Revision) error {
	_, err := send(ctx, t, "delete", key, nil, func(ctx context.Context, s direct) (struct{}, error) {
		return struct{}{}, s.remove(ctx, t.node, key, rev)
	})
	return err
}

func (t *transit) List(ctx context.Context, prefix string) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		list, err := send(ctx, t, "list", prefix, nil, func(_ context.Context, s direct) (iter.Seq2[store.Entry, error], error) {
			return s.List(ctx, prefix), nil
		})
		if err != nil {
			yield(store.Entry{}, err)
			return
		}
		list(yield)
	}
}

func (t *transit) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	return send(ctx, t, "append", stream, value, func(ctx context.Context, s direct) (uint64, error) {
		return s.Append(ctx, stream, id, value, ttl)
	})
}

func (t *transit) Read(ctx context.Context, stream string, after uint64, limit int) ([]store.Record, error) {
	return send(ctx, t, "read", stream, nil, func(ctx context.Context, s direct) ([]store.Record, error) {
		return s.Read(ctx, stream, after, limit)
	})
}

func (t *transit) Ack(ctx context.Context, stream string, seqs ...uint64) error {
	_, err := send(ctx, t, "ack", stream, nil, func(ctx context.Context, s direct) (struct{}, error) {
		return struct{}{}, s.Ack(ctx, stream, seqs...)
	})
	return err
}

// Wait has its way after the wait too, so that the readers of a stream notice an append one after the other.
func (t *transit) Wait(ctx context.Context, stream string, after uint64) error {
	if err := (direct{t.w.disk}).Wait(ctx, stream, after); err != nil {
		return err
	}
	_, err := send(ctx, t, "wait", stream, nil, func(context.Context, direct) (struct{}, error) { return struct{}{}, nil })
	return err
}

func (t *transit) Expire(ctx context.Context, stream string, ttl time.Duration) error {
	_, err := send(ctx, t, "expire", stream, nil, func(ctx context.Context, s direct) (struct{}, error) {
		return struct{}{}, s.Expire(ctx, stream, ttl)
	})
	return err
}
