// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/airtest"
	"github.com/fivewire/fivewire/air/relay"
)

var airAttacks = []attack{
	{name: "AIR/Mail of 60 KiB at a relay", start: func(t *testing.T) *victim {
		srv, err := relay.NewServer(&relay.ServerOptions{AnyRecipient: true, Auth: relay.Auth{
			AllowAnonymousPush: true, InboxSecret: func(string) string { return "secret" },
		}})
		require.NoError(t, err)
		return startAIR(t, serve(t, srv, srv.Close)+"/inbox/AIR-%04d-0000-0000", nil)
	}},
	{name: "AIR/Forged senders at an inbox", start: func(t *testing.T) *victim {
		network, err := airtest.NewNetwork(nil)
		require.NoError(t, err)
		t.Cleanup(network.Close)
		resolver, err := network.Resolver()
		require.NoError(t, err)
		id, err := network.RegisterAgent("AIR-0000-0000-0000")
		require.NoError(t, err)
		in, err := air.NewInbox(id, air.HandlerFunc(func(context.Context, *air.Delivery) error { return nil }),
			&air.InboxOptions{Resolver: resolver, BodyTypes: []string{"note"}})
		require.NoError(t, err)
		return startAIR(t, serve(t, in, in.Close)+"/?%d", network)
	}},
}

// startAIR attacks an address that contains the number of a mailbox. The sender of a hostile envelope is forged.
func startAIR(t *testing.T, address string, network *airtest.Network) *victim {
	bad, err := air.GenerateIdentity(airtest.DID("AIR-BAD0-0000-0000"))
	require.NoError(t, err)
	good, err := air.GenerateIdentity(airtest.DID("AIR-C00D-0000-0000"))
	require.NoError(t, err)
	if network != nil {
		network.Registry.Register(good, "")
	}
	text := strings.Repeat("x", 60<<10)
	var sequence atomic.Int64
	push := func(ctx context.Context, web *http.Client, id *air.Identity, from, text string, mailbox int) error {
		body := &air.Raw{Type: "note", JSON: fmt.Appendf(nil, `{"type":"note","text":"%s"}`, text)}
		d := &air.Draft{ID: air.NewID(), ThreadID: air.NewID(), From: from, To: airtest.DID(fmt.Sprintf("AIR-%04d-0000-0000", mailbox)),
			Time: time.Now(), Body: body}
		e, err := air.NewEnvelope(d, id.Signer(), &air.EnvelopeOptions{BodyTypes: []string{"note"}})
		if err != nil {
			return err
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf(address, mailbox), bytes.NewReader(e.Bytes()))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		res, err := web.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if body, _ := io.ReadAll(res.Body); res.StatusCode >= 300 {
			return fmt.Errorf("status %d: %s", res.StatusCode, body)
		}
		return nil
	}
	web := hostileHTTP(t)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return &victim{
		period: time.Second, // what a stranger may send
		hostile: func(ctx context.Context, _, _ int) error {
			n := int(sequence.Add(1))
			mailbox := 0
			if network == nil {
				mailbox = n % 1000
			}
			return push(ctx, web, bad, airtest.DID(fmt.Sprintf("AIR-BAD0-%04d-0000", n%10_000)), text, mailbox)
		},
		honest: func(ctx context.Context) error {
			return push(ctx, http.DefaultClient, good, good.DID(), "x", 0)
		},
	}
}
