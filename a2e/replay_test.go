// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A reader that names the message it got last does not get it again, although
// the connection that brought it was replaced before the message counted as taken.
func TestReplayAfterUncountedMessage(t *testing.T) {
	r := newReplay(4, 8)
	for _, line := range []string{"one", "two", "three"} {
		require.NoError(t, r.put([]byte(line+"\n"), 0))
	}
	next := func() string {
		_, line, wait, _ := r.peek()
		if wait != nil {
			return ""
		}
		return string(line)
	}
	require.Equal(t, "one", next())
	r.rewind(1) // the old connection is no longer used
	require.Equal(t, "two", next())
	r.took(1) // from the replaced connection
	require.Equal(t, "two", next())
	r.took(2)
	r.rewind(0)
	require.Equal(t, "one", next(), "what was lost comes again")
	r.rewind(99)
	require.Equal(t, "one", next(), "an id that nobody gave counts for nothing")
	r.rewind(1)
	r.took(2)
	r.took(3)
	require.Empty(t, next())
	r.rewind(3)
	r.rewind(4)
	require.Empty(t, next())
}
