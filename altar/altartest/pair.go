// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altartest

import (
	"context"
	"io"
	"net"
	"testing"

	"github.com/fivewire/fivewire/altar"
)

// PairOptions adjusts [NewPair]. Nil means the zero value.
type PairOptions struct {
	// Manifest has the contracts. Nil means none.
	Manifest *altar.Manifest

	// Tools adds the tools of a Runtime, one for each contract. Nil means no Runtime.
	Tools func(rt *altar.Runtime)

	// Host, Runtime and Client are the options of each. Without an Authenticator the Host admits every caller, and
	// without an Authorizer it allows every call.
	Host    *altar.HostOptions
	Runtime *altar.RuntimeOptions
	Client  *altar.ClientOptions

	// Conn, if set, wraps each connection of the client: fault.ReadWriteCloser of package conformance/fault injects
	// faults.
	Conn func(io.ReadWriteCloser) io.ReadWriteCloser
}

// NewPair returns a Host, whose Runtime offers its tools, and a client, connected in memory until the end of the test.
func NewPair(t testing.TB, opts *PairOptions) (*altar.Host, *altar.Client) {
	t.Helper()
	var o PairOptions
	if opts != nil {
		o = *opts
	}
	host := newHost(t, &o)
	if o.Tools != nil {
		rt, err := altar.NewRuntime("altartest", o.Runtime)
		if err != nil {
			t.Fatal(err)
		}
		o.Tools(rt)
		conn, err := host.Dial(&altar.Principal{ID: "runtime"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- rt.Run(ctx, conn) }()
		t.Cleanup(func() {
			stop()
			<-done
		})
		WaitTools(t, host, len(o.Manifest.Contracts))
	}
	client, err := altar.NewClient(func(context.Context) (altar.Conn, error) { return o.dial(host) }, o.Client)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() }) // always succeeds
	return host, client
}

func newHost(t testing.TB, o *PairOptions) *altar.Host {
	t.Helper()
	var h altar.HostOptions
	if o.Host != nil {
		h = *o.Host
	}
	h.Auth.AllowAnonymous = h.Auth.AllowAnonymous || h.Auth.Authenticator == nil
	authorizer := h.Auth.Authorizer
	h.Auth.Authorizer = altar.AuthorizerFunc(func(ctx context.Context, r *altar.AuthorizeRequest) error {
		if authorizer == nil || r.Principal != nil && r.Principal.ID == waiterID {
			return nil
		}
		return authorizer.Authorize(ctx, r)
	})
	if o.Manifest == nil {
		o.Manifest = &altar.Manifest{}
	}
	host, err := altar.NewHost(o.Manifest, &h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = host.Close() }) // always succeeds
	return host
}

// dial opens a connection of the client.
func (o *PairOptions) dial(host *altar.Host) (altar.Conn, error) {
	id := &altar.Principal{ID: "client"}
	if o.Conn == nil {
		return host.Dial(id)
	}
	here, there := net.Pipe()
	go func() { _ = host.Serve(context.Background(), altar.NewStreamConn(there, nil), id) }() // ends with its connection
	return altar.NewStreamConn(o.Conn(here), nil), nil
}
