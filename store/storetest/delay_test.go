// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package storetest_test

import (
	"testing"
	"time"

	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/store"
	"github.com/fivewire/fivewire/store/storetest"
)

// A sound engine passes the suite also if its answers are late.
func TestEngineWithLateAnswersPasses(t *testing.T) {
	s := storetest.Suite{Virtual: true, Tolerance: 100 * time.Millisecond, Seed: 1}
	s.Run(t, func(t *testing.T) store.Store {
		plan := &fault.Plan{Seed: 1, Rules: []fault.Rule{{Action: fault.Delay, Probability: 0.02, Delay: 5 * time.Millisecond}}}
		t.Cleanup(plan.Close)
		return fault.Store(store.NewMemory(), plan)
	})
}
