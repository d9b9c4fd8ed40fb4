// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/race"
)

// The earlier connection of an agent is found without a walk over all connections.
func TestReplacementCostsNoWalkOverConnections(t *testing.T) {
	if race.Enabled {
		t.Skip("measures time")
	}
	session := &Session{}
	session.id = "session"
	cost := func(conns int) time.Duration {
		s, err := NewServer("server", &ServerOptions{Auth: Auth{AllowAnonymous: true}})
		require.NoError(t, err)
		connect := func(n int) {
			c := &wsConn{session: session}
			s.conns[c] = struct{}{}
			s.replace(c, strconv.Itoa(n))
		}
		for n := range conns {
			connect(n)
		}
		start := time.Now()
		for n := range 200 {
			connect(conns + n)
		}
		return time.Since(start)
	}
	// A busy machine can make any one of these take long, but not all of them.
	for range 5 {
		if cost(5_000) < 10*cost(10) {
			return
		}
	}
	t.Fatal("the cost grows with the number of connections")
}
