// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Command a2e calls the capabilities of a host: one call, or a session in which each line is a
// call. Each verb has its own help: a2e call -h.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/catalogue"
	"github.com/fivewire/fivewire/internal/command"
)

func main() { program.Main() }

const tokenVariable = "A2E_TOKEN"

var program = &command.Command{
	Name:    "a2e",
	Summary: "Calls the capabilities of an A2E host.",
	Verbs: []command.Verb{
		{
			Name: "call", Arguments: "-url URL|-exec COMMAND [flags] TYPE [BODY]", Prepare: prepareCall,
			Summary: "Sends one request, such as tool/call, and writes its events and its answer as JSON.",
			Examples: "a2e call -exec ./host tool/list\n" +
				`a2e call -url http://localhost:8765 tool/call '{"tool_name":"count_words","arguments":{"text":"one two"}}'`,
		},
		{
			Name: "repl", Arguments: "-url URL|-exec COMMAND [flags]", Prepare: prepareREPL,
			Summary:  "Sends each line of standard input, a type and a JSON object, within one session.",
			Examples: "a2e repl -exec ./host -capabilities tools,memory\necho 'tool/list {}' | a2e repl -url ws://localhost:8765",
		},
		{
			Name: "inspect", Arguments: "[flags] FILE", Prepare: prepareInspect,
			Summary: "Shows the messages of a recording, or plays it back to a program and names the first difference.",
			Examples: "a2e call -record session.ndjson -exec ./host tool/list\na2e inspect -type 'tool/*/req' session.ndjson\n" +
				"a2e inspect -replay -exec ./agent session.ndjson",
		},
	},
}

// A session holds the flags of a connection.
type session struct {
	url, line, agent, capabilities, tokenFile, record string
	insecure                                          bool
	timeout                                           time.Duration

	file   *os.File // of the recording; nil without one
	remove func()   // removes the ended child from the groups; nil without one
}

func sessionFlags(fs *flag.FlagSet) *session {
	c := &session{}
	fs.StringVar(&c.url, "url", "", "`URL` of the host: http, https, ws or wss")
	fs.StringVar(&c.line, "exec", "", "`command` line of a host that speaks over its standard streams")
	fs.StringVar(&c.agent, "agent", "a2e-command", "`id` of this agent")
	fs.StringVar(&c.capabilities, "capabilities", "", "capabilities to ask for, separated by commas; without it, that of the type, or all")
	fs.StringVar(&c.tokenFile, "token-file", "", "`file` with the token; without it, the variable "+tokenVariable)
	fs.StringVar(&c.record, "record", "", "`file` that gets the messages of the session, without secrets")
	fs.BoolVar(&c.insecure, "allow-insecure", false, "permit plain http and ws to other machines")
	fs.DurationVar(&c.timeout, "timeout", time.Minute, "longest time of the handshake, and of a call")
	return c
}

// connect opens the session. Closing the client ends a child.
func (c *session) connect(ctx context.Context, s *command.IO, capabilities []string) (*a2e.Client, error) {
	token, err := command.Secret(c.tokenFile, tokenVariable)
	if err != nil {
		return nil, err
	}
	if c.capabilities != "" {
		capabilities = strings.Split(c.capabilities, ",")
	}
	log := c.logger(s)
	opts := &a2e.ClientOptions{AgentID: c.agent, Capabilities: capabilities, Token: token, Types: catalogue.Types(), Logger: log}
	if c.record != "" {
		if c.file, err = os.OpenFile(c.record, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600); err != nil {
			return nil, command.CouldNot(err)
		}
		opts.Record = c.file
	}
	conn, err := c.dial(ctx, s, log)
	if err != nil {
		return nil, errors.Join(err, c.close(nil))
	}
	client, err := a2e.NewClient(conn, opts)
	if err != nil {
		return nil, errors.Join(command.Usage("%w", err), conn.Close(), c.close(nil))
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	if _, err := client.Connect(ctx); err != nil {
		_ = c.close(client)
		return nil, status(err)
	}
	return client, nil
}

// close closes the client, which is nil if its connection has ended, and then the recording.
func (c *session) close(client *a2e.Client) (err error) {
	if client != nil {
		err = client.Close()
	}
	if c.remove != nil {
		c.remove()
	}
	if c.file != nil {
		err = errors.Join(err, c.file.Close())
	}
	return err
}

func (c *session) logger(s *command.IO) *slog.Logger {
	return slog.New(slog.NewTextHandler(s.Err, nil))
}

func (c *session) dial(ctx context.Context, s *command.IO, log *slog.Logger) (io.ReadWriteCloser, error) {
	switch {
	case (c.url == "") == (c.line == ""):
		return nil, command.Usage("want -url or -exec")
	case c.line != "":
		args := command.ShellArgs(c.line)
		cmd := exec.Command(args[0], args[1:]...)
		var child *a2e.Command
		remove, err := s.Groups.Start(cmd, func() (err error) {
			child, err = a2e.StartCommand(cmd, &a2e.CommandOptions{Logger: log})
			return err
		})
		if err != nil {
			return nil, command.CouldNot(err)
		}
		c.remove = remove
		return child, nil
	}
	var conn io.ReadWriteCloser
	var err error
	if scheme, _, _ := strings.Cut(c.url, ":"); scheme == "ws" || scheme == "wss" {
		conn, err = a2e.DialWebSocket(ctx, c.url, &a2e.WebSocketDialOptions{AllowInsecure: c.insecure, Logger: log})
	} else {
		conn, err = a2e.DialHTTP(ctx, c.url, &a2e.HTTPDialOptions{AllowInsecure: c.insecure, Logger: log})
	}
	return conn, command.CouldNot(err)
}

// status tells errors of the host, which are failures, from those of the connection.
func status(err error) error {
	var refused *a2e.Error
	var handshake *a2e.HandshakeError
	if errors.As(err, &handshake) || errors.As(err, &refused) && refused.Remote {
		return err
	}
	return command.CouldNot(err)
}

// types are the requests by name.
func types() map[string]a2e.Type {
	all := make(map[string]a2e.Type)
	for _, t := range catalogue.Types() {
		if t.Response != "" {
			all[t.Name] = t
		}
	}
	return all
}

// A caller makes the calls of a session.
type caller struct {
	codec   *a2e.Codec
	types   map[string]a2e.Type
	timeout time.Duration
}

func newCaller(timeout time.Duration) *caller {
	return &caller{codec: a2e.NewCodec(catalogue.Types()...), types: types(), timeout: timeout}
}

// requestType returns a type by its name, which may lack the suffix of requests.
func (c *caller) requestType(name string) (a2e.Type, error) {
	for _, n := range []string{name, name + "/req"} {
		if t, ok := c.types[n]; ok {
			return t, nil
		}
	}
	return a2e.Type{}, command.Usage("unknown request %q; there are: %s", name, strings.Join(slices.Sorted(maps.Keys(c.types)), " "))
}

// body returns the model of a type with the members of a JSON object, which may be absent.
func (c *caller) body(t *a2e.Type, object string) (any, error) {
	if strings.TrimSpace(object) == "" {
		object = "{}"
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal([]byte(object), &members); err != nil {
		return nil, command.Usage("the body of %s: want a JSON object: %w", t.Name, err)
	}
	if members == nil {
		return nil, command.Usage("the body of %s: want a JSON object, not null", t.Name)
	}
	for name, value := range map[string]any{"a2e": a2e.ProtocolVersion, "type": t.Name, "id": "m-1", "ts": 1} {
		members[name], _ = json.Marshal(value) // of a string or a number
	}
	line, err := json.Marshal(members)
	if err != nil {
		return nil, command.CouldNot(err)
	}
	m, err := c.codec.Decode(line)
	if err != nil {
		return nil, command.Usage("the body of %s: %w", t.Name, err)
	}
	return m.Body, nil
}

// call makes one call, and prints its events and its answer.
func (c *caller) call(ctx context.Context, s *command.IO, client *a2e.Client, t *a2e.Type, request any) error {
	var printed error
	answer, err := client.Call(ctx, t.Name, request, &a2e.CallOptions{
		Timeout: c.timeout, OnEvent: func(e a2e.Event) { printed = errors.Join(printed, c.print(s, e.Message)) },
	})
	if err != nil {
		return status(err)
	}
	return errors.Join(printed, c.print(s, answer))
}

// print writes a message as a line of JSON.
func (c *caller) print(s *command.IO, m *a2e.Message) error {
	line, err := c.codec.Append(nil, m)
	if err != nil {
		return command.CouldNot(err)
	}
	return s.Print(strings.TrimSuffix(string(line), "\n"), json.RawMessage(line))
}

func prepareCall(fs *flag.FlagSet) func(context.Context, *command.IO, []string) error {
	session := sessionFlags(fs)
	return func(ctx context.Context, s *command.IO, args []string) error {
		if len(args) == 0 || len(args) > 2 {
			return command.Usage("want TYPE and at most one object")
		}
		object := strings.Join(args[1:], "")
		if object == "-" {
			input, err := s.Read(ctx, "-")
			if err != nil {
				return err
			}
			object = string(input)
		}
		caller := newCaller(session.timeout)
		t, err := caller.requestType(args[0])
		if err != nil {
			return err
		}
		request, err := caller.body(&t, object)
		if err != nil {
			return err
		}
		client, err := session.connect(ctx, s, []string{t.Capability})
		if err != nil {
			return err
		}
		defer session.close(client)
		return caller.call(ctx, s, client, &t, request)
	}
}

func prepareREPL(fs *flag.FlagSet) func(context.Context, *command.IO, []string) error {
	session := sessionFlags(fs)
	return func(ctx context.Context, s *command.IO, args []string) error {
		if len(args) > 0 {
			return command.Usage("%q: one argument too many", args[0])
		}
		caller := newCaller(session.timeout)
		capabilities := make(map[string]bool)
		for _, t := range caller.types {
			if t.Capability != "" {
				capabilities[t.Capability] = true
			}
		}
		client, err := session.connect(ctx, s, slices.Sorted(maps.Keys(capabilities)))
		if err != nil {
			return err
		}
		defer session.close(client)
		failures := 0
		err = s.Lines(ctx, func(line string) error {
			err := caller.line(ctx, s, client, strings.TrimSpace(line))
			if err != nil {
				failures++
				fmt.Fprintf(s.Err, "a2e repl: %v\n", err)
			}
			if errors.Is(err, a2e.ErrClosed) {
				return command.CouldNot(err)
			}
			return nil
		})
		if err == nil && failures > 0 {
			err = fmt.Errorf("%d calls failed", failures)
		}
		return err
	}
}

// line makes the call of a line: a type, and an object.
func (c *caller) line(ctx context.Context, s *command.IO, client *a2e.Client, line string) error {
	name, object, _ := strings.Cut(line, " ")
	t, err := c.requestType(name)
	if err != nil {
		return err
	}
	request, err := c.body(&t, object)
	if err != nil {
		return err
	}
	return c.call(ctx, s, client, &t, request)
}
