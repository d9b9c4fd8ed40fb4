// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"context"
	"iter"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fivewire/fivewire/store"
)

// A Hook is a function or an interface of options that panics with its path.
type Hook struct {
	Path  string       // such as Auth.Authenticator
	Skip  atomic.Int64 // calls before the first panic
	Left  atomic.Int64 // panics before the hook works as in the other options; negative: without end
	Count atomic.Int64 // panics until now
}

// panics counts a call and panics if it is due.
func (h *Hook) panics() {
	if h.Skip.Add(-1) >= 0 {
		return
	}
	for n := h.Left.Load(); n >= 0; n = h.Left.Load() {
		if n == 0 {
			return
		}
		if h.Left.CompareAndSwap(n, n-1) {
			break
		}
	}
	h.Count.Add(1)
	panic(h.Path)
}

// Hooks runs use once with each function and interface of the options panicking at each call. A
// store panics at all its methods. Other interfaces need an adapter in funcs, the type of a function
// that implements them, such as AuthenticatorFunc. A list of wrappers, such as Middleware, gets one
// whose handler panics. The function base returns the other options; a hook without panics left does
// what it does there.
func Hooks[O any](t *testing.T, base func() *O, use func(t *testing.T, o *O, h *Hook), funcs ...reflect.Type) {
	t.Helper()
	tested := 0
	for _, f := range fields(reflect.TypeFor[O](), "", nil) {
		if !isHook(f.Type) {
			continue
		}
		tested++
		t.Run(f.path, func(t *testing.T) {
			o, h := base(), &Hook{Path: f.path}
			h.Left.Store(-1)
			v := f.value(reflect.ValueOf(o))
			old := reflect.New(f.Type).Elem()
			old.Set(v)
			hooked, ok := h.around(f.Type, old, funcs)
			if !ok {
				t.Fatalf("no adapter for %s of type %s", f.path, f.Type)
			}
			v.Set(hooked)
			use(t, o, h)
		})
	}
	if tested == 0 {
		t.Fatalf("%T has no hooks", *new(O))
	}
}

// PanickingStore returns db with one access that panics: that after skip other ones.
func PanickingStore(db store.Store, skip int64) (panicking store.Store, h *Hook) {
	h = &Hook{Path: "store"}
	h.Skip.Store(skip)
	h.Left.Store(1)
	return hookedStore{db, h}, h
}

// isHook reports whether a field is code of the user.
func isHook(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Func, reflect.Interface:
		return true
	case reflect.Slice:
		return t.Elem().Kind() == reflect.Func
	}
	return false
}

// around returns a value of type t that panics, or does what old does.
func (h *Hook) around(t reflect.Type, old reflect.Value, funcs []reflect.Type) (reflect.Value, bool) {
	switch t.Kind() {
	case reflect.Func:
		return h.function(t, old), true
	case reflect.Slice:
		w := t.Elem()
		if w.NumIn() != 1 || w.NumOut() != 1 || w.In(0) != w.Out(0) {
			return old, false
		}
		inner := w.In(0)
		if _, ok := h.around(inner, reflect.Zero(inner), funcs); !ok {
			return old, false
		}
		wrapper := reflect.MakeFunc(w, func(next []reflect.Value) []reflect.Value {
			wrapped, _ := h.around(inner, next[0], funcs)
			return []reflect.Value{wrapped}
		})
		return reflect.Append(old, wrapper), true
	}
	if hooked := (hookedStore{h: h}); reflect.TypeOf(hooked).Implements(t) {
		hooked.Store, _ = old.Interface().(store.Store)
		if hooked.Store == nil {
			hooked.Store = store.NewMemory()
		}
		return reflect.ValueOf(hooked), true
	}
	for _, f := range funcs {
		if !f.Implements(t) {
			continue
		}
		if !old.IsNil() {
			old = old.Elem().MethodByName(t.Method(0).Name)
		}
		return h.function(f, old), true
	}
	return old, false
}

// function returns a function of type t that panics, or calls old unless that is nil.
func (h *Hook) function(t reflect.Type, old reflect.Value) reflect.Value {
	return reflect.MakeFunc(t, func(args []reflect.Value) []reflect.Value {
		h.panics()
		if !old.IsNil() {
			if t.IsVariadic() {
				return old.CallSlice(args)
			}
			return old.Call(args)
		}
		results := make([]reflect.Value, t.NumOut())
		for i := range results {
			results[i] = reflect.Zero(t.Out(i))
		}
		return results
	})
}

// A hookedStore panics at each method, or does what the store in it does.
type hookedStore struct {
	store.Store
	h *Hook
}

func (s hookedStore) Get(ctx context.Context, key string) (store.Entry, error) {
	s.h.panics()
	return s.Store.Get(ctx, key)
}

func (s hookedStore) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	s.h.panics()
	return s.Store.Create(ctx, key, value, ttl)
}

func (s hookedStore) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	s.h.panics()
	return s.Store.Update(ctx, key, value, rev, ttl)
}

func (s hookedStore) Delete(ctx context.Context, key string, rev store.Revision) error {
	s.h.panics()
	return s.Store.Delete(ctx, key, rev)
}

func (s hookedStore) List(ctx context.Context, prefix string) iter.Seq2[store.Entry, error] {
	s.h.panics()
	return s.Store.List(ctx, prefix)
}

func (s hookedStore) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	s.h.panics()
	return s.Store.Append(ctx, stream, id, value, ttl)
}

func (s hookedStore) Read(ctx context.Context, stream string, after uint64, limit int) ([]store.Record, error) {
	s.h.panics()
	return s.Store.Read(ctx, stream, after, limit)
}

func (s hookedStore) Ack(ctx context.Context, stream string, pos ...uint64) error {
	s.h.panics()
	return s.Store.Ack(ctx, stream, pos...)
}

func (s hookedStore) Expire(ctx context.Context, stream string, ttl time.Duration) error {
	s.h.panics()
	return s.Store.Expire(ctx, stream, ttl)
}

// Wait panics only after its context has ended: its callers repeat it.
func (s hookedStore) Wait(ctx context.Context, stream string, after uint64) error {
	if s.h.Left.Load() != 0 {
		<-ctx.Done()
	}
	s.h.panics()
	return s.Store.Wait(ctx, stream, after)
}
