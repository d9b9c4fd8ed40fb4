// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/store"
)

// A shutdown of a client waits for the running delivery and for the messages that its interceptor
// sends, and refuses others, also while the delivery runs.
func TestClientShutdownWaitsForDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		w.setFail(func(r *http.Request) error {
			if r.Method == http.MethodPost {
				time.Sleep(3 * time.Second)
			}
			return nil
		})
		draft := &air.Draft{To: bob.DID(), Body: offer(1)}
		var c *air.Client
		isNested := false
		c = w.client(t, alice, air.ClientOptions{Interceptors: []air.Interceptor{func(next air.SendFunc) air.SendFunc {
			return func(ctx context.Context, d *air.Draft, o *air.SendOptions) (*air.Receipt, error) {
				r, err := next(ctx, d, o)
				if !isNested {
					isNested = true
					_, err = c.Send(ctx, draft, nil)
				}
				return r, err
			}
		}}})
		sent := make(chan error, 1)
		go func() {
			_, err := c.Send(t.Context(), draft, nil)
			sent <- err
		}()
		time.Sleep(time.Second)
		start := time.Now()
		finished := make(chan error, 1)
		go func() { finished <- c.Shutdown(t.Context()) }()
		time.Sleep(time.Second)
		_, err := c.Send(t.Context(), draft, nil)
		require.ErrorIs(t, err, air.ErrClosed, "a shutdown accepts further messages")
		require.NoError(t, <-finished)
		require.Equal(t, 5*time.Second, time.Since(start))
		require.NoError(t, <-sent)
		_, err = c.Send(t.Context(), draft, nil)
		require.ErrorIs(t, err, air.ErrClosed)
		require.Len(t, pull(t, w.relay, "/inbox/"+bob.AIRID()+"/pull").Envelopes, 2)
	})
}

// An inbox is ready while it can claim envelopes: not before it has a lease, and not once another process has its id.
func TestInboxIsReadyWithLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		bob, db := w.join(t, 1), store.NewMemory()
		starting := &frozen{Store: db}
		starting.isFrozen.Store(true)
		opts := air.InboxOptions{Persistence: air.Persistence{Store: starting, InstanceID: "one"}}
		in := w.inbox(t, bob, opts)
		time.Sleep(time.Minute)
		require.ErrorContains(t, in.Ready(), "no lease")
		starting.isFrozen.Store(false)
		time.Sleep(time.Minute)
		require.NoError(t, in.Ready())

		opts.Persistence.Store = db
		next := w.inbox(t, bob, opts)
		time.Sleep(time.Minute)
		require.NoError(t, next.Ready())
		require.ErrorContains(t, in.Ready(), "no lease")
		require.NoError(t, in.Close())
		require.ErrorIs(t, in.Ready(), air.ErrClosed)
	})
}

// A shutdown does not wait for a background Resend, whose messages are in the outbox: to a silent recipient it takes minutes.
func TestClientShutdownCutsResendEvery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		kv := store.NewMemory()
		var log bytes.Buffer
		c := w.client(t, alice, air.ClientOptions{Outbox: kv, ResendEvery: time.Minute, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		w.setFail(func(r *http.Request) error {
			if r.Method != http.MethodPost {
				return nil
			}
			_ = retry.Sleep(r.Context(), time.Hour)
			return errors.New("no answer")
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.Send(ctx, &air.Draft{To: bob.DID(), Body: offer(1)}, nil)
		require.ErrorIs(t, err, air.ErrDeliveryFailed)
		time.Sleep(90 * time.Second)
		start := time.Now()
		require.NoError(t, c.Shutdown(t.Context()))
		require.LessOrEqual(t, time.Since(start), time.Second)
		require.NotContains(t, log.String(), "claim not released")

		w.setFail(nil)
		next := w.client(t, alice, air.ClientOptions{Outbox: kv})
		n, err := next.Resend(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, n)
	})
}

// A transport that ignores the end of its context, and a handler that does, delay no shutdown beyond
// its context and no Close beyond a second. That of a poller is not waited for.
func TestShutdownEndsWithItsContext(t *testing.T) {
	type ender interface {
		Shutdown(ctx context.Context) error
		Close() error
	}
	starts := map[string]func(t *testing.T, w *world, a *runner) ender{
		"client": func(_ *testing.T, _ *world, a *runner) ender { return a.Client },
		"agent":  func(_ *testing.T, _ *world, a *runner) ender { return a.Agent },
		"poller": func(t *testing.T, w *world, a *runner) ender {
			p, err := air.NewPoller(a.Inbox, "https://relay.example/inbox/AIR-TEST-0000-0002", &air.PollerOptions{HTTPClient: w.http()})
			require.NoError(t, err)
			t.Cleanup(func() { _ = p.Close() })
			go func() { _, _ = p.Drain(context.Background()) }()
			return p
		},
	}
	for _, test := range []string{"client", "agent", "poller", "client cut", "agent cut", "poller cut"} {
		t.Run(test, func(t *testing.T) {
			name, isCut := strings.CutSuffix(test, " cut")
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, nil)
				alice, bobID := w.join(t, 1), w.join(t, 2)
				release := make(chan struct{})
				bob := w.agent(t, bobID, air.AgentOptions{}, func(*runner, *air.Delivery) error {
					<-release
					return nil
				})
				push(t, w.relay, bobID.AIRID(), signedOffer(t, alice, bobID.DID(), nil))
				for len(bob.list()) == 0 {
					time.Sleep(100 * time.Millisecond)
				}
				w.setFail(func(r *http.Request) error {
					if r.Method == http.MethodPost || name == "poller" {
						<-release
					}
					return nil
				})
				sent := make(chan error, 1)
				go func() {
					_, err := bob.Send(t.Context(), alice.DID(), offer(1), nil)
					sent <- err
				}()
				end := starts[name](t, w, bob)
				synctest.Wait()
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				defer cancel()
				before := time.Now()
				switch {
				case isCut:
				case name == "poller":
					require.NoError(t, end.Shutdown(ctx))
					require.LessOrEqual(t, time.Since(before), time.Second, "Shutdown")
				default:
					require.ErrorIs(t, end.Shutdown(ctx), context.DeadlineExceeded)
					require.Equal(t, 3*time.Second, time.Since(before), "Shutdown")
					before = time.Now()
				}
				require.NoError(t, end.Close())
				require.LessOrEqual(t, time.Since(before), time.Second, "Close")
				close(release)
				<-sent
				_ = bob.Close()
				<-bob.run
			})
		})
	}
}
