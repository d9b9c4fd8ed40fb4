// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package guard calls user code: a panic of a handler, a hook or a method of a
// user's value becomes an error of one request.
package guard

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"sync/atomic"
)

const (
	maxStack = 64 << 10
	maxText  = 1 << 10
)

// ErrGoexit is the Value of a PanicError if the user code called runtime.Goexit,
// as t.FailNow does.
var ErrGoexit = errors.New("runtime.Goexit called")

// A PanicError is a panic of user code. It unwraps to nothing: a panic is an
// internal error, even if its value is an error with a code.
type PanicError struct {
	What  string // the user code, for example "handler"
	Value any    // the argument of panic, or ErrGoexit
	Stack []byte // of the goroutine at the panic, at most 64 KiB
}

// IsGoexit reports whether err is a PanicError because of runtime.Goexit.
func IsGoexit(err error) bool {
	p, ok := errors.AsType[*PanicError](err)
	return ok && p.Value == ErrGoexit
}

// Error returns What and at most 1 KiB of Value.
func (e *PanicError) Error() string {
	text := fmt.Sprint(e.Value)
	return e.What + " panicked: " + text[:min(len(text), maxText)]
}

// Call runs f and returns its error, or a *PanicError if f or the Error method of
// its error panics. It runs f on the goroutine of the caller, so it cannot return
// from runtime.Goexit; a caller that needs the outcome even then uses Run.
func Call(what string, f func() error) (err error) {
	Run(what, f, func(e error) { err = e })
	return err
}

// Run calls f like Call and passes the outcome to done, exactly once. After
// runtime.Goexit, done gets a *PanicError and the goroutine ends once done returns.
// A panic of done is not recovered.
func Run(what string, f func() error, done func(error)) {
	var err error
	returned := false
	defer func() {
		if !returned {
			err = newPanicError(what, recover())
		}
		done(err)
	}()
	err = f()
	if err != nil {
		_ = err.Error() // a nil pointer in an error panics here
	}
	returned = true
}

// CallApart is Call on a separate goroutine, for which it waits: the caller gets an
// error also after runtime.Goexit.
func CallApart(what string, f func() error) error {
	outcome := make(chan error, 1)
	go Run(what, f, func(err error) { outcome <- err })
	return <-outcome
}

// Seq is seq with its panic as the last error. It does not recover a panic of the loop.
func Seq[V any](what string, seq iter.Seq2[V, error]) iter.Seq2[V, error] {
	return func(yield func(V, error) bool) {
		inLoop, isLeft := false, false
		defer func() {
			p := recover()
			switch {
			case p != nil && inLoop:
				panic(p)
			case p != nil && !isLeft:
				var none V
				yield(none, newPanicError(what, p))
			}
		}()
		seq(func(v V, err error) bool {
			inLoop = true
			isLeft = !yield(v, err)
			inLoop = false
			return !isLeft
		})
	}
}

// Once is seq for one loop, so that a second one does not repeat its effects. That gets the error used.
func Once[V any](seq iter.Seq2[V, error], used error) iter.Seq2[V, error] {
	var isUsed atomic.Bool
	return func(yield func(V, error) bool) {
		if isUsed.Swap(true) {
			var none V
			yield(none, used)
			return
		}
		seq(yield)
	}
}

// Encode returns v as JSON by the rules of encoding/json, without the escaping that is meant for HTML
// pages. The MarshalJSON and MarshalText methods of v may panic.
func Encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := Call("encoding", func() error { return enc.Encode(v) }); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

func newPanicError(what string, value any) *PanicError {
	if value == nil {
		value = ErrGoexit
	}
	buf := make([]byte, maxStack)
	return &PanicError{What: what, Value: value, Stack: slices.Clone(buf[:runtime.Stack(buf, false)])}
}
