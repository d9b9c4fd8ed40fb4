// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/fivewire/fivewire/altar"
)

const contracts = `{"contracts":[
	{"name":"math/add","parameters":[{"name":"a","type":"integer","required":true},{"name":"b","type":"integer","required":true}]},
	{"name":"count","streaming":true,"parameters":[{"name":"n","type":"integer","required":true}]}]}`

type sum struct {
	A int64 `json:"a"`
	B int64 `json:"b"`
}

type upTo struct {
	N int64 `json:"n"`
}

// Host, Runtime and client in one process.
func Example() {
	m, err := altar.DecodeManifest([]byte(contracts))
	if err != nil {
		log.Fatal(err)
	}
	host, err := altar.NewHost(m, &altar.HostOptions{Auth: altar.Auth{
		Authorizer:     altar.AuthorizerFunc(altar.AllowAll),
		AllowAnonymous: true,
	}})
	if err != nil {
		log.Fatal(err)
	}
	defer host.Close()

	rt, err := altar.NewRuntime("calc-01", nil)
	if err != nil {
		log.Fatal(err)
	}
	altar.AddTool(rt, "math/add", func(_ context.Context, in sum) (int64, error) { return in.A + in.B, nil })
	altar.AddStreamTool(rt, "count", func(_ context.Context, in upTo, out *altar.ChunkWriter) error {
		for i := range in.N {
			if err := out.Send(i); err != nil {
				return err
			}
		}
		return nil
	})
	ctx, stop := context.WithCancel(context.Background())
	conn, err := host.Dial(&altar.Principal{ID: "calculator"})
	if err != nil {
		log.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- rt.Run(ctx, conn) }()
	for host.Stats().Runtimes == 0 { // a call does not wait for a Runtime that is not announced
	}

	client, err := altar.NewClient(func(context.Context) (altar.Conn, error) {
		return host.Dial(&altar.Principal{ID: "alice"})
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	s, err := client.CreateSession(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	three, err := altar.CallAs[int64](ctx, s, "math/add", sum{1, 2}, nil)
	fmt.Println(three, err)
	for n, err := range altar.StreamAs[int64](ctx, s, "count", upTo{3}, nil) {
		fmt.Println(n, err)
	}
	_, err = s.Call(ctx, "math/add", map[string]any{"a": 1.5}, nil)
	var e *altar.Error
	if errors.As(err, &e) {
		fmt.Println(string(e.Code), e.Message)
	}
	stop()
	fmt.Println(<-done)
	// Output:
	// 3 <nil>
	// 0 <nil>
	// 1 <nil>
	// 2 <nil>
	// INVALID_PARAMETERS /a not_integer (expected integer, got number); /b missing_required (expected integer)
	// <nil>
}
