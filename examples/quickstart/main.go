// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Command quickstart shows the protocols of this module in a few lines each, over real connections
// on this machine. It prints the results and ends by itself:
//
//	go run ./examples/quickstart
//
// Each protocol has a separate file here, and programs to copy in the same folder, such as
// arc-server and arc-client.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	timeout := flag.Duration("timeout", time.Minute, "maximum `duration` of the run")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

// run shows one protocol after the other.
func run(ctx context.Context, out io.Writer) error {
	for _, show := range []func(context.Context, io.Writer) error{showARC, showAIR, showA2E, showALTAR, showACCP} {
		if err := show(ctx, out); err != nil {
			return err
		}
	}
	fmt.Fprintln(out, "\nThat was all. The code is in examples/quickstart.")
	return nil
}

// heading prints what comes next.
func heading(out io.Writer, format string, args ...any) {
	fmt.Fprintf(out, "\n== "+format+"\n", args...)
}
