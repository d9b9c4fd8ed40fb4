// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Command altar-client calls the tools of altar-runtime through altar-host. It
// is a template to copy.
//
//	go run ./examples/altar-client -url ws://localhost:8090
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/fivewire/fivewire/altar"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "altar-client:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("altar-client", flag.ContinueOnError)
	flags.SetOutput(out)
	url := flags.String("url", "ws://localhost:8090", "`address` of the Host")
	keyFile := flags.String("key-file", "", "`file` with the API key; without it the key is example-client-key")
	if err := flags.Parse(args); err != nil {
		return err
	}
	key := "example-client-key"
	if *keyFile != "" { // other users of the machine would see a key among the arguments
		text, err := os.ReadFile(*keyFile)
		if err != nil {
			return err
		}
		key = strings.TrimSpace(string(text))
	}

	client, err := altar.NewClient(func(ctx context.Context) (altar.Conn, error) {
		return altar.DialWebSocket(ctx, *url, &altar.WebSocketDialOptions{Header: http.Header{altar.APIKeyHeader: {key}}})
	}, nil)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()

	// All calls belong to a session, which expires if this program exits early.
	session, err := client.CreateSession(ctx, &altar.CreateSessionParams{TTL: time.Minute})
	if err != nil {
		return err
	}
	defer func() { _ = session.Destroy(context.WithoutCancel(ctx)) }()

	tools, err := session.ListTools(ctx)
	if err != nil {
		return err
	}
	for _, tool := range tools {
		fmt.Fprintf(out, "tool %s: %s\n", tool.Name, tool.Description)
	}

	upper, err := altar.CallAs[string](ctx, session, "text/upper", map[string]string{"text": "hello"}, nil)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "upper:", upper)

	// A lost connection is restored, and the stream continues at the same position.
	for word, err := range altar.StreamAs[string](ctx, session, "text/words", map[string]string{"text": "one two three"}, nil) {
		if err != nil {
			return err
		}
		fmt.Fprintln(out, "word:", word)
	}

	// All errors in the parameters are reported at once.
	_, err = session.Call(ctx, "text/upper", map[string]any{"txet": 1}, nil)
	var refused *altar.Error
	if !errors.As(err, &refused) {
		return fmt.Errorf("the Host took parameters that are wrong: %w", err)
	}
	fmt.Fprintln(out, "refused:", refused.Message)
	return nil
}
