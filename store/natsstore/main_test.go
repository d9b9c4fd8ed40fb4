// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsstore_test

import (
	"context"
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/store"
	"github.com/fivewire/fivewire/store/natsstore"
	"github.com/fivewire/fivewire/store/storetest"
)

func TestMain(m *testing.M) {
	storetest.CrashWorkerMain(func(ctx context.Context, url string) (store.Store, error) { return natsstore.Open(ctx, url, nil) })
	if child() {
		return
	}
	flag.Parse()
	if race.Enabled && os.Getenv("FIVEWIRE_LONG") == "" {
		// The servers are in this process, and slow under the race detector:
		// the same tests, with fewer rounds each.
		if err := flag.Set("test.short", "true"); err != nil {
			panic(err)
		}
	}
	// A server that is stopped while it reads a stream leaves goroutines running; they belong to
	// the server.
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"))
}
