// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altartest

import (
	"context"
	"testing"
	"time"

	"github.com/fivewire/fivewire/altar"
)

// waiterID is the id of the principal that waits for tools.
const waiterID = "altartest"

// WaitTools waits until a new session of a Host can call n tools, at most for a minute. A Runtime is connected a
// moment before it has fulfilled its contracts. The principal of the session is altartest.
func WaitTools(tb testing.TB, host *altar.Host, n int) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), time.Minute)
	defer cancel()
	client, err := altar.NewClient(func(context.Context) (altar.Conn, error) { return host.Dial(&altar.Principal{ID: waiterID}) }, nil)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	session, err := client.CreateSession(ctx, nil)
	if err != nil {
		tb.Fatal(err)
	}
	for found := 0; found < n; {
		tools, err := session.ListTools(ctx)
		if err != nil {
			tb.Fatalf("altartest: a session can call %d tools, want %d: %v", found, n, err)
		}
		found = len(tools)
		time.Sleep(time.Millisecond)
	}
	if err := session.Destroy(ctx); err != nil {
		tb.Fatal(err)
	}
}
