// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Command altar-llm offers contracts to the tool-calling API of a language model
// as JSON Schema, and makes the calls that the model asks for. The model is a
// recording, so the program needs no key and no network: replace the function
// model by a request to the API of your choice.
//
//	go run ./examples/altar-llm
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/fivewire/fivewire/altar"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "altar-llm:", err)
		os.Exit(1)
	}
}

const manifest = `{"contracts":[{"name":"bank/transfer","description":"Transfers an amount in cents",
	"parameters":[{"name":"account","type":"integer","required":true,"description":"number of the account"},
	{"name":"cents","type":"integer","required":true},{"name":"receipt","type":"binary","description":"a file to attach"}]}]}`

// A toolCall is what such an API answers: the name of a tool and arguments in a
// string.
type toolCall struct {
	Name      string
	Arguments string
}

// model plays a recorded conversation: a call that is wrong in two places, and
// after the answer a right one. The account number is larger than what a float
// keeps, so the model writes it as a string.
func model(turn int, tools []altar.ModelTool, result string) (call *toolCall, text string) {
	switch turn {
	case 0:
		return &toolCall{tools[0].Name, `{"account":"9007199254740993","cents":"12.50","memo":"rent"}`}, ""
	case 1:
		return &toolCall{tools[0].Name, `{"account":"9007199254740993","cents":1250,"receipt":"aGVsbG8"}`}, ""
	}
	return nil, "Done: " + result
}

type transfer struct {
	Account int64  `json:"account"`
	Cents   int64  `json:"cents"`
	Receipt []byte `json:"receipt,omitempty"`
}

func run(ctx context.Context, out io.Writer) error {
	contracts, err := altar.DecodeManifest([]byte(manifest))
	if err != nil {
		return err
	}
	host, err := altar.NewHost(contracts, altar.AuthorizerFunc(altar.AllowAll), nil)
	if err != nil {
		return err
	}
	defer func() { _ = host.Close() }()

	// Runtime and client live in this process; in production they connect.
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	rt := altar.NewRuntime("bank-01", nil)
	altar.AddTool(rt, "bank/transfer", func(_ context.Context, in transfer) (string, error) {
		return fmt.Sprintf("%d cents to %d, receipt of %d bytes", in.Cents, in.Account, len(in.Receipt)), nil
	})
	conn, err := host.Dial(&altar.Principal{ID: "bank"})
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- rt.Run(ctx, conn) }()
	client := altar.NewClient(func(context.Context) (altar.Conn, error) { return host.Dial(&altar.Principal{ID: "agent"}) }, nil)
	defer func() { _ = client.Close() }()
	session, err := client.CreateSession(ctx, nil)
	if err != nil {
		return err
	}
	tools, err := listed(ctx, session)
	if err != nil {
		return err
	}

	offered, contract := altar.ModelTools(tools, &altar.SchemaOptions{IntegerStrings: true})
	schema, err := json.Marshal(offered[0])
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "offered:", string(schema))

	result := ""
	for turn := 0; ; turn++ {
		call, text := model(turn, offered, result)
		if call == nil {
			fmt.Fprintln(out, "model:", text)
			break
		}
		name := contract[call.Name]
		fmt.Fprintf(out, "model calls %s with %s\n", name, call.Arguments)
		params, err := altar.ModelArguments(tools[0].Parameters, []byte(call.Arguments))
		if err != nil {
			return err
		}
		result, err = answer(ctx, session, name, params)
		if err != nil {
			return err
		}
		fmt.Fprintln(out, "answer:", result)
	}
	stop()
	return <-done
}

// listed waits until the Runtime has said what it can do.
func listed(ctx context.Context, session *altar.Session) ([]altar.ToolInfo, error) {
	for {
		tools, err := session.ListTools(ctx)
		if err != nil || len(tools) > 0 {
			return tools, err
		}
	}
}

// answer makes a call. An error of the protocol goes back to the model, which
// can repair its call with it; any other error is ours.
func answer(ctx context.Context, session *altar.Session, name string, params json.RawMessage) (string, error) {
	r, err := session.Call(ctx, name, params, nil)
	var refused *altar.Error
	if errors.As(err, &refused) {
		text := string(refused.Code)
		for _, fault := range refused.ParamErrors() {
			text += ", " + fault.String()
		}
		return text, nil
	}
	if err != nil {
		return "", err
	}
	return string(r.Payload), nil
}
