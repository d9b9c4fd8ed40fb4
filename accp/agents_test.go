// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/testkit"
)

// The earlier connection of an agent is found without a walk over all connections.
func TestReplacementCostsNoWalkOverConnections(t *testing.T) {
	session := &Session{}
	session.id = "session"
	testkit.RequireLess(t, 10, 10, 5_000, func(conns int) time.Duration {
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
	})
}
