// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/fivewire/fivewire/altar"
)

// The contracts belong to the host: they define the parameters of a tool and its permitted callers.
const altarManifest = `{"version": "1.0.0", "contracts": [
	{"name": "text/upper", "description": "Writes in capitals",
		"parameters": [{"name": "text", "type": "string", "required": true}]},
	{"name": "text/words", "description": "Sends word by word", "streaming": true,
		"parameters": [{"name": "text", "type": "string", "required": true}]}]}`

// showALTAR puts a host between a client and a runtime that has the tools.
func showALTAR(ctx context.Context, out io.Writer) (err error) {
	fmt.Fprintln(out, "\nALTAR: a host that arbitrates between clients and tools")
	heading(out, "Validated calls, one of them streamed, over WebSocket")

	manifest, err := altar.DecodeManifest([]byte(altarManifest))
	if err != nil {
		return err
	}
	fulfilled := make(chan string, 2)
	keys, err := altar.APIKeyAuthenticator(map[string]*altar.Principal{
		"client key":  {ID: "you", Tenant: "quickstart", Roles: []string{"user"}},
		"runtime key": {ID: "text-service", Tenant: "quickstart"},
	})
	if err != nil {
		return err
	}
	host, err := altar.NewHost(manifest, &altar.HostOptions{
		Auth: altar.Auth{Authenticator: keys, Authorizer: altar.RoleAuthorizer(altar.RoleRule{Tools: "text/*", Roles: []string{"user"}})},
		Audit: func(_ context.Context, e *altar.AuditRecord) {
			if e.Operation == "fulfillment.accepted" {
				fulfilled <- e.Contract
			}
		},
	})
	if err != nil {
		return err
	}
	web := httptest.NewServer(host)
	defer web.Close()
	dial := func(key string) func(context.Context) (altar.Conn, error) {
		return func(ctx context.Context) (altar.Conn, error) {
			return altar.DialWebSocket(ctx, "ws"+strings.TrimPrefix(web.URL, "http"), &altar.WebSocketDialOptions{Header: http.Header{altar.APIKeyHeader: {key}}})
		}
	}

	runtime, err := altar.NewRuntime("text-01", nil)
	if err != nil {
		return err
	}
	type text struct {
		Text string `json:"text"`
	}
	altar.AddTool(runtime, "text/upper", func(_ context.Context, in text) (string, error) {
		return strings.ToUpper(in.Text), nil
	})
	altar.AddStreamTool(runtime, "text/words", func(_ context.Context, in text, out *altar.ChunkWriter) error {
		for word := range strings.FieldsSeq(in.Text) {
			if err := out.Send(word); err != nil {
				return err
			}
		}
		return nil
	})
	running, stop := context.WithCancel(ctx)
	ran := make(chan error, 1)
	go func() { ran <- runtime.RunWithReconnect(running, dial("runtime key")) }()
	defer func() {
		stop()
		<-ran
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		err = errors.Join(err, host.Shutdown(limit))
	}()

	for range manifest.Contracts { // until the runtime has registered
		select {
		case name := <-fulfilled:
			fmt.Fprintf(out, "the runtime brings %s\n", name)
		case <-ctx.Done():
			return ctx.Err()
		}
	}

	client, err := altar.NewClient(dial("client key"), nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	session, err := client.CreateSession(ctx, nil)
	if err != nil {
		return err
	}
	upper, err := altar.CallAs[string](ctx, session, "text/upper", text{"hello"}, nil)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "text/upper answers %s\n", upper)
	for word, err := range altar.StreamAs[string](ctx, session, "text/words", text{"one two three"}, nil) {
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "text/words sends %s\n", word)
	}
	_, err = session.Call(ctx, "text/upper", map[string]any{"txet": 1}, nil)
	var refused *altar.Error
	if !errors.As(err, &refused) {
		return fmt.Errorf("the host took wrong parameters: %w", err)
	}
	fmt.Fprintln(out, "refused:", refused.Message)
	return session.Destroy(ctx)
}
