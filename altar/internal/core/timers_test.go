// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Timers agree with a list of those that are set, in the order in which they were set.
func TestTimersModel(t *testing.T) {
	type entry struct {
		t   *Timer
		due time.Time
	}
	start := time.Unix(0, 0)
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		var ts Timers
		var model []entry
		all := make([]Timer, 8)
		for range 80 {
			x := &all[r.IntN(len(all))]
			without := func() {
				model = slices.DeleteFunc(model, func(e entry) bool { return e.t == x })
			}
			at := start.Add(time.Duration(r.IntN(12)) * time.Second)
			switch r.IntN(4) {
			case 0:
				without()
				ts.Stop(x)
			case 1:
				var want *Timer
				for _, e := range model {
					if !e.due.After(at) && (want == nil || e.due.Before(want.due)) {
						want = e.t
					}
				}
				got := ts.Next(at)
				require.Same(t, want, got, "seed %d", seed)
				x = got
				without()
			default:
				without()
				model = append(model, entry{x, at})
				ts.Set(x, at)
			}
			first, _, isSet := ts.First()
			require.Equal(t, len(model) > 0, isSet)
			for _, e := range model {
				require.True(t, e.t.IsSetTo(e.due))
				require.False(t, e.due.Before(first))
			}
			for i := range all {
				isListed := slices.ContainsFunc(model, func(e entry) bool { return e.t == &all[i] })
				require.Equal(t, isListed, all[i].IsSet(), "seed %d", seed)
			}
		}
	}
}
