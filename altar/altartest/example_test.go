// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altartest_test

import (
	"context"
	"fmt"
	"io"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/altartest"
	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/testkit"
)

const manifest = `{"version":"1.0.0","contracts":[{"name":"upper","description":"Writes in capitals","parameters":[]}]}`

// A Host and a client whose connection is cut after a call: the next call has another connection, and no tool runs twice.
func ExampleNewPair() {
	t, end := testkit.Example() // in a test, its t
	defer end()
	contracts, err := altar.DecodeManifest([]byte(manifest))
	if err != nil {
		panic(err)
	}
	var plans []*fault.Plan
	runs := 0
	_, client := altartest.NewPair(t, &altartest.PairOptions{Manifest: contracts,
		Tools: func(rt *altar.Runtime) {
			rt.Handle("upper", altar.HandlerFunc(func(context.Context, *altar.ToolCall) (any, error) { runs++; return "HELLO", nil }))
		},
		Conn: func(rw io.ReadWriteCloser) io.ReadWriteCloser {
			plans = append(plans, &fault.Plan{})
			return fault.ReadWriteCloser(rw, plans[len(plans)-1])
		}})
	session, err := client.CreateSession(context.Background(), nil)
	if err != nil {
		panic(err)
	}
	for range 2 {
		text, err := altar.CallAs[string](context.Background(), session, "upper", nil, nil)
		fmt.Println(text, err)
		plans[0].Crash() // of the first connection
	}
	fmt.Println(runs, "runs,", len(plans), "connections")
	for _, p := range plans {
		p.Close()
	}
	// Output:
	// HELLO <nil>
	// HELLO <nil>
	// 2 runs, 2 connections
}

// A Host that answers by the script.
func ExampleNewPeer() {
	t, end := testkit.Example() // in a test, its t
	defer end()
	peer := altartest.NewPeer(t, altartest.Receive("CreateSession"), altartest.Cut())
	if err := peer.Send(&altar.CreateSession{}); err != nil {
		panic(err)
	}
	_, err := peer.Receive()
	fmt.Println(err == io.EOF)
	// Output: true
}
