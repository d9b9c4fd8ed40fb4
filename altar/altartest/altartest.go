// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package altartest has a Host with its Runtime and a client in memory, and scripted peers for tests of programs that use
// package altar.
//
//	host, client := altartest.NewPair(t, &altartest.PairOptions{Manifest: manifest, Tools: func(rt *altar.Runtime) { rt.Handle("upper", upper) }})
//	...
//	peer := altartest.NewPeer(t, altartest.Receive("CreateSession"), altartest.Cut())
//	client, err := altar.NewClient(func(context.Context) (altar.Conn, error) { return peer, nil }, nil)
package altartest

import (
	"encoding/json"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/internal/hook"
)

// Vector runs an operation of the conformance vectors that concerns no exported
// function of package altar. An unknown operation is an error.
func Vector(op string, in json.RawMessage) (json.RawMessage, error) { return hook.Vector(op, in) }

// SessionIDs makes the Hosts with these options take the generated ids of sessions
// from next, which must be quick and must not call the Host.
func SessionIDs(opts *altar.HostOptions, next func() string) { hook.SessionIDs(opts, next) }
