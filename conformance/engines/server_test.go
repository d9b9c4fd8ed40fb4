// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/testkit"
	"github.com/fivewire/fivewire/store"
	"github.com/fivewire/fivewire/store/natsstore/embedded"
)

const (
	natsServerArg  = "nats-server"
	postgresCtlEnv = "FIVEWIRE_POSTGRES_CTL"
)

// serveNATS is a NATS server in a separate process.
func serveNATS(dir, address string) {
	if _, err := embedded.Start(dir, &embedded.Options{Listen: address}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	select {}
}

// serverFaults are the faults of the servers of engines. The function disturbs the server once.
var serverFaults = []struct {
	fault, engine string
	create        func(t *testing.T) (p *place, disturb func() error)
}{
	{"kill -9 of the server", "NATS", func(t *testing.T) (*place, func() error) {
		p, server := natsServer(t)
		return p, func() error { return server.Kill(0) }
	}},
	{"server stopped for 2 s", "NATS", func(t *testing.T) (*place, func() error) {
		if runtime.GOOS == "windows" {
			t.Skip("cannot stop a process")
		}
		p, server := natsServer(t)
		return p, func() error { return server.Stop(2*time.Second, 0) }
	}},
	{"kill -9 of the server", "PostgreSQL", func(t *testing.T) (*place, func() error) {
		control := os.Getenv(postgresCtlEnv)
		if control == "" {
			t.Skipf("needs to stop PostgreSQL: %s is not set", postgresCtlEnv)
		}
		return postgres(t), func() error {
			return errors.Join(exec.Command(control, "kill").Run(), exec.Command(control, "start").Run())
		}
	}},
}

// natsServer starts a NATS server in a separate process.
func natsServer(t *testing.T) (*place, *fault.Process) {
	address := testkit.FreeAddress(t)
	ctx, cancel := context.WithCancel(context.Background())
	server, err := fault.Command(ctx, os.Args[0], natsServerArg, t.TempDir(), address)
	require.NoError(t, err)
	t.Cleanup(func() {
		cancel()
		_ = server.Kill(0) // waits for the end
	})
	p := &place{name: "nats nats://" + address}
	soon(t, "the start of the server", func() bool {
		s, err := openPlace(t.Context(), p.name)
		if err != nil {
			return false
		}
		require.NoError(t, s.(interface{ Close() error }).Close())
		return true
	})
	return p, server
}

// serverRounds disturbs the server under two writers, which repeat each append until it is acknowledged.
func (c *resultCell) serverRounds(t *testing.T, p *place, rounds int, disturb func() error) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var mu sync.Mutex // guards the next two
	acknowledged, last := map[string][]string{}, time.Now()
	acknowledge := func(writer, id string) {
		mu.Lock()
		defer mu.Unlock()
		acknowledged[writer] = append(acknowledged[writer], id)
		c.Silence = max(c.Silence, time.Since(last))
		last = time.Now()
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(acknowledged["a"]) + len(acknowledged["b"])
	}
	var writers sync.WaitGroup
	for _, writer := range []string{"a", "b"} {
		s := p.open(t)
		writers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				id := fmt.Sprint(writer, " ", i)
				for ctx.Err() == nil {
					if _, err := s.Append(ctx, "s", id, []byte("value of "+id), 0); err == nil || errors.Is(err, store.ErrDuplicate) {
						acknowledge(writer, id)
						break
					}
					time.Sleep(10 * time.Millisecond)
				}
			}
		})
	}
	for range rounds {
		before := count()
		soon(t, "appends before the fault", func() bool { return count() >= before+20 })
		require.NoError(t, disturb())
		before = count()
		soon(t, "appends after the fault", func() bool { return count() >= before+20 })
		c.Rounds++
	}
	stop()
	writers.Wait()
	require.NoError(t, c.classify(acknowledged, p.open(t)))
}
