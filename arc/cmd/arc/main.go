// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Command arc calls agents over ARC, follows their tasks, probes endpoints, and serves a program as an agent. Each
// verb has its own help: arc call -h.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"strings"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/internal/command"
)

func main() { program.Main() }

const tokenVariable = "ARC_TOKEN"

var program = &command.Command{
	Name:    "arc",
	Summary: "Calls, probes and serves agents over ARC.",
	Verbs: []command.Verb{
		{
			Name: "call", Arguments: "[flags] URL AGENT [TEXT]", Prepare: prepareCall,
			Summary: "Sends a text, or standard input, as a task, waits for the result and writes it; or as a chat, or calls any method.",
			Examples: "arc call http://localhost:8080/arc upper-01 'some text'\n" +
				"arc call -chat http://localhost:8080/arc upper-01 <question.txt\n" +
				`arc call -method task.info -params '{"taskId":"ID"}' http://localhost:8080/arc upper-01`,
		},
		{
			Name: "watch", Arguments: "[flags] URL AGENT TASK", Prepare: prepareWatch,
			Summary:  "Writes each change of a task until it ends, and then its result.",
			Examples: "arc watch http://localhost:8080/arc upper-01 task-3g9k2j2wm20fvm5b8w11wg6q98",
		},
		{
			Name: "doctor", Arguments: "[flags] URL", Prepare: prepareDoctor,
			Summary: "Probes an endpoint within a minute and names each deviation with the profile or option to set.",
			Examples: "arc doctor http://localhost:8080/arc\n" +
				"arc doctor -agent upper-01 -o json http://localhost:8080/arc",
		},
		{
			Name: "serve", Arguments: "-agent ID -exec COMMAND [flags]", Prepare: prepareServe,
			Summary: "Serves a command as an agent: it reads the text of a task or of a chat message and writes the answer.",
			Examples: "arc serve -agent upper-01 -exec 'tr a-z A-Z' -allow-anonymous\n" +
				"ARC_TOKEN=... arc serve -agent upper-01 -exec 'tr a-z A-Z' -addr :8443 -cert cert.pem -cert-key key.pem",
		},
	},
}

// A caller holds the flags of verbs that call.
type caller struct {
	self, tokenFile string
	insecure        bool
}

func callerFlags(fs *flag.FlagSet) *caller {
	c := &caller{}
	fs.StringVar(&c.self, "self", "arc-command-01", "`id` of the calling agent")
	fs.StringVar(&c.tokenFile, "token-file", "", "`file` with the access token; without it, the variable "+tokenVariable)
	fs.BoolVar(&c.insecure, "allow-insecure", false, "permit plain http to other machines")
	return c
}

// client returns a client, and the agent that the second argument names.
func (c *caller) client(s *command.IO, args []string) (*arc.Client, error) {
	token, err := command.Secret(c.tokenFile, tokenVariable)
	if err != nil {
		return nil, err
	}
	opts := &arc.ClientOptions{AllowInsecure: c.insecure, Logger: slog.New(slog.NewTextHandler(s.Err, nil))}
	if token != "" {
		opts.TokenSource = arc.StaticTokenSource(token)
	}
	client, err := arc.NewClient(args[0], c.self, opts)
	if err != nil {
		return nil, command.Usage("%w", err)
	}
	return client, nil
}

// status tells answers of the server, which are failures, from errors of the connection.
func status(err error) error {
	var refused *arc.Error
	var failed *arc.TaskError
	if errors.As(err, &failed) || errors.As(err, &refused) && refused.Remote {
		return err
	}
	return command.CouldNot(err)
}

func prepareCall(fs *flag.FlagSet) func(context.Context, *command.IO, []string) error {
	caller := callerFlags(fs)
	isChat := fs.Bool("chat", false, "start a chat and write the answer as it arrives")
	method := fs.String("method", "", "call this `method` with -params")
	params := fs.String("params", "{}", "`JSON` object for -method")
	return func(ctx context.Context, s *command.IO, args []string) error {
		switch {
		case len(args) < 2 || len(args) > 3:
			return command.Usage("want URL, AGENT and at most one TEXT")
		case *method != "" && (*isChat || len(args) == 3):
			return command.Usage("-method has -params, and no -chat and TEXT")
		case !json.Valid([]byte(*params)):
			return command.Usage("-params: want JSON")
		}
		client, err := caller.client(s, args)
		if err != nil {
			return err
		}
		defer client.Close()
		if *method != "" {
			res, err := client.Call(ctx, args[1], *method, json.RawMessage(*params), nil)
			if err != nil {
				return status(err)
			}
			return s.Print(string(res.Result), res.Result)
		}
		text, err := input(ctx, s, args[2:])
		if err != nil {
			return err
		}
		if *isChat {
			return chat(ctx, s, client, args[1], text)
		}
		task, err := client.CreateTask(ctx, args[1], &arc.CreateTaskParams{InitialMessage: arc.UserText(text)}, nil)
		if err != nil {
			return status(err)
		}
		return wait(ctx, s, client, args[1], task.ID, nil)
	}
}

// input returns the text of an argument or of standard input.
func input(ctx context.Context, s *command.IO, args []string) (string, error) {
	if len(args) == 1 {
		return args[0], nil
	}
	b, err := s.Read(ctx, "-")
	return string(b), err
}

func chat(ctx context.Context, s *command.IO, client *arc.Client, agent, text string) error {
	var answer strings.Builder
	var last *arc.ChatEvent
	for ev, err := range client.StreamChat(ctx, agent, &arc.StartChatParams{InitialMessage: arc.UserText(text)}, nil) {
		if err != nil {
			return status(err)
		}
		last = ev
		answer.WriteString(ev.Text)
		if err := s.Piece(ev.Text); err != nil {
			return err
		}
	}
	if last == nil {
		return errors.New("the stream was empty")
	}
	return s.End(struct {
		ChatID string         `json:"chatId"`
		Status arc.ChatStatus `json:"status"`
		Text   string         `json:"text"`
	}{last.ChatID, last.Status, answer.String()})
}

func prepareWatch(fs *flag.FlagSet) func(context.Context, *command.IO, []string) error {
	caller := callerFlags(fs)
	return func(ctx context.Context, s *command.IO, args []string) error {
		if len(args) != 3 {
			return command.Usage("want URL, AGENT and TASK")
		}
		client, err := caller.client(s, args)
		if err != nil {
			return err
		}
		defer client.Close()
		return wait(ctx, s, client, args[1], args[2], func(task *arc.Task) {
			_ = s.Print(fmt.Sprintf("%s: %s", task.ID, task.Status), task) // the result reports a closed output
		})
	}
}

// wait waits for the end of a task or a question, and prints it: the artifacts, or else the last message of the agent.
func wait(ctx context.Context, s *command.IO, client *arc.Client, agent, id string, onUpdate func(*arc.Task)) error {
	result, err := client.WaitTask(ctx, agent, id, &arc.WaitOptions{OnUpdate: onUpdate})
	if err != nil {
		return status(err)
	}
	if result.InputRequired {
		return fmt.Errorf("task %s waits for input: %s", id, cmp.Or(result.InputRequest().Text(), result.Task.Reason))
	}
	var text []string
	for i := range result.Task.Artifacts {
		for j := range result.Task.Artifacts[i].Parts {
			part := &result.Task.Artifacts[i].Parts[j]
			content, err := part.Bytes()
			if err != nil { // not Base64
				content = []byte(part.Content)
			}
			text = append(text, string(content))
		}
	}
	if m := result.InputRequest(); m != nil && len(result.Task.Artifacts) == 0 {
		text = append(text, m.Text())
	}
	return s.Print(strings.Join(text, "\n"), result.Task)
}
