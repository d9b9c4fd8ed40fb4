// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// A step of the wall clock is no silence of the peer.
func TestStepOfTheClockIsNoSilence(t *testing.T) {
	for _, step := range []int64{3600, -3600} {
		c := &wsConn{start: time.Now()}
		c.lastRead.Store(int64(time.Second))
		now := c.start.Add(time.Minute)
		wall := &(*struct{ wall uint64 })(unsafe.Pointer(&now)).wall
		*wall = uint64(int64(*wall) + step<<30) // in seconds
		require.Equal(t, 59*time.Second, c.silence(now))
	}
}
