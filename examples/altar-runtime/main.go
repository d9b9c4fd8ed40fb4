// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Command altar-runtime adds two tools to altar-host: one that answers and one that streams. It is
// a template to copy.
//
//	go run ./examples/altar-runtime -url ws://localhost:8090
//
// It reconnects whenever the Host disconnects, and ends on Ctrl-C or SIGTERM, or after the time of
// the flag -for: calls in flight are answered first.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
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
		fmt.Fprintln(os.Stderr, "altar-runtime:", err)
		os.Exit(1)
	}
}

// A text is what both tools take. The contract at the Host must have the same
// parameters; what does not fit them never gets here.
type text struct {
	Text string `json:"text" description:"the text"`
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("altar-runtime", flag.ContinueOnError)
	flags.SetOutput(out)
	url := flags.String("url", "ws://localhost:8090", "`address` of the Host")
	keyFile := flags.String("key-file", "", "`file` with the API key; without it the key is example-runtime-key")
	span := flags.Duration("for", 0, "how long to run; 0 means until a signal")
	if err := flags.Parse(args); err != nil {
		return err
	}
	key := "example-runtime-key"
	if *keyFile != "" { // other users of the machine would see a key among the arguments
		text, err := os.ReadFile(*keyFile)
		if err != nil {
			return err
		}
		key = strings.TrimSpace(string(text))
	}
	if *span > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, *span)
		defer cancel()
	}

	rt, err := altar.NewRuntime("text-01", &altar.RuntimeOptions{
		Timing: altar.RuntimeTiming{Heartbeat: 10 * time.Second},
		Logger: slog.New(slog.NewTextHandler(out, nil)),
	})
	if err != nil {
		return err
	}
	altar.AddTool(rt, "text/upper", func(_ context.Context, in text) (string, error) {
		return strings.ToUpper(in.Text), nil
	})
	altar.AddStreamTool(rt, "text/words", func(ctx context.Context, in text, out *altar.ChunkWriter) error {
		for word := range strings.FieldsSeq(in.Text) {
			if err := out.Send(word); err != nil {
				return err // the client has disconnected, or the call was cancelled
			}
		}
		return nil
	})

	return rt.RunWithReconnect(ctx, func(ctx context.Context) (altar.Conn, error) {
		return altar.DialWebSocket(ctx, *url, &altar.WebSocketDialOptions{Header: http.Header{altar.APIKeyHeader: {key}}})
	})
}
