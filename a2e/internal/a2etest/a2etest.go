// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package a2etest connects a client with a host in one process, for tests.
package a2etest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/catalogue"
)

// Connect serves h over a pipe and returns a client that shook hands with it and
// got all of its capabilities. Both end with the test.
func Connect(t testing.TB, h *a2e.Host, opts *a2e.ClientOptions) *a2e.Client {
	t.Helper()
	agent, host := a2e.Pipe()
	served := make(chan error, 1)
	go func() { served <- h.Serve(context.Background(), host) }()
	var o a2e.ClientOptions
	if opts != nil {
		o = *opts
	}
	if o.Types == nil {
		o.Types = catalogue.Types()
	}
	if o.Capabilities == nil {
		o.Capabilities = h.Capabilities()
	}
	c := a2e.NewClient(agent, &o)
	t.Cleanup(func() {
		require.NoError(t, c.Close())
		<-served
	})
	_, err := c.Connect(context.Background())
	require.NoError(t, err)
	return c
}
