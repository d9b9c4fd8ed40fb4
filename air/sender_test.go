// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air"
)

// Middleware wraps every message that a client signs, the first outermost, and may refuse it or
// change a copy.
func TestClientRunsInterceptorsFirstOutermost(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	var order []string
	errBudget := errors.New("the budget is spent")
	note := func(name string) air.Interceptor {
		return func(next air.SendFunc) air.SendFunc {
			return air.SendFunc(func(ctx context.Context, d *air.Draft, opts *air.SendOptions) (*air.Receipt, error) {
				order = append(order, name)
				r, err := next(ctx, d, opts)
				order = append(order, "/"+name)
				return r, err
			})
		}
	}
	client := w.client(t, alice, air.ClientOptions{ThreadStore: newThreads(t, alice.DID()), Interceptors: []air.Interceptor{note("outer"), note("inner"), func(next air.SendFunc) air.SendFunc {
		return air.SendFunc(func(ctx context.Context, d *air.Draft, _ *air.SendOptions) (*air.Receipt, error) {
			if o, ok := d.Body.(*air.Offer); ok && o.Description == "too dear" {
				return nil, errBudget
			}
			return next(ctx, d, &air.SendOptions{Seal: true})
		})
	}}})
	in := w.inbox(t, bob, air.InboxOptions{})
	_, err := client.Send(t.Context(), &air.Draft{To: bob.DID(), Body: offer(1)}, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"outer", "inner", "/inner", "/outer"}, order)
	require.Equal(t, 1, in.drain(t))
	require.True(t, in.got[0].Sealed, "the middleware seals everything")

	n := client.NewNegotiation(bob.DID(), "", false)
	_, err = n.Offer(t.Context(), "too dear", air.MinorUnits(1e6, "USD"), time.Now().Add(time.Hour))
	require.ErrorIs(t, err, errBudget)
	for _, r := range client.SendEach(t.Context(), []string{bob.DID()}, &air.Draft{Body: &air.Offer{Description: "too dear"}}, nil) {
		require.ErrorIs(t, r.Err, errBudget)
	}
	require.Equal(t, 0, in.drain(t))
}
