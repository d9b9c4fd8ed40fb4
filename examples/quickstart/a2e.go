// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/memory"
	"github.com/fivewire/fivewire/a2e/tools"
)

// showA2E gives an agent an environment: a tool that is a Go function, and a
// memory, over TCP on this machine.
func showA2E(ctx context.Context, out io.Writer) (err error) {
	fmt.Fprintln(out, "\nA2E: an agent and the host of its environment")
	heading(out, "A tool that tells of its progress, and a memory")

	set, err := tools.NewSet(nil)
	if err != nil {
		return err
	}
	tools.AddTool(set, "count_words", "Count the words of a text",
		func(_ context.Context, call *a2e.Call, in struct{ Text string }) (int, error) {
			if err := call.Emit(a2e.EventProgress, map[string]any{"pct": 50}); err != nil {
				return 0, err
			}
			return len(strings.Fields(in.Text)), nil
		}, nil)
	memories, err := memory.NewPlugin(nil)
	if err != nil {
		return err
	}
	keys, err := a2e.APIKeyAuthenticator(map[string]*a2e.Principal{"let me in": {ID: "you"}})
	if err != nil {
		return err
	}
	host, err := a2e.NewHost(&a2e.HostOptions{Auth: a2e.Auth{Authenticator: keys}})
	if err != nil {
		return err
	}
	host.AddPlugin(set.Plugin()).AddPlugin(memories)

	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	serving, stop := context.WithCancel(ctx)
	go func() { served <- host.ServeListener(serving, l) }()
	defer func() {
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		err = errors.Join(err, host.Shutdown(limit))
		stop()
		<-served
	}()

	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return err
	}
	agent, err := a2e.NewClient(conn, &a2e.ClientOptions{AgentID: "you", Token: "let me in", Capabilities: []string{"tools", "memory"}})
	if err != nil {
		return err
	}
	defer agent.Close()
	if _, err := agent.Connect(ctx); err != nil {
		return err
	}
	if err := useTool(ctx, out, agent); err != nil {
		return err
	}
	return useMemory(ctx, out, agent)
}

func useTool(ctx context.Context, out io.Writer, agent *a2e.Client) error {
	in := map[string]string{"Text": "one small step"}
	words, err := tools.CallAs[int](ctx, agent, "count_words", in, &a2e.CallOptions{OnEvent: func(e a2e.Event) {
		fmt.Fprintf(out, "event   %s %s\n", e.Header().Kind, e.Header().Data)
	}})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "answer  %d words\n", words)
	return nil
}

func useMemory(ctx context.Context, out io.Writer, agent *a2e.Client) error {
	notes, err := memory.Open(ctx, agent, "")
	if err != nil {
		return err
	}
	key := map[string]string{"topic": "steps"}
	if err := notes.Remember(ctx, key, "they were small", &memory.RememberOptions{Tags: []string{"moon"}}); err != nil {
		return err
	}
	found, err := notes.Recall(ctx, key)
	if err != nil {
		return err
	}
	for _, entry := range found {
		fmt.Fprintf(out, "memory  %s\n", entry.Content)
	}
	return nil
}
