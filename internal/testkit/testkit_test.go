// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"context"
	"errors"
	"io"
	"net/http"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/store"
)

type handler interface{ Serve(n int) int }

type handlerFunc func(n int) int

func (f handlerFunc) Serve(n int) int { return f(n) }

type wrapper func(handler) handler

// limits are bounds. A negative value removes one.
type limits struct {
	Max int // zero means 3
	Min int
}

type policy struct {
	Wait time.Duration // zero means a second, a negative value none
}

type options struct {
	Rate    float64 // zero means 1; a negative value removes the bound
	Kind    kind
	Level   int
	Limits  limits
	Retry   *policy
	Client  *http.Client
	Handler handler
	Store   store.KV
	On      func(text string) int
	Wrap    []wrapper
	hidden  int
}

type kind int

func TestNumbersSetsEachNumber(t *testing.T) {
	var got []options
	list := numbers(reflect.TypeFor[options](), []string{"Level"})
	var paths []string
	for _, f := range list {
		paths = append(paths, f.path)
		var o options
		f.set(&o, -1)
		got = append(got, o)
	}
	require.Equal(t, []string{"Rate", "Limits.Max", "Limits.Min", "Retry.Wait"}, paths)
	require.Equal(t, []options{{Rate: -1}, {Limits: limits{Max: -1}}, {Limits: limits{Min: -1}}, {Retry: &policy{Wait: -1}}}, got)
	runs := 0
	Numbers(t, func() *policy { return &policy{Wait: 5} }, func(t *testing.T, o *policy) {
		require.Contains(t, []time.Duration{0, -1}, o.Wait)
		runs++
	})
	require.Equal(t, 3, runs, "0, -1 and all at -1")
}

func TestUndocumentedFindsMissingWords(t *testing.T) {
	comments.of = map[string]map[string]string{reflect.TypeFor[options]().PkgPath(): {
		"options.Rate": "Zero means 1; a negative value removes the bound.", "limits.Max": "A negative value removes it.",
		"limits.Min": "Zero means 3.",
	}}
	t.Cleanup(func() { comments.of = nil })
	var faults []string
	for _, f := range numbers(reflect.TypeFor[options](), nil) {
		faults = append(faults, undocumented(&f))
	}
	require.Equal(t, []string{"", `comment of testkit.options.Level: no word "zero"`, `comment of testkit.limits.Max: no word "zero"`,
		`comment of testkit.limits.Min: no word "negative"`, `comment of testkit.policy.Wait: no word "zero"`}, faults)
}

func TestCommentsOfJoinsFieldAndStruct(t *testing.T) {
	list := commentsOf(reflect.TypeFor[Log]().PkgPath())
	require.Contains(t, list["Log.mu"], "safe for concurrent use")
	require.Contains(t, list["Hook.Path"], "such as Auth.Authenticator")
}

func TestHooksPanicUntilNoneIsLeft(t *testing.T) {
	var paths []string
	base := func() *options {
		return &options{hidden: 1, Handler: handlerFunc(func(n int) int { return n + 1 }), On: func(text string) int { return len(text) }}
	}
	call := func(o *options, path string) int {
		switch path {
		case "Handler":
			return o.Handler.Serve(4)
		case "Store":
			_, err := o.Store.Create(context.Background(), "k", nil, 0)
			require.NoError(t, err)
			return 5
		case "On":
			return o.On("abcde")
		}
		return o.Wrap[0](base().Handler).Serve(4)
	}
	Hooks(t, base, func(t *testing.T, o *options, h *Hook) {
		paths = append(paths, h.Path)
		for range 3 {
			require.PanicsWithValue(t, h.Path, func() { call(o, h.Path) })
		}
		h.Left.Store(1)
		require.PanicsWithValue(t, h.Path, func() { call(o, h.Path) })
		require.Equal(t, 5, call(o, h.Path))
		require.EqualValues(t, 4, h.Count.Load())
	}, reflect.TypeFor[handlerFunc]())
	require.Equal(t, []string{"Handler", "Store", "On", "Wrap"}, paths)
}

func TestHooksNeedAdapters(t *testing.T) {
	var h Hook
	_, ok := h.around(reflect.TypeFor[handler](), reflect.Zero(reflect.TypeFor[handler]()), nil)
	require.False(t, ok)
	_, ok = h.around(reflect.TypeFor[[]wrapper](), reflect.Zero(reflect.TypeFor[[]wrapper]()), nil)
	require.False(t, ok)
	_, ok = h.around(reflect.TypeFor[[]func()](), reflect.Zero(reflect.TypeFor[[]func()]()), nil)
	require.False(t, ok)
}

func TestLogKeepsLines(t *testing.T) {
	var l Log
	l.Logger().Debug("x: y", "k", 1)
	require.Contains(t, l.String(), "level=DEBUG msg=\"x: y\" k=1")
}

func TestExploreVisitsEachStateOnce(t *testing.T) {
	next := func(s int) []int { return []int{(s + 1) % 6, (s + 2) % 6} }
	visits := 0
	n, err := Explore(0, next, func(int) error { visits++; return nil })
	require.NoError(t, err)
	require.Equal(t, 6, n)
	require.Equal(t, 6, visits)
	errState := errors.New("wrong state")
	_, err = Explore(0, next, func(s int) error {
		if s == 4 {
			return errState
		}
		return nil
	})
	require.ErrorIs(t, err, errState)
	require.ErrorContains(t, err, "wrong state: 4")
}

func TestServeSlowBodyReturnsResponse(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := io.ReadAll(r.Body)
		if err != nil {
			w.WriteHeader(http.StatusTeapot)
		}
	})
	require.Contains(t, ServeSlowBody(t, h, 50*time.Millisecond, "POST / HTTP/1.1\r\nHost: x\r\n"), " 418 ")
}
