// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/accptest"
)

func TestClientRefusesTooManySessions(t *testing.T) {
	_, err := accp.NewClient("http://127.0.0.1/accp/v1/frames", "tester", &accp.ClientOptions{MaxConcurrent: math.MaxInt})
	require.ErrorContains(t, err, "MaxConcurrent")
}

// The end of the context of a call, before it or in it, is a timeout with the cause of the end.
func TestEndedContextIsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := accptest.NewPair(t, nil)
		srv.Handle(accp.IntentReq, "wait", accp.HandlerFunc(func(ctx context.Context, _ *accp.ReplyWriter, _ *accp.Message) error {
			<-ctx.Done()
			return ctx.Err()
		}))
		cause := errors.New("the user has left")
		for _, delay := range []time.Duration{-1, time.Second} {
			expiring, stop := context.WithTimeoutCause(t.Context(), delay, cause)
			canceled, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(delay, func() { cancel(cause) })
			for _, ctx := range []context.Context{expiring, canceled} {
				_, err := c.Call(ctx, &accp.Message{Intent: accp.IntentReq, Op: "wait"}, nil)
				require.ErrorIs(t, err, accp.ErrTimeout, delay)
				require.ErrorIs(t, err, cause, delay)
			}
			stop()
		}
	})
}
