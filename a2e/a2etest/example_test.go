// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2etest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/tools"
	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/testkit"
)

func newWords() *tools.Set {
	set := a2etest.Must(tools.NewSet(nil))
	tools.AddTool(set, "count", "Counts words", func(_ context.Context, _ *a2e.Call, in struct{ Text string }) (int, error) {
		return len(strings.Fields(in.Text)), nil
	}, nil)
	return set
}

// A host and an agent whose connection is cut at a call: the call fails at once.
func ExampleNewPair() {
	t, end := testkit.Example() // in a test, its t
	defer end()
	plan := &fault.Plan{}
	defer plan.Close()
	_, client := a2etest.NewPair(t, &a2etest.PairOptions{Plugins: []*a2e.Plugin{newWords().Plugin()},
		Conn: func(rw io.ReadWriteCloser) io.ReadWriteCloser { return fault.ReadWriteCloser(rw, plan) }})
	text := map[string]string{"Text": "one small step"}
	n, err := tools.CallAs[int](context.Background(), client, "count", text, nil)
	fmt.Println(n, err)
	plan.Crash() // of the connection
	_, err = tools.CallAs[int](context.Background(), client, "count", text, nil)
	fmt.Println(errors.Is(err, a2e.ErrClosed))
	// Output:
	// 3 <nil>
	// true
}

// A host that refuses the handshake by the script.
func ExampleNewPeer() {
	t, end := testkit.Example() // in a test, its t
	defer end()
	peer := a2etest.NewPeer(t, a2etest.Receive("handshake/req"), a2etest.Send(`{"a2e":"1.0","type":"handshake/resp","id":"h-1","ts":1,"req_id":"x"`), a2etest.Cut())
	client, err := a2e.NewClient(peer, nil)
	if err != nil {
		panic(err)
	}
	defer client.Close()
	_, err = client.Connect(context.Background())
	fmt.Println(err != nil)
	// Output: true
}
