// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Command arc-client talks to the agents of arc-server: it gives one of them a
// task and follows it to its end, then chats with the other and prints the
// answer as it streams. It is a template to copy.
//
//	go run ./examples/arc-server &
//	go run ./examples/arc-client -text "The quick brown fox" -title Foxes
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/conversation"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "arc-client:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("arc-client", flag.ContinueOnError)
	url := flags.String("url", "http://localhost:8080/arc", "`URL` of the ARC endpoint")
	tokenFile := flags.String("token-file", "", "`file` with the access token")
	self := flags.String("agent", "example-client-01", "`id` of this agent")
	text := flags.String("text", "Agents that talk to each other need few words.", "`text` of the report")
	title := flags.String("title", "Few words", "`title` of the report")
	if err := flags.Parse(args); err != nil {
		return err
	}

	opts := &arc.ClientOptions{}
	if *tokenFile != "" {
		token, err := os.ReadFile(*tokenFile)
		if err != nil {
			return err
		}
		opts.TokenSource = arc.StaticTokenSource(strings.TrimSpace(string(token)))
	}
	client, err := arc.NewClient(*url, *self, opts)
	if err != nil {
		return err
	}
	defer client.Close()

	// All calls made with this context belong to one workflow.
	ctx = arc.ContextWithTraceID(ctx, "example-"+time.Now().UTC().Format("20060102-150405"))
	if err := report(ctx, out, client, *text, *title); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	if err := chat(ctx, out, client, *text); err != nil {
		return fmt.Errorf("chat: %w", err)
	}
	return nil
}

// report has a report written. The task may take long: it is followed, not
// waited for in one call.
func report(ctx context.Context, out io.Writer, client *arc.Client, text, title string) error {
	const agent = "report-01"
	task, err := client.CreateTask(ctx, agent, &arc.CreateTaskParams{InitialMessage: arc.UserText(text)}, nil)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: %s\n", task.ID, task.Status)
	outcome, err := client.WaitTask(ctx, agent, task.ID, nil)
	for err == nil && outcome.InputRequired {
		fmt.Fprintf(out, "%s: %s\n  %s\n  %s\n", task.ID, outcome.Task.Status, outcome.InputRequest().Text(), title)
		err = client.SendTaskInput(ctx, agent, &arc.SendTaskParams{TaskID: task.ID, Message: arc.UserText(title)}, nil)
		if err == nil {
			outcome, err = client.WaitTask(ctx, agent, task.ID, nil)
		}
	}
	if err != nil {
		return err // an [*arc.TaskError] if the task failed or was canceled
	}
	task = outcome.Task
	fmt.Fprintf(out, "%s: %s\n", task.ID, task.Status)
	for _, artifact := range task.Artifacts {
		for _, part := range artifact.Parts {
			content, err := part.Bytes()
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "%s (%s):\n%s\n", artifact.Name, part.Type, content)
		}
	}
	return nil
}

// chat sends two messages, and prints the answers as they arrive.
func chat(ctx context.Context, out io.Writer, client *arc.Client, text string) error {
	const agent = "tutor-01"
	talks, err := conversation.NewManager(client, nil) // remembers the chat of each agent
	if err != nil {
		return err
	}
	defer talks.Close(ctx) // ends the chats at the agent
	for _, line := range []string{text, "And once more."} {
		for ev, err := range talks.Stream(ctx, agent, arc.UserText(line), nil) {
			if err != nil {
				return err
			}
			fmt.Fprint(out, ev.Text)
		}
		fmt.Fprintln(out)
	}
	return nil
}
