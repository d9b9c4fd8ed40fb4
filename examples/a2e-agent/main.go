// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Command a2e-agent uses an environment host: it lists the tools, calls one with progress, stores a
// memory and runs a process. The arguments are the command of a host, which becomes a child process;
// with -url it connects to a host over HTTP or WebSocket; otherwise a host runs in this process:
//
//	go build -o /tmp/a2e-host ./examples/a2e-host
//	go run ./examples/a2e-agent /tmp/a2e-host
//	go run ./examples/a2e-agent -url http://127.0.0.1:8765 -token-file token
//
// It ends by itself. Ctrl-C and SIGTERM cancel the running call and close the session.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/memory"
	"github.com/fivewire/fivewire/a2e/proc"
	"github.com/fivewire/fivewire/a2e/tools"
)

func main() {
	timeout := flag.Duration("timeout", time.Minute, "maximum `duration` of the run")
	address := flag.String("url", "", "connect to the host at this `URL`: http, https, ws or wss")
	tokenFile := flag.String("token-file", "", "`file` with the token for the host")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	token, err := readToken(*tokenFile)
	if err == nil {
		err = run(ctx, os.Stdout, *address, token, flag.Args())
	}
	if err != nil { // with the cause of the end of a session
		fmt.Fprintln(os.Stderr, "a2e-agent:", err)
		os.Exit(1)
	}
}

// readToken returns the token of a file, and none without a file.
func readToken(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	text, err := os.ReadFile(file)
	return strings.TrimSpace(string(text)), err
}

func run(ctx context.Context, out io.Writer, address, token string, command []string) error {
	conn, err := connect(ctx, address, command)
	if err != nil {
		return err
	}
	c, err := a2e.NewClient(conn, &a2e.ClientOptions{AgentID: "example", Token: token, Capabilities: []string{"tools", "memory", "proc"}})
	if err != nil {
		return err
	}
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

// connect returns a connection to the host at the address, or to one that it starts. Closing the client
// ends a started host.
func connect(ctx context.Context, address string, command []string) (io.ReadWriteCloser, error) {
	switch {
	case strings.HasPrefix(address, "ws"):
		return a2e.DialWebSocket(ctx, address, nil)
	case address != "":
		return a2e.DialHTTP(ctx, address, nil)
	case len(command) > 0: // the child speaks over its standard streams
		return a2e.StartCommand(exec.Command(command[0], command[1:]...), nil)
	}
	set, err := tools.NewSet(nil)
	if err != nil {
		return nil, err
	}
	tools.AddTool(set, "count_words", "Count the words of a text", countWords, nil)
	memories, err := memory.NewPlugin(nil)
	if err != nil {
		return nil, err
	}
	processes, err := proc.NewPlugin(&proc.Options{AllowedCommands: []string{"echo"}})
	if err != nil {
		return nil, err
	}
	host, err := a2e.NewHost(&a2e.HostOptions{Auth: a2e.Auth{AllowAnonymous: true}}) // this process is the agent
	if err != nil {
		return nil, err
	}
	host.AddPlugin(set.Plugin()).AddPlugin(memories).AddPlugin(processes)
	agent, other := a2e.Pipe()
	go func() {
		_ = host.Serve(ctx, other) // the client reports the end of the session
		_ = host.Close()
	}()
	return agent, nil
}

// countWords is the tool of the host in this process.
func countWords(_ context.Context, call *a2e.Call, in struct {
	Text string `json:"text"`
}) (map[string]int, error) {
	if err := call.Emit(a2e.EventProgress, map[string]any{"message": "counting"}); err != nil {
		return nil, err
	}
	return map[string]int{"words": len(strings.Fields(in.Text))}, nil
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

	in := map[string]string{"text": "one small step"}
	result, err := tools.CallAs[map[string]int](ctx, c, "count_words", in, &a2e.CallOptions{OnEvent: func(e a2e.Event) {
		fmt.Fprintf(out, "event: %s %s\n", e.Header().Kind, e.Header().Data)
	}})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "result: %d words\n", result["words"])
	return nil
}

func remember(ctx context.Context, out io.Writer, c *a2e.Client) error {
	notes, err := memory.Open(ctx, c, "")
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
		fmt.Fprintf(out, "remembered: %s\n", entry.Content)
	}
	return nil
}

func process(ctx context.Context, out io.Writer, c *a2e.Client) error {
	client, err := proc.NewClient(c)
	if err != nil {
		return err
	}
	output, err := client.Run(ctx, &proc.SpawnRequest{Cmd: []string{"echo", "hello"}}, nil)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "process: %s", output.Stdout)
	return nil
}
