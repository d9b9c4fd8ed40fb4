// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"context"
	"fmt"
	"testing"
)

// Example returns a test for an Example function, and the function that ends it. A failure panics.
func Example() (testing.TB, func()) {
	e := &example{}
	return e, e.end
}

type example struct {
	testing.TB
	cleanups []func()
}

func (e *example) Helper()                           {}
func (e *example) Context() context.Context          { return context.Background() }
func (e *example) Cleanup(f func())                  { e.cleanups = append(e.cleanups, f) }
func (e *example) Fatal(args ...any)                 { panic(fmt.Sprint(args...)) }
func (e *example) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func (e *example) end() {
	for i := len(e.cleanups) - 1; i >= 0; i-- {
		e.cleanups[i]()
	}
}
