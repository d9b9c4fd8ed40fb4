// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Command altar-llm offers the tools of an ALTAR session and of an A2E host to a language model, with the official SDK of
// its vendor. It makes the calls of the model at the same time, and returns their results and refusals, which the model
// repairs. The files openai.go, anthropic.go and google.go are to be copied.
//
// Without -live the model is a recording on this machine, so the program needs no key and no network:
//
//	go run . -vendor anthropic
//	ANTHROPIC_API_KEY=... go run . -vendor anthropic -live
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

	"github.com/fivewire/fivewire/altar/llm"
)

// A vendor has a model.
type vendor struct {
	format llm.Vendor
	key    string // the variable of the environment with the key
	ask    func(ctx context.Context, url, key string, b *toolbox, question string) (answer string, err error)
}

var vendors = map[string]vendor{
	"openai":    {llm.OpenAIResponses, "OPENAI_API_KEY", askOpenAI},
	"anthropic": {llm.Anthropic, "ANTHROPIC_API_KEY", askAnthropic},
	"google":    {llm.Gemini, "GEMINI_API_KEY", askGoogle},
}

const question = "Transfer 12.50 to the account 9007199254740993, and count the words of 'one small step'."

func main() {
	timeout := flag.Duration("timeout", time.Minute, "maximum `duration` of the run")
	name := flag.String("vendor", "openai", "`vendor` of the model: openai, anthropic or google")
	isLive := flag.Bool("live", false, "use the model of the vendor, with the key of OPENAI_API_KEY, ANTHROPIC_API_KEY or GEMINI_API_KEY")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	if err := run(ctx, *name, *isLive, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "altar-llm:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, name string, isLive bool, out io.Writer) error {
	v, ok := vendors[name]
	if !ok {
		return fmt.Errorf("unknown vendor %q", name)
	}
	b, err := newToolbox(ctx, v.format, tools{})
	if err != nil {
		return err
	}
	defer b.close()
	url, key := "", os.Getenv(v.key)
	if !isLive {
		model := newRecording(v.format, script)
		defer model.Close()
		url, key = model.URL, "recorded"
	}
	b.log = func(call, result string) { fmt.Fprintf(out, "call: %s\nresult: %s\n", call, result) }
	answer, err := v.ask(ctx, url, key, b, question)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, "model:", answer)
	return err
}
