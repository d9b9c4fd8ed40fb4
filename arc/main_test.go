// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"testing"

	"go.uber.org/goleak"
)

// No test may leave a goroutine behind. The exception is the timer that net/http
// leaves when a test's transport breaks its contract by returning nothing at all,
// and the half second for which its server keeps a connection whose body it refused.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("net/http.setRequestCancel.func4"),
		goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}
