// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A poll of a mailbox does not lose an unsettled envelope, and hands out every one as long as the relay answers,
// whatever fails and wherever drains end (AIR-D63, AIR-D65).
func TestPollSkipsNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const envelopes, pageSize = 9, 2
		var settled [envelopes + 1]bool
		var p Poll
		// drain makes one drain with at most pages pages. It settles envelopes at random, or all.
		drain := func(pages int, mayFail, isLast bool) {
			p = p.Begin()
			for range pages {
				requested, before := p.Cursor, p
				after := 0
				if requested != "" && requested != "end" {
					_, err := fmt.Sscanf(requested, "c%d", &after)
					require.NoError(t, err)
				}
				for i := 1; i <= after; i++ {
					require.True(t, settled[i] || p.IsBack, "envelope %d is skipped by cursor %s", i, requested)
				}
				if mayFail && rapid.IntRange(0, 4).Draw(t, "fails") == 0 {
					p, _ = before.Fail(requested)
					return
				}
				n, last := 0, after
				for i := after + 1; i <= envelopes && n < pageSize; i++ {
					if settled[i] {
						continue // acknowledged
					}
					n, last = n+1, i
					if settled[i] = isLast || rapid.Bool().Draw(t, "settled"); !settled[i] {
						p = p.Hold(requested)
					}
				}
				cursor, more := "end", false
				for i := last + 1; i <= envelopes; i++ {
					more = more || !settled[i]
				}
				if more {
					cursor = fmt.Sprint("c", last)
				}
				if p = p.Page(requested, cursor, n == 0, more); !p.IsBehind {
					return
				}
			}
		}
		for range rapid.IntRange(1, 20).Draw(t, "drains") {
			drain(rapid.IntRange(1, 4).Draw(t, "pages"), true, false)
		}
		for range 2 {
			drain(100, false, true)
		}
		for i := 1; i <= envelopes; i++ {
			require.True(t, settled[i], "envelope %d is never handed out", i)
		}
	})
}

// A cursor that the relay refuses three times in a row is dropped.
func TestPollDropsRefusedCursor(t *testing.T) {
	p := Poll{Cursor: "c1"}
	for n := range 5 {
		p = p.Answer("c1", n != 1)
		before := p
		var isDropped bool
		p, isDropped = p.Fail("c1")
		require.Equal(t, n == 4, isDropped, n)
		if isDropped {
			require.Empty(t, p.Cursor)
			continue
		}
		require.Equal(t, before.Cursor, p.Cursor)
	}
	require.Empty(t, Poll{}.Answer("", true).refused, "a pull without a cursor")
}
