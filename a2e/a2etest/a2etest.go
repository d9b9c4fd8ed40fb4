// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package a2etest has a host and an agent in memory, and scripted peers for tests of programs that use package a2e.
//
//	host, client := a2etest.NewPair(t, &a2etest.PairOptions{Plugins: []*a2e.Plugin{set.Plugin()}})
//	...
//	peer := a2etest.NewPeer(t, a2etest.Receive("handshake/req"), a2etest.Cut())
//	client, err := a2e.NewClient(peer, nil)
package a2etest

import (
	"context"
	"encoding/json"
	"io"
	"testing"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/catalogue"
	"github.com/fivewire/fivewire/a2e/internal/hook"
)

// Vector runs an operation of the conformance vectors that concerns no exported
// function of package a2e. An unknown operation is an error.
func Vector(op string, in json.RawMessage) (json.RawMessage, error) { return hook.Vector(op, in) }

// Handshake makes the handshake of a client with a request that its options do not name, and returns the message with
// the response.
func Handshake(ctx context.Context, c *a2e.Client, r *a2e.HandshakeRequest) (*a2e.Message, error) {
	answer, err := hook.Handshake(ctx, c, r)
	if err != nil {
		return nil, err
	}
	return answer.(*a2e.Message), nil
}

// Must returns v. It panics if err is not nil, as do constructors with impossible options.
func Must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// KeyAuthenticator returns an Authenticator of agents with the key as their token. The id of their
// principal is "agent".
func KeyAuthenticator(key string) a2e.Authenticator {
	return Must(a2e.APIKeyAuthenticator(map[string]*a2e.Principal{key: {ID: "agent"}}))
}

// NewHost returns a host with plugins. Without an Authenticator it admits every agent.
func NewHost(t testing.TB, opts *a2e.HostOptions, plugins ...*a2e.Plugin) *a2e.Host {
	t.Helper()
	var o a2e.HostOptions
	if opts != nil {
		o = *opts
	}
	if o.Auth.Authenticator == nil {
		o.Auth.AllowAnonymous = true
	}
	h, err := a2e.NewHost(&o)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range plugins {
		h.AddPlugin(p)
	}
	return h
}

// PairOptions adjusts [NewPair]. Nil means the zero value.
type PairOptions struct {
	// Host are the options of the host, and Plugins its plug-ins. Without an Authenticator it admits every agent.
	Host    *a2e.HostOptions
	Plugins []*a2e.Plugin

	// Client are the options of the agent. It gets all capabilities of the host.
	Client *a2e.ClientOptions

	// Conn, if set, wraps the connection of the agent: fault.ReadWriteCloser of package conformance/fault injects faults.
	Conn func(io.ReadWriteCloser) io.ReadWriteCloser
}

// NewPair returns a host and an agent that has made its handshake, connected in memory until the end of the test.
func NewPair(t testing.TB, opts *PairOptions) (*a2e.Host, *a2e.Client) {
	t.Helper()
	var o PairOptions
	if opts != nil {
		o = *opts
	}
	h := NewHost(t, o.Host, o.Plugins...)
	return h, connect(t, h, o.Client, o.Conn)
}

// Connect serves h over a pipe and returns a client that has made its handshake and got all
// capabilities of h. Both end with the test.
func Connect(t testing.TB, h *a2e.Host, opts *a2e.ClientOptions) *a2e.Client {
	t.Helper()
	return connect(t, h, opts, nil)
}

func connect(t testing.TB, h *a2e.Host, opts *a2e.ClientOptions, wrap func(io.ReadWriteCloser) io.ReadWriteCloser) *a2e.Client {
	t.Helper()
	agent, host := a2e.Pipe()
	if wrap != nil {
		agent = wrap(agent)
	}
	served := make(chan error, 1)
	go func() {
		defer close(served) // also after runtime.Goexit in an inline handler
		served <- h.Serve(context.Background(), host)
	}()
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
	c, err := a2e.NewClient(agent, &o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		<-served
	})
	if _, err := c.Connect(context.Background()); err != nil {
		t.Fatal(err)
	}
	return c
}
