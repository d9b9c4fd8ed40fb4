// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/webhook"
)

// showARC runs five agents behind one endpoint and a client that calls them: a task that requests
// input, a chat that streams, a webhook, and a question that passes three agents in one trace.
func showARC(ctx context.Context, out io.Writer) (err error) {
	fmt.Fprintln(out, "ARC: remote procedure calls between agents, over HTTP")

	srv, err := arc.NewServer(&arc.ServerOptions{
		Auth: arc.Auth{AllowAnonymous: true},
		// The webhook below is plain HTTP on this machine, which the default policy rejects for
		// security.
		Webhook: &arc.WebhookOptions{
			CallbackPolicy: arc.CallbackPolicy{AllowInsecure: true, AllowPrivate: true},
			Secrets: func(context.Context, string, string) ([]arc.WebhookSecret, error) {
				return []arc.WebhookSecret{webhookSecret}, nil
			},
		},
	})
	if err != nil {
		return err
	}
	web := httptest.NewServer(srv) // any http.Server will do
	defer func() {
		err = errors.Join(err, srv.Shutdown(ctx))
		web.Close()
	}()
	endpoint := web.URL + "/arc"

	srv.HandleTasks("writer-01", arc.TaskHandlerFunc(writer))
	srv.HandleChats("poet-01", arc.ChatHandlerFunc(poet))
	for name, next := range map[string]string{"desk-01": "archive-01", "archive-01": "cellar-01", "cellar-01": ""} {
		// These agents ask each other, so each is a client too.
		colleague, err := arc.NewClient(endpoint, name, nil)
		if err != nil {
			return err
		}
		defer colleague.Close()
		srv.Handle(name, "files.find", finder(colleague, next))
	}

	client, err := arc.NewClient(endpoint, "you-01", nil)
	if err != nil {
		return err
	}
	defer client.Close()
	for _, show := range []func(context.Context, io.Writer, *arc.Client) error{showTask, showStream, showTrace} {
		if err := show(ctx, out, client); err != nil {
			return err
		}
	}
	return nil
}

const webhookSecret arc.WebhookSecret = "a secret that both sides know"

// writer is an agent that works on tasks. It requests missing input.
func writer(ctx context.Context, run *arc.TaskRun) error {
	if err := run.AddMessage(ctx, arc.AgentText("For whom is it?")); err != nil {
		return err
	}
	reader, err := run.WaitInput(ctx, "audience")
	if err != nil {
		return err
	}
	return run.AddArtifact(ctx, &arc.Artifact{Name: "letter", Parts: []arc.Part{
		arc.TextPart("Dear " + reader.Text() + ",\n" + run.Message().Text() + "."),
	}})
}

// showTask creates a task, answers its question, and receives the end through a webhook.
func showTask(ctx context.Context, out io.Writer, client *arc.Client) error {
	heading(out, "A task that asks back, and a webhook that tells of its end")

	notified := make(chan *arc.Notification, 1)
	receiver, err := webhook.NewReceiver(arc.NotificationHandlerFunc(func(_ context.Context, n *arc.Notification) error {
		notified <- n
		return nil
	}), []arc.WebhookSecret{webhookSecret}, nil)
	if err != nil {
		return err
	}
	hook := httptest.NewServer(receiver)
	defer hook.Close()

	task, err := client.CreateTask(ctx, "writer-01", &arc.CreateTaskParams{
		InitialMessage: arc.UserText("the report is ready"),
		Priority:       arc.PriorityHigh,
	}, nil)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "created  a task for writer-01: %s\n", task.Status)
	if _, err := client.SubscribeTask(ctx, "writer-01", &arc.SubscribeParams{TaskID: task.ID, CallbackURL: hook.URL}, nil); err != nil {
		return err
	}

	task, err = await(ctx, client, "writer-01", task.ID, arc.TaskInputRequired)
	if err != nil {
		return err
	}
	question := task.Messages[len(task.Messages)-1]
	fmt.Fprintf(out, "asked    %q\n", question.Text())
	err = client.SendTaskInput(ctx, "writer-01", &arc.SendTaskParams{TaskID: task.ID, Message: arc.UserText("colleagues")}, nil)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "answered %q\n", "colleagues")

	select {
	case n := <-notified:
		fmt.Fprintf(out, "webhook  %s, signed and verified\n", n.Event)
	case <-ctx.Done():
		return ctx.Err()
	}
	task, err = client.GetTask(ctx, "writer-01", &arc.TaskInfoParams{TaskID: task.ID}, nil)
	if err != nil {
		return err
	}
	letter := arc.Message{Parts: task.Artifacts[0].Parts}
	fmt.Fprintf(out, "artifact %s:\n  %s\n", task.Artifacts[0].Name, strings.ReplaceAll(letter.Text(), "\n", "\n  "))
	return nil
}

// await asks for a task until it is in the state.
func await(ctx context.Context, client *arc.Client, agent, taskID string, state arc.TaskStatus) (*arc.Task, error) {
	for {
		task, err := client.GetTask(ctx, agent, &arc.TaskInfoParams{TaskID: taskID}, nil)
		if err != nil || task.Status == state {
			return task, err
		}
		if task.Status.Final() {
			return nil, fmt.Errorf("the task is %s", task.Status)
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// poet is an agent that chats. Its output arrives piece by piece.
func poet(_ context.Context, turn *arc.ChatTurn, out *arc.ChatWriter) error {
	for _, word := range []string{"A", " line", " about", " " + turn.Message.Text(), " that", " comes", " word", " by", " word", "."} {
		if err := out.Send(word); err != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond) // thinking
	}
	return nil
}

// showStream prints a streamed answer as it arrives, and continues the chat.
func showStream(ctx context.Context, out io.Writer, client *arc.Client) error {
	heading(out, "A chat whose answers stream")
	chatID := ""
	fmt.Fprint(out, "poet-01: ")
	for ev, err := range client.StreamChat(ctx, "poet-01", &arc.StartChatParams{InitialMessage: arc.UserText("rain")}, nil) {
		if err != nil {
			return err
		}
		chatID = ev.ChatID
		fmt.Fprint(out, ev.Text)
	}
	fmt.Fprint(out, "\npoet-01: ")
	for ev, err := range client.StreamChatMessage(ctx, "poet-01", &arc.ChatMessageParams{ChatID: chatID, Message: arc.UserText("the sun")}, nil) {
		if err != nil {
			return err
		}
		fmt.Fprint(out, ev.Text)
	}
	chat, err := client.EndChat(ctx, "poet-01", &arc.EndChatParams{ChatID: chatID}, nil)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\nthe chat is %s\n", chat.Status)
	return nil
}

// finder answers a method that this program invented, by asking the next agent.
// The context carries the trace from one to the next.
func finder(client *arc.Client, next string) arc.Handler {
	return arc.HandlerFunc(func(ctx context.Context, call *arc.Call) (any, error) {
		here := fmt.Sprintf("%s, asked by %s in trace %s", call.Agent, call.RequestAgent, call.TraceID)
		if next == "" {
			return map[string][]string{"way": {here}}, nil
		}
		res, err := client.Call(ctx, next, "files.find", call.Params, nil)
		if err != nil {
			return nil, err
		}
		var found struct {
			Way []string `json:"way"`
		}
		if err := res.Decode(&found); err != nil {
			return nil, err
		}
		return map[string][]string{"way": append([]string{here}, found.Way...)}, nil
	})
}

// showTrace sends one question through three agents.
func showTrace(ctx context.Context, out io.Writer, client *arc.Client) error {
	heading(out, "One question, three agents, one trace")
	ctx = arc.ContextWithTraceID(ctx, "quickstart-trace")
	res, err := client.Call(ctx, "desk-01", "files.find", map[string]string{"name": "contract.pdf"}, nil)
	if err != nil {
		return err
	}
	var found struct {
		Way []string `json:"way"`
	}
	if err := res.Decode(&found); err != nil {
		return err
	}
	for _, step := range found.Way {
		fmt.Fprintln(out, step)
	}
	// Failures carry the protocol's own codes.
	_, err = client.Call(ctx, "nobody-01", "files.find", struct{}{}, nil)
	if !errors.Is(err, arc.ErrAgentNotFound) {
		return fmt.Errorf("want an unknown agent, got %v", err)
	}
	fmt.Fprintln(out, "nobody-01:", err)
	return nil
}
