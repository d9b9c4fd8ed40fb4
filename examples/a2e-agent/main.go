// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// A2e-agent starts an environment host as a child process and works with it: it
// lists the tools, calls one with progress, remembers something and runs a
// process. By default the child is the example a2e-host, built on the way; any
// other host can be named:
//
//	go run ./examples/a2e-agent [command arguments...]
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/memory"
	"github.com/fivewire/fivewire/a2e/proc"
	"github.com/fivewire/fivewire/a2e/tools"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := run(ctx, os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "a2e-agent:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, command []string) error {
	if len(command) == 0 {
		built, remove, err := buildHost(ctx)
		if err != nil {
			return err
		}
		defer remove()
		command = []string{built}
	}

	// The child speaks over its standard streams. Closing the client ends it.
	child, err := a2e.StartCommand(exec.Command(command[0], command[1:]...), nil)
	if err != nil {
		return err
	}
	c := a2e.NewClient(child, &a2e.ClientOptions{AgentID: "example", Capabilities: []string{"tools", "memory", "proc"}})
	defer c.Close()
	if _, err := c.Connect(ctx); err != nil {
		return err
	}
	if err := callTool(ctx, out, c); err != nil {
		return err
	}
	if err := remember(ctx, out, c); err != nil {
		return err
	}
	return process(ctx, out, c)
}

func buildHost(ctx context.Context) (path string, remove func(), err error) {
	dir, err := os.MkdirTemp("", "a2e-agent")
	if err != nil {
		return "", nil, err
	}
	path = filepath.Join(dir, "host")
	build := exec.CommandContext(ctx, "go", "build", "-o", path, "github.com/fivewire/fivewire/examples/a2e-host")
	if text, err := build.CombinedOutput(); err != nil {
		_ = os.RemoveAll(dir)
		return "", nil, fmt.Errorf("build the host: %w\n%s", err, text)
	}
	return path, func() { _ = os.RemoveAll(dir) }, nil
}

func callTool(ctx context.Context, out io.Writer, c *a2e.Client) error {
	client, err := tools.NewClient(c)
	if err != nil {
		return err
	}
	list, err := client.List(ctx, nil, nil)
	if err != nil {
		return err
	}
	for _, t := range list.Tools {
		fmt.Fprintf(out, "tool: %s: %s\n", t.Name, t.Description)
	}

	// New gives a request with the defaults of the protocol, such as its time
	// limit; a struct literal would say 0 there.
	r := a2e.New[tools.CallRequest]()
	r.ToolName, r.Streaming = "count_words", true
	r.Arguments = json.RawMessage(`{"text":"one small step"}`)
	resp, err := client.Call(ctx, r, &a2e.CallOptions{OnEvent: func(e a2e.Event) {
		fmt.Fprintf(out, "event: %s %s\n", e.Header().Kind, e.Header().Data)
	}})
	if err != nil {
		return err
	}
	if err := resp.Data.Err(); err != nil {
		return err
	}
	fmt.Fprintf(out, "result: %s\n", resp.Data.Data)
	return nil
}

func remember(ctx context.Context, out io.Writer, c *a2e.Client) error {
	client, err := memory.NewClient(c)
	if err != nil {
		return err
	}
	opened, err := client.Init(ctx, nil, nil)
	if err != nil {
		return err
	}
	_, err = client.Store(ctx, &memory.StoreRequest{MemoryID: opened.MemoryID, Entries: []json.RawMessage{
		json.RawMessage(`{"key":{"topic":"steps"},"content":"they were small","tier":"episodic","tags":["moon"]}`),
	}}, nil)
	if err != nil {
		return err
	}
	r := a2e.New[memory.RetrieveRequest]()
	r.MemoryID, r.Tags = opened.MemoryID, []string{"moon"}
	found, err := client.Retrieve(ctx, r, nil)
	if err != nil {
		return err
	}
	for _, raw := range found.Entries {
		e, err := a2e.DecodeModel[memory.Entry](raw, "entry")
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "remembered: %s\n", e.Content)
	}
	return nil
}

func process(ctx context.Context, out io.Writer, c *a2e.Client) error {
	client, err := proc.NewClient(c)
	if err != nil {
		return err
	}
	// Output arrives as events, before the answer to the spawn or after it.
	// Later ones belong to no call and go to a push handler.
	events := make(chan *proc.ReadEvent, 16)
	take := func(m *a2e.Message) {
		if e, ok := m.Body.(*proc.ReadEvent); ok {
			events <- e
		}
	}
	defer c.OnPush("proc/read/event", take)()
	r := a2e.New[proc.SpawnRequest]()
	r.Cmd, r.StdinMode = []string{"echo", "hello"}, "null"
	spawned, err := client.Spawn(ctx, r, &a2e.CallOptions{OnEvent: func(e a2e.Event) { take(e.Message) }})
	if err != nil {
		return err
	}
	if !spawned.OK {
		return fmt.Errorf("spawn: %s", spawned.Error)
	}
	for {
		select {
		case e := <-events:
			fmt.Fprintf(out, "%s: %s\n", e.StreamType, e.Data)
			end, err := a2e.DecodeModel[ending](e.Data, "data")
			if err != nil {
				return err
			}
			if end.Code != nil {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// An ending is the data of a process's last event. Free-form parts of messages
// are read into a struct of one's own like this.
type ending struct {
	Code *int64 `a2e:"code,nullable"`
}
