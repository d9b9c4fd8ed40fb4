// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
)

// FreeAddress returns an address on loopback that no program listens on, for a server that cannot
// choose a port itself. The port is below those that systems choose for connections, so that a
// connection rarely takes it before the server does.
func FreeAddress(t testing.TB) string { return FreeAddresses(t, 1)[0] }

// FreeAddresses returns n different addresses like that of [FreeAddress].
func FreeAddresses(t testing.TB, n int) (addrs []string) {
	t.Helper()
	for range 1000 {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(20000+rand.IntN(10000)))
		l, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		defer func() { _ = l.Close() }() // after all are chosen
		if addrs = append(addrs, addr); len(addrs) == n {
			return addrs
		}
	}
	t.Fatal("testkit: no free port")
	return nil
}
