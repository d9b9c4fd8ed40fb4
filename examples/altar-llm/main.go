// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Command altar-llm offers contracts to the tool-calling API of a language model,
// makes the calls that the model asks for, and returns their results. The model is
// a recording, so the program needs no key and no network: replace the function
// model by a request to the API of your choice.
//
//	go run ./examples/altar-llm -vendor anthropic
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/llm"
)

func main() {
	timeout := flag.Duration("timeout", time.Minute, "maximum `duration` of the run")
	vendor := flag.String("vendor", string(llm.OpenAIChat), "`API` of the model: openai_chat, openai_responses, anthropic or gemini")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	if err := run(ctx, llm.Vendor(*vendor), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "altar-llm:", err)
		os.Exit(1)
	}
}

const manifest = `{"contracts":[{"name":"bank/transfer","description":"Transfers an amount in cents",
	"parameters":[{"name":"account","type":"integer","required":true,"description":"number of the account"},
	{"name":"cents","type":"integer","required":true},{"name":"receipt","type":"binary","description":"a file to attach"}]}]}`

// script is a recorded conversation: a call with three errors, then the corrected call. A float64
// cannot represent the account number exactly, so the model writes it as a string.
var script = []string{
	`{"account":"9007199254740993","cents":"12.50","memo":"rent","receipt":7}`,
	`{"account":"9007199254740993","cents":1250,"receipt":"aGVsbG8"}`,
}

// model plays the turns of the script in the form of a vendor. Its last turn has no call.
func model(vendor llm.Vendor, turn int, tool, result string) (call json.RawMessage, text string) {
	if turn == len(script) {
		return nil, "Done: " + result
	}
	arguments := script[turn]
	quoted := strconv.Quote(arguments)
	switch vendor {
	case llm.OpenAIChat:
		arguments = `{"id":"call-1","type":"function","function":{"name":"` + tool + `","arguments":` + quoted + `}}`
	case llm.OpenAIResponses:
		arguments = `{"type":"function_call","call_id":"call-1","name":"` + tool + `","arguments":` + quoted + `}`
	case llm.Anthropic:
		arguments = `{"type":"tool_use","id":"call-1","name":"` + tool + `","input":` + arguments + `}`
	case llm.Gemini:
		arguments = `{"functionCall":{"name":"` + tool + `","args":` + arguments + `}}`
	}
	return json.RawMessage(arguments), ""
}

type transfer struct {
	Account int64  `json:"account"`
	Cents   int64  `json:"cents"`
	Receipt []byte `json:"receipt,omitempty"`
}

func run(ctx context.Context, vendor llm.Vendor, out io.Writer) error {
	contracts, err := altar.DecodeManifest([]byte(manifest))
	if err != nil {
		return err
	}
	host, err := altar.NewHost(contracts, &altar.HostOptions{Auth: altar.Auth{
		Authorizer:     altar.AuthorizerFunc(altar.AllowAll),
		AllowAnonymous: true,
	}})
	if err != nil {
		return err
	}
	defer func() { _ = host.Close() }()

	// Runtime and client live in this process; in production they connect.
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	rt, err := altar.NewRuntime("bank-01", nil)
	if err != nil {
		return err
	}
	altar.AddTool(rt, "bank/transfer", func(_ context.Context, in transfer) (string, error) {
		return fmt.Sprintf("%d cents to %d, receipt of %d bytes", in.Cents, in.Account, len(in.Receipt)), nil
	})
	conn, err := host.Dial(&altar.Principal{ID: "bank"})
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- rt.Run(ctx, conn) }()
	client, err := altar.NewClient(func(context.Context) (altar.Conn, error) { return host.Dial(&altar.Principal{ID: "agent"}) }, nil)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	session, err := client.CreateSession(ctx, nil)
	if err != nil {
		return err
	}
	tools, err := listed(ctx, session)
	if err != nil {
		return err
	}

	if err := converse(ctx, session, vendor, tools, out); err != nil {
		return err
	}
	stop()
	return <-done
}

// converse runs the loop of a model: it offers the tools, makes each call of the model, and returns
// the result.
func converse(ctx context.Context, session *altar.Session, vendor llm.Vendor, tools []altar.ToolInfo, out io.Writer) error {
	offered, err := llm.Tools(tools, vendor, true)
	if err != nil {
		return err
	}
	list, err := json.Marshal(offered)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "offered:", string(list))

	var result json.RawMessage
	for turn := 0; ; turn++ {
		message, text := model(vendor, turn, offered[0].Name, string(result))
		if message == nil {
			fmt.Fprintln(out, "model:", text)
			return nil
		}
		fmt.Fprintln(out, "model calls:", string(message))
		call, err := llm.DecodeCall(vendor, message)
		if err != nil {
			return err
		}
		payload, err := answer(ctx, session, offered, call)
		result, err = llm.Result(vendor, call, payload, err)
		if err != nil {
			return err
		}
		fmt.Fprintln(out, "result:", string(result))
	}
}

// listed waits until the Runtime has announced its tools.
func listed(ctx context.Context, session *altar.Session) ([]altar.ToolInfo, error) {
	for {
		tools, err := session.ListTools(ctx)
		if err != nil || len(tools) > 0 {
			return tools, err
		}
	}
}

// answer makes a call. Its error goes back to the model, which can repair the call with it.
func answer(ctx context.Context, session *altar.Session, offered []llm.Tool, call *llm.Call) (json.RawMessage, error) {
	i := slices.IndexFunc(offered, func(t llm.Tool) bool { return t.Name == call.Name })
	if i < 0 {
		return nil, altar.Errorf(altar.ErrToolNotFound, "", "there is no tool %q", call.Name)
	}
	params, err := llm.Arguments(offered[i].Parameters, call.Arguments)
	if err != nil {
		return nil, err
	}
	r, err := session.Call(ctx, offered[i].Contract, params, nil)
	if err != nil {
		return nil, err
	}
	return r.Payload, nil
}
